"""Sums by halves of the labels beside plain enumeration."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import exact
from lmbm_torch.inference.parts import label_halves


def machine(
    batch: int,
    labels: int,
    scale: float,
    seed: int,
    *,
    shared: bool = True,
    dtype: torch.dtype = torch.float64,
) -> PairwiseEnergy:
    generator = torch.Generator().manual_seed(seed)
    unary = scale * torch.randn(batch, labels, generator=generator, dtype=dtype)
    shape = (labels, labels) if shared else (batch, labels, labels)
    upper = scale * torch.randn(shape, generator=generator, dtype=dtype).triu(1)
    return PairwiseEnergy(unary, upper + upper.mT, torch.randn(batch, generator=generator, dtype=dtype))


def given(energy: PairwiseEnergy, seed: int) -> Tensor:
    """Nothing known of the first example, all but one label of the second, about a third of the others."""
    generator = torch.Generator().manual_seed(seed)
    known = torch.randint(2, energy.unary.shape, generator=generator).to(energy.dtype)
    known[torch.rand(known.shape, generator=generator) < 2 / 3] = torch.nan
    known[0], known[1, 0] = torch.nan, torch.nan
    known[1, 1:] = 1
    return known


def plain(energy: PairwiseEnergy, known: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_halves, "LEAST_FREE", 99)
        patch.setattr(label_halves, "LEAST_OF_FEW", 99)
        found = exact.marginals(energy, known=known)
        return found.labels, exact.log_partition(energy, known=known), found.status.num_iters


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("labels", [2, 3, 7, 8])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("knows", [False, True])
def test_sums_are_those_of_enumeration(scale, shared, labels, seed, knows, monkeypatch):
    energy = machine(4, labels, scale, seed, shared=shared)
    known = given(energy, seed) if knows else None
    expected = plain(energy, known)
    monkeypatch.setattr(label_halves, "LEAST_OF_FEW", 1)
    # Several blocks, the last of them smaller.
    monkeypatch.setattr(label_halves, "BLOCK_BYTES", 3 * 8 * 2 ** (labels - labels // 2))
    found = label_halves.marginals(energy, known)
    assert found is not None
    torch.testing.assert_close(found.labels, expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.log_partition, expected[1], rtol=1e-13, atol=1e-12)
    assert torch.equal(found.status.num_iters, expected[2].expand(4))
    assert bool(found.status.exact.all())
    assert label_halves.log_partition(energy, known) is not None


def test_single_precision_is_as_precise():
    energy = machine(2, 14, 0.3, 0, dtype=torch.float32)
    found = exact.marginals(energy)
    labels, log_sum, _ = plain(energy.to(torch.float64), None)
    assert found.labels.dtype == torch.float32
    torch.testing.assert_close(found.labels.double(), labels, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.log_partition.double(), log_sum, rtol=1e-6, atol=0)


def test_gradients_and_few_labels_are_left_to_enumeration():
    energy = machine(2, 13, 0.3, 0)
    assert label_halves.log_partition(energy) is not None
    learnt = PairwiseEnergy(energy.unary.requires_grad_(), energy.pairwise)
    assert label_halves.log_partition(learnt) is None
    exact.log_partition(learnt).sum().backward()
    expected = exact.marginals(energy).labels
    torch.testing.assert_close(energy.unary.grad, 2 * expected - 1)
    assert label_halves.marginals(machine(2, 5, 1.0, 0)) is None
    assert label_halves.marginals(machine(9, 13, 1.0, 0)) is None
