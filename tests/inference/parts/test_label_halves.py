"""Sums by halves of the labels beside plain enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import marginals
from lmbm_torch.inference.enumeration import exact, half_products, label_halves


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
    with enumeration():
        found = exact.marginals(energy, known=known)
        return found.labels, exact.log_partition(energy, known=known), found.status.num_iters


@contextmanager
def enumeration() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LEAST_FREE", "LEAST_OF_FEW"):
            patch.setattr(label_halves, name, 99)
        patch.setattr(label_halves, "LEAST_SHARED", 2**62)
        yield


@pytest.fixture
def always(monkeypatch):
    """However few the labellings."""
    monkeypatch.setattr(label_halves, "LEAST_OF_FEW", 1)
    monkeypatch.setattr(label_halves, "LEAST_SHARED", 1)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("labels", [2, 3, 7, 8])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("knows", [False, True])
def test_sums_are_those_of_enumeration(scale, shared, labels, seed, knows, always, monkeypatch):
    energy = machine(4, labels, scale, seed, shared=shared)
    known = given(energy, seed) if knows else None
    expected = plain(energy, known)
    # Several blocks, the last of them smaller.
    monkeypatch.setattr(label_halves, "BLOCK_BYTES", 3 * 8 * 2 ** (labels - labels // 2))
    monkeypatch.setattr(half_products, "SHARED_BYTES", 3 * 8 * 2 ** (labels - labels // 2))
    monkeypatch.setattr(half_products, "BATCH_BYTES", 3 * 8 * 2 ** (labels - labels // 2))
    found = label_halves.marginals(energy, known)
    assert found is not None
    torch.testing.assert_close(found.labels, expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.log_partition, expected[1], rtol=1e-13, atol=1e-12)
    assert torch.equal(found.status.num_iters, expected[2].expand(4))
    assert bool(found.status.exact.all())
    assert label_halves.log_partition(energy, known) is not None


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("labels", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("knows", [False, True])
def test_gradients_are_those_of_enumeration(scale, labels, knows, always, monkeypatch):
    energy = machine(4, labels, scale, 1)
    known = given(energy, 1) if knows else None
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)

    def value_and_gradients() -> list[Tensor]:
        tensors = [t.clone().requires_grad_() for t in (energy.unary, energy.pairwise, energy.constant)]
        value = exact.log_partition(PairwiseEnergy(*tensors), known=known)
        return [value.detach(), *torch.autograd.grad(value @ weights, tensors)]

    with enumeration():
        expected = value_and_gradients()
    for name in ("SHARED_BYTES", "BATCH_BYTES"):
        monkeypatch.setattr(half_products, name, 3 * 8 * 2 ** (labels - labels // 2))
    monkeypatch.setattr(exact, "_Labellings", _Refused)
    for came, wanted in zip(value_and_gradients(), expected, strict=True):
        torch.testing.assert_close(came, wanted, rtol=1e-12, atol=1e-11)


class _Refused:
    """In the place of what enumerates, of which only the checks are wanted."""

    of = staticmethod(lambda energy, known: SimpleNamespace(most=1))


def test_second_derivatives_too(always):
    energy = machine(2, 4, 0.5, 0)

    def log_partition(unary: Tensor, upper: Tensor) -> Tensor:
        upper = upper.triu(1)
        return exact.log_partition(PairwiseEnergy(unary, upper + upper.mT))

    tensors = energy.unary.requires_grad_(), energy.pairwise.requires_grad_()
    assert torch.autograd.gradcheck(log_partition, tensors)
    assert torch.autograd.gradgradcheck(log_partition, tensors)


@pytest.mark.parametrize("labels", [8, 12, 16])
def test_sums_too_small_for_products_are_summed_otherwise(labels):
    """Labels that disagree by thousands of nats: the best halves by themselves are impossible together."""
    energy = machine(40, labels, 1000.0, 0)
    assert not bool(half_products.sums(energy.unary, energy.pairwise).is_safe.all())
    expected, learnt = plain(energy, None), energy.unary.clone().requires_grad_()
    found = exact.marginals(energy)
    torch.testing.assert_close(found.labels, expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.log_partition, expected[1], rtol=1e-13, atol=1e-12)
    (gradient,) = torch.autograd.grad(
        exact.log_partition(PairwiseEnergy(learnt, energy.pairwise)).sum(), learnt
    )
    torch.testing.assert_close(gradient, 2 * expected[0] - 1, rtol=0, atol=1e-9)


@pytest.mark.parametrize("batch", [2, 200])
def test_single_precision_is_as_precise(batch):
    energy = machine(batch, 14, 0.3, 0, dtype=torch.float32)
    found = exact.marginals(energy)
    labels, log_sum, _ = plain(energy.to(torch.float64), None)
    assert found.labels.dtype == torch.float32
    torch.testing.assert_close(found.labels.double(), labels, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.log_partition.double(), log_sum, rtol=1e-6, atol=0)


def test_what_enumeration_is_faster_at_is_left_to_it():
    assert label_halves.marginals(machine(2, 5, 1.0, 0)) is None
    assert label_halves.marginals(machine(9, 13, 1.0, 0, shared=False)) is None
    assert label_halves.marginals(machine(9, 13, 1.0, 0)) is not None
    # Examples that know other labels each are not summed together.
    energy = machine(9, 13, 1.0, 0)
    known = torch.full_like(energy.unary, torch.nan)
    known[range(9), range(9)] = 1
    assert label_halves.marginals(energy, known) is None
    known[:] = known[0]
    assert label_halves.marginals(energy, known) is not None
    # Gradients of couplings of each example's own.
    learnt = machine(2, 15, 0.3, 0, shared=False)
    assert label_halves.log_partition(learnt) is not None
    assert label_halves.log_partition(PairwiseEnergy(learnt.unary, learnt.pairwise.requires_grad_())) is None


def test_machines_of_22_labels_have_exact_marginals():
    energy = machine(3, 22, 0.3, 0)
    assert bool(marginals(energy).status.exact.all())
    assert not bool(marginals(machine(1, 21, 0.3, 0, shared=False)).status.exact.any())
