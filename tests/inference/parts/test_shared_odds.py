"""The log partition by shared odds beside enumeration, with both of its derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference import exact
from lmbm_torch.inference.parts import shared_odds
from lmbm_torch.inference.parts.one_side import OneSide
from lmbm_torch.memory import memory_budget


def tensors(batch: int, visible: int, hidden: int, scale: float, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, visible), (batch, hidden), (visible, hidden)
    return [scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def by_definition(machine: BipartiteEnergy) -> Tensor:
    return exact.log_partition(OneSide(machine))


def by_odds(*parts: Tensor) -> Tensor:
    machine = BipartiteEnergy(*parts)
    assert shared_odds.suits(machine)
    return shared_odds.log_partition(machine, by_definition)


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 7), (5, 4, 8), (40, 3, 21), (2, 7, 40)])
@pytest.mark.parametrize("seed", range(3))
def test_values_and_gradients_are_those_of_enumeration(
    sizes: tuple[int, int, int], scale: float, seed: int, monkeypatch
):
    # Several parts, the last of them smaller.
    monkeypatch.setattr(shared_odds, "PART_BYTES", 8 * 3 * -(-sizes[2] // 2) << sizes[1])
    monkeypatch.setattr(shared_odds, "FEWEST_ROWS", 1)
    monkeypatch.setattr(shared_odds, "MOST_FIELD", 170.0)
    monkeypatch.setattr(shared_odds, "PAIRS", 2)
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


def test_every_product_is_finite_at_the_largest_field():
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None]
    hidden = signs * (shared_odds.MOST_FIELD - 3) * torch.ones(2, 16, dtype=torch.float64)
    parts = torch.zeros(2, 3, dtype=torch.float64), hidden, torch.ones(3, 16, dtype=torch.float64)
    torch.testing.assert_close(
        by_odds(*parts), by_definition(BipartiteEnergy(*parts)), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize(
    "parts",
    [
        [each.float() for each in tensors(2, 3, 4, 1.0)],
        tensors(2, 3, 4, 100.0),
        tensors(1, 17, 1, 0.1),
    ],
    ids=["single precision", "large fields", "many labellings"],
)
def test_what_does_not_suit_is_left_to_enumeration(parts):
    assert not shared_odds.suits(BipartiteEnergy(*parts))


def test_both_sides_of_a_machine_are_summed_so(monkeypatch):
    asked = []
    suits = shared_odds.suits
    monkeypatch.setattr(shared_odds, "suits", lambda machine: asked.append(machine) or suits(machine))
    for sizes in ((4, 3, 6), (4, 6, 3)):
        energy = BipartiteEnergy(*tensors(*sizes, 1.0))
        torch.testing.assert_close(exact.log_partition(energy), by_definition(energy))
    assert [machine.num_visible for machine in asked] == [3, 3]


def test_memory_is_bounded():
    # The factors of an example's five pairs.
    parts, one = tensors(18, 4, 10, 1.0), 8 * 5 * 2**4
    with memory_budget(5 * one):
        assert shared_odds.suits(BipartiteEnergy(*parts))
        sizes = [part.factors.nbytes for part in shared_odds._parts(*parts)]
    assert sizes == [5 * one] * 3 + [3 * one]
    with memory_budget(one):
        assert not shared_odds.suits(BipartiteEnergy(*parts))
