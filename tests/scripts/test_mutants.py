"""The list of mutants is up to date; a slow test breaks the library by each of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.append(str(REPOSITORY / "scripts"))
mutants = pytest.importorskip("mutants")
ALL = mutants.listed()


def test_no_line_is_broken_twice():
    assert len({(mutant.file, mutant.old) for mutant in ALL}) == len(ALL)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: f"{mutant.file}: {mutant.old[:30]}")
def test_a_mutant_changes_a_line_that_is_there(mutant):
    assert mutant.path(REPOSITORY).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old


@cache
def functions(path):
    """Return the names of a file's functions; of a folder none."""
    place = REPOSITORY / path
    tree = ast.parse("" if place.is_dir() else place.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", sorted({mutant.test for mutant in ALL}))
def test_a_named_test_is_there(name):
    path, _, function = name.partition("::")
    assert not function or function.partition("[")[0] in functions(path)


@pytest.mark.slow
def test_all_tests_that_are_named_can_be_collected():
    named = sorted({mutant.test for mutant in ALL})
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "", "-p", "no:cacheprovider"]
    run = subprocess.run([*command, *named], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_every_mutant_is_caught():
    with pytest.raises(SystemExit) as ended:
        mutants.main([])
    assert not ended.value.code
