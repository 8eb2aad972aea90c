from __future__ import annotations

import pytest
import torch

from lmbm_torch.energies import ChainEnergy, TreeEnergy


def by_hand() -> TreeEnergy:
    """Node 0 with children 1 and 2, and a root of its own, 3."""
    unary = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.5, 0.0], [0.0, 4.0]]])
    transition = torch.tensor([[0.0, 10.0], [20.0, 30.0]])
    return TreeEnergy(unary, transition, torch.tensor([-1, 0, 0, -1]))


def test_the_score_is_that_by_hand():
    energy = by_hand()
    labels = torch.tensor([[0, 1, 0, 1]])
    assert float(energy.score(labels)) == 1 + (2 + 10) + (0.5 + 0) + 4
    assert float(energy.energy(labels)) == -17.5
    samples = torch.tensor([[[0, 1, 0, 1]], [[1, 0, 1, 0]]])
    torch.testing.assert_close(energy.score(samples), torch.tensor([[17.5], [0 + 20 + 30 + 0.0]]))
    every = TreeEnergy(energy.unary, energy.tables.clone(), energy.parents)
    torch.testing.assert_close(every.score(samples), energy.score(samples))


def test_a_chain_is_a_tree():
    generator = torch.Generator().manual_seed(0)
    unary, transition = torch.randn(3, 4, 2, generator=generator), torch.randn(2, 2, generator=generator)
    labels = torch.randint(2, (3, 4), generator=generator)
    tree = TreeEnergy(unary, transition, torch.arange(-1, 3))
    torch.testing.assert_close(tree.score(labels), ChainEnergy(unary, transition).score(labels))


@pytest.mark.usefixtures("no_shape_checks")
def test_what_is_no_tree_is_refused():
    energy = by_hand()
    with pytest.raises(ValueError, match="parents: expected −1 to 1 for node 2, got 2"):
        TreeEnergy(energy.unary, energy.transition, torch.tensor([-1, 0, 2, -1]))
    with pytest.raises(ValueError, match="parents: expected −1 to 0 for node 1, got -2"):
        TreeEnergy(energy.unary, energy.transition, torch.tensor([-1, -2, 0, -1]))
    with pytest.raises(ValueError, match="parents: expected torch"):
        TreeEnergy(energy.unary, energy.transition, torch.tensor([-1.0, 0, 0, -1]))
    with pytest.raises(ValueError, match="parents"):
        TreeEnergy(energy.unary, energy.transition, torch.tensor([-1, 0]))
    with pytest.raises(ValueError, match="transition"):
        TreeEnergy(energy.unary, torch.zeros(2, 3), energy.parents)
    with pytest.raises(ValueError, match="unary: expected a floating-point dtype"):
        TreeEnergy(energy.unary.long(), energy.transition.long(), energy.parents)
    with pytest.raises(ValueError, match="labels: expected 0 to 1, got other values for 1"):
        energy.score(torch.tensor([[0, 1, 2, 0]]))


def test_only_the_matrices_of_roots_may_be_anything():
    energy = by_hand()
    tables = energy.tables.clone()
    tables[:, 0] = torch.nan
    TreeEnergy(energy.unary, tables, energy.parents).check_values()
    tables[:, 1] = torch.inf
    with pytest.raises(ValueError, match="transition"):
        TreeEnergy(energy.unary, tables, energy.parents).check_values()
