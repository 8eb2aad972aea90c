"""The differentiable relaxation and its gradients against the quadratic programme in cvxpy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations

import cvxpy as cp
import pytest
import torch
from strategies.pairwise import random_pairwise_energy
from torch import Tensor

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.relaxations import lp_layer, lp_relaxation
from lmbm_torch.inference.relaxations.lp_layer import LocalPolytope

# cvxpylayers reads tensors as NumPy 1 did.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

CASES = [
    (random_pairwise_energy(0, 3, 3), 1.0, 1.0),
    (random_pairwise_energy(1, 4, 2, per_example=True), 0.7, 0.3),
    (random_pairwise_energy(2, 5, 2, coupling=0.3), 1.0, 0.1),
]


def programme(energy: PairwiseEnergy, temperature: float, pair_temperature: float) -> Tensor:
    """The labels of the same programme, solved as a quadratic one and to many digits."""
    pairs = tuple(combinations(range(energy.num_labels), 2))
    polytope = LocalPolytope(energy.num_labels, pairs)
    squares = temperature * cp.sum_squares(polytope.spins)
    squares += pair_temperature * cp.sum_squares(polytope.spin_products)
    problem = cp.Problem(cp.Maximize(polytope.score - squares / 2), polytope.constraints)
    labels = []
    couplings = energy.pairwise.expand(energy.batch_size, -1, -1)
    for unary, pairwise in zip(energy.unary.numpy(), couplings.numpy(), strict=True):
        polytope.unary.value, polytope.weights.value = unary, [pairwise[pair] for pair in pairs]
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
        labels.append(torch.tensor(polytope.labels.value))
    return torch.stack(labels)


@pytest.mark.parametrize(("energy", "temperature", "pair_temperature"), CASES)
def test_labels_are_those_of_the_programme(energy, temperature, pair_temperature):
    found = lp_layer.relaxed_labels(energy, temperature=temperature, pair_temperature=pair_temperature)
    expected = programme(energy, temperature, pair_temperature)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    # Neither all on a bound nor none, or neither side of the gradient is seen.
    assert ((found > 1e-3) & (found < 1 - 1e-3)).any()


@pytest.mark.parametrize(("energy", "temperature", "pair_temperature"), CASES)
def test_gradients_are_finite_differences_of_the_programme(energy, temperature, pair_temperature):
    weights = torch.randn(energy.unary.shape, generator=torch.Generator().manual_seed(0)).double()
    unary, pairwise = energy.unary.clone().requires_grad_(), energy.pairwise.clone().requires_grad_()
    learnt = replace(energy, unary=unary, pairwise=pairwise)
    found = lp_layer.relaxed_labels(learnt, temperature=temperature, pair_temperature=pair_temperature)
    by_unary, by_pairwise = torch.autograd.grad((weights * found).sum(), (unary, pairwise))
    solve = partial(programme, temperature=temperature, pair_temperature=pair_temperature)
    step = 1e-5
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        along_unary = torch.randn(unary.shape, generator=generator).double()
        along_pairwise = torch.randn(pairwise.shape, generator=generator).double().triu(1)
        along_pairwise = along_pairwise + along_pairwise.mT
        ahead, behind = (
            solve(
                replace(
                    energy,
                    unary=energy.unary + sign * step * along_unary,
                    pairwise=energy.pairwise + sign * step * along_pairwise,
                )
            )
            for sign in (1, -1)
        )
        slope = (weights * (ahead - behind)).sum() / (2 * step)
        came = (by_unary * along_unary).sum() + (by_pairwise * along_pairwise).sum()
        torch.testing.assert_close(came, slope, rtol=1e-4, atol=1e-4)


def test_couplings_that_are_zero_have_gradients():
    pairwise = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    energy = PairwiseEnergy(torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64), pairwise)
    found = lp_layer.relaxed_labels(energy, temperature=1.0, pair_temperature=1.0)
    torch.testing.assert_close(found, (1 + energy.unary) / 2, rtol=0, atol=1e-5)
    (gradient,) = torch.autograd.grad(found[0, 0], pairwise)
    assert gradient.equal(gradient.mT)
    assert (gradient[0, 1:].abs() > 0).any()


def test_one_label_alone():
    energy = random_pairwise_energy(0, 1, 4)
    found = lp_layer.relaxed_labels(energy, temperature=0.8)
    torch.testing.assert_close(found, ((1 + energy.unary / 0.8) / 2).clamp(0, 1))


def test_at_a_low_temperature_it_is_the_linear_programme():
    energy = random_pairwise_energy(0, 5, 3, coupling=0.2)
    found = lp_layer.relaxed_labels(energy, temperature=1e-3, pair_temperature=1e-3)
    torch.testing.assert_close(found, lp_relaxation.decode(energy).relaxed, rtol=0, atol=1e-4)


def test_an_example_is_relaxed_alone_as_in_a_batch_and_in_its_dtype():
    energy = random_pairwise_energy(4, 4, 3, dtype=torch.float32)
    together = lp_layer.relaxed_labels(energy)
    assert together.dtype == torch.float32
    for example in range(3):
        alone = lp_layer.relaxed_labels(energy.select(slice(example, example + 1)))
        torch.testing.assert_close(alone[0], together[example], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "value"), [("temperature", 0.0), ("pair_temperature", -1.0)])
def test_refuses_what_is_no_temperature(name, value):
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        lp_layer.relaxed_labels(random_pairwise_energy(0, 3), **{name: value})
