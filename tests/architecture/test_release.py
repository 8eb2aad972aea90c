"""The version stands in the library, and the files that repeat the version agree with the library."""

from __future__ import annotations

import re
from pathlib import Path

import lmbm_torch

REPOSITORY = Path(lmbm_torch.__file__).parents[1]


def test_citation_and_changelog_name_the_version_of_the_library():
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [lmbm_torch.__version__]
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[0] == lmbm_torch.__version__


def test_a_release_tries_the_versions_of_python_that_the_package_names():
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    release = (REPOSITORY / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert f"python-version: {named}".replace("'", '"') in release
