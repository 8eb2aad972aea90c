"""Programmes with a row for each rule, against enumeration of the labellings that obey them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from problems.rules import random_rules
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.relaxations import integer_program, lp_relaxation

BATCH = 3


def problem(seed: int):
    """An energy, rules, some known labels that are allowed, and the losses of all allowed labellings."""
    generator = np.random.default_rng(seed)
    rules = None
    while rules is None:
        labels = int(generator.integers(2, 8))
        rules = random_rules(generator, labels)
    everything = np.array(list(product([0, 1], repeat=labels)))
    obeying = everything[~rules.violated(everything).any(1)]
    energy = random_pairwise_energy(seed, labels, BATCH, coupling=(0.3, 3.0)[seed % 2])
    chosen = obeying[generator.integers(len(obeying), size=BATCH)]
    known = torch.from_numpy(np.where(generator.random((BATCH, labels)) < 0.3 * (seed % 3), chosen, np.nan))
    samples = torch.from_numpy(obeying)[:, None].expand(-1, BATCH, -1)
    differs = ((samples != known) & ~known.isnan()).any(-1)
    losses = (-energy.score(samples), (1 - energy.local_margins(samples)).clamp(min=0).sum(-1))
    return energy, rules, known, [each.masked_fill(differs, torch.inf).amin(0) for each in losses]


def answers(module, seed: int):
    """The answers by both objectives, which obey the rules and agree with what is known, as losses.

    Yields:
        The decoding, its objective and its bound as losses, the least loss, and the rules.
    """
    energy, rules, known, least = problem(seed)
    for loss, routine, sign in zip(least, (module.decode, module.decode_hinge), (-1, 1), strict=True):
        found = routine(energy, constraints=rules, known=known)
        assert not rules.violated(found.labels.numpy()).any()
        assert ((found.labels == known) | known.isnan()).all()
        yield found, sign * found.objective, sign * found.bound, loss, rules


@pytest.mark.parametrize("seed", range(25))
def test_integer_programmes_have_the_best_allowed_labellings(seed):
    for found, objective, _, least, _ in answers(integer_program, seed):
        torch.testing.assert_close(objective, least, rtol=1e-6, atol=1e-6)
        assert found.status.exact.all()


@pytest.mark.parametrize("seed", range(25))
def test_relaxations_bound_what_is_allowed_and_answer_by_it(seed):
    for found, objective, bound, least, rules in answers(lp_relaxation, seed):
        assert (bound <= least + 1e-6).all()
        assert (objective >= least - 1e-9).all()
        assert (found.status.exact <= ((objective - least).abs() < 1e-5)).all()
        # What rules say of fractions, the relaxation obeys.
        assert (found.relaxed.numpy() @ rules.matrix.T <= rules.bounds + 1e-6).all()


def test_a_rule_forbids_what_dominant_weights_ask_for():
    energy = PairwiseEnergy(torch.tensor([[1e6, 0.1, -0.2]]).double(), torch.zeros(3, 3).double())
    for routine in (integer_program.decode, lp_relaxation.decode):
        assert routine(energy, constraints=Constraints.of("not a", list("abc"))).labels.tolist() == [
            [0, 1, 0]
        ]


def test_contradictions_are_named():
    energy, rules = random_pairwise_energy(0, 3, 2), Constraints.of("a -> b", list("abc"))
    known = torch.tensor([[1.0, 1.0, torch.nan], [1.0, 0.0, torch.nan]]).double()
    for routine in (integer_program.decode, lp_relaxation.decode):
        with pytest.raises(ValueError, match=r"known\[1\]: expected rules that some labelling obeys"):
            routine(energy, constraints=rules, known=known)
        with pytest.raises(ValueError, match="constraints: expected rules over 3 labels, got 4"):
            routine(energy, constraints=Constraints.of("a -> b", list("abcd")))
