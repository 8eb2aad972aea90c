"""Exact inference in graphs of many states, held to enumeration."""

from __future__ import annotations

import pytest
import torch
from strategies.factor import every_labelling, packed_energy, random_factor_energy

import lmbm_torch
from lmbm_torch.energies import FactorEnergy
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.graphs.parts import reduced

SHAPES = ((2, 3, 2, 4), (3, 1, 2, 2, 3), (2,) * 7, (5,), (3, 4))


def cases():
    for seed, shape in enumerate(SHAPES * 2):
        yield random_factor_energy(seed, num_states=shape, num_factors=3 + seed, forbidden=0.25 * (seed >= 5))


def enumerated(energy: FactorEnergy):
    """All labellings, (labellings, variables), and scores, (labellings, batch)."""
    labels = every_labelling(energy)
    return labels[:, 0], energy.score(labels)


@pytest.mark.parametrize("energy", [*cases()])
def test_sums_and_best_labellings_are_those_of_enumeration(energy):
    labels, scores = enumerated(energy)
    torch.testing.assert_close(elimination.log_partition(energy), scores.logsumexp(0))
    found = elimination.marginals(energy)
    weights = scores.softmax(0)
    for state in range(energy.num_states):
        expected = torch.einsum("sb,si->bi", weights, (labels == state).to(weights))
        torch.testing.assert_close(found.states[..., state], expected)
    torch.testing.assert_close(found.log_partition, scores.logsumexp(0))
    best = elimination.decode(energy)
    torch.testing.assert_close(best.objective, scores.amax(0))
    torch.testing.assert_close(energy.score(best.labels), best.objective)


@pytest.mark.parametrize("energy", [*cases()][5:8])
def test_the_best_few_are_the_first_of_all(energy):
    _, scores = enumerated(energy)
    most = int((scores > -torch.inf).sum(0).min())
    top_k = min(9, most)
    found = elimination.decode(energy, top_k=top_k)
    torch.testing.assert_close(found.objective.view(2, -1), scores.topk(top_k, 0).values.T)
    assert len({*map(tuple, found.labels[0].view(top_k, -1).tolist())}) == top_k
    with pytest.raises(ValueError, match=r"top_k: expected at most \d+, an example's labellings"):
        elimination.decode(energy, top_k=len(scores) + 1)


def test_packed_graphs_are_solved_as_each_alone():
    energy = packed_energy(3, forbidden=0.2)
    best, sums = elimination.decode(energy), elimination.marginals(energy)
    drawn = elimination.sample(energy, 4, generator=torch.Generator().manual_seed(0))
    few = elimination.decode(energy, top_k=2)
    for row, one in enumerate(energy.examples()):
        alone = elimination.decode(one)
        assert best.labels[row].tolist() == alone.labels[0].tolist() + [PADDING] * (4 - one.num_labels)
        torch.testing.assert_close(sums.log_partition[row : row + 1], elimination.log_partition(one))
        assert (drawn[:, row, : one.num_labels] >= 0).all()
        assert (drawn[:, row, one.num_labels :] == PADDING).all()
        assert (
            few.labels[row, 1, : one.num_labels].tolist()
            == elimination.decode(one, top_k=2).labels[0, 1].tolist()
        )
    assert (sums.states.sum(-1) - energy.inside.double()).abs().max() < 1e-12


def test_known_labels_are_conditions():
    energy = random_factor_energy(1, forbidden=0.1)
    known = torch.full((2, 4), torch.nan, dtype=torch.float64)
    known[0, 1], known[1, 3] = 2, 0
    labels, scores = enumerated(energy)
    agrees = ((labels[:, None] == known) | known.isnan()).all(-1)
    scores = scores.masked_fill(~agrees, -torch.inf)
    torch.testing.assert_close(elimination.log_partition(energy, known=known), scores.logsumexp(0))
    assert elimination.decode(energy, known=known).labels[0, 1] == 2
    assert elimination.marginals(energy, known=known).states[1, 3].tolist() == [1, 0, 0, 0]
    assert elimination.width(energy, known=torch.zeros(2, 4)) == 0


