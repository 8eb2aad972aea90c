"""Belief propagation against enumeration, against message passing written out, and against its own claims."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.scalar_bipartite_messages import ScalarBipartiteMessages
from strategies.bipartite import random_bipartite_energy, random_forest_bipartite_energy
from sweeps import thorough
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.common.results import BipartiteMessages
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import conditional_modes, matrix_bp

ROUTINES = (matrix_bp.marginals, matrix_bp.max_marginals, matrix_bp.marginal_map)


def scaled(energy: BipartiteEnergy, scale: float) -> BipartiteEnergy:
    """The same model with its largest weight at ``scale``, and with biases that cancel the weights' mean."""
    coupling = energy.coupling * (scale / energy.coupling.abs().max())
    return BipartiteEnergy(
        energy.visible - coupling.sum(1) / 2, energy.hidden - coupling.sum(0) / 2, coupling
    )


@pytest.mark.parametrize("num_iters", [1, 2, 5])
def test_iterations_are_those_of_algorithm_1(num_iters):
    energy = random_bipartite_energy(0, 4, 3, coupling=1.5)
    result = matrix_bp.marginals(energy, num_iters=num_iters, tol=0.0, keep_messages=True)
    joint = torch.zeros_like(energy.coupling)
    for row in range(energy.batch_size):
        scalar = ScalarBipartiteMessages(energy.visible[row], energy.hidden[row], energy.coupling)
        for _ in range(num_iters):
            scalar.answer_visible()
            scalar.answer_hidden()
        assert result.visible[row].tolist() == pytest.approx(scalar.visible_beliefs(), rel=1e-10)
        assert result.hidden[row].tolist() == pytest.approx(scalar.hidden_beliefs(), rel=1e-10)
        joint += torch.tensor(scalar.pairwise(), dtype=torch.float64)
        for name in ("to_visible", "to_hidden"):
            sent = [math.log(table[1] / table[0]) for table in getattr(scalar, name).values()]
            came = getattr(result.messages, name)[row].flatten().tolist()
            assert came == pytest.approx(sent, rel=1e-9, abs=1e-12)
    _, pair_sum = matrix_bp.moments(energy, num_iters=num_iters, tol=0.0)
    torch.testing.assert_close(pair_sum, joint, rtol=1e-10, atol=0.0)


def max_marginal(energy: BipartiteEnergy, unit: int, hidden: bool) -> Tensor:
    """The log-odds that ``max_marginals`` claims for one unit, by enumeration."""
    side = energy.swap() if hidden else energy
    best = []
    for value in (0.0, 1.0):
        known = torch.full_like(side.visible, torch.nan)
        known[:, unit] = value
        best.append(exact.decode(side, known=known).objective)
    return best[1] - best[0]


# Two examples each: 500 forests.
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (3, 3), (5, 3)])
@pytest.mark.parametrize("seeds", thorough([range(20), range(20, 100)], 1), ids=str)
def test_forests_are_exact(shape, seeds):
    for seed in seeds:
        energy = random_forest_bipartite_energy(seed, *shape)
        truth = exact.marginals(energy)
        came = matrix_bp.marginals(energy, tol=1e-10, keep_messages=True)
        assert came.status.exact.all()
        assert came.status.converged.all()
        for name in ("visible", "hidden", "log_partition"):
            torch.testing.assert_close(getattr(came, name), getattr(truth, name), rtol=0.0, atol=1e-6)
        coupled = (energy.coupling != 0).to(energy.dtype)
        joint = exact.pairwise_marginals(energy)
        torch.testing.assert_close(came.pairwise() * coupled, joint * coupled, rtol=0.0, atol=1e-6)

        best = matrix_bp.max_marginals(energy, tol=1e-10)
        assert best.status.exact.all()
        torch.testing.assert_close(best.log_partition, exact.decode(energy).objective, rtol=0.0, atol=1e-6)
        unit = seed % sum(shape)
        hidden = unit >= shape[0]
        column = unit - shape[0] if hidden else unit
        beliefs = best.hidden if hidden else best.visible
        expected = torch.sigmoid(max_marginal(energy, column, hidden))
        torch.testing.assert_close(beliefs[:, column], expected, rtol=0.0, atol=1e-6)


