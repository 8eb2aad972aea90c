"""The tree-reweighted bound against enumeration, and its fixed points against the published equations."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.scalar_messages import SPINS, ScalarMessages
from strategies.directed import random_known
from strategies.pairwise import (
    pairwise_energies,
    random_forest_energy,
    random_pairwise_energy,
)

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.common.results import PairwiseMessages
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import pairwise_bp, tree_reweighted

SEEDS = st.integers(0, 2**32 - 1)


def random_weights(seed: int, energy: PairwiseEnergy) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    upper = torch.exp(2 * torch.randn(energy.pairwise.shape, generator=generator).triu(1))
    return (upper * upper.mT).to(energy.dtype)


def assert_above(bound, value):
    assert (bound - value >= -1e-9 * (1 + value.abs())).all()


@given(pairwise_energies(max_labels=7), SEEDS, st.sampled_from((1, 2, 5, 40)), st.sampled_from((0.0, 0.5)))
@settings(max_examples=20)
def test_is_an_upper_bound_after_any_number_of_iterations(energy, seed, num_iters, damping):
    known = random_known(seed, energy, 0.3)
    weights = random_weights(seed, energy)
    for given_labels in (None, known):
        for tree_weights in (None, weights):
            came = tree_reweighted.marginals(
                energy, num_iters=num_iters, damping=damping, tree_weights=tree_weights, known=given_labels
            )
            assert_above(came.log_partition, exact.log_partition(energy, known=given_labels))


@given(pairwise_energies(max_labels=7), SEEDS, st.sampled_from((0.1, 1.0, 10.0, 1000.0)))
def test_is_an_upper_bound_at_any_messages(energy, seed, scale):
    kept = tree_reweighted.marginals(energy, num_iters=1, keep_messages=True).messages
    generator = torch.Generator().manual_seed(seed)
    drawn = scale * torch.randn(kept.to_labels.shape, generator=generator).double()
    # With all of it kept but a millionth, the bound is that of what was drawn.
    came = tree_reweighted.marginals(
        energy, num_iters=1, damping=1 - 1e-6, messages=PairwiseMessages(kept.neighbours, drawn)
    )
    assert_above(came.log_partition, exact.log_partition(energy))


@pytest.mark.parametrize("seed", range(25))
def test_is_exact_on_forests(seed):
    energy = random_forest_energy(seed, 1 + seed % 10, 20, coupling=(0.3, 1.0, 3.0, 30.0)[seed % 4])
    came = tree_reweighted.marginals(energy, tol=1e-8, damping=0.0, tree_weights=random_weights(seed, energy))
    assert came.status.exact.all()
    torch.testing.assert_close(came.log_partition, exact.log_partition(energy), rtol=1e-9, atol=1e-6)
    torch.testing.assert_close(came.labels, pairwise_bp.marginals(energy, tol=1e-8).labels, rtol=0, atol=1e-6)


def appearances(pairwise: list, weights: list) -> dict:
    """Each pair's chance to be on a spanning forest, by enumerating them."""
    labels = range(len(pairwise))
    pairs = [(i, j) for i, j in combinations(labels, 2) if pairwise[i][j] != 0]

    def parts(chosen):
        names = list(labels)
        for i, j in chosen:
            names = [names[i] if name == names[j] else name for name in names]
        return len(set(names))

    size = len(labels) - parts(pairs)
    trees = [tree for tree in combinations(pairs, size) if len(labels) - parts(tree) == size]
    chances = [math.prod(weights[i][j] for i, j in tree) for tree in trees]
    found = {}
    for i, j in pairs:
        on_it = sum(chance for chance, tree in zip(chances, trees, strict=True) if (i, j) in tree)
        found[i, j] = found[j, i] = on_it / sum(chances)
    return found


@pytest.mark.parametrize("density", [0.6, 1.0])
@pytest.mark.parametrize("per_example", [False, True])
def test_messages_are_those_of_the_enumerated_trees(density, per_example):
    energy = random_pairwise_energy(4, 5, density=density, per_example=per_example)
    for weights in (torch.ones_like(energy.pairwise), random_weights(0, energy)):
        came = tree_reweighted.marginals(
            energy, num_iters=6, tol=0.0, damping=0.2, tree_weights=weights, keep_messages=True
        )
        for row in range(3):
            pairwise, w = (m if m.ndim == 2 else m[row] for m in (energy.pairwise, weights))
            shares = appearances(pairwise.tolist(), w.tolist())
            scalar = ScalarMessages.of(energy, row, shares)
            for _ in range(6):
                scalar.iterate(0.2)
            scalar.assert_has(came, row)


def entropy(table: list[float]) -> float:
    return -sum(p * math.log(p) for p in table if p > 0)


