"""Other schedules of belief propagation: exact on trees, the same fixed points; annealing ends cycles."""

from __future__ import annotations

import pytest
import torch
from strategies.bipartite import random_bipartite_energy

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.energies.bipartite import softplus
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp, scheduled_bp
from lmbm_torch.inference.messages.matching import MatchedInference


def tree(seed: int = 0, batch_size: int = 3) -> BipartiteEnergy:
    energy = random_bipartite_energy(seed, 5, 4, batch_size=batch_size)
    kept = torch.zeros(5, 4, dtype=torch.bool)
    kept[[0, 1, 1, 2, 2, 3, 4, 4], [0, 0, 1, 1, 2, 2, 2, 3]] = True
    return BipartiteEnergy(energy.visible, energy.hidden, energy.coupling * kept)


@pytest.mark.parametrize("schedule", scheduled_bp.SCHEDULES)
def test_trees_are_exact(schedule):
    energy = tree()
    found, expected = scheduled_bp.marginals(energy, schedule=schedule), exact.marginals(energy)
    assert found.status.exact.all()
    torch.testing.assert_close(found.visible, expected.visible)
    torch.testing.assert_close(found.log_partition, expected.log_partition)


@pytest.mark.parametrize("schedule", scheduled_bp.SCHEDULES)
def test_fixed_points_are_those_of_all_messages_at_once(schedule):
    energy = random_bipartite_energy(1, 6, 5, batch_size=4, coupling=0.7)
    found = scheduled_bp.marginals(energy, schedule=schedule, num_iters=200, tol=1e-10)
    expected = matrix_bp.marginals(energy, num_iters=500, tol=1e-10)
    assert found.status.converged.all()
    torch.testing.assert_close(found.visible, expected.visible, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.hidden, expected.hidden, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.log_partition, expected.log_partition)


@pytest.mark.parametrize("schedule", scheduled_bp.SCHEDULES)
def test_known_units_keep_their_values_and_tell_them(schedule):
    energy = tree()
    known = torch.full_like(energy.visible, torch.nan)
    known[:, 1], known[0, 2], known[1, 4] = 1.0, 0.0, 1.0
    found = scheduled_bp.marginals(energy, schedule=schedule, known=known)
    expected = exact.marginals(energy, known=known)
    torch.testing.assert_close(found.visible, expected.visible)
    torch.testing.assert_close(found.hidden, expected.hidden)
    # Without loops the annealed labels are the best ones.
    best = exact.marginal_map(energy, known=known).labels
    assert torch.equal(scheduled_bp.marginal_map(energy, known=known).labels, best)


def test_matched_inference_predicts_in_other_orders():
    energy = random_bipartite_energy(1, 6, 5, batch_size=4, coupling=0.7)
    matched = MatchedInference(scheduled_bp.marginals, 40, schedule="residual", tol=1e-8)
    expected = MatchedInference(matrix_bp.marginals, 200, tol=1e-8).decode(energy)
    assert torch.equal(matched.decode(energy).labels, expected.labels)
    again = MatchedInference.from_parts(None, **matched.stored_parts())
    assert again.stored_parts() == matched.stored_parts()
    torch.testing.assert_close(matched.marginals(energy).visible, matched(energy).visible)
    annealed = MatchedInference(scheduled_bp.marginal_map, 20, temperatures=[1.0, 0.1])
    found = annealed.decode(energy)
    torch.testing.assert_close(found.objective, -energy.free_energy(found.labels))
    assert annealed.marginals(energy).visible.shape == (4, 6)


def test_a_residual_update_is_of_the_message_that_would_change_most():
    energy = random_bipartite_energy(2, 4, 3, batch_size=2)
    sent = torch.zeros(2, 4, 3, dtype=torch.float64)
    model = scheduled_bp._Model.of(energy, None)
    answers = scheduled_bp._answers(model, sent, 1.0)
    first = (answers - sent).abs().amax(1).argmax(1)
    assert first[0] != first[1]
    for row, unit in enumerate(first.tolist()):
        moved = scheduled_bp._answers(model, sent, 1.0, first)[row]
        torch.testing.assert_close(moved, answers[row, :, unit])
    # An iteration of one hidden unit is one update: the schedules agree.
    single = random_bipartite_energy(3, 4, 1, batch_size=2)
    both = [scheduled_bp.marginals(single, schedule=each, num_iters=1) for each in scheduled_bp.SCHEDULES]
    torch.testing.assert_close(both[0].visible, both[1].visible)


def test_fewer_sequential_iterations_are_needed():
    energy = random_bipartite_energy(4, 12, 10, batch_size=5, coupling=0.8)
    one_by_one = scheduled_bp.marginals(energy, num_iters=300, tol=1e-8)
    at_once = matrix_bp.marginals(energy, num_iters=300, tol=1e-8, backend="plain")
    assert one_by_one.status.converged.all()
    assert int(one_by_one.status.num_iters.max()) < int(at_once.status.num_iters.max())


def test_annealing_finds_what_cycles_do_not():
    energy = random_bipartite_energy(0, 12, 10, batch_size=100, coupling=4.0)
    plain, annealed = matrix_bp.marginal_map(energy), scheduled_bp.marginal_map(energy)
    hot = scheduled_bp.marginal_map(energy, temperatures=(1.0,))
    best = exact.marginal_map(energy).objective
    assert (annealed.objective <= best + 1e-9).all()
    shares = [float((best - each.objective < 1e-9).double().mean()) for each in (plain, hot, annealed)]
    assert shares[0] + 0.1 < shares[1] + 0.02 < shares[2]
    torch.testing.assert_close(annealed.objective, -energy.free_energy(annealed.labels))


def test_messages_of_little_temperature_are_those_of_labels():
    energy = random_bipartite_energy(6, 6, 5, batch_size=3)
    sent = torch.zeros(3, 6, 5, dtype=torch.float64)
    # Equation 15: a visible unit sends its coupling if it is 1.
    told = energy.coupling * (energy.visible > 0)[:, :, None]
    cavity = (energy.hidden + told.sum(1))[:, None] - told
    expected = softplus(cavity + energy.coupling) - softplus(cavity)
    model = scheduled_bp._Model.of(energy, None)
    torch.testing.assert_close(scheduled_bp._answers(model, sent, 1e-4), expected)


@pytest.mark.parametrize(
    ("routine", "settings", "message"),
    [
        (scheduled_bp.marginals, {"schedule": "parallel"}, "schedule: expected one of"),
        (scheduled_bp.marginals, {"num_iters": 0}, "num_iters: expected"),
        (scheduled_bp.marginals, {"tol": -1.0}, "tol: expected"),
        (scheduled_bp.marginal_map, {"temperatures": (1.0, 0.0)}, "temperatures: expected"),
    ],
)
def test_strange_settings_are_refused(routine, settings, message):
    with pytest.raises(ValueError, match=message):
        routine(tree(), **settings)