def test_weak_loops_are_close_to_enumeration():
    for seed in range(20):
        energy = random_bipartite_energy(seed, 6, 5, coupling=0.3)
        truth, came = exact.marginals(energy), matrix_bp.marginals(energy)
        assert came.status.converged.all()
        assert not came.status.exact.any()
        torch.testing.assert_close(came.visible, truth.visible, rtol=0.0, atol=2e-3)
        torch.testing.assert_close(came.log_partition, truth.log_partition, rtol=0.0, atol=5e-3)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-3, 1e-2, 0.1])
def test_the_error_of_loops_of_four_units_falls_with_the_fourth_power_of_the_coupling(scale):
    for seed in range(5):
        energy = random_bipartite_energy(seed, 6, 5, coupling=scale)
        truth, came = exact.marginals(energy), matrix_bp.marginals(energy)
        assert came.status.converged.all()
        for name in ("visible", "hidden", "log_partition"):
            found, wanted = getattr(came, name), getattr(truth, name)
            torch.testing.assert_close(found, wanted, rtol=1e-14, atol=scale**4 + 1e-14)


@pytest.mark.parametrize("scale", [30.0, 300.0, 3000.0])
def test_strong_couplings_that_agree_leave_no_error(scale):
    for seed in range(5):
        loops = random_bipartite_energy(seed, 6, 5, bias=scale)
        loops = replace(loops, coupling=scale * loops.coupling.abs())
        forest = random_forest_bipartite_energy(seed, 5, 4)
        for energy in (loops, replace(forest, coupling=scale * forest.coupling)):
            truth, came = exact.marginals(energy), matrix_bp.marginals(energy, tol=1e-10)
            assert came.status.converged.all()
            for name in ("visible", "hidden", "log_partition"):
                found, wanted = getattr(came, name), getattr(truth, name)
                torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_strong_couplings_that_do_not_agree_are_never_called_exact(scale):
    worst = 0.0
    for seed in range(10):
        energy = random_bipartite_energy(seed, 6, 5, coupling=scale)
        truth, came = exact.marginals(energy), matrix_bp.marginals(energy)
        worst = max(worst, float((came.visible - truth.visible).abs().max()))
        assert not came.status.exact.any()
    assert worst > 0.9


def test_convergence_is_told_truly():
    outcomes = []
    for seed in range(15):
        energy = random_bipartite_energy(seed, 5, 6, batch_size=4, coupling=4.0, bias=2.0)
        result = matrix_bp.marginals(energy, num_iters=100, tol=1e-8, keep_messages=True)
        for row in range(energy.batch_size):
            left = ScalarBipartiteMessages.of(energy, result.messages, row).residual()
            # A fixed point may repel: one more iteration may move by somewhat more than the last.
            outcomes.append(bool(result.status.converged[row]))
            assert left < 1e-6 if outcomes[-1] else left > 1e-9
        assert torch.equal(result.status.converged, result.status.residual <= 1e-8)
        assert (result.status.num_iters[~result.status.converged] == 100).all()
    assert len(set(outcomes)) == 2


@pytest.mark.parametrize("scale", [4.0, 12.0, 20.0, 34.0, 36.0, 40.0])
def test_float32_keeps_up_with_float64(scale):
    worst = 0.0
    for seed in range(20):
        energy = scaled(random_bipartite_energy(seed, 12, 10, batch_size=4), scale)
        rounded = BipartiteEnergy(energy.visible.float(), energy.hidden.float(), energy.coupling.float())
        energy = BipartiteEnergy(rounded.visible.double(), rounded.hidden.double(), rounded.coupling.double())
        options = {"num_iters": 3, "tol": 0.0}
        truth, came = matrix_bp.marginals(energy, **options), matrix_bp.marginals(rounded, **options)
        worst = max(worst, float((came.visible - truth.visible).abs().max()))
        torch.testing.assert_close(came.log_partition.double(), truth.log_partition, rtol=1e-5, atol=1e-4)
    assert worst < 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("routine", ROUTINES)
