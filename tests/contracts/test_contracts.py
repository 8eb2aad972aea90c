"""Every routine of the tables keeps every promise that its capabilities imply."""

from __future__ import annotations

import pytest

from contracts import bipartite as bipartite_contracts
from contracts import directed as directed_contracts
from contracts import pairwise as pairwise_contracts
from contracts.promises import CHECKS

KINDS = {
    "directed": directed_contracts.KIND,
    "pairwise": pairwise_contracts.KIND,
    "bipartite": bipartite_contracts.KIND,
}


@pytest.mark.parametrize(
    ("check", "kind", "routine"),
    [
        pytest.param(
            check, kind, routine, id=f"{check.__name__.removeprefix('check_')}-{name}-{routine.name}"
        )
        for name, kind in KINDS.items()
        for check, applies in (*CHECKS, *kind.checks)
        for routine in kind.routines
        if applies(routine)
    ],
)
def test_contract(check, kind, routine):
    check(kind, routine)
