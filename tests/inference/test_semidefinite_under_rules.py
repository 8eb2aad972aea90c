"""Semidefinite branch and bound over labellings that obey rules, against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.constraints import Constraints
from lmbm_torch.inference import decode
from lmbm_torch.inference.relaxations.semidefinite import decoding as semidefinite
from lmbm_torch.inference.relaxations.semidefinite import spin_search
from lmbm_torch.inference.relaxations.semidefinite.spin_problems import RuleTerms

LABELS = 9
NAMES = [f"l{label}" for label in range(LABELS)]
RULES = (
    ["at_most_one(l0, l1, l2)"],
    ["exactly_one(l0, l1, l2, l3)", "l4 -> not l5"],
    ["at_least(2, l3, l4, l5, l6)", "l6 and l7 -> l8"],
    ["l0 -> l1", "l1 -> l2", "2*l3 + 3*l4 + l5 <= 4"],
)
ALL = torch.tensor(list(itertools.product((0.0, 1.0), repeat=LABELS)), dtype=torch.float64)


@pytest.fixture(autouse=True)
def bounded(monkeypatch):
    """Enumerate hardly anything, so that bounds and rules have to do it."""
    monkeypatch.setattr(spin_search, "ENUMERATED", 5)


def rules(number: int) -> Constraints:
    return Constraints.of(RULES[number], NAMES)


def allowed(constraints: Constraints, known: torch.Tensor) -> torch.Tensor:
    """All labellings that obey the rules and agree with what is known (labels,)."""
    agrees = (known == ALL) | known.isnan()
    return ALL[torch.from_numpy(~constraints.violated(ALL.numpy()).any(1)) & agrees.all(1)]


def given(number: int) -> torch.Tensor:
    known = torch.full((2, LABELS), torch.nan, dtype=torch.float64)
    if number % 2:
        known[0, 8] = 1.0
    return known


@pytest.mark.parametrize("number", range(len(RULES)))
@pytest.mark.parametrize("coupling", [0.3, 3.0])
def test_scores_equal_enumeration(number, coupling):
    energy, constraints = random_pairwise_energy(number, LABELS, 2, coupling=coupling), rules(number)
    known = given(number)
    for top_k in (1, 3):
        found = semidefinite.decode(energy, known=known, constraints=constraints, top_k=top_k)
        assert found.status.exact.all()
        assert not constraints.violated(found.labels.reshape(-1, LABELS).numpy()).any()
        for row in range(2):
            scores = energy.select([row]).score(allowed(constraints, known[row])[:, None]).flatten()
            best = scores.sort(descending=True).values[:top_k]
            torch.testing.assert_close(found.objective[row].reshape(-1), best, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("number", range(len(RULES)))
def test_a_limit_leaves_an_allowed_labelling_and_a_bound(number):
    energy, constraints = random_pairwise_energy(7, LABELS, 2, coupling=3.0), rules(number)
    found = semidefinite.decode(energy, constraints=constraints, node_limit=1)
    exact = semidefinite.decode(energy, constraints=constraints)
    assert not constraints.violated(found.labels.numpy()).any()
    assert (found.bound >= exact.objective - 1e-9).all()
    assert (found.objective <= exact.objective + 1e-9).all()


def test_an_allowed_labelling_is_there_whatever_rounding_finds(monkeypatch):
    monkeypatch.setattr(spin_search, "climbed", lambda problem, spins, trust: np.ones_like(spins))
    monkeypatch.setattr(spin_search, "prove_bound", lambda relaxation, bound, *others: bound)
    energy = random_pairwise_energy(1, LABELS, 2, coupling=1.0)
    found = semidefinite.decode(energy, constraints=rules(0), node_limit=1)
    assert not rules(0).violated(found.labels.numpy()).any()
    assert found.objective.isfinite().all()


def test_products_of_rules_are_not_below_zero_where_these_are_obeyed():
    spins = np.insert(2 * ALL.numpy() - 1, 0, 1, axis=1)
    for number in range(len(RULES)):
        constraints = rules(number)
        terms = RuleTerms.of(constraints)
        products = (spins @ terms.one.T) * (spins @ terms.other.T)
        obeys = ~constraints.violated(ALL.numpy()).any(1)
        assert products[obeys].min() >= 0
        assert (products[~obeys] < 0).any(1).all()
        prices = np.random.default_rng(number).random(len(terms.rule))
        np.testing.assert_allclose(
            np.einsum("rs,st,rt->r", spins, terms.weighted(prices), spins), products @ prices, atol=1e-9
        )


def test_dense_machines_are_proven_under_rules_by_default():
    """Labels which neither the other search nor a linear programme proves."""
    labels = 45
    energy = random_pairwise_energy(0, labels, 1, coupling=1.0)
    groups = [range(start, start + 5) for start in range(0, labels, 5)]
    text = [f"exactly_one({', '.join(f'l{label}' for label in group)})" for group in groups]
    constraints = Constraints.of(text, [f"l{label}" for label in range(labels)])
    found = decode(energy, node_limit=None, constraints=constraints)
    assert found.status.exact.all()
    assert (found.labels.reshape(-1, 5).sum(1) == 1).all()


def test_what_rules_do_not_allow_is_refused():
    energy = random_pairwise_energy(0, LABELS, 1, coupling=1.0)
    known = torch.full((1, LABELS), torch.nan)
    known[0, :2] = 1.0
    with pytest.raises(ValueError, match="contradiction together with the known labels"):
        semidefinite.decode(energy, known=known, constraints=rules(0))
    only = Constraints.of([f"l{label} -> l0" for label in range(1, LABELS)] + ["not l0"], NAMES)
    with pytest.raises(ValueError, match="top_k: expected at most what the rules allow"):
        semidefinite.decode(energy, constraints=only, top_k=2)
    with pytest.raises(ValueError, match=f"constraints: expected rules over {LABELS} labels"):
        semidefinite.decode(energy, constraints=Constraints.of(["a -> b"], ["a", "b"]))