def test_extremes_stay_finite(routine, dtype):
    for seed, (shape, weight, bias) in enumerate(
        product([(1, 1), (1, 7), (7, 1), (5, 6)], [0.0, 1.0, 35.0, 90.0, 200.0], [0.0, 1.0, 100.0, 1e4])
    ):
        energy = random_bipartite_energy(seed, *shape, coupling=1.0, bias=1.0, dtype=dtype)
        energy = BipartiteEnergy(
            energy.visible.sign() * bias, energy.hidden.sign() * bias, energy.coupling.sign() * weight
        )
        result = routine(energy)
        values = result.labels if routine is matrix_bp.marginal_map else result.visible
        assert ((values >= 0) & (values <= 1)).all()
        if routine is not matrix_bp.marginal_map:
            assert ((result.hidden >= 0) & (result.hidden <= 1)).all()
            assert result.log_partition.isfinite().all()
        assert result.status.residual.isfinite().all()
        if 1 in shape and routine is matrix_bp.marginals:
            truth = exact.marginals(BipartiteEnergy(*(x.double() for x in vars(energy).values())))
            torch.testing.assert_close(result.visible.double(), truth.visible, rtol=0.0, atol=1e-5)
            torch.testing.assert_close(result.hidden.double(), truth.hidden, rtol=0.0, atol=1e-5)
            torch.testing.assert_close(
                result.log_partition.double(), truth.log_partition, rtol=1e-6, atol=1e-3
            )


def test_uncoupled_units_keep_their_own_beliefs():
    energy = random_bipartite_energy(0, 4, 3, coupling=0.0)
    result = matrix_bp.marginals(energy)
    torch.testing.assert_close(result.visible, torch.sigmoid(energy.visible))
    torch.testing.assert_close(result.hidden, torch.sigmoid(energy.hidden))
    assert (result.status.num_iters == 2).all()
    assert result.status.exact.all()


@given(st.integers(0, 2**32 - 1), st.sampled_from((0.0, 0.3, 0.7, 1.0)))
@settings(max_examples=15)
@pytest.mark.parametrize("routine", ROUTINES)
def test_known_units_leave_a_smaller_model(routine, seed, share):
    energy = random_bipartite_energy(seed, 6, 4, batch_size=1)
    generator = torch.Generator().manual_seed(seed)
    known = torch.randint(2, (1, 6), generator=generator).to(energy.dtype)
    known = known.masked_fill(torch.rand((1, 6), generator=generator) >= share, torch.nan)
    came = routine(energy, num_iters=4, tol=0.0, known=known)
    free = known.isnan()[0]
    values = came.labels if routine is matrix_bp.marginal_map else came.visible
    assert torch.equal(values[0, ~free], known[0, ~free].to(values.dtype))
    if not free.any():
        return
    given_value = (known.nan_to_num() * energy.visible).sum(1)
    smaller = BipartiteEnergy(
        energy.visible[:, free],
        energy.hidden + known.nan_to_num() @ energy.coupling,
        energy.coupling[free],
    )
    expected = routine(smaller, num_iters=4, tol=0.0)
    if routine is matrix_bp.marginal_map:
        assert torch.equal(came.labels[:, free], expected.labels)
        torch.testing.assert_close(came.objective, expected.objective + given_value)
        return
    torch.testing.assert_close(came.visible[:, free], expected.visible)
    torch.testing.assert_close(came.hidden, expected.hidden)
    torch.testing.assert_close(came.log_partition, expected.log_partition + given_value)


def test_messages_carry_on_where_they_were_left():
    energy = random_bipartite_energy(2, 6, 5, coupling=1.0)
    half = matrix_bp.marginals(energy, num_iters=3, tol=0.0, keep_messages=True)
    whole = matrix_bp.marginals(energy, num_iters=7, tol=0.0, keep_messages=True)
    resumed = matrix_bp.marginals(energy, num_iters=4, tol=0.0, messages=half.messages, keep_messages=True)
    torch.testing.assert_close(resumed.visible, whole.visible)
    torch.testing.assert_close(resumed.log_partition, whole.log_partition)
    torch.testing.assert_close(resumed.messages.to_visible, whole.messages.to_visible)
    converged = matrix_bp.marginals(energy, num_iters=100, keep_messages=True)
    again = matrix_bp.marginals(energy, messages=converged.messages)
    assert (again.status.num_iters == 1).all()


