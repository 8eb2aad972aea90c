"""Moments of spins beside plain enumeration."""

from __future__ import annotations

import pytest
import torch

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import half_products


def machine(labels: int, scale: float, dtype: torch.dtype = torch.float64) -> PairwiseEnergy:
    generator = torch.Generator().manual_seed(labels)
    unary = scale * torch.randn(7, labels, generator=generator, dtype=torch.float64)
    upper = scale * torch.randn(labels, labels, generator=generator, dtype=torch.float64).triu(1)
    constant = torch.randn(7, generator=generator, dtype=torch.float64)
    return PairwiseEnergy(*(each.to(dtype) for each in (unary, upper + upper.mT, constant)))


def weights(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    weight = torch.rand(7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight[2] = 0.0
    return weight.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("labels", [1, 2, 5, 8])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1000.0])
def test_moments_are_those_of_enumeration(labels, scale, dtype, monkeypatch):
    # So that examples are summed and enumerated in several batches, and couplings in several parts.
    monkeypatch.setattr(half_products, "BATCH_BYTES", 2**8)
    monkeypatch.setattr(half_products, "SHARED_BYTES", 2**6)
    monkeypatch.setattr(half_products, "BLOCK_BYTES", 2 * 8 * 2**labels)
    energy = machine(labels, scale, dtype)
    found = half_products.moments(energy, weights(dtype))
    # Rounding to single precision would change what the best labellings of the largest scale are.
    unary, coupling = energy.unary.double(), energy.pairwise.double()
    exact = PairwiseEnergy(unary, coupling, energy.constant.double())
    every = 2 * half_products.labellings(labels, unary) - 1
    scores = exact.score(((every + 1) / 2)[:, None].expand(-1, 7, -1))
    shares = scores.softmax(0)
    products = torch.einsum("sb,b,si,sj->ij", shares, weights(dtype).double(), every, every)
    expected = (shares.mT @ every, products, scores.logsumexp(0))
    for mine, theirs in zip((found.spins, found.products, found.log_partition), expected, strict=True):
        torch.testing.assert_close(mine, theirs.to(dtype), rtol=1e-5, atol=1e-5)
        assert mine.dtype == dtype
    # At the largest scale some products of halves are too small to be trusted.
    trusted = half_products.moments_by_halves(unary, coupling, weights()).is_safe
    assert bool(trusted.all()) == (scale < 1000 or labels == 1)


def test_refusals():
    energy = machine(3, 1.0)
    with pytest.raises(ValueError, match="weight"):
        half_products.moments(energy, weights()[:3])
    own = PairwiseEnergy(energy.unary, energy.pairwise.expand(7, 3, 3).clone())
    with pytest.raises(ValueError, match=r"couplings \(labels, labels\) that examples share"):
        half_products.moments(own, weights())
    broken = PairwiseEnergy(energy.unary * torch.nan, energy.pairwise)
    with pytest.raises(ValueError, match="NaN"):
        half_products.moments(broken, weights())
    with pytest.raises(ValueError, match="at most 22 labels, since all labellings are summed, got 23"):
        half_products.moments(machine(23, 0.1), weights())
