"""The tree-reweighted bound against exact sums, and its fixed points against the published equations."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from strategies.factor import packed_energy, random_factor_energy, random_known_states
from strategies.pairwise import random_forest_energy, random_pairwise_energy
from strategies.tree import random_tree_energy

from lmbm_torch.energies import FactorEnergy, to_factors
from lmbm_torch.inference.common.iterations import Settings
from lmbm_torch.inference.graphs import elimination, tree_reweighted
from lmbm_torch.inference.graphs.tree_reweighted import Graph


def pairs(seed: int, **form) -> FactorEnergy:
    """Two examples of a graph of four labels with cycles, and of tables over the same pair."""
    return random_factor_energy(seed, order=2, num_factors=7, **form)


def assert_above(bound, value):
    assert (bound - value >= -1e-9 * (1 + value.abs())).all()


@pytest.mark.parametrize("num_iters", [1, 2, 5, 100])
@pytest.mark.parametrize("seed", range(5))
def test_is_an_upper_bound_after_any_number_of_iterations(seed, num_iters):
    for energy in (pairs(seed, scale=0.3 + seed), packed_energy(seed, order=2, scale=1.0 + seed)):
        for known in (None, random_known_states(seed, energy)):
            for damping in (0.0, 0.5):
                settings = {"num_iters": num_iters, "damping": damping, "known": known}
                found = tree_reweighted.marginals(energy, **settings)
                assert_above(found.log_partition, elimination.log_partition(energy, known=known))


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 1000.0])
def test_is_an_upper_bound_at_any_messages(scale):
    energy, generator = pairs(3), torch.Generator().manual_seed(0)
    graph = Graph.of(energy)
    messages = scale * torch.randn(graph.start().shape, generator=generator).double()
    assert_above(graph.upper_bound(messages), elimination.log_partition(energy))


@pytest.mark.parametrize("seed", range(4))
def test_is_exact_on_forests(seed):
    binary = to_factors(random_forest_energy(seed, 1 + 3 * seed, 20, coupling=(0.3, 1.0, 3.0, 30.0)[seed]))
    for energy in (binary, to_factors(random_tree_energy(seed, another_root=True))):
        found = tree_reweighted.marginals(energy, tol=1e-8, damping=0.0)
        exact = elimination.marginals(energy)
        assert found.status.exact.all()
        torch.testing.assert_close(found.log_partition, exact.log_partition, rtol=1e-9, atol=1e-6)
        torch.testing.assert_close(found.states, exact.states, rtol=0, atol=1e-6)
    assert not tree_reweighted.marginals(pairs(0), num_iters=1000).status.exact.any()


def test_pairs_appear_as_often_as_on_the_enumerated_trees():
    energy = to_factors(random_pairwise_energy(4, 5, density=0.6, per_example=True))
    graph = Graph.of(energy)
    for row in range(energy.batch_size):
        coupled = graph.tables[row].abs().amax((1, 2)) > 0
        found = graph.appearance[min(row, len(graph.appearance) - 1)]
        edges = [tuple(each) for each in torch.stack([graph.receiver, graph.sender], 1)[coupled].tolist()]
        edges = [each for each in edges if each[0] < each[1]]

        def parts(chosen):
            names = list(range(5))
            for one, other in chosen:
                names = [names[one] if name == names[other] else name for name in names]
            return len(set(names))

        size = 5 - parts(edges)
        trees = [tree for tree in combinations(edges, size) if parts(tree) == 5 - size]
        for message, (one, other) in enumerate(zip(graph.receiver, graph.sender, strict=True)):
            pair = tuple(sorted((int(one), int(other))))
            share = sum(pair in tree for tree in trees) / len(trees)
            assert math.isclose(float(found[message]), share, abs_tol=1e-9)


def test_at_a_fixed_point_the_bound_is_the_least_for_its_trees():
    # By duality that is expected score + Σ entropies − Σ ρ mutual information, at the beliefs.
    energy = random_factor_energy(1, order=2, num_factors=6, scale=0.5)
    graph = Graph.of(energy)
    messages, status = graph.fixed_point(Settings(3000, 1e-12, 0.5, None, None))
    assert status.converged.all()
    single = graph.fields(messages).softmax(-1)
    scaled = graph.tables / graph.appearance[..., None, None]
    there = graph.fields(messages)[:, graph.sender] - messages.roll(len(graph.sender) // 2, 1)
    here = graph.fields(messages)[:, graph.receiver] - messages
    both = (scaled + here[..., None] + there[..., None, :]).flatten(2).softmax(-1).view_as(graph.tables)
    # The pairs are consistent with the labels.
    torch.testing.assert_close(both.sum(-1), single[:, graph.receiver], rtol=0, atol=1e-9)

    def entropy(chances):
        return torch.special.entr(chances).flatten(2).sum(2)

    unary = graph.unary.where(graph.unary > -1e29, 0.0)
    value = (unary * single).sum((1, 2)) + entropy(single).sum(1)
    information = entropy(both.sum(-1)) + entropy(both.sum(-2)) - entropy(both)
    # Each pair comes in both directions.
    value += ((graph.tables * both).sum((2, 3)) - graph.appearance * information).sum(1) / 2
    torch.testing.assert_close(graph.upper_bound(messages), value, rtol=1e-9, atol=1e-9)


def test_the_gradient_at_a_fixed_point_is_the_beliefs():
    energy = random_factor_energy(4, order=2, num_factors=6, scale=0.5)
    table = energy.table.clone().requires_grad_()
    settings = {"num_iters": 3000, "tol": 1e-12}

    def bound(table):
        return tree_reweighted.marginals(FactorEnergy(table, energy.structure), **settings)

    found = bound(table)
    (by_table,) = torch.autograd.grad(found.log_partition.sum(), table)
    size = energy.structure.num_unary
    torch.testing.assert_close(by_table[:, :size], energy.unary_entries(found.states), rtol=0, atol=1e-9)
    change = torch.zeros_like(energy.table)
    change[:, size + 2] = 1e-5
    up, down = (bound(energy.table + sign * change).log_partition for sign in (1, -1))
    torch.testing.assert_close(by_table[:, size + 2], (up - down) / 2e-5, rtol=1e-6, atol=1e-7)


def test_known_labels_and_tables_of_0_widen_no_graph():
    # Without its middle label a cycle is a chain, whatever the rest of the batch.
    generator = torch.Generator().manual_seed(0)
    tables = [(each, torch.randn(2, 3, 3, generator=generator).double()) for each in ((0, 1), (1, 2), (2, 0))]
    tables[2][1][1] = 0
    energy = FactorEnergy.of((3, 3, 3), tables)
    known = torch.tensor([[torch.nan, 2, torch.nan], [torch.nan] * 3])
    found = tree_reweighted.marginals(energy, known=known, damping=0.0)
    assert found.status.exact.all()
    exact = elimination.marginals(energy, known=known)
    torch.testing.assert_close(found.log_partition, exact.log_partition)
    torch.testing.assert_close(found.states, exact.states, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_iters": 0}, "num_iters: expected"),
        ({"tol": -1.0}, "tol: expected"),
        ({"damping": 1.0}, "damping: expected at least 0 and below 1, got"),
        (
            {"energy": random_factor_energy(0)},
            "energy: expected tables of at most two labels, got a table of 3",
        ),
        ({"energy": pairs(1, forbidden=0.3)}, "energy: expected finite tables of two labels, got"),
    ],
)
def test_strange_input_is_refused(change, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        tree_reweighted.marginals(**({"energy": pairs(0)} | change))


def test_a_graph_of_too_many_labels_is_refused(monkeypatch):
    monkeypatch.setattr(tree_reweighted, "MOST_VARIABLES", 3)
    with pytest.raises(ValueError, match=r"^energy: expected at most 3 variables, got 4"):
        tree_reweighted.marginals(pairs(0))
