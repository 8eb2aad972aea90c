"""Results are what enumeration says they are: exactly, or a bound from the side that is promised."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contracts.enumerations import Objective
from contracts.routines import rows_that
from contracts.rows import Case, Row
from lmbm_torch.energies import ChainEnergy

ROUND_OFF = 1e-6
RELATIONS = {
    "==": torch.testing.assert_close,
    "<=": lambda came, limit: _assert_holds(came <= limit + ROUND_OFF, came, limit),
    ">=": lambda came, limit: _assert_holds(came >= limit - ROUND_OFF, came, limit),
}


def _assert_holds(holds: Tensor, came: Tensor, limit: Tensor) -> None:
    assert holds.all(), (came, limit)


def values(row: Row, case: Case) -> Tensor:
    """Every labelling's objective as if larger were better, (labellings, batch); −∞ if it is not allowed."""
    assert row.decodes is not None
    every = row.enumeration(case)
    found = row.decodes.sign * row.decodes.value(every, every.labels)
    return found.masked_fill(every.scores.isneginf(), -torch.inf)


def value_of(row: Row, case: Case, labels: Tensor) -> Tensor:
    """The objective of labels, (…, batch, labels), as if larger were better."""
    objective: Objective | None = row.decodes
    assert objective is not None
    return objective.sign * objective.value(row.enumeration(case), labels)


@rows_that(lambda row: row.claims)
def test_claims_hold_by_enumeration(row):
    for case in row.cases():
        every = row.enumeration(case)
        for claim in row.claims:
            name, relation, quantity = claim.split()
            RELATIONS[relation](case.result[name], getattr(every, quantity))


@rows_that(lambda row: row.decodes)
def test_decodings_are_worth_what_they_say_and_bounds_are_bounds(row):
    for case in row.cases():
        best = values(row, case).amax(0)
        objective, bound = (row.decodes.sign * case.result[name] for name in ("objective", "bound"))
        torch.testing.assert_close(value_of(row, case, case.result["labels"][None])[0], objective)
        assert (objective <= best + ROUND_OFF).all()
        assert (bound >= best - ROUND_OFF).all()
        exact = case.result["status.exact"]
        limits = {"rtol": 1e-5, "atol": ROUND_OFF} if row.incidental else {}
        torch.testing.assert_close(objective[exact], best[exact], **limits)
        torch.testing.assert_close(bound[exact], best[exact], **limits)
        if row.residual_is_gap:
            torch.testing.assert_close(case.result["status.residual"], bound - objective)


@rows_that(lambda row: row.proven)
def test_every_answer_is_proven(row):
    for case in row.cases():
        assert case.result["status.exact"].all()
        assert case.result["status.converged"].all()
        assert (case.result["status.residual"] == 0).all()


@rows_that(lambda row: "top_k" in row.takes)
def test_the_best_few_come_best_first(row):
    for case in row.cases():
        ranked = values(row, case).sort(0, descending=True).values
        counts = ranked.isfinite().sum(0)
        most = int(counts.min())
        for top_k in {1, min(3, most), most}:
            found = row(case.energy, case.known, top_k=top_k)
            if top_k == 1:
                assert found.keys() == case.result.keys()
                assert all(torch.equal(found[name], case.result[name]) for name in found)
                continue
            batch, *_ = found["labels"].shape
            assert found["labels"].shape == (batch, top_k, case.result["labels"].shape[-1])
            assert all(len(labels.unique(dim=0)) == top_k for labels in found["labels"])
            objective, bound = (row.decodes.sign * found[name] for name in ("objective", "bound"))
            torch.testing.assert_close(objective, ranked[:top_k].mT)
            torch.testing.assert_close(value_of(row, case, found["labels"].transpose(0, 1)).mT, objective)
            torch.testing.assert_close(bound, ranked[top_k - 1])
            assert (objective.diff(dim=-1) <= 0).all()
            assert found["status.exact"].all()
        # Chains of a batch have lengths of their own, and as many labellings as these allow.
        beyond = int(counts.max()) if isinstance(case.energy, ChainEnergy) else most
        for refused in (0, beyond + 1):
            with pytest.raises(ValueError, match=r"^top_k: expected"):
                row(case.energy, case.known, top_k=refused)
