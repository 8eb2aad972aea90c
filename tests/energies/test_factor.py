"""Graphs of tables: scores by definition, other kinds in their form, and what is refused."""

from __future__ import annotations

import pytest
import torch
from strategies.chain import random_chain_energy
from strategies.factor import every_labelling, packed_energy, random_factor_energy
from strategies.pairwise import random_clique_energy, random_pairwise_energy
from strategies.tree import random_tree_energy

from lmbm_torch.energies import (
    CliqueEnergy,
    FactorEnergy,
    FactorScopes,
    to_chain,
    to_clique,
    to_factors,
    to_networkx,
    to_tree,
)
from lmbm_torch.energies.chain import PADDING


def by_definition(energy: FactorEnergy, labels: list[int], row: int) -> float:
    structure, total, first = energy.structure, 0.0, 0
    for scope in structure.every_scope:
        shape = [structure.num_states[variable] for variable in scope]
        size = int(torch.tensor(shape).prod()) if shape else 1
        table = energy.table[row, first : first + size].view(*shape)
        total += float(table[tuple(labels[variable] for variable in scope)])
        first += size
    return total


@pytest.mark.parametrize("forbidden", [0.0, 0.3])
def test_scores_sum_the_tables(forbidden):
    for seed in range(4):
        energy = random_factor_energy(seed, forbidden=forbidden)
        labels = every_labelling(energy)
        expected = [[by_definition(energy, each[0], row) for row in range(2)] for each in labels.tolist()]
        torch.testing.assert_close(energy.score(labels), torch.tensor(expected, dtype=torch.float64))


def test_tables_of_one_variable_add_up_and_constants_count():
    one = torch.tensor([1.0, 2.0])
    energy = FactorEnergy.of((2, 3), [((0,), one), ((0,), one), ((), torch.tensor([[5.0], [7.0]])[:, 0])])
    assert energy.score(torch.tensor([[1, 2]])).tolist() == [9.0, 11.0]
    moved = energy.without_constants()
    assert moved.structure.scopes == ()
    assert moved.score(torch.tensor([[1, 2]])).tolist() == [9.0, 11.0]


def test_packed_graphs_score_as_each_alone():
    energy = packed_energy(0)
    labels = torch.tensor([[1, 2, 0, PADDING], [2, 1, PADDING, PADDING], [0, 1, 2, 1]])
    alone = [one.score(labels[row : row + 1, : one.num_labels]) for row, one in enumerate(energy.examples())]
    torch.testing.assert_close(energy.score(labels), torch.cat(alone))
    assert energy.inside.sum(1).tolist() == [3, 2, 4]
    some = energy.select(torch.tensor([2, 0])).score(labels[[2, 0]])
    torch.testing.assert_close(some, torch.cat(alone)[[2, 0]])
    torch.testing.assert_close(energy.select(slice(1, 2)).score(labels[1:2, :2]), alone[1])


