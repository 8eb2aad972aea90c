"""The log partition by shared odds beside enumeration, with both of its derivatives."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact, one_side
from lmbm_torch.inference.enumeration.one_side import OneSide
from lmbm_torch.memory import memory_budget


def tensors(batch: int, visible: int, hidden: int, scale: float, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, visible), (batch, hidden), (visible, hidden)
    return [scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def by_definition(machine: BipartiteEnergy) -> Tensor:
    return exact.log_partition(OneSide(machine))


def by_odds(*parts: Tensor) -> Tensor:
    machine = BipartiteEnergy(*parts)
    assert one_side.suits(machine)
    return one_side.log_partition(machine, by_definition)


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 7), (5, 4, 8), (40, 3, 21), (2, 7, 40)])
@pytest.mark.parametrize("in_groups", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_values_and_gradients_are_those_of_enumeration(
    sizes: tuple[int, int, int], scale: float, in_groups: bool, seed: int, monkeypatch
):
    # Several parts, the last of them smaller.
    monkeypatch.setattr(one_side, "PART_BYTES", 8 * 3 * -(-sizes[2] // 2) << sizes[1])
    monkeypatch.setattr(one_side, "FEWEST_ROWS", 1)
    if in_groups:
        most = one_side._most(*tensors(*sizes, scale, seed)[1:])
        monkeypatch.setattr(one_side, "MOST_LOG", 1.5 * max(most))
        assert one_side._num_groups(most) >= len(most) / 2
    found = []
    for routine in (by_odds, lambda *parts: by_definition(BipartiteEnergy(*parts))):
        parts = [each.requires_grad_() for each in tensors(*sizes, scale, seed)]
        value = routine(*parts)
        weights = torch.linspace(0.5, 1.5, len(value), dtype=torch.float64)
        found.append((value.detach(), *torch.autograd.grad(value, parts, weights)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("learnt", [(0, 1, 2), (2,), (0, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_both_derivatives_pass_gradcheck(seed, learnt):
    parts = [each.requires_grad_(k in learnt) for k, each in enumerate(tensors(3, 3, 5, 1.0, seed))]
    assert torch.autograd.gradcheck(by_odds, parts)
    assert torch.autograd.gradgradcheck(by_odds, parts)


@pytest.mark.parametrize(("units", "share"), [(1, 0.99), (3, 0.99), (16, 0.99), (16, 1.5), (31, 9)])
@pytest.mark.parametrize("visible", [0.0, -900.0, 900.0])
def test_every_product_is_finite_at_the_largest_fields(units: int, share: float, visible: float):
    couplings = 3.0
    most = share * one_side.MOST_LOG / units - math.log(2) - couplings
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None]
    parts = (
        torch.full((2, 3), visible, dtype=torch.float64),
        signs * most * torch.ones(2, units, dtype=torch.float64),
        torch.ones(3, units, dtype=torch.float64),
    )
    found = by_odds(*(part.requires_grad_() for part in parts))
    expected = by_definition(BipartiteEnergy(*parts))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    for ours, theirs in zip(
        *(torch.autograd.grad(value.sum(), parts) for value in (found, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_gradient_may_be_asked_for_again():
    parts = [each.requires_grad_() for each in tensors(4, 3, 5, 1.0)]
    value = by_odds(*parts).sum()
    for first, second in zip(
        *(torch.autograd.grad(value, parts, retain_graph=True) for _ in range(2)), strict=True
    ):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize(
    "parts",
    [
        [each.float() for each in tensors(2, 3, 4, 1.0)],
        tensors(2, 3, 4, 300.0),
        tensors(1, 17, 1, 0.1),
    ],
    ids=["single precision", "large fields", "many labellings"],
)
def test_what_does_not_suit_is_left_to_enumeration(parts):
    assert not one_side.suits(BipartiteEnergy(*parts))


def test_both_sides_of_a_machine_are_summed_so(monkeypatch):
    asked = []
    suits = one_side.suits
    monkeypatch.setattr(one_side, "suits", lambda machine: asked.append(machine) or suits(machine))
    for sizes in ((4, 3, 6), (4, 6, 3)):
        energy = BipartiteEnergy(*tensors(*sizes, 1.0))
        torch.testing.assert_close(exact.log_partition(energy), by_definition(energy))
    assert [machine.num_visible for machine in asked] == [3, 3]


def test_memory_is_bounded():
    # The factors of an example's five pairs.
    parts, one = tensors(18, 4, 10, 1.0), 8 * 5 * 2**4
    with memory_budget(5 * one):
        assert one_side.suits(BipartiteEnergy(*parts))
        sizes = [part.factors.nbytes for part in one_side._parts(*parts)]
    assert sizes == [5 * one] * 3 + [3 * one]
    with memory_budget(one):
        assert not one_side.suits(BipartiteEnergy(*parts))
