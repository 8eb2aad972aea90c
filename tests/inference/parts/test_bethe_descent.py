"""Descent of the Bethe free energy, where belief propagation does not come to rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sweeps import slow, thorough

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.messages import pairwise_bp


def grid(side, largest, seed=0, dtype=torch.float64):
    """Fields and couplings of neighbours uniform in [−largest, largest], as in UAI's competition of 2014."""
    generator = np.random.default_rng(seed)
    label = np.arange(side * side).reshape(side, side)
    pairs = [(label[:, :-1], label[:, 1:]), (label[:-1], label[1:])]
    pairwise = np.zeros((side * side, side * side))
    for first, second in pairs:
        pairwise[first, second] = generator.uniform(-largest, largest, first.shape)
    unary = generator.uniform(-largest, largest, (1, side * side))
    return PairwiseEnergy(torch.tensor(unary, dtype=dtype), torch.tensor(pairwise + pairwise.T, dtype=dtype))


def model_of(energy):
    coupling = energy.pairwise.numpy()
    first, second = np.nonzero(np.triu(coupling))
    return pairwise_bp.Model(energy.unary[0].numpy(), first, second, coupling[first, second])


@pytest.mark.parametrize("side", thorough([10, 20], 1))
@pytest.mark.parametrize("largest", [1, slow(2), slow(3), slow(4), 5])
def test_grids_of_strong_mixed_couplings_converge(side, largest):
    energy = grid(side, largest)
    came = pairwise_bp.marginals(energy, keep_messages=True)
    assert came.status.converged.all()
    assert not came.status.exact.any()
    assert (came.status.residual <= 1e-6).all()
    # At a fixed point of propagation itself.
    again = pairwise_bp.marginals(energy, messages=came.messages, num_iters=1, newton_iters=0)
    assert (again.status.residual <= 1e-6).all()
    torch.testing.assert_close(again.labels, came.labels, rtol=0, atol=1e-6)
    torch.testing.assert_close(again.log_partition, came.log_partition, rtol=0, atol=1e-6)
    if largest >= 4:
        alone = pairwise_bp.marginals(energy, newton_iters=0)
        assert not alone.status.converged.any()
        assert (came.status.num_iters > alone.status.num_iters).all()


@pytest.mark.parametrize("largest", [slow(1), 2, slow(3)])
def test_the_fixed_points_of_damped_propagation_are_found(largest):
    found = 0
    for seed in range(4):
        energy = grid(10, largest, seed)
        damped = pairwise_bp.marginals(energy, num_iters=3000, damping=0.5, newton_iters=0)
        if damped.status.converged:
            came = pairwise_bp.marginals(energy, num_iters=30)
            torch.testing.assert_close(came.labels, damped.labels, rtol=0, atol=1e-5)
            torch.testing.assert_close(came.log_partition, damped.log_partition, rtol=0, atol=1e-5)
            found += 1
    assert found >= 2


@pytest.mark.parametrize(("largest", "error"), [slow(1, 0.02), slow(2, 0.05), (5, 0.1)])
def test_beliefs_are_near_the_exact_marginals(largest, error):
    came, expected = [], []
    for seed in range(2):
        energy = grid(10, largest, seed)
        came.append(pairwise_bp.marginals(energy).labels)
        expected.append(elimination.marginals(energy).labels)
    assert (torch.cat(came) - torch.cat(expected)).abs().mean() < error


def test_a_forest_is_exact_after_any_number_of_iterations():
    energy = grid(4, 3.0)
    chain = torch.diag(torch.ones(15), 1).double()
    energy = PairwiseEnergy(energy.unary, energy.pairwise[0, 1] * (chain + chain.mT))
    came, expected = pairwise_bp.marginals(energy, num_iters=1), exact.marginals(energy)
    assert came.status.exact.all()
    torch.testing.assert_close(came.labels, expected.labels, rtol=0, atol=1e-6)
    torch.testing.assert_close(came.log_partition, expected.log_partition, rtol=0, atol=1e-6)


def test_examples_of_a_batch_are_themselves():
    one, two, easy = grid(6, 5.0, 0), grid(6, 5.0, 1), grid(6, 0.1, 2)
    energies = (one, two, easy)
    together = PairwiseEnergy(
        torch.cat([energy.unary for energy in energies]),
        torch.stack([energy.pairwise for energy in energies]),
    )
    known = torch.full_like(together.unary, torch.nan)
    known[:, 7] = 1
    came = pairwise_bp.marginals(together, known=known, num_iters=20)
    assert came.status.converged.all()
    assert (came.labels[:, 7] == 1).all()
    for row, energy in enumerate(energies):
        alone = pairwise_bp.marginals(energy, known=known[:1], num_iters=20)
        torch.testing.assert_close(came.labels[row], alone.labels[0], rtol=0, atol=1e-8)


def test_float32_converges_as_float64_does():
    came, expected = (
        pairwise_bp.marginals(grid(10, 5.0, dtype=dtype)) for dtype in (torch.float32, torch.float64)
    )
    assert came.status.converged.all()
    assert came.labels.dtype == torch.float32
    torch.testing.assert_close(came.labels.double(), expected.labels, rtol=0, atol=1e-3)


def test_the_gradient_is_that_of_the_value_at_the_minimum():
    energy = grid(6, 4.0)
    unary = energy.unary.clone().requires_grad_()
    pairwise_bp.marginals(PairwiseEnergy(unary, energy.pairwise), num_iters=20).log_partition.backward()
    step = torch.randn(36, generator=torch.Generator().manual_seed(0)).double()

    def after(size):
        moved = PairwiseEnergy(energy.unary + size * step, energy.pairwise)
        return pairwise_bp.marginals(moved, num_iters=20, tol=1e-10).log_partition

    slope = (after(1e-5) - after(-1e-5)) / 2e-5
    torch.testing.assert_close((unary.grad * step).sum(), slope[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("coupling", [-50.0, -3.0, -0.1, 0.2, 4.0, 300.0])
def test_pairs_have_the_fields_that_they_are_asked_for(coupling):
    generator = np.random.default_rng(0)
    fields = generator.uniform(-20, 20, 12)
    pairs = np.arange(0, 12, 2)
    model = pairwise_bp.Model(np.zeros(12), pairs, pairs + 1, np.full(6, coupling))
    point = pairwise_bp._paired(model, fields)
    for pair, (a, b) in enumerate(zip(point.first, point.second, strict=True)):
        spins = np.array([1.0, -1.0])
        scores = coupling * spins[:, None] * spins + a * spins[:, None] + b * spins
        own = np.logaddexp(*scores.T), np.logaddexp(*scores)
        came = [(values[0] - values[1]) / 2 for values in own]
        np.testing.assert_allclose(came, fields[2 * pair : 2 * pair + 2], rtol=0, atol=1e-9)


def test_the_gradient_of_the_free_energy_is_that_of_its_values():
    model = model_of(grid(4, 2.0))
    fields = np.random.default_rng(0).normal(size=16)
    point = pairwise_bp._paired(model, fields)
    gradient = pairwise_bp._gradient(model, point)

    def value(means):
        return pairwise_bp._free_energy(model, pairwise_bp._paired(model, np.arctanh(means)))

    for label, means in enumerate(np.eye(16) * 1e-6):
        slope = (value(np.tanh(fields) + means) - value(np.tanh(fields) - means)) / 2e-6
        assert slope == pytest.approx(gradient[label], abs=1e-6)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"^newton_iters: expected a finite number of at least 0, got -1"):
        pairwise_bp.marginals(grid(2, 1.0), newton_iters=-1)