@pytest.mark.parametrize("make", [random_factor_energy, packed_energy])
def test_added_unaries_and_known_labels(make):
    energy = make(1)
    labels = torch.zeros(energy.batch_size, energy.num_labels, dtype=torch.int64)
    labels[:, 0] = 1
    unary = torch.randn(
        *labels.shape, energy.num_states, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    own = unary.gather(-1, labels[..., None])[..., 0].where(energy.inside, 0).sum(1)
    torch.testing.assert_close(energy.add_unary(unary).score(labels), energy.score(labels) + own)
    known = torch.full(labels.shape, torch.nan, dtype=torch.float64)
    known[0, 0] = 1
    torch.testing.assert_close(energy.given(known).score(labels), energy.score(labels))
    known[0, 0] = 0
    assert energy.given(known).score(labels)[0] == -torch.inf
    known[0, 1] = 9
    with pytest.raises(ValueError, match="known: expected a state of each label, or NaN"):
        energy.given(known)


def test_gradients_of_scores_reach_the_tables():
    energy = random_factor_energy(3)
    labels = every_labelling(energy)
    assert torch.autograd.gradcheck(
        lambda table: FactorEnergy(table, energy.structure).score(labels[::7]), energy.table.requires_grad_()
    )


@pytest.mark.parametrize(
    "energy",
    [
        random_pairwise_energy(0, 4),
        random_pairwise_energy(1, 3, per_example=True, density=0.5),
        random_clique_energy(0, 4, num_cliques=6),
        random_chain_energy(0, 4, num_states=3, ragged=False),
        random_chain_energy(1, 3, num_states=2, per_step=True, ragged=False, forbidden=0.2),
        random_tree_energy(0),
        random_tree_energy(1, shared=True, another_root=True),
    ],
)
def test_other_kinds_have_equal_scores(energy):
    found = to_factors(energy)
    labels = every_labelling(found)
    torch.testing.assert_close(found.score(labels), energy.score(labels))
    assert to_factors(found) is found


def test_chains_of_different_lengths_become_packed_graphs():
    chain = random_chain_energy(5, 5, batch_size=4, num_states=2)
    found = to_factors(chain)
    assert found.is_packed
    labels = torch.ones(4, 5, dtype=torch.int64).where(chain.inside, PADDING)
    torch.testing.assert_close(found.score(labels[:, : found.num_labels]), chain.score(labels))


def test_graphs_of_binary_labels_are_cliques():
    energy = random_factor_energy(2, num_states=(2,) * 4)
    labels = every_labelling(energy)
    torch.testing.assert_close(to_clique(energy).score(labels.double()), energy.score(labels))
    back = to_clique(to_factors(CliqueEnergy(((0, 1), (2,)), torch.tensor([1.0, 2.0]))))
    torch.testing.assert_close(dict(zip(back.cliques, back.weight[0].tolist(), strict=True))[0, 1], 1.0)


def test_forests_are_trees():
    tree = random_tree_energy(3, nodes=6, another_root=True)
    back = to_tree(to_factors(tree))
    assert back.parents.tolist() == tree.parents.tolist()
    labels = torch.randint(3, (9, 2, 6), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(back.score(labels), tree.score(labels))


def test_conversions_refuse_other_graphs():
    with pytest.raises(ValueError, match="expected labels of two states"):
        to_clique(random_factor_energy(0))
    with pytest.raises(ValueError, match="expected finite tables"):
        to_clique(random_factor_energy(0, num_states=(2, 2), forbidden=0.9))
    with pytest.raises(ValueError, match="expected pairs that form a forest"):
        to_tree(FactorEnergy.of((2,) * 3, [(c, torch.eye(2)) for c in ((0, 2), (1, 2))]))
    with pytest.raises(ValueError, match="expected one graph for a tree, got packed"):
        to_tree(packed_energy(0))
    with pytest.raises(TypeError, match="energy: expected a pairwise"):
        to_factors("none")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FactorScopes(()), "num_states: expected"),
        (lambda: FactorScopes((2, 0)), "num_states: expected"),
        (lambda: FactorScopes((2, 2), ((0, 0),)), "scopes: expected distinct variables below 2"),
        (lambda: FactorScopes((2, 2), ((0, 2),)), "scopes: expected distinct variables below 2"),
        (lambda: FactorScopes((2, 2), (), (0, 1)), "start: expected numbers ascending from 0 to 2"),
        (lambda: FactorScopes((2, 2), ((0, 1),), (0, 1, 2)), "scopes: expected variables of one graph"),
        (lambda: FactorEnergy(torch.zeros(1, 3), FactorScopes((2,))), "table: expected shape"),
        (lambda: FactorEnergy.of((2,), []), "factors: expected at least one"),
        (lambda: FactorEnergy.of((2,), [((0,), torch.zeros(3))]), r"factors: the table of \(0,\)"),
        (lambda: FactorEnergy.packed([]), "energies: expected at least one"),
        (lambda: random_factor_energy(0).score(torch.tensor([[0, 3, 0, 0]])), "labels: expected 0 to each"),
    ],
)
def test_bad_graphs_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_margins_are_half_of_what_the_best_other_state_loses():
    pairwise = random_pairwise_energy(4, 4)
    labels = every_labelling(to_factors(pairwise))
    torch.testing.assert_close(to_factors(pairwise).local_margins(labels), pairwise.local_margins(labels))
    energy = FactorEnergy.of((3, 1), [((0,), torch.tensor([1.0, 4.0, 2.0]))])
    assert energy.local_margins(torch.tensor([[0, 0]])).tolist() == [[-1.5, torch.inf]]
    assert energy.local_margins(torch.tensor([[1, 0]])).tolist() == [[1.0, torch.inf]]


