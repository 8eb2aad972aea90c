"""toulbar2 against enumeration."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from strategies.directed import random_known
from strategies.factor import packed_energy, random_factor_energy
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.relaxations import integer_program

pytest.importorskip("pytoulbar2", reason="the optional extra wcsp is not installed")

from lmbm_torch.inference.relaxations import cost_function_network

FORMS = (
    {"coupling": 0.3},
    {"coupling": 1.0, "density": 0.4},
    {"coupling": 1.0, "per_example": True},
    {"coupling": 30.0, "density": 0.7, "per_example": True},
)


def test_without_the_solver_the_import_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytoulbar2", None)
    monkeypatch.delitem(sys.modules, cost_function_network.__name__)
    with pytest.raises(ImportError, match=r'needs the solver toulbar2: pip install "lmbm-torch\[wcsp\]"'):
        importlib.import_module(cost_function_network.__name__)


def assert_agrees(came, expected):
    """The same optimum, proven."""
    assert came.status.exact.all()
    assert came.status.converged.all()
    torch.testing.assert_close(came.objective, expected, rtol=1e-6, atol=1e-6)
    assert (came.bound >= expected - 1e-12 * (1 + expected.abs())).all()
    torch.testing.assert_close(came.bound, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(25))
def test_equals_enumeration_on_five_hundred_problems(seed):
    energy = random_pairwise_energy(seed, 1 + seed % 12, 20, **FORMS[seed % len(FORMS)])
    known = random_known(seed, energy, 0.3)
    for given in (None, known):
        came = cost_function_network.decode(energy, known=given)
        assert_agrees(came, exact.decode(energy, known=given).objective)
        torch.testing.assert_close(came.objective, energy.score(came.labels))
    assert (came.labels[~known.isnan()] == known[~known.isnan()]).all()


@pytest.mark.parametrize("forbidden", [0.0, 0.2])
def test_graphs_of_many_states_are_solved(forbidden):
    for seed in range(4):
        energy = random_factor_energy(seed, num_states=(3, 2, 4, 2, 3), num_factors=8, forbidden=forbidden)
        best = elimination.decode(energy)
        came = cost_function_network.decode(energy)
        assert_agrees(came, best.objective)
        torch.testing.assert_close(energy.score(came.labels), came.objective)
        known = best.labels.double().where(torch.arange(5) == 2, torch.nan)
        known[0, 2] = 3 - known[0, 2]
        if forbidden == 0:
            assert_agrees(
                cost_function_network.decode(energy, known=known),
                elimination.decode(energy, known=known).objective,
            )
    assert_agrees(
        cost_function_network.decode(packed_energy(0)), elimination.decode(packed_energy(0)).objective
    )


def test_a_limited_search_of_a_graph_bounds_it():
    wide = random_factor_energy(9, batch=1, num_states=(3,) * 24, num_factors=90, order=2)
    limited, best = (cost_function_network.decode(wide, time_limit=limit) for limit in (1e-3, None))
    assert limited.bound >= best.objective - 1e-9
    assert limited.objective <= best.objective + 1e-9


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_weights_of_any_size(scale):
    energy = random_pairwise_energy(0, 8)
    scaled = PairwiseEnergy(scale * energy.unary, scale * energy.pairwise, scale * energy.constant)
    came = cost_function_network.decode(scaled)
    assert torch.equal(came.labels, exact.decode(energy).labels)
    assert came.status.exact.all()


def test_shares_a_process_with_the_other_solvers():
    energy = random_pairwise_energy(1, 12, 3, coupling=0.3)
    for _ in range(2):
        found = integer_program.decode(energy).objective
        assert_agrees(cost_function_network.decode(energy), found)


def test_threads_have_a_solver_each():
    energies = [random_pairwise_energy(seed, 12, 5, coupling=0.3) for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        for energy, came in zip(energies, pool.map(cost_function_network.decode, energies), strict=True):
            assert_agrees(came, exact.decode(energy).objective)


def assert_unfinished(came, energy):
    """The best labelling and bound by the limit."""
    assert not came.status.converged.any()
    assert not came.status.exact.any()
    assert (came.bound > came.objective).all()
    torch.testing.assert_close(came.objective, energy.score(came.labels))
    torch.testing.assert_close(came.status.residual, came.bound - came.objective)


def test_a_time_limit_leaves_a_bound():
    energy = random_pairwise_energy(0, 70, 1, coupling=0.3)
    came = cost_function_network.decode(energy, time_limit=1.0)
    assert_unfinished(came, energy)
    weights = energy.unary.abs().sum() + energy.pairwise.abs().sum() / 2
    assert came.bound < 0.99 * weights + energy.constant


@pytest.mark.parametrize("limit", [0.001, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("num_labels", [70, 120])
def test_a_limit_is_kept_at_any_moment(num_labels, limit):
    energy = random_pairwise_energy(0, num_labels, 3, coupling=0.3)
    known = torch.full_like(energy.unary, torch.nan)
    known[:, 3] = 1
    cost_function_network.decode(random_pairwise_energy(0, 2, 1))
    start = time.monotonic()
    came = cost_function_network.decode(energy, known=known, time_limit=limit)
    assert time.monotonic() - start < 3 * (limit + 0.5) + 0.5
    assert_unfinished(came, energy)
    assert (came.labels[:, 3] == 1).all()
    after = random_pairwise_energy(1, 10, 2)
    assert_agrees(cost_function_network.decode(after), exact.decode(after).objective)


def test_a_graph_without_an_answer_has_a_labelling_that_is_told_as_unfinished(monkeypatch):
    monkeypatch.setattr(cost_function_network.SolverProcess, "answer", lambda *_: None)
    energy = random_factor_energy(9, batch=2, num_states=(3,) * 6, num_factors=9, order=2)
    came, best = cost_function_network.decode(energy), elimination.decode(energy).objective
    assert not came.status.converged.any()
    assert (came.objective <= best + 1e-9).all()
    assert (came.bound >= best - 1e-9).all()


def when_awaited(solver, deed):
    """Call ``deed`` once, when the solver has a problem and its answer is awaited."""
    poll = solver._connection.poll

    def first_poll(seconds):
        solver._connection.poll = poll
        time.sleep(0.1)
        deed()
        return poll(seconds)

    solver._connection.poll = first_poll


def test_the_limit_is_one_of_wall_time():
    """A solver that is not given the processor has no less time."""
    energy = random_pairwise_energy(0, 70, 1, coupling=0.3)
    cost_function_network.decode(random_pairwise_energy(0, 2, 1))
    solver = cost_function_network._waiting(os.getpid())[-1]
    when_awaited(solver, lambda: solver._process.send_signal(signal.SIGSTOP))
    start = time.monotonic()
    came = cost_function_network.decode(energy, time_limit=0.5)
    assert time.monotonic() - start < 1.5
    assert_unfinished(came, energy)


def test_a_process_that_ends_is_told_and_replaced():
    energy = random_pairwise_energy(0, 70, 1, coupling=0.3)
    cost_function_network.decode(random_pairwise_energy(0, 2, 1))
    solver = cost_function_network._waiting(os.getpid())[-1]
    when_awaited(solver, solver._process.kill)
    with pytest.raises(RuntimeError, match=r"^toulbar2: expected an answer, but its process ended"):
        cost_function_network.decode(energy)
    cost_function_network.decode(random_pairwise_energy(0, 2, 1))
    solver._process.kill()
    solver._process.wait()
    assert cost_function_network.decode(random_pairwise_energy(0, 2, 1)).status.exact.all()


def test_a_solver_ends_with_those_who_asked(tmp_path):
    """Though the process is killed, and its solver in the midst of a search."""
    script = """
