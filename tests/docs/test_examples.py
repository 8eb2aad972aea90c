"""Examples in the docstrings of public names run, and the names without one only become fewer."""

from __future__ import annotations

import ast
import doctest
import inspect
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import measure_size

# Of the classes and functions in the lists of packages.
MOST_WITHOUT = 76
SOURCES = measure_size.sources()
PACKAGES = sorted({module.rpartition(".")[0] for module in SOURCES if "." in module and "._" not in module})
# With examples, in no list of a package.
OTHERS = sorted(
    {
        f"{module}.{node.name}"
        for module, source in SOURCES.items()
        for node in ast.parse(source).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ">>>" in (ast.get_docstring(node) or "")
    }
    - measure_size.public_names(SOURCES, packages_alone=True)
)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def public(package: str) -> dict[str, type | types.FunctionType]:
    """Return the classes and functions that a package lists."""
    module = import_module(package)
    listed = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    return {name: each for name, each in listed.items() if inspect.isclass(each) or inspect.isfunction(each)}


def failures(name: str, documented: object) -> list[str]:
    """Return the reports of the examples of one docstring that do not print what stands there."""
    reports: list[str] = []
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=FLAGS)
    for each in finder.find(documented, name, module=False, globs={}):
        torch.manual_seed(0)
        runner.run(each, out=reports.append)
    return reports


@pytest.mark.parametrize("package", PACKAGES)
def test_examples_of_a_package_print_what_they_show(package):
    assert [report for name, each in public(package).items() for report in failures(name, each)] == []


@pytest.mark.parametrize("name", OTHERS)
def test_examples_of_other_names_print_what_they_show(name):
    module, _, own = name.rpartition(".")
    assert failures(own, getattr(import_module(module), own)) == []


def test_no_more_names_lack_examples_than_did():
    every = {each: name for package in PACKAGES for name, each in public(package).items()}
    lacking = sorted(name for each, name in every.items() if "Examples:\n" not in (each.__doc__ or ""))
    assert len(lacking) <= MOST_WITHOUT, lacking


def test_a_wrong_example_fails():
    def toy():
        """Return one.

        Examples:
            >>> 1 + 1
            3
        """

    assert "Expected:\n    3\nGot:\n    2\n" in "".join(failures("toy", toy))