@pytest.mark.parametrize("routine", ROUTINES)
def test_beliefs_to_start_from_are_log_potentials_by_default(routine):
    energy = random_bipartite_energy(2, 6, 5, coupling=1.0)
    options = {"num_iters": 4, "tol": 0.0}
    came, expected = routine(energy, init=energy.hidden.sigmoid(), **options), routine(energy, **options)
    torch.testing.assert_close(vars(came)["status"].residual, expected.status.residual)
    labels = [getattr(found, "visible", getattr(found, "labels", None)) for found in (came, expected)]
    torch.testing.assert_close(*labels)


def test_beliefs_are_a_start_to_the_same_fixed_point():
    energy = random_bipartite_energy(2, 6, 5, coupling=1.0)
    cold = matrix_bp.marginals(energy, num_iters=200, tol=1e-9)
    other = random_bipartite_energy(9, 6, 5, coupling=1.0)
    for init in (cold.hidden, matrix_bp.marginals(other).hidden, torch.ones_like(cold.hidden)):
        warm = matrix_bp.marginals(energy, num_iters=200, tol=1e-9, init=init)
        assert warm.status.converged.all()
        torch.testing.assert_close(warm.visible, cold.visible, rtol=0.0, atol=1e-7)
        torch.testing.assert_close(warm.log_partition, cold.log_partition)
    # Where the energy has moved a little, fewer iterations.
    moved = replace(energy, coupling=1.02 * energy.coupling)
    before = [matrix_bp.marginals(moved, tol=1e-3, init=init) for init in (None, cold.hidden)]
    assert before[1].status.num_iters.sum() < before[0].status.num_iters.sum()


def test_a_first_iteration_proves_nothing():
    # The hidden unit stays off until the visible ones, who are all on, have told it so.
    energy = BipartiteEnergy(torch.full((1, 9), 9.0), torch.full((1, 1), -45.0), torch.full((9, 1), 10.0))
    for routine in (matrix_bp.marginals, matrix_bp.max_marginals):
        first = routine(energy, num_iters=1)
        assert not first.status.converged.any()
        result = routine(energy)
        assert result.status.converged.all()
        assert (result.hidden > 0.99).all()