@pytest.mark.parametrize("make", [random_factor_energy, packed_energy])
def test_margins_read_the_tables_of_a_label_alone(make, monkeypatch):
    energy = make(1, forbidden=0.2)
    labels = torch.zeros(3, energy.batch_size, energy.num_labels, dtype=torch.long)
    labels[1, :, 1], labels[2, :, 2] = 1, 1
    labels = labels.where(energy.inside, -1)
    here, expected = energy.score(labels), []
    sizes = energy.padded(torch.ones_like(energy.table[..., : energy.structure.num_unary])).sum(-1)
    for label in range(energy.num_labels):
        others = torch.full((*here.shape, energy.num_states), -torch.inf).double()
        for state in range(energy.num_states):
            moved = labels.clone()
            possible = (state < sizes[:, label]) & (labels[..., label] != state)
            moved[..., label] = torch.where(possible, state, labels[..., label])
            others[..., state] = energy.score(moved).where(possible, -torch.inf)
        gain = (here - others.amax(-1)).masked_fill(others.amax(-1) == -torch.inf, torch.inf)
        gain = gain.masked_fill(here == -torch.inf, -torch.inf)
        expected.append(gain.where(energy.inside[:, label], torch.inf) / 2)
    calls, score = [], FactorEnergy.score
    monkeypatch.setattr(FactorEnergy, "score", lambda *given: calls.append(1) or score(*given))
    torch.testing.assert_close(energy.local_margins(labels), torch.stack(expected, -1))
    assert len(calls) == 1


def test_networks_hold_every_table():
    table = torch.arange(6.0).view(2, 3)
    triple = torch.arange(12.0).view(2, 3, 2)
    factors = [((0,), torch.tensor([1.0, 2.0])), ((), torch.tensor(5.0)), ((0, 1), table), ((1, 0), table.mT)]
    energy = FactorEnergy.of((2, 3, 2), [*factors, ((0, 1, 2), triple)])
    graph = to_networkx(energy)
    assert graph.nodes[0]["unary"].tolist() == [6.0, 7.0]
    assert graph.edges[0, 1]["scope"] == (0, 1)
    assert graph.edges[0, 1]["table"].tolist() == (2 * table).tolist()
    (other,) = (node for node in graph if isinstance(node, tuple))
    assert graph.nodes[other]["scope"] == (0, 1, 2)
    assert graph.nodes[other]["table"].tolist() == triple.tolist()
    assert sorted(graph[other]) == [0, 1, 2]
    with pytest.raises(ValueError, match="energy: expected one example, got 2"):
        to_networkx(FactorEnergy.packed([energy, energy]))


def test_successive_pairs_are_chains_and_pairs_pairwise():
    chain = random_chain_energy(0, ragged=False)
    back = to_chain(to_factors(chain))
    torch.testing.assert_close(back.unary, chain.unary)
    labels = torch.randint(
        0, chain.num_states, chain.unary.shape[:2], generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(back.score(labels), chain.score(labels))
    machine = random_pairwise_energy(0, 5, per_example=True)
    again = to_clique(to_factors(machine)).to_pairwise()
    torch.testing.assert_close(again.unary, machine.unary)
    torch.testing.assert_close(again.pairwise, machine.pairwise)
    torch.testing.assert_close(again.constant, machine.constant)
    with pytest.raises(ValueError, match=r"energy: expected pairs of successive labels, got \(0, 2\)"):
        to_chain(FactorEnergy.of((2,) * 3, [((0, 2), torch.eye(2))]))
