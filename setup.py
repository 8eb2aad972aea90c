"""The packages, and the project's home, if whoever builds it knows one; all else is in pyproject.toml.

The folder ``conf`` stands at the top of the repository and becomes ``lmbm_torch/conf`` of a package.

GitHub's workflows say it in GITHUB_REPOSITORY, ``owner/name``. Pages of the package then link to it, and the
README's links and images, which are relative here, do so there; without one they stay as they are.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

HOME = os.environ.get("GITHUB_REPOSITORY", "")
README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")


def urls(home: str) -> dict[str, str]:
    """The project's addresses, by their names."""
    owner, name = home.split("/")
    source = f"https://github.com/{home}"
    return {
        "Source": source,
        "Documentation": f"https://{owner}.github.io/{name}",
        "Issues": f"{source}/issues",
        "Changelog": f"{source}/blob/main/CHANGELOG.md",
    }


def absolute(markdown: str, home: str) -> str:
    """Markdown whose relative links lead to the home: images to their files, all else to pages."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[1].endswith((".png", ".svg")) else "blob"
        return f"](https://github.com/{home}/{kind}/main/{found[1]})"

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", link, markdown)


setup(
    packages=[*find_packages(include=["lmbm_torch*"]), "lmbm_torch.conf"],
    package_dir={"lmbm_torch.conf": "conf"},
    long_description=absolute(README, HOME) if HOME else README,
    long_description_content_type="text/markdown",
    project_urls=urls(HOME) if HOME else {},
)
