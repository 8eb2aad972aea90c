"""The checker of certificates is another program than the library, and its modules import one way."""

from __future__ import annotations

import ast
import sys

import pytest
from forgeries import SCRIPTS

sys.path.insert(0, str(SCRIPTS))

import measure_size

CHECKER = "certificate_checker"
SOURCES = {
    f"{CHECKER}.{path.stem}": path.read_text(encoding="utf-8") for path in (SCRIPTS / CHECKER).glob("*.py")
}


@pytest.mark.parametrize("module", SOURCES)
def test_checker_imports_numpy_and_the_standard_library_alone(module):
    names = set()
    for node in ast.walk(ast.parse(SOURCES[module])):
        if isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "numpy", CHECKER}


def test_checker_has_no_circle_of_imports():
    rooms = measure_size.arrows(SOURCES, CHECKER)
    assert rooms["__main__"] >= {"decodings", "training"}
    assert measure_size.arrows_back(rooms) == 0
