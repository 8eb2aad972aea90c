"""Junction trees against enumeration, and beyond its reach against chains of columns."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import random_known
from strategies.pairwise import (
    clique_energies,
    pairwise_energies,
    random_clique_energy,
    random_pairwise_energy,
    renamed,
)
from torch import Tensor

from lmbm_torch.energies import ChainEnergy, CliqueEnergy, PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.losses import local_hinge

ENERGIES = st.one_of(pairwise_energies(max_labels=8), clique_energies(max_labels=8))


def coupled_energy(seed: int, pairs: list[tuple[int, int]], num_labels: int, batch_size: int = 2):
    """A pairwise model with normal unaries, and normal couplings for these pairs alone."""
    dense = random_pairwise_energy(seed, num_labels, batch_size)
    mask = torch.zeros(num_labels, num_labels, dtype=torch.float64)
    mask[[i for i, _ in pairs], [j for _, j in pairs]] = 1
    return PairwiseEnergy(dense.unary, dense.pairwise * (mask + mask.mT), dense.constant)


def assert_equals_enumeration(energy: PairwiseEnergy | CliqueEnergy, known: Tensor | None = None) -> None:
    found, expected = elimination.marginals(energy, known=known), exact.marginals(energy, known=known)
    torch.testing.assert_close(found.labels, expected.labels)
    torch.testing.assert_close(found.log_partition, expected.log_partition)
    torch.testing.assert_close(elimination.log_partition(energy, known=known), expected.log_partition)
    best = elimination.decode(energy, known=known)
    torch.testing.assert_close(best.objective, exact.decode(energy, known=known).objective)
    torch.testing.assert_close(energy.score(best.labels), best.objective)
    assert torch.equal(best.bound, best.objective)
    for status in (found.status, best.status):
        assert status.exact.all()
        assert status.converged.all()
        assert (status.num_iters == energy.num_labels).all()


@given(ENERGIES)
def test_results_equal_enumeration(energy):
    assert_equals_enumeration(energy)


@given(ENERGIES, st.integers(0, 2**32 - 1), st.sampled_from((0.3, 0.7, 1.0)))
def test_results_given_known_labels_equal_enumeration(energy, seed, share):
    known = random_known(seed, energy, share)
    assert_equals_enumeration(energy, known)
    given_ones = ~known.isnan()
    for labels in (elimination.marginals(energy, known=known), elimination.decode(energy, known=known)):
        assert torch.equal(labels.labels[given_ones].to(known.dtype), known[given_ones])


@pytest.mark.parametrize("seed", range(3))
def test_sixteen_labels_equal_enumeration(seed):
    assert_equals_enumeration(random_pairwise_energy(seed, 16, 2, density=0.15, per_example=seed == 1))
    assert_equals_enumeration(random_clique_energy(seed, 16, 2, num_cliques=14))


@pytest.mark.parametrize("seed", range(3))
def test_the_least_hinge_loss_equals_enumeration(seed):
    cliques = ((0, 1), (2, 4), (3,), (1, 3, 5), (4, 6), (5, 7), (2,))
    weight = 3 * torch.randn(20, len(cliques), generator=torch.Generator().manual_seed(seed)).double()
    for energy in (CliqueEnergy(cliques, weight), random_pairwise_energy(seed, 8, 3, density=0.2)):
        found, expected = elimination.decode_hinge(energy, 1.5), exact.decode_hinge(energy, 1.5)
        torch.testing.assert_close(found.objective, expected.objective)
        torch.testing.assert_close(local_hinge(energy, found.labels, 1.5), found.objective)


@given(ENERGIES, st.booleans())
def test_gradients_equal_those_of_enumeration(energy, per_clique):
    if isinstance(energy, PairwiseEnergy):
        unary, pairwise = energy.unary.clone().requires_grad_(), energy.pairwise.clone().requires_grad_()
        energy, tensors = replace(energy, unary=unary, pairwise=pairwise), (unary, pairwise)
        coupled = (pairwise != 0) if pairwise.ndim == 2 else (pairwise != 0).any(0).expand_as(pairwise)
        masks = [torch.ones_like(unary), coupled]
    else:
        tensors = (energy.weight.clone().requires_grad_(),)
        energy, masks = replace(energy, weight=tensors[0]), [torch.ones_like(tensors[0])]

    def gradients(routine) -> tuple[Tensor, ...]:
        return torch.autograd.grad(routine(energy).sum(), tensors, allow_unused=True, materialize_grads=True)

    for came, expected, mask in zip(
        gradients(elimination.log_partition), gradients(exact.log_partition), masks, strict=True
    ):
        torch.testing.assert_close(came, expected * mask)


def test_gradients_of_first_and_second_order():
    cliques = ((0,), (0, 1), (1, 2, 3), (3, 4), (2,), (4, 0))
    weight = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def value(weight: Tensor) -> Tensor:
        return elimination.log_partition(CliqueEnergy(cliques, weight))

    assert torch.autograd.gradcheck(value, weight.requires_grad_())
    assert torch.autograd.gradgradcheck(value, weight)


def test_a_tree_of_200_labels_equals_the_chain_that_its_leaves_sum_into():
    spine, generator = 100, torch.Generator().manual_seed(0)
    names = torch.randperm(2 * spine, generator=generator).tolist()
    path, leaves = names[:spine], names[spine:]
    energy = coupled_energy(1, [*pairwise(path), *zip(path, leaves, strict=True)], 2 * spine)
    assert elimination.width(energy) == 2
    spins = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    towards = energy.unary[:, leaves, None] + energy.pairwise[path, leaves][:, None] * spins
    steps = energy.pairwise[path[:-1], path[1:]][:, None, None] * spins[:, None] * spins

    def chain(from_leaves: Tensor) -> ChainEnergy:
        unary = energy.unary[:, path, None] * spins + from_leaves
        unary[:, 0] += energy.constant[:, None]
        return ChainEnergy(unary, steps.expand(2, -1, -1, -1))

    summed = chain_dp.marginals(chain(torch.logaddexp(towards, -towards)))
    found = elimination.marginals(energy)
    torch.testing.assert_close(found.log_partition, summed.log_partition)
    torch.testing.assert_close(found.labels[:, path], summed.states[..., 1])
    best = chain_dp.decode(chain(towards.abs()))
    found = elimination.decode(energy)
    torch.testing.assert_close(found.objective, best.objective)
    assert torch.equal(found.labels[:, path], best.labels)


def test_a_grid_of_ten_rows_equals_the_chain_of_its_columns():
    rows, columns = 10, 12
    down = [(c * rows + r, c * rows + r + 1) for c in range(columns) for r in range(rows - 1)]
    energy = coupled_energy(2, down, rows * columns, batch_size=1)
    by_column = energy.pairwise.view(columns, rows, columns, rows)
    across = torch.randn(rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for column in range(columns - 1):
        by_column[column, :, column + 1] = by_column[column + 1, :, column] = across.diag()
    assert elimination.width(energy) == rows + 1
    bits = torch.arange(2**rows)[:, None] >> torch.arange(rows - 1, -1, -1) & 1
    spins = 2.0 * bits.double() - 1
    unary = energy.unary.view(1, columns, rows) @ spins.mT
    within = torch.stack([by_column[column, :, column] for column in range(columns)])
    unary += torch.einsum("si,cij,sj->cs", spins, within, spins) / 2
    unary[:, 0] += energy.constant[:, None]
    chain = ChainEnergy(unary.requires_grad_(), spins * across @ spins.mT)
    log_partition = chain_dp.log_partition(chain)
    # Not by its marginals, whose edges are as many as two columns have labellings together.
    (nodes,) = torch.autograd.grad(log_partition, unary)
    found = elimination.marginals(energy)
    torch.testing.assert_close(found.log_partition, log_partition.detach())
    torch.testing.assert_close(found.labels, (nodes @ bits.double()).flatten(1))
    best = chain_dp.decode(chain)
    assert torch.equal(elimination.decode(energy).labels, bits[best.labels].flatten(1))


@given(pairwise_energies(max_labels=8), st.integers(0, 2**32 - 1))
def test_renaming_labels_renames_results(energy, seed):
    order = torch.randperm(energy.num_labels, generator=torch.Generator().manual_seed(seed))
    found, other = elimination.marginals(energy), elimination.marginals(renamed(energy, order))
    torch.testing.assert_close(other.labels, found.labels[:, order])
    torch.testing.assert_close(other.log_partition, found.log_partition)


@given(ENERGIES)
def test_batch_of_one_equals_batch_of_many(energy):
    found, best = elimination.marginals(energy), elimination.decode(energy)
    for example in range(energy.batch_size):
        row = slice(example, example + 1)
        alone = energy.select(row)
        torch.testing.assert_close(elimination.marginals(alone).labels, found.labels[row])
        torch.testing.assert_close(elimination.log_partition(alone), found.log_partition[row])
        torch.testing.assert_close(elimination.decode(alone).objective, best.objective[row])


def test_float32_stays_accurate_over_many_labels():
    energy = coupled_energy(3, [(i, j) for i in range(400) for j in (i + 1, i + 2) if j < 400], 400)
    rounded = PairwiseEnergy(energy.unary.float(), energy.pairwise.float(), energy.constant.float())
    same = PairwiseEnergy(rounded.unary.double(), rounded.pairwise.double(), rounded.constant.double())
    found, expected = elimination.marginals(rounded), elimination.marginals(same)
    assert found.labels.dtype == found.log_partition.dtype == torch.float32
    torch.testing.assert_close(found.labels, expected.labels.float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.log_partition, expected.log_partition.float(), rtol=1e-6, atol=0)


def test_small_probabilities_keep_their_digits():
    unary = torch.tensor([[-20.0, 0.3]], dtype=torch.float64)
    pairwise = torch.tensor([[0.0, 0.5], [0.5, 0.0]], dtype=torch.float64)
    labels = elimination.marginals(PairwiseEnergy(unary, pairwise)).labels
    # P = e^−40 cosh(0.8) / cosh(−0.2), and what label 0 takes away from that.
    expected = (
        torch.tensor(-40.0).double().exp() * torch.cosh(unary[0, 1] + 0.5) / torch.cosh(unary[0, 1] - 0.5)
    )
    torch.testing.assert_close(labels[0, 0], expected, rtol=1e-12, atol=0)


def test_results_carry_no_gradient_and_need_none():
    energy = random_pairwise_energy(4, 6, density=0.5)
    learnt = replace(energy, unary=energy.unary.clone().requires_grad_())
    expected = elimination.marginals(energy).labels
    for result in (elimination.marginals(learnt), elimination.decode(learnt)):
        assert not result.labels.requires_grad
        assert not result.status.residual.requires_grad
    assert not elimination.marginals(learnt).log_partition.requires_grad
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            copy = PairwiseEnergy(energy.unary.clone(), energy.pairwise.clone(), energy.constant.clone())
            torch.testing.assert_close(elimination.marginals(copy).labels, expected)


ROUTINES = [elimination.log_partition, elimination.marginals, elimination.decode]


def bytes_of(width: int) -> int:
    """The memory for one bucket of this width in double precision."""
    return 8 * elimination.SPARSE_COPIES * 2 ** (width + 1)


@pytest.mark.parametrize("routine", ROUTINES)
def test_refuses_wide_graphs_by_their_width(routine):
    with pytest.raises(ValueError, match=r"^energy: expected a treewidth of at most 16, got at least 19"):
        routine(random_pairwise_energy(0, 20), max_bytes=bytes_of(16))
    grid = coupled_energy(
        0, [(0, 1), (1, 2), (3, 4), (4, 5), (6, 7), (7, 8)] + [(i, i + 3) for i in range(6)], 9
    )
    with pytest.raises(ValueError, match=r"^energy: expected a treewidth of at most 2, got 3"):
        routine(grid, max_bytes=bytes_of(2))
    routine(grid, max_bytes=8 * bytes_of(3))


@pytest.mark.parametrize("routine", ROUTINES)
def test_refuses_strange_values(routine):
    energy = random_pairwise_energy(0, 4)
    with pytest.raises(ValueError, match=r"^unary: expected finite values"):
        routine(replace(energy, unary=torch.full_like(energy.unary, torch.inf)))
    with pytest.raises(ValueError, match=r"^known: expected"):
        routine(energy, known=torch.full((3, 4), 0.5))
    with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
        routine(replace(energy, pairwise=energy.pairwise.triu()))


def test_wide_graphs_are_taken_that_fit_into_memory():
    # Treewidth 17.
    energy = random_pairwise_energy(0, 18)
    torch.testing.assert_close(elimination.log_partition(energy), exact.log_partition(energy))
    assert torch.equal(elimination.decode(energy).labels, exact.decode(energy).labels)


@pytest.mark.parametrize("routine", ROUTINES)
def test_what_does_not_fit_into_memory_is_refused_before_it_is_made(routine):
    with pytest.raises(ValueError, match=r"energy: expected a treewidth of at most 2[0-9], got at least 39"):
        routine(random_pairwise_energy(0, 40))
    # One bucket of 2^12 entries fits, those of all labels do not.
    energy = random_pairwise_energy(0, 12)
    example = energy.dtype.itemsize * elimination.SPARSE_COPIES * (2**13 - 2)
    with pytest.raises(ValueError, match=r"energy: expected tables of at most .* GiB for a treewidth of 11"):
        routine(energy, max_bytes=example - 1)


@pytest.mark.parametrize("routine", ROUTINES)
def test_as_many_examples_are_taken_at_a_time_as_fit_into_memory(routine, monkeypatch):
    energy = random_pairwise_energy(0, 12, 5)
    known = random_known(0, energy)
    expected, sizes = routine(energy, known=known), []
    eliminate = elimination.eliminate

    def noted(problem, *arguments):
        sizes.append(len(problem.unary))
        return eliminate(problem, *arguments)

    monkeypatch.setattr(elimination, "eliminate", noted)
    example = energy.dtype.itemsize * elimination.SPARSE_COPIES * (2**13 - 2)
    found = routine(energy, known=known, max_bytes=2 * example)
    assert sizes == [2, 2, 1]
    if isinstance(found, torch.Tensor):
        torch.testing.assert_close(found, expected)
    else:
        torch.testing.assert_close(found.labels, expected.labels)
