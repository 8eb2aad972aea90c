"""Gradients in closed form, held to those that autograd finds for the losses themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lmbm_torch import verdicts
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.losses.latent import METHODS
from lmbm_torch.verdicts import supposing
from reproduce.gradients import gradient

NUM_STEPS = 3


@pytest.fixture(scope="module")
def problem():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).requires_grad_()

    energy = BipartiteEnergy(normal(9, 6), normal(9, 4), normal(6, 4, scale=0.7))
    return energy, torch.bernoulli(torch.full((9, 6), 0.5, dtype=torch.float64), generator=generator)


def by_autograd(method, energy, labels, chains):
    """The gradient of the method's own loss; each example's in the couplings on its own, then summed."""
    options = {} if METHODS[method].num_steps is None else {"num_steps": NUM_STEPS}
    torch.manual_seed(5)
    if method == "pcd":
        losses, _ = METHODS[method].loss(energy, labels, chains, **options)
    else:
        inference = MatchedInference(METHODS[method].routine, 8)
        losses: Any = METHODS[method].loss(energy, labels, inference=inference, **options)
    return torch.autograd.grad(losses.sum(), (energy.visible, energy.hidden, energy.coupling))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("is_supposed", [False, True])
def test_closed_gradients_are_those_of_the_losses(problem, method, is_supposed, monkeypatch):
    # By the same random numbers.
    monkeypatch.setattr(torch, "bernoulli", lambda p, **_: (torch.rand_like(p) < p).to(p))
    energy, labels = problem
    chains = labels.flip(0)
    expected = by_autograd(method, energy, labels, chains)
    torch.manual_seed(5)
    options = {"num_iters": 8, "num_steps": NUM_STEPS, "chains": chains}
    if is_supposed:
        # As in a CUDA graph, where nothing can be asked.
        with supposing({"largest message": 10.0, "couplings that are not 0": 24.0}):
            found = gradient(method, energy, labels, **options)
    else:
        found = gradient(method, energy, labels, **options)
    for closed, exact in zip(found[:3], expected, strict=True):
        torch.testing.assert_close(closed, exact, rtol=1e-9, atol=1e-9)
    assert (found.converged is None) == (METHODS[method].num_steps is not None)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_supposed_is_not_asked(method):
    """Nothing can be read of a tensor on torch's meta device, as within a CUDA graph."""
    shapes = (9, 6), (9, 4), (6, 4)
    energy = BipartiteEnergy(*(torch.empty(shape, device="meta") for shape in shapes))
    labels, options = energy.visible, {"num_iters": 20, "chains": energy.visible}
    with supposing({"largest message": 10.0, "couplings that are not 0": 24.0}):
        found = gradient(method, energy, labels, **options)
    assert [part.shape for part in found[:3]] == [torch.Size(shape) for shape in shapes]
    with pytest.raises(RuntimeError):
        gradient(method, energy, labels, **options)
    with supposing({}), pytest.raises(KeyError):
        verdicts.number("largest message", (energy.visible,), energy.visible.amax)


def test_unknown_methods_and_missing_chains_are_refused(problem):
    with pytest.raises(ValueError, match="method: expected one of"):
        gradient("mle", *problem)
    with pytest.raises(ValueError, match="chains: expected"):
        gradient("pcd", *problem)
