"""Every routine of the table keeps every promise that its capabilities imply."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("pairwise_contracts")

from pairwise_contracts import CHECKS, ROUTINES  # noqa: E402


@pytest.mark.parametrize(
    ("check", "routine"),
    [
        pytest.param(check, routine, id=f"{check.__name__.removeprefix('check_')}-{routine.name}")
        for check, applies in CHECKS
        for routine in ROUTINES
        if applies(routine)
    ],
)
def test_contract(check, routine):
    check(routine)
