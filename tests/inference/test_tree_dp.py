from __future__ import annotations

import pytest
import torch
from hypothesis import given
from strategies.tree import every_labelling, random_tree_energy, tree_energies

from lmbm_torch.energies import ChainEnergy, PairwiseEnergy, TreeEnergy
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.trees import chain_dp, tree_dp


@given(tree_energies())
def test_everything_is_as_by_enumeration(energy):
    labels, scores = every_labelling(energy)
    log_partition = scores.logsumexp(0)
    probabilities = (scores - log_partition).exp()
    found = tree_dp.marginals(energy)
    torch.testing.assert_close(tree_dp.log_partition(energy), log_partition)
    torch.testing.assert_close(found.log_partition, log_partition)
    indicators = torch.nn.functional.one_hot(labels, energy.num_states).double()
    torch.testing.assert_close(found.states, torch.einsum("mb,mns->bns", probabilities, indicators))
    for node, parent in enumerate(energy.parents.tolist()):
        edges = torch.einsum("mb,mr,ms->brs", probabilities, indicators[:, parent], indicators[:, node])
        torch.testing.assert_close(found.edges[:, node], edges if parent >= 0 else torch.zeros_like(edges))
    best = tree_dp.decode(energy)
    torch.testing.assert_close(best.objective, scores.amax(0))
    torch.testing.assert_close(best.bound, best.objective)
    assert best.status.exact.all()
    assert found.status.exact.all()


@given(tree_energies())
def test_the_gradient_of_the_log_partition_is_the_marginals(energy):
    unary, tables = energy.unary.requires_grad_(), energy.tables.clone().requires_grad_()
    tables = tables.expand(energy.batch_size, -1, -1, -1)
    total = tree_dp.log_partition(TreeEnergy(unary, tables, energy.parents)).sum()
    nodes, edges = torch.autograd.grad(total, (unary, tables), allow_unused=True, materialize_grads=True)
    found = tree_dp.marginals(energy)
    torch.testing.assert_close(found.states, nodes)
    torch.testing.assert_close(found.edges, edges)


def test_a_chain_is_a_tree():
    tree = random_tree_energy(0, nodes=7, shared=True)
    tree = TreeEnergy(tree.unary, tree.transition, torch.arange(-1, 6))
    chain = ChainEnergy(tree.unary, tree.transition)
    found, expected = tree_dp.marginals(tree), chain_dp.marginals(chain)
    torch.testing.assert_close(found.states, expected.states)
    torch.testing.assert_close(found.edges[:, 1:], expected.edges)
    torch.testing.assert_close(tree_dp.decode(tree).labels, chain_dp.decode(chain).labels)


def test_a_boltzmann_machine_on_a_tree_has_the_same_marginals():
    generator = torch.Generator().manual_seed(0)
    parents = random_tree_energy(3, nodes=30).parents
    unary = torch.randn(2, 30, generator=generator, dtype=torch.float64)
    coupling = torch.randn(30, generator=generator, dtype=torch.float64)
    pairwise = torch.zeros(30, 30, dtype=torch.float64)
    child = torch.arange(1, 30)
    pairwise[child, parents[1:]] = pairwise[parents[1:], child] = coupling[1:]
    spins = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    tables = (coupling[:, None, None] * torch.outer(spins, spins)).expand(2, -1, -1, -1)
    tree = TreeEnergy(unary[..., None] * spins, tables, parents)
    expected = elimination.marginals(PairwiseEnergy(unary, pairwise))
    found = tree_dp.marginals(tree)
    torch.testing.assert_close(found.states[..., 1], expected.labels)
    torch.testing.assert_close(found.log_partition, expected.log_partition)


def test_large_log_potentials_keep_their_digits():
    energy = random_tree_energy(1, shared=True)
    large = TreeEnergy(1e4 + 300 * energy.unary, 300 * energy.transition, energy.parents)
    found = tree_dp.marginals(large)
    torch.testing.assert_close(found.states.sum(-1), torch.ones_like(found.states[..., 0]))
    torch.testing.assert_close(tree_dp.log_partition(large), every_labelling(large)[1].logsumexp(0))


def test_an_example_does_not_see_its_batch_and_nothing_is_changed():
    energy = random_tree_energy(2, batch=3)
    before = energy.unary.clone(), energy.transition.clone()
    together = tree_dp.marginals(energy)
    alone = tree_dp.marginals(TreeEnergy(energy.unary[1:2], energy.transition[1:2], energy.parents))
    torch.testing.assert_close(together.edges[1:2], alone.edges, rtol=0, atol=0)
    tree_dp.decode(energy)
    assert torch.equal(energy.unary, before[0])
    assert torch.equal(energy.transition, before[1])


@pytest.mark.parametrize("routine", [tree_dp.log_partition, tree_dp.marginals, tree_dp.decode])
def test_values_that_are_not_finite_are_refused(routine):
    energy = random_tree_energy(0)
    energy.unary[0, 0, 0] = torch.inf
    with pytest.raises(ValueError, match="unary"):
        routine(energy)
