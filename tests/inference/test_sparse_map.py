"""SparseMAP against its quadratic programme over all labellings in cvxpy, and against its limits."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.factor import every_labelling, packed_energy, random_factor_energy
from strategies.pairwise import (
    all_labellings,
    exchanged,
    pairwise_energies,
    random_pairwise_energy,
    renamed,
)
from sweeps import slow

from lmbm_torch.energies import ChainEnergy, FactorEnergy, PairwiseEnergy, SemiChainEnergy, to_factors
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import integer_program, lp_layer, lp_relaxation, sparse_map


def programme(energy: PairwiseEnergy, temperature: float, example: int) -> tuple[float, np.ndarray]:
    """The largest objective, and the labels' marginals there."""
    labellings = all_labellings(energy.num_labels)
    scores = energy.score(labellings)[:, example].numpy()
    spins = 2.0 * labellings[:, 0].numpy() - 1
    probabilities = cp.Variable(len(scores), nonneg=True)
    value = scores @ probabilities - temperature / 2 * cp.sum_squares(spins.T @ probabilities)
    problem = cp.Problem(cp.Maximize(value), [cp.sum(probabilities) == 1])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return problem.value, (1 + spins.T @ probabilities.value) / 2


@given(pairwise_energies(max_labels=5, max_batch=2), st.sampled_from((0.1, 1.0, 5.0)))
@settings(max_examples=25)
def test_equals_the_programme_over_all_labellings(energy, temperature):
    found = sparse_map.marginals(energy, temperature=temperature)
    assert found.status.converged.all()
    assert found.status.exact.all()
    size = 1 + float(energy.score(all_labellings(energy.num_labels)).abs().max())
    for example in range(energy.batch_size):
        value, labels = programme(energy, temperature, example)
        assert found.objective[example].item() == pytest.approx(value, abs=1e-7 * size)
        torch.testing.assert_close(
            found.labels[example], torch.tensor(labels), rtol=0, atol=1e-4 * size**0.5 / temperature**0.5
        )


@given(pairwise_energies(max_labels=6), st.sampled_from((0.1, 1.0)))
def test_is_a_distribution_over_few_labellings(energy, temperature):
    found = sparse_map.marginals(energy, temperature=temperature)
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(energy.batch_size).double())
    assert (found.probabilities >= 0).all()
    assert ((found.probabilities > 0).sum(1) <= energy.num_labels + 1).all()
    mean = torch.einsum("bs,bsi->bi", found.probabilities, found.labellings.double())
    torch.testing.assert_close(found.labels, mean)
    for row, share in zip(found.labellings.tolist(), found.probabilities, strict=True):
        present = [tuple(labels) for labels, p in zip(row, share.tolist(), strict=True) if p > 0]
        assert len(set(present)) == len(present)
    torch.testing.assert_close(found.bound - found.objective, found.status.residual)


def test_without_couplings_labels_are_clipped():
    energy = random_pairwise_energy(0, 6, 4, coupling=0.0)
    found = sparse_map.marginals(energy, temperature=0.8)
    torch.testing.assert_close(found.labels, ((1 + energy.unary / 0.8) / 2).clamp(0, 1))


def test_ties_are_shared():
    # Every labelling scores the same, so that only the mean spins count.
    energy = PairwiseEnergy(torch.zeros(1, 4).double(), torch.zeros(4, 4).double())
    found = sparse_map.marginals(energy)
    torch.testing.assert_close(found.labels, torch.full((1, 4), 0.5).double())
    assert found.status.exact.all()


@given(pairwise_energies(max_labels=5))
def test_at_a_low_temperature_it_is_the_map(energy):
    found, best = sparse_map.marginals(energy, temperature=1e-9), exact.decode(energy)
    torch.testing.assert_close(found.objective, best.objective, rtol=1e-6, atol=1e-6)


@given(pairwise_energies(min_labels=2, max_labels=5), st.integers(0, 2**32 - 1))
def test_renaming_and_exchanging_labels_does_so_to_results(energy, seed):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(energy.num_labels, generator=generator)
    flip = torch.randint(2, (energy.num_labels,), generator=generator).bool()
    # Far from the temperature of strong couplings, the optimum is known to fewer digits.
    labels = sparse_map.marginals(energy, temperature=2.0).labels
    other = sparse_map.marginals(renamed(energy, order), temperature=2.0).labels
    torch.testing.assert_close(other, labels[:, order], rtol=0, atol=1e-5)
    other = sparse_map.marginals(exchanged(energy, flip), temperature=2.0).labels
    torch.testing.assert_close(other, torch.where(flip, 1 - labels, labels), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("temperature", "per_example"), [(0.5, False), slow(2.0, True), slow(0.5, True), slow(2.0, False)]
)
def test_gradients(temperature, per_example):
    energy = random_pairwise_energy(3, 4, 2, per_example=per_example)

    def values(unary, pairwise, constant):
        upper = pairwise.triu(1)
        changed = PairwiseEnergy(unary, upper + upper.mT, constant)
        found = sparse_map.marginals(changed, temperature=temperature)
        # A probability's own place may change with the energy; the sum of squares does not.
        return found.labels, found.objective, found.probabilities.square().sum(1)

    tensors = (energy.unary, energy.pairwise, energy.constant)
    assert torch.autograd.gradcheck(values, [tensor.clone().requires_grad_() for tensor in tensors])


