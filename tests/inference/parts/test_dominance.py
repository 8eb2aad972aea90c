"""What dominant weights settle is an optimum's, and what is left to solve has the same optimum."""

from __future__ import annotations

import pytest
import torch
from strategies.directed import random_known
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import integer_program, lp_relaxation
from lmbm_torch.inference.relaxations.persistency import settle_hinges, settle_scores

HUGE = 1e6


def dominated(seed, where):
    """Three examples, the first with huge weights and the last without."""
    energy = random_pairwise_energy(seed, 7, per_example=True)
    unary, pairwise = energy.unary, energy.pairwise
    for row, sign in ((0, 1), (1, -1)):
        if where == "field":
            unary[row, 3] = sign * HUGE
        elif where == "coupling":
            pairwise[row, 1, 4] = pairwise[row, 4, 1] = sign * HUGE
        elif where == "star":
            pairwise[row, 2] *= HUGE
            pairwise[row, :, 2] *= HUGE
        else:
            pairwise[row] *= HUGE ** (torch.eye(7, dtype=torch.float64).roll(1, 0) > 0)
            pairwise[row] = pairwise[row].tril() + pairwise[row].tril().mT
    return energy


SCORES = pytest.mark.parametrize("where", ["field", "coupling", "star", "path"])
KNOWN = pytest.mark.parametrize("is_given", [False, True])


def given(energy, is_given):
    return random_known(5, energy) if is_given else torch.full_like(energy.unary, torch.nan)


@SCORES
@KNOWN
def test_the_best_score_is_what_is_settled_and_the_best_of_what_is_left(where, is_given):
    for seed in range(8):
        energy = dominated(seed, where)
        known = given(energy, is_given)
        settled = settle_scores(energy, known)
        rest = exact.decode(settled.energy, known=settled.known)
        best = exact.decode(energy, known=known)
        torch.testing.assert_close(rest.objective, best.objective, rtol=1e-12, atol=1e-9)
        labels = settled.of_all(rest.labels.double()).long()
        torch.testing.assert_close(energy.score(labels), best.objective, rtol=1e-12, atol=1e-9)
        assert (labels[~known.isnan()] == known[~known.isnan()]).all()
        assert settled.energy.pairwise[:2].abs().amax() < 100
        assert settled.energy.unary[:2].abs().amax() < 100


@KNOWN
def test_the_least_hinge_loss_is_that_of_what_is_left(is_given):
    for seed in range(8):
        energy = dominated(seed, "field")
        known = given(energy, is_given)
        known[:, 3] = torch.nan
        settled = settle_hinges(energy, known, 1.0)
        rest = exact.decode_hinge(settled.energy, known=settled.known)
        best = exact.decode_hinge(energy, known=known)
        torch.testing.assert_close(rest.objective, best.objective)
        assert settled.energy.unary.abs().amax() < 100
        labels = settled.of_all(rest.labels.double()).long()
        loss = (1 - energy.local_margins(labels)).clamp(min=0).sum(-1)
        torch.testing.assert_close(loss, best.objective)


@pytest.mark.parametrize("margin", [0.1, 5.0])
def test_a_label_that_is_sure_of_itself_may_give_in_to_the_others(margin):
    # A label of 1 leaves four others without a field, a label of 0 none.
    unary = torch.tensor([[2.15, -0.5, -0.5, -0.5, -0.5]], dtype=torch.float64)
    pairwise = torch.zeros(5, 5, dtype=torch.float64)
    pairwise[0, 1:] = pairwise[1:, 0] = 0.5
    energy = PairwiseEnergy(unary, pairwise)
    settled = settle_hinges(energy, given(energy, False), margin)
    rest = exact.decode_hinge(settled.energy, margin, known=settled.known)
    best = exact.decode_hinge(energy, margin)
    torch.testing.assert_close(rest.objective, best.objective)
    assert margin == 5 or not best.labels.any()


@pytest.mark.parametrize("margin", [0.1, 5.0])
def test_ordinary_hinges_are_settled_rightly_too(margin):
    energy = random_pairwise_energy(0, 5, 300, coupling=0.1)
    settled = settle_hinges(energy, given(energy, False), margin)
    rest = exact.decode_hinge(settled.energy, margin, known=settled.known)
    torch.testing.assert_close(rest.objective, exact.decode_hinge(energy, margin).objective)


@SCORES
@KNOWN
def test_ordinary_weights_beside_huge_ones_are_solved_exactly(where, is_given):
    for seed in range(3):
        energy = dominated(seed, where)
        known = given(energy, is_given)
        best = exact.decode(energy, known=known)
        found = integer_program.decode(energy, known=known)
        assert found.status.exact.all()
        # Coefficients of one, beside a million.
        torch.testing.assert_close(found.objective, best.objective, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.bound, best.objective, rtol=0, atol=1e-5)
        relaxed = lp_relaxation.decode(energy, known=known)
        assert (relaxed.bound >= best.objective - 1e-5).all()
        assert (relaxed.bound <= best.objective + 100).all()
        tight = relaxed.status.exact
        torch.testing.assert_close(relaxed.objective[tight], best.objective[tight], rtol=0, atol=1e-5)


def test_losses_of_ordinary_weights_beside_a_huge_field_are_solved_exactly():
    for seed in range(3):
        energy = dominated(seed, "field")
        found, best = integer_program.decode_hinge(energy), exact.decode_hinge(energy)
        assert found.status.exact.all()
        torch.testing.assert_close(found.objective, best.objective, rtol=0, atol=1e-9)
        relaxed = lp_relaxation.decode_hinge(energy)
        assert (relaxed.bound <= best.objective + 1e-9).all()


def test_toulbar2_sees_ordinary_weights_beside_huge_ones():
    pytest.importorskip("pytoulbar2", reason="the optional extra wcsp is not installed")
    from lmbm_torch.inference.relaxations import cost_function_network

    energy = dominated(0, "coupling")
    found, best = cost_function_network.decode(energy), exact.decode(energy)
    assert found.status.exact.all()
    torch.testing.assert_close(found.objective, best.objective, rtol=0, atol=1e-5)
