"""constraints-oldest.txt pins what the recommended installation may be as old as."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from test_imports import ROOT

REPOSITORY = ROOT.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def libraries(requirements: list[str]) -> Iterator[str]:
    """What requirements and the extras among them come to."""
    for requirement in requirements:
        if extras := re.match(r"lmbm-torch\[(.+)\]$", requirement):
            for extra in extras[1].split(","):
                yield from libraries(PROJECT["optional-dependencies"][extra])
        else:
            yield requirement


def test_the_oldest_versions_are_those_of_the_project():
    needed = [*PROJECT["dependencies"], *libraries(["lmbm-torch[all]"])]
    oldest = {re.sub(r"^([\w.-]+)>=([\d.]+).*$", r"\1==\2.*", requirement) for requirement in needed}
    lines = (REPOSITORY / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    assert {line for line in lines if not line.startswith("#")} == oldest
