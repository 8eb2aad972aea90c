"""Bounds on the log partition by mini-buckets, against enumeration and elimination."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from strategies.directed import random_known
from strategies.factor import packed_energy, random_factor_energy
from strategies.pairwise import random_clique_energy, random_pairwise_energy
from sweeps import slow, thorough

from lmbm_torch.energies import PairwiseEnergy, to_factors
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination, tree_reweighted
from lmbm_torch.inference.messages import mean_field, mini_buckets
from lmbm_torch.inference.messages.mini_buckets import buckets_of

WEAK, ORDINARY, STRONG = 0.1, 1.0, 30.0


def grid(side: int, coupling: float, batch: int = 2) -> PairwiseEnergy:
    """Random couplings between neighbours in a square."""
    generator = torch.Generator().manual_seed(0)
    pairwise = torch.zeros(batch, side * side, side * side, dtype=torch.float64)
    for label in range(side * side):
        for other, is_inside in ((label + side, label + side < side * side), (label + 1, (label + 1) % side)):
            if is_inside:
                drawn = coupling * torch.randn(batch, generator=generator, dtype=torch.float64)
                pairwise[:, label, other] = pairwise[:, other, label] = drawn
    unary = 0.3 * coupling * torch.randn(batch, side * side, generator=generator, dtype=torch.float64)
    return PairwiseEnergy(unary, pairwise)


def assert_between(found, expected) -> None:
    slack = 1e-9 * (1 + expected.abs())
    assert (found.lower <= expected + slack).all()
    assert (expected <= found.upper + slack).all()


@pytest.mark.parametrize("coupling", [WEAK, ORDINARY, STRONG])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("seed", thorough(range(20), 2))
def test_the_log_partition_lies_between(seed, width, coupling):
    energy = random_pairwise_energy(seed, 7, 5, coupling=coupling, per_example=bool(seed % 2))
    for known in (None, random_known(seed, energy)):
        found = mini_buckets.bounds(energy, width=width, num_iters=3, known=known)
        assert_between(found, exact.log_partition(energy, known=known))
        torch.testing.assert_close(found.status.residual, found.upper - found.lower)


@pytest.mark.parametrize("seed", thorough(range(20), 2))
def test_the_bounds_of_splits_alone_hold(seed, monkeypatch):
    """Without those of other algorithms, which are taken where they are closer."""
    for module, far in ((mean_field, -torch.inf), (tree_reweighted, torch.inf)):
        worst = torch.full((5,), far, dtype=torch.float64)
        answer = mean_field.marginals(random_pairwise_energy(0, 8, 5))
        answer = type(answer)(answer.labels, worst, answer.status)
        monkeypatch.setattr(module, "marginals", lambda *_, answer=answer, **__: answer)
    energy = random_pairwise_energy(seed, 8, 5, coupling=2.0, per_example=True)
    known = random_known(seed, energy)
    for num_iters in (1, 15):
        found = mini_buckets.bounds(energy, width=2, num_iters=num_iters, known=known)
        assert found.lower.isfinite().all()
        assert found.upper.isfinite().all()
        assert_between(found, exact.log_partition(energy, known=known))


@pytest.mark.parametrize(("max_order", "coupling"), [(3, 1.0), (6, 10.0)])
@pytest.mark.parametrize("seed", thorough(range(20), 4))
def test_larger_cliques_are_split_too(seed, max_order, coupling):
    energy = random_clique_energy(seed, 9, 3, coupling=coupling, num_cliques=20, max_order=max_order)
    found = mini_buckets.bounds(energy, width=2, num_iters=10)
    assert not found.status.exact.any()
    assert_between(found, exact.log_partition(energy))


@pytest.mark.parametrize("energy", [grid(4, 1.0), random_pairwise_energy(0, 6, 3)], ids=["grid", "dense"])
def test_both_are_exact_where_tables_are_large_enough(energy):
    expected = exact.log_partition(energy)
    found = mini_buckets.bounds(energy, width=int(elimination.width(energy)) - 1)
    assert found.status.exact.all()
    torch.testing.assert_close(found.lower, expected)
    torch.testing.assert_close(found.upper, expected)


@pytest.mark.parametrize(
    ("kind", "coupling"), [("grid", 2.0), ("dense", 0.5), slow("grid", 0.5), slow("dense", 2.0)]
)
def test_the_gap_falls_with_width_and_iterations_to_a_part_of_that_of_propagation(kind, coupling):
    energy = grid(5, coupling, 1) if kind == "grid" else random_pairwise_energy(0, 12, 1, coupling=coupling)

    def gap(width, num_iters):
        found = mini_buckets.bounds(energy, width=width, num_iters=num_iters)
        return (found.upper - found.lower).mean()

    above = tree_reweighted.marginals(to_factors(energy)).log_partition
    others = above - mean_field.marginals(energy).log_partition
    assert gap(3, 10) < 0.6 * others.mean()
    assert gap(3, 10) < gap(3, 1)
    assert gap(3, 10) < gap(1, 10)


def test_every_clique_and_message_is_summed_once():
    cliques = (*((label,) for label in range(7)), (0, 3, 5), (1, 2), (2, 6), (4, 5), (5, 6), (0, 6))
    for width in (2, 3, 6):
        parts = [part for bucket in buckets_of((2,) * 7, cliques, 2 ** (width + 1)) for part in bucket.parts]
        assert sorted(clique for part in parts for clique in part.cliques) == list(range(len(cliques)))
        sent = [index for index, part in enumerate(parts) if len(part.scope) > 1]
        assert sorted(sender for part in parts for sender, _ in part.messages) == sent
        assert max(len(part.scope) for part in parts) <= width + 1
        for part in parts:
            assert {label for clique in part.cliques for label in cliques[clique]} <= {*part.scope}


def test_single_precision_is_rounded_outwards():
    energy = random_pairwise_energy(3, 7, 50)
    single = PairwiseEnergy(*(each.float() for each in (energy.unary, energy.pairwise, energy.constant)))
    found = mini_buckets.bounds(single, width=7)
    assert found.lower.dtype == torch.float32
    expected = exact.log_partition(
        PairwiseEnergy(*(each.double() for each in (single.unary, single.pairwise, single.constant)))
    )
    assert (found.lower.double() <= expected + 1e-12).all()
    assert (found.upper.double() >= expected - 1e-12).all()
    assert (found.upper - found.lower <= 1e-6 * (1 + expected.abs())).all()


def test_examples_are_taken_in_pieces(monkeypatch):
    energy = random_pairwise_energy(2, 8, 5, per_example=True)
    whole = mini_buckets.bounds(energy, width=3, num_iters=4)
    problem = mini_buckets._Problem.of(to_factors(energy), 3)
    monkeypatch.setattr(mini_buckets, "MAX_BYTES", 2 * problem.bytes_each)
    found = mini_buckets.bounds(energy, width=3, num_iters=4)
    torch.testing.assert_close((found.lower, found.upper), (whole.lower, whole.upper))


def test_refusals():
    energy = random_pairwise_energy(0, 40)
    with pytest.raises(ValueError, match="width: expected tables of at most 1 GiB for an example, got about"):
        mini_buckets.bounds(energy, width=39)
    for name in ("width", "num_iters"):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            mini_buckets.bounds(energy, **{name: 0})


@pytest.mark.parametrize("forbidden", [0.0, 0.2])
def test_graphs_of_many_states_lie_between(forbidden):
    for energy in (
        random_factor_energy(1, num_states=(3, 2, 3, 2, 4), num_factors=9, forbidden=forbidden),
        packed_energy(2, num_factors=6, forbidden=forbidden),
    ):
        expected = elimination.log_partition(energy)
        found = mini_buckets.bounds(energy, width=1, num_iters=10)
        assert_between(found, expected)
        assert energy.is_packed or not found.status.exact.any()
        wide = mini_buckets.bounds(energy, width=8)
        assert wide.status.exact.all()
        torch.testing.assert_close(wide.lower, expected)
        known = torch.full((energy.batch_size, energy.num_labels), torch.nan, dtype=torch.float64)
        known[:, 0] = 0
        given = mini_buckets.bounds(energy, width=1, num_iters=3, known=known)
        assert_between(given, elimination.log_partition(energy, known=known))


@pytest.mark.parametrize("width", [2, 8])
def test_excluded_states_are_not_summed(width):
    generator = torch.Generator().manual_seed(0)
    energy = random_factor_energy(3, batch=3, num_states=(3, 2, 3, 2, 4), num_factors=6, scale=0.3)
    table = energy.table.clone()
    unary = table[:, : energy.structure.num_unary]
    unary[torch.rand(unary.shape, generator=generator) < 0.3] = -torch.inf
    for first in energy.structure.first[:5].tolist():
        table[:, first] = 0.0
    energy = replace(energy, table=table)
    known = torch.full((3, 5), torch.nan, dtype=torch.float64)
    known[1, 2] = 0
    found = mini_buckets.bounds(energy, width=width, num_iters=3, known=known)
    expected = elimination.log_partition(energy, known=known)
    assert_between(found, expected)
    assert found.status.exact.all() == (width == 8)
    if width == 8:
        torch.testing.assert_close(found.lower, expected)
        torch.testing.assert_close(found.upper, expected)