def test_messages_of_another_model_are_only_a_start():
    strong = random_bipartite_energy(3, 5, 4, coupling=30.0)
    energy = random_bipartite_energy(4, 5, 4, coupling=0.4, dtype=torch.float64)
    start = matrix_bp.marginals(strong, num_iters=5, keep_messages=True).messages
    came, expected = matrix_bp.marginals(energy, messages=start), matrix_bp.marginals(energy)
    torch.testing.assert_close(came.visible, expected.visible, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("routine", [matrix_bp.marginals, matrix_bp.max_marginals])
def test_damping_keeps_fixed_points_and_finds_more(routine):
    energy = random_bipartite_energy(2, 6, 5, batch_size=40, coupling=3.0)
    plain = routine(energy, num_iters=200, tol=1e-9, keep_messages=True)
    settled = plain.status.converged
    damped = routine(energy.select(settled), tol=1e-6, damping=0.5, messages=_rows(plain.messages, settled))
    assert (damped.status.num_iters == 1).all()
    torch.testing.assert_close(damped.visible, plain.visible[settled], rtol=0.0, atol=1e-6)
    slow = routine(energy, num_iters=400, tol=1e-6, damping=0.7)
    assert int(slow.status.converged.sum()) > int(settled.sum())


def _rows(messages: BipartiteMessages, rows: Tensor) -> BipartiteMessages:
    return BipartiteMessages(messages.to_hidden[rows], messages.to_visible[rows])


def test_damping_mixes_log_odds():
    energy = random_bipartite_energy(6, 4, 3)
    plain = matrix_bp.marginals(energy, num_iters=1, keep_messages=True)
    damped = matrix_bp.marginals(energy, num_iters=1, damping=0.25, keep_messages=True)
    torch.testing.assert_close(damped.messages.to_visible, 0.75 * plain.messages.to_visible)


def test_pairwise_beliefs_have_to_be_asked_for():
    with pytest.raises(ValueError, match="messages"):
        matrix_bp.marginals(random_bipartite_energy(11, 3, 2)).pairwise()


def test_the_marginal_map_is_worth_what_it_says():
    optimal = 0
    for seed in range(30):
        energy = random_bipartite_energy(seed, 6, 5, coupling=0.7)
        came, best = matrix_bp.marginal_map(energy), exact.marginal_map(energy)
        torch.testing.assert_close(came.objective, -energy.free_energy(came.labels))
        assert (came.objective <= best.objective + 1e-9).all()
        assert (best.objective <= came.bound + 1e-9).all()
        optimal += int((came.objective >= best.objective - 1e-9).sum())
    assert optimal > 60


def test_a_fixed_labelling_answers_itself_and_a_cycle_is_told():
    energy = random_bipartite_energy(0, 6, 5, batch_size=200, coupling=3.0)
    came = matrix_bp.marginal_map(energy, num_iters=60)
    gain = torch.zeros_like(energy.visible)
    for unit in range(energy.num_visible):
        with_unit = [came.labels.clone() for _ in range(2)]
        with_unit[0][:, unit], with_unit[1][:, unit] = 0, 1
        gain[:, unit] = energy.free_energy(with_unit[0]) - energy.free_energy(with_unit[1])
    stays = ((gain > 0).long() == came.labels).all(1)
    assert torch.equal(came.status.converged, stays)
    assert set(came.status.converged.tolist()) == {True, False}
    polished = conditional_modes.marginal_map(energy, init=came.labels)
    assert (polished.objective >= came.objective - 1e-9).all()


def test_converged_examples_stop():
    energy = random_bipartite_energy(13, 5, 4, batch_size=2, coupling=1.0)
    easy = replace(energy, visible=energy.visible * torch.tensor([[1.0], [100.0]], dtype=torch.float64))
    iterations = matrix_bp.marginals(easy).status.num_iters
    assert iterations[1] < iterations[0]


def test_messages_are_not_touched():
    energy = random_bipartite_energy(14, 4, 3)
    messages = matrix_bp.marginals(energy, num_iters=2, keep_messages=True).messages
    before = [side.clone() for side in vars(messages).values()]
    for routine in ROUTINES:
        routine(energy, messages=messages)
    assert all(map(torch.equal, vars(messages).values(), before))


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("routine", ROUTINES)
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_iters": 0}, "num_iters"),
        ({"tol": -1.0}, "tol"),
        ({"tol": math.nan}, "tol"),
        ({"damping": 1.0}, "damping"),
        ({"damping": -0.1}, "damping"),
        ({"known": torch.full((3, 4), 0.5)}, "known"),
        ({"known": torch.zeros(3, 3)}, "known"),
        ({"messages": BipartiteMessages(torch.zeros(3, 4, 2), torch.zeros(3, 4, 2))}, "messages"),
        ({"messages": BipartiteMessages(torch.zeros(3, 4, 3), torch.zeros(3, 4, 3))}, "messages"),
        ({"init": torch.full((3, 4), 0.5)}, "init"),
        ({"init": torch.full((3, 3), 1.5, dtype=torch.float64)}, "init"),
        ({"init": torch.full((3, 3), math.nan, dtype=torch.float64)}, "init"),
        (
            {
                "init": torch.full((3, 3), 0.5, dtype=torch.float64),
                "messages": BipartiteMessages(torch.zeros(3, 4, 3).double(), torch.zeros(3, 4, 3).double()),
            },
            "init",
        ),
    ],
)
def test_bad_arguments_are_refused(routine, options, named):
    with pytest.raises(ValueError, match=named):
        routine(random_bipartite_energy(0, 4, 3), **options)


@pytest.mark.parametrize("routine", [*ROUTINES, matrix_bp.moments])
@pytest.mark.parametrize("name", ["visible", "hidden", "coupling"])
def test_bad_energies_are_refused(routine, name):
    energy = random_bipartite_energy(0, 4, 3)
    broken = getattr(energy, name).clone()
    broken[0, 0] = math.nan
    with pytest.raises(ValueError, match=name):
        routine(replace(energy, **{name: broken}))
    halves = BipartiteEnergy(energy.visible.half(), energy.hidden.half(), energy.coupling.half())
    with pytest.raises(ValueError, match="float16"):
        routine(halves)