import sys, threading, time
sys.path.insert(0, "tests")
from strategies.pairwise import random_pairwise_energy
from lmbm_torch.inference.relaxations import cost_function_network as routine
routine.decode(random_pairwise_energy(0, 2, 1))
print(routine._waiting(routine.os.getpid())[0]._process.pid, flush=True)
routine.decode(random_pairwise_energy(0, 100, 1, coupling=0.3))
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root
    ) as asking:
        solver = int(asking.stdout.readline())
        time.sleep(0.5)
        assert is_running(solver)
        asking.kill()
    end = time.monotonic() + 5
    while is_running(solver) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(solver)


def is_running(process):
    """Whether a process is neither gone nor waiting to be told of."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_float32():
    energy = random_pairwise_energy(2, 8, dtype=torch.float32)
    came = cost_function_network.decode(energy)
    assert came.objective.dtype == came.bound.dtype == came.status.residual.dtype == torch.float32
    torch.testing.assert_close(came.objective, exact.decode(energy).objective)


def test_nothing_to_decide_by():
    energy = PairwiseEnergy(torch.zeros(2, 3), torch.zeros(3, 3), torch.tensor([1.0, -2.0]))
    assert_agrees(cost_function_network.decode(energy), energy.constant)


def test_refuses_what_it_cannot_use():
    energy = random_pairwise_energy(0, 4)
    with pytest.raises(ValueError, match=r"^unary: expected finite values"):
        cost_function_network.decode(replace(energy, unary=energy.unary * torch.nan))
    with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
        cost_function_network.decode(replace(energy, pairwise=energy.pairwise.triu()))
    with pytest.raises(ValueError, match=r"^time_limit: expected"):
        cost_function_network.decode(energy, time_limit=0.0)
    with pytest.raises(ValueError, match=r"^known: expected"):
        cost_function_network.decode(energy, known=torch.full((3, 4), 0.5))
