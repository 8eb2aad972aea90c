"""One relaxation, two programmes: in cvxpy for the reader, and in the solver's own form for speed."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from strategies.pairwise import pairwise_energies, random_pairwise_energy

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import lp_relaxation
from lmbm_torch.references import relaxations


def all_pairs(num_labels):
    return tuple(combinations(range(num_labels), 2))


@given(pairwise_energies(max_labels=7, max_batch=3))
@settings(max_examples=25)
def test_both_have_the_same_optimum(energy):
    pairs = all_pairs(energy.num_labels)
    values, labels = relaxations.relax(relaxations.score_relaxation(energy.num_labels, pairs), energy)
    found = lp_relaxation.decode(energy)
    size = float(energy.unary.abs().max() + energy.pairwise.abs().max())
    torch.testing.assert_close(found.bound - energy.constant, values, rtol=1e-6, atol=1e-6 * size)
    assert ((labels >= -1e-6) & (labels <= 1 + 1e-6)).all()

    losses, _ = relaxations.relax(relaxations.hinge_relaxation(energy.num_labels, pairs, 0.7), energy)
    torch.testing.assert_close(
        lp_relaxation.decode_hinge(energy, 0.7).bound, losses, rtol=1e-6, atol=1e-6 * (1 + size)
    )


def test_relaxed_labels_are_the_optimum_where_it_is_integer():
    energy = random_pairwise_energy(0, 6, 5, coupling=0.2)
    _, labels = relaxations.relax(relaxations.score_relaxation(6, all_pairs(6)), energy)
    torch.testing.assert_close(labels, exact.decode(energy).labels.double(), rtol=0, atol=1e-5)


def test_a_problem_compiles_once_for_all_weights():
    for relaxation in (
        relaxations.score_relaxation(4, all_pairs(4)),
        relaxations.hinge_relaxation(4, all_pairs(4), 1.0),
    ):
        assert relaxation.problem.is_dcp(dpp=True)
        assert relaxation.problem.is_dpp()


def test_couplings_without_a_pair_are_refused():
    relaxation = relaxations.score_relaxation(4, ((0, 1),))
    with pytest.raises(ValueError, match=r"^energy: expected couplings only of the relaxation"):
        relaxations.relax(relaxation, random_pairwise_energy(0, 4))


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan")])
def test_a_margin_that_is_not_positive_is_refused(margin):
    with pytest.raises(ValueError, match=r"^margin: expected"):
        relaxations.hinge_relaxation(3, ((0, 1),), margin)