@pytest.mark.parametrize("forbidden", [0.0, 0.3])
def test_gradients_are_derivatives(forbidden):
    energy = random_factor_energy(4, num_states=(2, 3, 2), num_factors=3, forbidden=forbidden)
    finite = energy.table > -torch.inf
    start = energy.table[finite].requires_grad_()

    def log_partition(values):
        table = energy.table.clone()
        table[finite] = values
        return elimination.log_partition(FactorEnergy(table, energy.structure))

    assert torch.autograd.gradcheck(log_partition, start, fast_mode=True)
    assert torch.autograd.gradgradcheck(log_partition, start, fast_mode=True)


def test_samples_have_the_right_frequencies():
    energy = random_factor_energy(5, batch=1, num_states=(2, 3, 2), forbidden=0.2)
    labels, scores = enumerated(energy)
    drawn = elimination.sample(energy, 20_000, generator=torch.Generator().manual_seed(0))[:, 0]
    share = (drawn[:, None] == labels).all(-1).double().mean(0)
    torch.testing.assert_close(share, scores.softmax(0)[:, 0], rtol=0, atol=0.015)


@pytest.mark.parametrize("forbidden", [0.0, 0.2])
def test_the_least_hinge_loss_is_found(forbidden):
    for seed in range(4):
        energy = random_factor_energy(seed, num_states=(2, 3, 1, 2), forbidden=forbidden)
        labels = every_labelling(energy)
        losses = (1.5 - energy.local_margins(labels)).clamp(min=0).sum(-1)
        found = elimination.decode_hinge(energy, 1.5)
        torch.testing.assert_close(found.objective, losses.amin(0))
        again = (1.5 - energy.local_margins(found.labels)).clamp(min=0).sum(-1)
        torch.testing.assert_close(again, found.objective)


def test_an_example_without_a_labelling():
    no = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]])
    energy = FactorEnergy.of((2, 2), [((0, 1), no), ((0,), torch.tensor([-torch.inf, 0.0]))])
    assert elimination.log_partition(energy).item() == -torch.inf
    for quantity in (elimination.decode, elimination.marginals, lambda one: elimination.sample(one, 2)):
        with pytest.raises(ValueError, match="energy: expected an allowed labelling of each example, got 1"):
            quantity(energy)


def test_memory_bounds_the_examples_together_and_refuses_what_is_too_wide():
    energy = random_factor_energy(6, batch=5, num_states=(2,) * 6, num_factors=6)
    whole = elimination.log_partition(energy)
    torch.testing.assert_close(elimination.log_partition(energy, max_bytes=4000), whole)
    with pytest.raises(ValueError, match=r"energy: expected tables of at most .* the largest of 2\^\d"):
        elimination.log_partition(energy, max_bytes=100)
    with lmbm_torch.memory_budget(100), pytest.raises(ValueError, match="expected tables of at most"):
        elimination.decode(energy)


def test_states_that_no_table_allows_are_removed_until_none_is_left():
    same = torch.zeros(2, 2).masked_fill(~torch.eye(2, dtype=torch.bool), -torch.inf)
    last = (3,), torch.tensor([0.0, -torch.inf])
    # What the last label excludes is passed on to the tables before.
    line = FactorEnergy.of((2,) * 4, [last, *(((label, label + 1), same) for label in range(3))])
    assert [states.tolist() for states in reduced(line).states] == [[0]] * 4
    for seed in range(20):
        energy = random_factor_energy(seed, batch=1, num_states=(3, 4, 3, 4, 3), num_factors=6, forbidden=0.4)
        found = reduced(energy)
        structure = found.energy.structure
        for number, scope in enumerate(structure.every_scope):
            first, last = structure.first[number : number + 2]
            table = found.energy.table[0, first:last].view([structure.num_states[each] for each in scope])
            for axis in range(len(scope)):
                assert (table.movedim(axis, 0).reshape(table.shape[axis], -1) > -torch.inf).any(1).all()
        before, after = (each.score(every_labelling(each)).logsumexp(0) for each in (energy, found.energy))
        torch.testing.assert_close(after, before)
