"""The Bethe log partition is stationary at a fixed point, and has the beliefs for its gradient there."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from strategies.bipartite import random_bipartite_energy
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.common.results import BipartiteMessages
from lmbm_torch.inference.messages import matrix_bp


def test_the_log_partition_is_stationary_at_a_fixed_point():
    energy = random_bipartite_energy(7, 6, 5, coupling=0.7)
    found = matrix_bp.marginals(energy, num_iters=200, tol=1e-13, keep_messages=True)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(found.messages.to_visible.shape, generator=generator, dtype=torch.float64)
    errors = []
    for size in (1e-2, 1e-3):
        # Damped almost entirely, an iteration leaves the messages where they were put.
        start = BipartiteMessages(found.messages.to_hidden, found.messages.to_visible + size * noise)
        moved = matrix_bp.marginals(energy, num_iters=1, tol=0.0, damping=1 - 1e-12, messages=start)
        errors.append((moved.log_partition - found.log_partition).abs())
    assert (errors[1] < 0.02 * errors[0]).all()


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.5, 2.0, -1.0)])
def test_the_gradient_at_a_fixed_point_is_that_of_the_log_partition(weights):
    energy = random_bipartite_energy(8, 5, 4, coupling=0.8)
    tensors = [energy.visible, energy.hidden, energy.coupling]
    weights = torch.tensor(weights, dtype=torch.float64)

    def value(*tensors: Tensor) -> Tensor:
        result = matrix_bp.marginals(BipartiteEnergy(*tensors), num_iters=500, tol=1e-14)
        return (result.log_partition * weights).sum()

    for tensor in tensors:
        tensor.requires_grad_()
    value(*tensors).backward()
    step = 1e-5
    for place, tensor in enumerate(tensors):
        numeric = torch.zeros_like(tensor)
        for index in product(*map(range, tensor.shape)):
            ends = []
            for sign in (1, -1):
                moved = [other.detach().clone() for other in tensors]
                moved[place][index] += sign * step
                ends.append(value(*moved))
            numeric[index] = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(tensor.grad, numeric, rtol=0.0, atol=1e-8)


def test_only_what_needs_a_gradient_gets_one():
    energy = random_bipartite_energy(9, 4, 3)
    biased = replace(energy, hidden=energy.hidden.clone().requires_grad_())
    result = matrix_bp.marginals(biased)
    result.log_partition.sum().backward()
    torch.testing.assert_close(biased.hidden.grad, result.hidden)
    assert not result.visible.requires_grad
    assert not matrix_bp.marginals(energy).log_partition.requires_grad
    with torch.no_grad():
        assert not matrix_bp.marginals(biased).log_partition.requires_grad


@pytest.mark.parametrize("num_iters", [1, 2, 3, 100])
def test_pairwise_beliefs_sum_to_what_the_gradient_takes(num_iters):
    energy = random_bipartite_energy(10, 6, 70, batch_size=35, coupling=0.5)
    energy.coupling.requires_grad_()
    result = matrix_bp.marginals(energy, num_iters=num_iters, tol=1e-10, keep_messages=True)
    _, pair_sum = matrix_bp.moments(energy, num_iters=num_iters, tol=1e-10)
    torch.testing.assert_close(pair_sum, result.pairwise().sum(0), rtol=0.0, atol=1e-12)
    (gradient,) = torch.autograd.grad(result.log_partition.sum(), energy.coupling)
    torch.testing.assert_close(pair_sum, gradient, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("given", ["nothing", "known", "init"])
@pytest.mark.parametrize("num_iters", [1, 2, 3])
def test_what_is_traced_has_the_gradient_of_what_runs_at_once(num_iters, given, monkeypatch):
    # So strong couplings that the messages are far from a fixed point.
    energy = random_bipartite_energy(12, 30, 20, coupling=4 / 20**0.5)
    known = torch.full_like(energy.visible, torch.nan)
    known[:, 3], known[1, 5] = 1.0, 0.0
    settings = {"known": {"known": known}, "init": {"init": torch.full_like(energy.hidden, 0.3)}}

    def gradients(*tensors: Tensor) -> list[Tensor]:
        tensors = [tensor.requires_grad_() for tensor in tensors]
        moved = BipartiteEnergy(*tensors)
        found = matrix_bp.marginals(moved, num_iters=num_iters, tol=0.0, **settings.get(given, {}))
        weights = torch.arange(1.0, 4.0, dtype=torch.float64)
        return [*torch.autograd.grad((found.log_partition * weights).sum(), tensors)]

    tensors = energy.visible, energy.hidden, energy.coupling
    expected = gradients(*tensors)
    torch.testing.assert_close(make_fx(gradients)(*tensors)(*tensors), expected, rtol=0.0, atol=1e-9)
    # Exported programs, and other devices, have PyTorch's own operators in place of the library's.
    monkeypatch.setattr(matrix_bp, "is_kept", lambda device: False)
    torch.testing.assert_close(make_fx(gradients)(*tensors)(*tensors), expected, rtol=0.0, atol=1e-9)


def test_moments_are_marginals_and_their_pairwise_sum():
    energy = random_bipartite_energy(11, 5, 4, batch_size=3)
    known = torch.full((3, 5), torch.nan)
    known[1, 2] = 1.0
    for given in ({}, {"known": known}):
        found, pair_sum = matrix_bp.moments(energy, num_iters=6, **given)
        alone = matrix_bp.marginals(energy, num_iters=6, keep_messages=True, **given)
        for name in ("visible", "hidden", "log_partition"):
            assert torch.equal(getattr(found, name), getattr(alone, name))
        assert torch.equal(found.status.num_iters, alone.status.num_iters)
        torch.testing.assert_close(pair_sum, alone.pairwise().nan_to_num().sum(0))