def test_at_a_fixed_point_the_bound_is_the_least_for_its_trees():
    # By duality that is expected score + Σ entropies − Σ ρ mutual information, at the beliefs.
    energy = random_pairwise_energy(0, 5, coupling=0.5)
    came = tree_reweighted.marginals(energy, num_iters=2000, tol=1e-12, keep_messages=True)
    assert came.status.converged.all()
    for row in range(3):
        shares = appearances(energy.pairwise.tolist(), torch.ones(5, 5).tolist())
        scalar = ScalarMessages.of(energy, row, shares).set_from(came, row)
        assert scalar.missed_by() < 1e-10
        single = [[1 - p, p] for p in came.labels[row].tolist()]
        value = float(energy.constant[row]) + sum(entropy(table) for table in single)
        value += sum(u * (table[1] - table[0]) for u, table in zip(scalar.unary, single, strict=True))
        for (t, s), share in shares.items():
            scaled = scalar.pairwise[t][s] / share
            sides = [(scalar.belief(t), scalar.messages[s, t]), (scalar.belief(s), scalar.messages[t, s])]
            (to_t, to_s) = ([b - m for b, m in zip(*side, strict=True)] for side in sides)
            log_pair = [
                x * y * scaled + to_t[(x + 1) // 2] + to_s[(y + 1) // 2] for x in SPINS for y in SPINS
            ]
            total = scalar.total(log_pair)
            pair = [math.exp(entry - total) for entry in log_pair]
            information = entropy(single[t]) + entropy(single[s]) - entropy(pair)
            agree = pair[0] + pair[3] - pair[1] - pair[2]
            # Each pair comes in both directions.
            value += (scalar.pairwise[t][s] * agree - share * information) / 2
        assert math.isclose(value, float(came.log_partition[row]), rel_tol=1e-9)


def test_other_trees_give_other_bounds():
    energy = random_pairwise_energy(0, 8, 5, coupling=2.0, per_example=True)
    uniform = tree_reweighted.marginals(energy).log_partition
    strong = tree_reweighted.marginals(
        energy, tree_weights=energy.pairwise.abs().clamp(min=0.01)
    ).log_partition
    assert (strong < uniform).all()


def test_weights_without_couplings_do_not_matter():
    energy = random_pairwise_energy(0, 7, density=0.4)
    weights = random_weights(0, energy)
    without = weights.masked_fill(energy.pairwise == 0, torch.nan)
    first, other = (tree_reweighted.marginals(energy, tree_weights=w) for w in (weights, without))
    assert torch.equal(first.log_partition, other.log_partition)


def test_the_gradient_at_a_fixed_point_is_the_beliefs():
    energy = random_pairwise_energy(0, 5, coupling=0.5)
    unary, pairwise = energy.unary.clone().requires_grad_(), energy.pairwise.clone().requires_grad_()

    def bound(unary, pairwise):
        tilted = replace(energy, unary=unary, pairwise=(pairwise + pairwise.mT) / 2)
        return tree_reweighted.marginals(tilted, num_iters=2000, tol=1e-12)

    came = bound(unary, pairwise)
    by_unary, by_pairwise = torch.autograd.grad(came.log_partition.sum(), (unary, pairwise))
    torch.testing.assert_close(by_unary, 2 * came.labels - 1)
    change = torch.zeros(5, 5).double()
    change[1, 3] = change[3, 1] = 1e-5
    up, down = (bound(energy.unary, energy.pairwise + sign * change).log_partition.sum() for sign in (1, -1))
    torch.testing.assert_close(2 * by_pairwise[1, 3], (up - down) / 2e-5, rtol=1e-6, atol=1e-7)


def test_a_long_chain_keeps_the_chances_of_its_trees():
    # All but two of its pairs are on every tree.
    labels = 400
    energy = PairwiseEnergy(torch.zeros(1, labels).double(), torch.zeros(labels, labels).double())
    place = torch.arange(labels - 1)
    energy.pairwise[place, place + 1] = energy.pairwise[place + 1, place] = 0.3
    weights = torch.ones_like(energy.pairwise)
    weights[labels // 2, labels // 2 - 1] = weights[labels // 2 - 1, labels // 2] = 1e-6
    came = tree_reweighted.marginals(energy, tree_weights=weights, damping=0.0)
    log_partition = labels * math.log(2) + (labels - 1) * math.log(math.cosh(0.3))
    assert math.isclose(float(came.log_partition), log_partition, rel_tol=1e-9)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(3, 3).double(), "expected shape"),
        (torch.ones(2, 4, 4).double(), "expected shape"),
        (torch.ones(4, 4), "expected torch.float64"),
        (torch.zeros(4, 4).double(), "expected weights above 0"),
        (torch.tensor([[1.0, 1e7], [1e7, 1.0]]).double().repeat(2, 2), "expected weights above 0"),
        (torch.full((4, 4), torch.inf).double(), "expected finite values"),
        (torch.arange(1.0, 17.0).double().reshape(4, 4), "expected a symmetric matrix"),
    ],
)
def test_refuses_strange_weights(weights, message):
    with pytest.raises(ValueError, match=f"^tree_weights: {message}"):
        tree_reweighted.marginals(random_pairwise_energy(0, 4), tree_weights=weights)
