"""Names that other libraries keep to themselves are used in two guarded places alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_imports import ROOT

# Taken away by tests/kernels/test_numba_internals.py and tests/test_torch_internals.py.
GUARDED = {
    "kernels/numba_internals.py",
    "torch_internals.py",
}
# Documented by Python itself.
OF_PYTHON = {"os._exit", "sys._getframe"}


def is_private(name: str) -> bool:
    parts = name.split(".")
    hidden = [part for part in parts if part.startswith("_") and not part.endswith("__")]
    return parts[0] not in ("lmbm_torch", "__future__") and bool(hidden or name.startswith("numba.core"))


def private_names(code: str) -> Iterator[str]:
    """The private names of other libraries that code imports, or reads from a module that it has imported."""
    tree = ast.parse(code)
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        else:
            continue
        modules |= names
        yield from filter(is_private, names.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            path, root = [node.attr], node.value
            while isinstance(root, ast.Attribute):
                path.insert(0, root.attr)
                root = root.value
            # Of a class of ours that something has been imported for, such as Mapping, nothing is private.
            if isinstance(root, ast.Name) and modules.get(root.id, "lmbm_torch").islower():
                name = ".".join([modules.get(root.id, "lmbm_torch").partition(".")[0], *path])
                if is_private(name) and name not in OF_PYTHON:
                    yield name


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from sklearn.utils import _safe_indexing", ["sklearn.utils._safe_indexing"]),
        ("from torch._C import _functorch", ["torch._C._functorch"]),
        ("import numba.core.caching", ["numba.core.caching"]),
        ("import torch\ntorch._assert_async(1)", ["torch._assert_async"]),
        ("import sys, torch\nsys._getframe(), torch.__version__, self._own", []),
        ("from lmbm_torch.inference import _own", []),
    ],
)
def test_private_names_are_found(code, found):
    assert list(private_names(code)) == found


FOLDERS = [ROOT, ROOT.parent / "scripts", ROOT.parent / "examples"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_nothing_private_of_others_is_used_elsewhere(folder: Path):
    files = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.py")}
    assert len(files) > 5
    used = {name: sorted(private_names(code)) for name, code in files.items()}
    assert {name for name, names in used.items() if names} == (GUARDED if folder == ROOT else set())
