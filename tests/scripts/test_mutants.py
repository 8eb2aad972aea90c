"""The list of mutants is up to date; a slow test breaks the library by each of them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.append(str(REPOSITORY / "scripts"))
mutants = pytest.importorskip("mutants")
ALL = mutants.listed()
NAMED = (ast.FunctionDef, ast.ClassDef)


def test_no_line_is_broken_twice():
    assert len({(mutant.file, mutant.old) for mutant in ALL}) == len(ALL)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: f"{mutant.file}: {mutant.old[:30]}")
def test_a_mutant_changes_a_line_that_is_there(mutant):
    assert mutant.path(REPOSITORY).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old


@pytest.mark.parametrize("test", sorted({mutant.test for mutant in ALL}))
def test_every_named_test_stands_in_its_file(test):
    file, *names = test.partition("[")[0].split("::")
    body: list[ast.stmt] = ast.parse((REPOSITORY / file).read_text(encoding="utf-8")).body
    for name in names:
        found = [each for each in body if isinstance(each, NAMED) and each.name == name]
        assert found
        body = found[0].body


@pytest.mark.slow
def test_every_mutant_is_caught():
    with pytest.raises(SystemExit) as ended:
        mutants.main([])
    assert not ended.value.code