# cvxpylayers reads tensors as NumPy 1 did.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_the_local_polytope_of_two_labels_has_the_same_solution():
    # Of two labels the local polytope has no other vertices than labellings.
    energy = random_pairwise_energy(0, 2, 5)
    found = sparse_map.marginals(energy, temperature=1.0)
    relaxed = lp_layer.relaxed_labels(energy, temperature=1.0, pair_temperature=0.0)
    torch.testing.assert_close(relaxed, found.labels, rtol=0, atol=1e-5)


def test_any_decoder_finds_the_labellings():
    energy = random_pairwise_energy(1, 6, 3)
    expected = sparse_map.marginals(energy)
    found = sparse_map.marginals(energy, decoder=integer_program.decode, tol=1e-6)
    assert found.status.exact.all()
    torch.testing.assert_close(found.labels, expected.labels, rtol=0, atol=1e-4)
    # The relaxation's bounds are not met, so that they prove less.
    loose = sparse_map.marginals(random_pairwise_energy(0, 8, 3, coupling=2.0), decoder=lp_relaxation.decode)
    assert not loose.status.exact.any()
    exactly = sparse_map.marginals(random_pairwise_energy(0, 8, 3, coupling=2.0))
    assert (loose.bound >= exactly.objective - 1e-9).all()
    assert (loose.objective <= exactly.objective + 1e-9).all()


def test_one_call_of_the_decoder_is_not_enough():
    energy = random_pairwise_energy(0, 5, 3)
    few = sparse_map.marginals(energy, temperature=3.0, num_iters=2)
    assert not few.status.converged.any()
    assert few.status.num_iters.tolist() == [2, 2, 2]
    best = sparse_map.marginals(energy, temperature=3.0).objective
    assert (few.bound >= best).all()
    assert (few.objective <= best).all()


def test_float32_and_batches():
    energy = random_pairwise_energy(2, 5, 4, dtype=torch.float32)
    together = sparse_map.marginals(energy)
    assert together.labels.dtype == together.objective.dtype == together.bound.dtype == torch.float32
    for example in range(4):
        alone = sparse_map.marginals(energy.select(slice(example, example + 1)))
        torch.testing.assert_close(alone.labels[0], together.labels[example])
        torch.testing.assert_close(alone.objective[0], together.objective[example])


def test_refusals():
    energy = random_pairwise_energy(0, 3)
    with pytest.raises(ValueError, match=r"^temperature: expected"):
        sparse_map.marginals(energy, temperature=0.0)
    with pytest.raises(ValueError, match=r"^tol: expected"):
        sparse_map.marginals(energy, tol=-1.0)
    with pytest.raises(ValueError, match=r"^num_iters: expected"):
        sparse_map.marginals(energy, num_iters=0)
    with pytest.raises(ValueError, match=r"^unary: expected finite"):
        sparse_map.marginals(replace(energy, unary=energy.unary * torch.inf))


@pytest.mark.parametrize("forbidden", [0.0, 0.2])
def test_graphs_of_tables_equal_the_programme_over_all_labellings(forbidden):
    energy = random_factor_energy(4, num_states=(2, 3, 1, 3), num_factors=4, forbidden=forbidden)
    found = sparse_map.marginals(energy, temperature=0.7)
    assert found.status.exact.all()
    labels, scores = every_labelling(energy)[:, 0], energy.score(every_labelling(energy))
    marks = (labels[..., None] == torch.arange(3)).double()
    for example in range(energy.batch_size):
        allowed = scores[:, example] > -torch.inf
        mine = marks[allowed].flatten(1).numpy()
        shares = cp.Variable(int(allowed.sum()), nonneg=True)
        gain = scores[allowed, example].numpy() @ shares - 0.7 * cp.sum_squares(mine.T @ shares)
        problem = cp.Problem(cp.Maximize(gain + 0.7 / 2 * 4), [cp.sum(shares) == 1])
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        assert found.objective[example].item() == pytest.approx(problem.value, abs=1e-6)
        expected = torch.tensor(mine.T @ shares.value).view(4, 3)
        torch.testing.assert_close(found.states[example], expected, rtol=0, atol=1e-4)


def test_one_model_of_any_kind_has_the_same_distribution():
    energy = random_pairwise_energy(5, 5, 2)
    found, other = sparse_map.marginals(energy), sparse_map.marginals(to_factors(energy))
    torch.testing.assert_close(other.states, found.states)
    torch.testing.assert_close(other.objective, found.objective)
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(2, 4, 3, generator=generator).double()
    lengths = torch.tensor([4, 2])
    chains = ChainEnergy(unary, torch.randn(3, 3, generator=generator).double(), lengths)
    found, other = sparse_map.marginals(chains), sparse_map.marginals(to_factors(chains))
    torch.testing.assert_close(other.states, found.states)
    torch.testing.assert_close(other.objective, found.objective)
    assert found.states[1, 2:].count_nonzero() == 0
    for row, one in enumerate((packed := packed_energy(1)).examples()):
        alone, together = sparse_map.marginals(one), sparse_map.marginals(packed)
        torch.testing.assert_close(alone.objective[0], together.objective[row])


def test_gradients_by_tables():
    energy = random_factor_energy(2, num_states=(2, 3), num_factors=1)

    def values(table):
        found = sparse_map.marginals(FactorEnergy(table, energy.structure), temperature=0.8)
        return found.states, found.objective

    assert torch.autograd.gradcheck(values, energy.table.clone().requires_grad_())


def test_other_kinds_need_a_decoder():
    chains = SemiChainEnergy(torch.zeros(1, 2, 2), torch.zeros(2, 2), torch.zeros(1, 2))
    with pytest.raises(TypeError, match=r"without rules, of PairwiseEnergy, .* got SemiChainEnergy"):
        sparse_map.marginals(chains)
