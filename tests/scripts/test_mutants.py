"""The list of mutants is up to date; a slow test breaks the library by each of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.append(str(REPOSITORY / "scripts"))
mutants = pytest.importorskip("mutants")
ALL = mutants.listed()


def test_no_line_is_broken_twice():
    assert len({(mutant.file, mutant.old) for mutant in ALL}) == len(ALL)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: f"{mutant.file}: {mutant.old[:30]}")
def test_a_mutant_changes_a_line_that_is_there_and_names_a_test(mutant):
    assert (REPOSITORY / "lmbm_torch" / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    file, *_, name = mutant.test.partition("[")[0].split("::")
    assert f"def {name}(" in (REPOSITORY / file).read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_mutant_is_caught():
    with pytest.raises(SystemExit) as ended:
        mutants.main([])
    assert not ended.value.code
