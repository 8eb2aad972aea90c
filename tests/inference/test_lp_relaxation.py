"""The relaxation against the same programme in cvxpy, between integer programming and its own rounding."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from pairwise_strategies import pairwise_energies, random_pairwise_energy

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import exact, integer_program, lp_relaxation

FORMS = (
    {"coupling": 0.3},
    {"coupling": 1.0, "density": 0.4},
    {"coupling": 1.0, "per_example": True},
    {"coupling": 3.0, "per_example": True},
)
CASES = [random_pairwise_energy(seed, 3 + seed % 8, 3, **FORMS[seed % len(FORMS)]) for seed in range(12)]


def reference(energy: PairwiseEnergy, example: int, margin: float | None = None) -> float:
    """The largest relaxed score of one example, or for a margin the least relaxed loss, in cvxpy."""
    labels = energy.num_labels
    unary = energy.unary[example].numpy()
    pairwise = energy.pairwise.expand(energy.batch_size, -1, -1)[example].numpy()
    y = cp.Variable(labels)
    products = cp.Variable((labels, labels), symmetric=True)
    row, column = cp.reshape(y, (labels, 1), order="C"), cp.reshape(y, (1, labels), order="C")
    ones = np.ones((labels, labels))
    row, column = row @ ones[:1], ones[:, :1] @ column
    off_diagonal = 1 - np.eye(labels)
    constraints = [
        y >= 0,
        y <= 1,
        products >= 0,
        cp.multiply(off_diagonal, products - row) <= 0,
        cp.multiply(off_diagonal, row + column - products - 1) <= 0,
    ]
    spins = 2 * y - 1
    spin_products = 4 * products - 2 * row - 2 * column + 1
    coupled = cp.sum(cp.multiply(pairwise, spin_products), axis=1)
    if margin is None:
        score = unary @ spins + cp.sum(coupled) / 2 + float(energy.constant[example])
        problem = cp.Problem(cp.Maximize(score), constraints)
    else:
        losses = cp.pos(margin - cp.multiply(unary, spins) - coupled)
        problem = cp.Problem(cp.Minimize(cp.sum(losses)), constraints)
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value)


@pytest.mark.parametrize("energy", CASES)
def test_bounds_are_the_values_of_the_programme_in_cvxpy(energy):
    scores, losses = lp_relaxation.decode(energy), lp_relaxation.decode_hinge(energy, 0.7)
    for example in range(energy.batch_size):
        assert scores.bound[example].item() == pytest.approx(reference(energy, example), rel=1e-6, abs=1e-6)
        expected = reference(energy, example, 0.7)
        assert losses.bound[example].item() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("energy", CASES)
def test_scores_lie_between_the_relaxation_and_its_rounding(energy):
    relaxed, integer = lp_relaxation.decode(energy), integer_program.decode(energy)
    assert relaxed.status.converged.all()
    # The bound is proven by the dual alone, so that it needs no allowance but for round-off.
    assert (relaxed.bound >= integer.objective - 1e-12 * integer.objective.abs()).all()
    assert (integer.objective >= relaxed.objective - 1e-12 * integer.objective.abs()).all()
    torch.testing.assert_close(relaxed.objective, energy.score(relaxed.labels))


@pytest.mark.parametrize("energy", CASES)
def test_losses_lie_between_the_relaxation_and_its_rounding(energy):
    relaxed, integer = lp_relaxation.decode_hinge(energy), integer_program.decode_hinge(energy)
    assert relaxed.status.converged.all()
    assert (relaxed.bound <= integer.objective + 1e-12 * integer.objective).all()
    assert (integer.objective <= relaxed.objective + 1e-12 * integer.objective).all()
    loss = (1 - energy.local_margins(relaxed.labels)).clamp(min=0).sum(-1)
    torch.testing.assert_close(relaxed.objective, loss)


@pytest.mark.parametrize(
    ("decode", "enumerate_all"),
    [(lp_relaxation.decode, exact.decode), (lp_relaxation.decode_hinge, exact.decode_hinge)],
)
def test_what_is_called_exact_is_the_optimum(decode, enumerate_all):
    marked = []
    for energy in CASES:
        found, best = decode(energy), enumerate_all(energy)
        marked.append(found.status.exact)
        torch.testing.assert_close(
            found.objective[found.status.exact], best.objective[found.status.exact], rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(found.status.residual, (found.bound - found.objective).abs())
        assert ((found.relaxed >= 0) & (found.relaxed <= 1)).all()
    # Neither always tight nor never, or the test says nothing.
    assert 0 < torch.cat(marked).sum() < len(torch.cat(marked))


@given(pairwise_energies(max_labels=6, max_batch=3))
@settings(max_examples=15)
def test_is_exact_for_attractive_couplings(energy):
    attractive = replace(energy, pairwise=energy.pairwise.abs())
    found = lp_relaxation.decode(attractive)
    torch.testing.assert_close(found.bound, exact.decode(attractive).objective, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decode", [lp_relaxation.decode, lp_relaxation.decode_hinge])
def test_an_example_decodes_alone_as_in_a_batch(decode):
    energy = CASES[2]
    together = decode(energy)
    for example in range(energy.batch_size):
        alone = decode(energy.select(slice(example, example + 1)))
        torch.testing.assert_close(alone.bound[0], together.bound[example], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(alone.objective[0], together.objective[example])


@pytest.mark.parametrize("decode", [lp_relaxation.decode, lp_relaxation.decode_hinge])
def test_float32(decode):
    energy = random_pairwise_energy(0, 5, dtype=torch.float32)
    found = decode(energy)
    assert found.relaxed is not None
    for tensor in (found.relaxed, found.objective, found.bound, found.status.residual):
        assert tensor.dtype == torch.float32


@pytest.mark.parametrize("decode", [lp_relaxation.decode, lp_relaxation.decode_hinge])
def test_refuses_what_is_no_energy(decode):
    energy = random_pairwise_energy(0, 3)
    with pytest.raises(ValueError, match=r"^unary: expected finite values"):
        decode(replace(energy, unary=energy.unary * torch.nan))
    with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
        decode(replace(energy, pairwise=energy.pairwise.triu()))


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_margin_that_is_not_positive(margin):
    with pytest.raises(ValueError, match=r"^margin: expected"):
        lp_relaxation.decode_hinge(random_pairwise_energy(0, 3), margin)
