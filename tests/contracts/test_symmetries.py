"""Labels, units or states renamed, or 0 and 1 exchanged, change results in the same way and in no other."""

from __future__ import annotations

import pytest

from contracts.results import assert_same
from contracts.routines import ROWS

PAIRS = [
    pytest.param(row, name, id=f"{name}-{row}", marks=row.marks)
    for row in ROWS
    for name in row.kind.symmetries
    if not row.is_random and name not in row.breaks
]


@pytest.mark.parametrize(("row", "symmetry"), PAIRS)
def test_results_follow_the_names(row, symmetry):
    for seed, case in enumerate(row.each_form()):
        changed = row.kind.symmetries[symmetry](seed, case.energy, case.known)
        expected = {name: changed.result(row.schema[name], t) for name, t in case.result.items()}
        came = row(changed.energy, changed.known)
        assert_same(came, expected, apart=frozenset(row.incidental), **row.limits)
