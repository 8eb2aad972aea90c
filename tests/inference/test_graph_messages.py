"""Belief propagation, mean field, dual ascent and branch and bound in graphs of many states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from strategies.factor import packed_energy, random_factor_energy
from strategies.tree import random_tree_energy

from lmbm_torch.energies import FactorEnergy, to_factors
from lmbm_torch.inference.graphs import (
    belief_propagation,
    cycles,
    dual_ascent,
    elimination,
    gibbs,
    programming,
)

SCHEDULES = ("parallel", "sequential", "residual", "double loop")


def a_forest(seed: int) -> FactorEnergy:
    """A table of three variables, pairs that hang from it, and a variable alone; some entries are −∞."""
    random = np.random.default_rng(seed)
    shape, scopes = (2, 3, 2, 2, 3), [(0, 1, 2), (3, 2), (4,), (1,)]
    tables = [random.normal(size=(2, *(shape[each] for each in scope))) for scope in scopes]
    tables[0][:, 1, 2, 0] = -np.inf
    tables[3][0, 0] = -np.inf
    return FactorEnergy.of(shape, [(c, torch.from_numpy(t)) for c, t in zip(scopes, tables, strict=True)])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_messages_are_exact_on_forests(schedule):
    for energy in (a_forest(0), to_factors(random_tree_energy(1, another_root=True))):
        found = belief_propagation.marginals(energy, schedule=schedule, tol=1e-10)
        exact = elimination.marginals(energy)
        assert found.status.exact.all()
        torch.testing.assert_close(found.states, exact.states, rtol=0, atol=1e-8)
        torch.testing.assert_close(found.log_partition, exact.log_partition, rtol=1e-7, atol=1e-7)
        if schedule == "double loop":
            continue
        best = belief_propagation.decode(energy, schedule=schedule)
        torch.testing.assert_close(best.objective, elimination.decode(energy).objective)
        assert best.bound.isinf().all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weak_loops_are_nearly_exact(schedule):
    energy = random_factor_energy(1, num_states=(2, 3, 2, 3), num_factors=6, scale=0.3)
    damping = 0.1 * (schedule != "double loop")
    found = belief_propagation.marginals(energy, schedule=schedule, damping=damping)
    exact = elimination.marginals(energy)
    assert found.status.converged.all()
    assert not found.status.exact.any()
    torch.testing.assert_close(found.states, exact.states, rtol=0, atol=0.03)
    torch.testing.assert_close(found.log_partition, exact.log_partition, rtol=0, atol=0.05)


def test_schedules_share_their_fixed_point():
    energy = packed_energy(2, scale=0.4)
    found = [belief_propagation.marginals(energy, schedule=each) for each in SCHEDULES]
    for other in found[1:]:
        torch.testing.assert_close(other.states, found[0].states, rtol=0, atol=1e-6)


def test_the_double_loop_converges_where_messages_cycle():
    energy = random_factor_energy(2, batch=1, num_states=(2,) * 8, num_factors=24, order=2, scale=3.0)
    for schedule in SCHEDULES[:3]:
        assert not belief_propagation.marginals(energy, schedule=schedule).status.converged.any()
    found = belief_propagation.marginals(energy, schedule="double loop", num_iters=5000)
    assert found.status.converged.all()
    with pytest.raises(ValueError, match="schedule: expected one of parallel, sequential, residual, got"):
        belief_propagation.decode(energy, schedule="double loop")
    with pytest.raises(ValueError, match="damping: expected 0 for the double loop, got"):
        belief_propagation.marginals(energy, schedule="double loop", damping=0.1)


def test_parallel_messages_are_the_same_alone_and_in_a_batch():
    energy = random_factor_energy(
        4, batch=3, num_states=(2, 3, 2, 3), num_factors=6, scale=1.0, forbidden=0.1
    )
    energy = FactorEnergy(energy.table * torch.tensor([[1.0], [0.1], [0.5]]), energy.structure)
    together = belief_propagation.marginals(energy, schedule="parallel", damping=0.1)
    assert len({*together.status.num_iters.tolist()}) == 3
    for row in range(3):
        alone = belief_propagation.marginals(
            energy.select(slice(row, row + 1)), schedule="parallel", damping=0.1
        )
        torch.testing.assert_close(alone.states[0], together.states[row], rtol=0, atol=1e-13)
        assert alone.status.num_iters[0] == together.status.num_iters[row]
        torch.testing.assert_close(alone.log_partition[0], together.log_partition[row])
    single = belief_propagation.marginals(energy.to(torch.float32), schedule="parallel", damping=0.1)
    assert single.status.converged.all()
    assert single.states.dtype == torch.float32
    torch.testing.assert_close(single.states.double(), together.states, rtol=0, atol=1e-5)


def test_known_labels_are_conditions():
    energy = a_forest(3)
    known = torch.tensor([[1, torch.nan, torch.nan, 0, torch.nan]] * 2).double()
    found = belief_propagation.marginals(energy, known=known)
    exact = elimination.marginals(energy, known=known)
    torch.testing.assert_close(found.states, exact.states, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.log_partition, exact.log_partition, rtol=1e-7, atol=1e-7)


def test_the_mean_field_bounds_from_below():
    for seed in range(4):
        energy = random_factor_energy(seed, forbidden=0.2 * (seed > 1), scale=0.5)
        best = elimination.decode(energy)
        found = belief_propagation.mean_field(energy, labels=best.labels)
        exact = elimination.log_partition(energy)
        assert (found.log_partition <= exact + 1e-9).all()
        assert (found.log_partition >= best.objective - 1e-9).all()
        torch.testing.assert_close(found.states.sum(-1), torch.ones(2, 4).double())
    product = FactorEnergy.of((2, 3), [((0,), torch.randn(2, generator=torch.Generator().manual_seed(0)))])
    alone = belief_propagation.mean_field(product)
    assert alone.status.exact.all()
    torch.testing.assert_close(alone.log_partition, elimination.log_partition(product))


@pytest.mark.parametrize("forbidden", [0.0, 0.25])
def test_the_search_finds_and_proves_the_best_labelling(forbidden):
    for seed in range(8):
        energy = random_factor_energy(
            seed, num_states=(3, 2, 4, 2, 3), num_factors=8, forbidden=forbidden, scale=2.0
        )
        best = elimination.decode(energy).objective
        found = dual_ascent.branch_and_bound(energy)
        assert found.status.exact.all()
        torch.testing.assert_close(found.objective, best)
        torch.testing.assert_close(energy.score(found.labels), found.objective)
        ascended = dual_ascent.decode(energy)
        assert (ascended.bound >= best - 1e-9).all()
        assert (ascended.objective <= best + 1e-9).all()
        limited = dual_ascent.branch_and_bound(energy, node_limit=3)
        assert (limited.bound >= best - 1e-9).all()


def test_the_ascent_is_tight_on_trees_and_takes_packed_graphs():
    tree = to_factors(random_tree_energy(5, nodes=7))
    assert dual_ascent.decode(tree).status.exact.all()
    energy = packed_energy(4)
    torch.testing.assert_close(
        dual_ascent.branch_and_bound(energy).objective, elimination.decode(energy).objective
    )


def test_bad_arguments_are_refused():
    energy = a_forest(0)
    for given, message in (
        ({"schedule": "random"}, "schedule: expected one of parallel, sequential, residual"),
        ({"damping": 1.0}, "damping: expected a number from 0 to below 1"),
        ({"damping": -0.1}, "damping: expected"),
        ({"num_iters": 0}, "num_iters: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            belief_propagation.marginals(energy, **given)
    with pytest.raises(ValueError, match="node_limit: expected"):
        dual_ascent.branch_and_bound(energy, node_limit=0)


@pytest.mark.parametrize("forbidden", [0.0, 0.25])
def test_programmes_find_the_best_labelling_and_bounds(forbidden):
    for seed in range(3):
        energy = random_factor_energy(
            seed, num_states=(3, 2, 3, 2), num_factors=6, forbidden=forbidden, scale=2.0
        )
        best = elimination.decode(energy).objective
        whole, relaxed = programming.decode(energy), programming.decode_relaxed(energy)
        assert whole.status.exact.all()
        torch.testing.assert_close(whole.objective, best)
        cut = cycles.decode(energy, num_rounds=4)
        assert cut.status.exact.all()
        torch.testing.assert_close(cut.objective, best)
        relaxed_cut = cycles.decode(energy, num_rounds=30, node_limit=1)
        assert (relaxed_cut.bound >= best - 1e-9).all()
        assert (relaxed_cut.bound <= relaxed.bound + 1e-5).all()
        assert (relaxed.bound >= best - 1e-9).all()
        # The ascent's bound is that of the same polytope, or a larger one.
        assert (dual_ascent.decode(energy).bound >= relaxed.bound - 1e-4).all()
    assert programming.decode_relaxed(a_forest(1)).status.exact.all()
    with pytest.raises(ValueError, match="time_limit: expected"):
        programming.decode(energy, time_limit=0.0)
    with pytest.raises(ValueError, match="num_rounds: expected"):
        cycles.decode(energy, num_rounds=0)


def test_gibbs_chains_have_the_right_frequencies():
    energy = random_factor_energy(3, num_states=(2, 3, 2, 3), num_factors=5, scale=0.7)
    generator = torch.Generator().manual_seed(0)
    drawn = gibbs.sample(energy, 4000, num_steps=12, generator=generator)
    exact = elimination.marginals(energy).states
    for state in range(3):
        torch.testing.assert_close((drawn == state).double().mean(0), exact[..., state], rtol=0, atol=0.03)
    known = torch.tensor([[torch.nan, 2, torch.nan, torch.nan]] * 2).double()
    given = gibbs.sample(energy, 2000, known=known, num_steps=12, generator=generator)
    assert (given[..., 1] == 2).all()
    exact = elimination.marginals(energy, known=known).states
    torch.testing.assert_close((given[..., 3] == 1).double().mean(0), exact[:, 3, 1], rtol=0, atol=0.04)
    packed = packed_energy(1, scale=0.5)
    drawn = gibbs.sample(packed, 2000, num_steps=12, generator=generator)
    share = (drawn[..., 1] == 1).double().mean(0)
    torch.testing.assert_close(share, elimination.marginals(packed).states[:, 1, 1], rtol=0, atol=0.04)


@pytest.mark.parametrize(
    "decode", [dual_ascent.decode, dual_ascent.branch_and_bound, cycles.decode, programming.decode]
)
def test_proofs_are_shares_of_small_log_potentials(decode):
    energy = random_factor_energy(3, num_states=(2,) * 8, num_factors=16, order=2)
    small = FactorEnergy(1e-10 * energy.table, energy.structure)
    found, best = decode(small), elimination.decode(small).objective
    assert (found.bound >= best * (1 - 1e-6)).all()
    assert (decode(energy).status.exact | ~found.status.exact).all()
    assert (found.objective[found.status.exact] >= best[found.status.exact] * (1 - 1e-5)).all()
    if decode is not dual_ascent.decode:
        assert found.status.exact.all()


@pytest.mark.parametrize(
    "decode",
    [
        elimination.decode,
        dual_ascent.decode,
        dual_ascent.branch_and_bound,
        belief_propagation.decode,
        programming.decode,
        cycles.decode,
    ],
)
def test_known_labels_that_zeros_forbid_are_refused(decode):
    table = torch.tensor([[0.0, 1.0], [2.0, -torch.inf]]).double()
    energy = FactorEnergy.of((2, 2, 2), [((0, 1), table.expand(2, 2, 2)), ((1, 2), torch.eye(2).double())])
    known = torch.full((2, 3), torch.nan)
    known[1, :2] = 1
    with pytest.raises(ValueError, match="energy: expected an allowed labelling of each example, got 1"):
        decode(energy, known=known)
