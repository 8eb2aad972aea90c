"""Labellings of large expected measure under rules, against enumeration of what is allowed."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from strategies.sequential import random_sequential_energy
from sweeps import slow

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.expected import bayes
from lmbm_torch.inference.expected.measures import MEASURES
from lmbm_torch.inference.search import mixture

LABELS = 5
EVERYTHING = torch.tensor([*product([0, 1], repeat=LABELS)])
RULES = Constraints.of(["at_most_one(a, b, c)", "d -> not e", "at_least(1, a, d, e)"], list("abcde"))
ALLOWED = torch.from_numpy(~RULES.violated(EVERYTHING.numpy()).any(1))


def network(seed: int, size: float) -> DirectedEnergy:
    random = np.random.default_rng(seed)
    unary = torch.from_numpy(size * random.normal(size=(6, LABELS)))
    parents = torch.from_numpy(np.tril(size * random.normal(size=(LABELS, LABELS)), -1))
    return DirectedEnergy(unary=unary, parents=parents, ordering=torch.arange(LABELS))


def measured(measure: str, truth: torch.Tensor, found: torch.Tensor) -> float:
    both, sizes = int((truth * found).sum()), int(truth.sum() + found.sum())
    if measure == "hamming":
        return float((truth == found).double().mean())
    if measure == "f1":
        return 1.0 if sizes == 0 else 2 * both / sizes
    return 1.0 if sizes == 0 else both / (sizes - both)


def under_rules(energies: list[DirectedEnergy]) -> tuple[torch.Tensor, torch.Tensor]:
    """log P of every labelling, (6, labellings), and P given that the rules are obeyed."""
    log_prob = torch.stack([mixture.log_prob(energies, each.expand(6, -1)) for each in EVERYTHING], 1)
    probability = torch.where(ALLOWED, log_prob.exp(), 0)
    return log_prob, probability / probability.sum(1, keepdim=True)


def place(labels: torch.Tensor) -> torch.Tensor:
    return labels @ (2 ** torch.arange(LABELS - 1, -1, -1))


@pytest.mark.parametrize("limits", [{"tolerance": 1e-9}, {"tolerance": 0.3}, {"max_labellings": 4}])
@pytest.mark.parametrize("size", [0.2, 2.0])
@pytest.mark.parametrize("members", [slow(1), 2])
@pytest.mark.parametrize("measure", MEASURES)
def test_the_regret_holds_what_any_allowed_labels_are_worth_more(measure, members, size, limits):
    table = torch.tensor([[measured(measure, y, z) for z in EVERYTHING] for y in EVERYTHING]).double()
    for seed in range(5):
        energies = [network(10 * seed + member, size) for member in range(members)]
        found = bayes.decode_allowed(energies, measure, RULES, **limits)
        assert found.regret is not None
        assert not RULES.violated(found.labels.numpy()).any()
        worth = under_rules(energies)[1] @ table
        own, best = worth[torch.arange(6), place(found.labels)], worth[:, ALLOWED].amax(1)
        assert (found.objective <= own + 1e-6).all()
        assert (best <= found.bound + 1e-6).all()
        assert (best - own <= found.regret + 1e-6).all()
        if limits == {"tolerance": 1e-9}:
            # Of five labels all that is allowed is compared.
            torch.testing.assert_close(found.objective, own, atol=1e-6, rtol=0)
            torch.testing.assert_close(own, best, atol=1e-6, rtol=0)


@pytest.mark.parametrize("limits", [{"tolerance": 1e-9}, {"tolerance": 0.3}, {"max_labellings": 4}])
@pytest.mark.parametrize("members", [1, 2])
def test_the_most_probable_allowed_labels_have_log_probabilities(members, limits):
    for seed in range(5):
        energies = [network(10 * seed + member, 1.0) for member in range(members)]
        found = bayes.decode_most_probable(energies, RULES, **limits)
        log_prob, _ = under_rules(energies)
        torch.testing.assert_close(found.objective, log_prob[torch.arange(6), place(found.labels)])
        best = log_prob[:, ALLOWED].amax(1)
        assert (best <= found.bound + 1e-6).all()
        assert (found.bound <= 0).all()
        torch.testing.assert_close(found.objective[found.status.exact], best[found.status.exact])
        if limits == {"tolerance": 1e-9}:
            torch.testing.assert_close(found.objective, best)


def test_what_is_known_is_kept_where_nothing_likely_is_allowed():
    known = torch.full((6, LABELS), torch.nan, dtype=torch.float64)
    known[:, 2] = 1
    found = bayes.decode_allowed([network(0, 3.0)], "f1", RULES, known=known, max_labellings=1)
    assert (found.labels[:, 2] == 1).all()
    assert not RULES.violated(found.labels.numpy()).any()
    assert (found.regret >= 0).all()
    known[:, 1] = 1
    with pytest.raises(ValueError, match="known: expected values that the rules allow"):
        bayes.decode_allowed([network(0, 3.0)], "f1", RULES, known=known)


@pytest.mark.parametrize("measure", MEASURES)
def test_what_is_known_is_kept_where_it_is_impossible(measure):
    known = torch.full((6, LABELS), torch.nan, dtype=torch.float64)
    known[:, 0], known[:, 3] = 1, 0
    form = {"num_states": (2,) * LABELS, "batch_size": 6, "impossible": 0.5}
    energies = [random_sequential_energy(seed, **form) for seed in range(4)]
    was_impossible = 0
    for energy in energies:
        found = bayes.decode_allowed([energy], measure, RULES, known=known)
        assert (found.labels[:, [0, 3]] == torch.tensor([1, 0])).all()
        assert not RULES.violated(found.labels.numpy()).any()
        assert found.status.converged.all()
        rows = found.mass_left == 1
        was_impossible += int(rows.sum())
        assert not found.status.exact[rows].any()
        best = bayes.decode_most_probable([energy], RULES, known=known)
        assert (best.labels[:, [0, 3]] == torch.tensor([1, 0])).all()
        assert (best.bound >= best.objective).all()
    assert 0 < was_impossible < 24
