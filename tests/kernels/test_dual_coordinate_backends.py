"""The compiled dual coordinate descent and its plain reference: one contract, one optimum."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
from strategies.label_problems import random_problems

from lmbm_torch.kernels import installed
from lmbm_torch.kernels.dual.compiled import network, random
from lmbm_torch.kernels.dual.plain import network as numpy_dual_coordinate
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems
from lmbm_torch.solvers.networks.states import NetworkState

BACKENDS = pytest.mark.parametrize("backend", [network, numpy_dual_coordinate], ids=["numba", "numpy"])


@pytest.fixture
def plain(monkeypatch) -> Callable[..., NetworkState]:
    """The solver on its reference."""

    def solve(problems: LabelProblems, **settings) -> NetworkState:
        with monkeypatch.context() as patch:
            patch.setattr(dual_coordinate, "kernels", lambda *_: numpy_dual_coordinate)
            return run(dual_coordinate, problems, **settings)

    return solve


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"csr": True},
        {"parents": False, "weighted": True},
        {"num_labels": 5, "num_cliques": 4, "csr": True},
        {"instances": 1},
        {"instances": 7, "num_features": 12, "C": 30.0},
    ],
    ids=["dense", "csr", "weighted", "cliques", "one instance", "wide"],
)
def test_both_reach_one_optimum(plain, form):
    problems = random_problems(3, **{"C": 0.1, **form})
    reference = plain(problems, tol=1e-6, max_iter=5000)
    assert reference.gap <= 1e-6
    compiled = run(dual_coordinate, problems, tol=1e-6)
    np.testing.assert_allclose(reference.primal, compiled.primal, rtol=1e-5)
    np.testing.assert_allclose(reference.weights, compiled.weights, atol=1e-2)


@pytest.mark.parametrize("seed", range(6))
def test_certificates_of_both_enclose_one_optimum(plain, seed):
    problems = random_problems(seed, num_labels=4, num_cliques=seed % 3, csr=bool(seed % 2), C=10.0)
    # Without steps on faces the reference crawls where the compiled one has long ended.
    reference, compiled = plain(problems, tol=1e-3, max_iter=30), run(dual_coordinate, problems, tol=1e-8)
    assert (reference.dual <= compiled.primal).all()
    assert (compiled.dual <= reference.primal).all()


@pytest.mark.parametrize("form", [{}, {"csr": True, "num_cliques": 2, "num_labels": 4}], ids=["dense", "csr"])
def test_both_impute_missing_labels_alike(plain, form):
    problems = random_problems(1, missing=0.3, **form)
    compiled = run(dual_coordinate, problems, tol=1e-7)
    reference = plain(problems, tol=1e-6, max_iter=5000)
    np.testing.assert_allclose(reference.primal, compiled.primal, rtol=1e-5)
    one, two = problems.complete(reference.weights), problems.complete(compiled.weights)
    np.testing.assert_array_equal(one.spins, two.spins)


@BACKENDS
@pytest.mark.parametrize(
    "form",
    [{}, {"csr": True}, {"num_cliques": 4, "weighted": True}, {"missing": 0.3, "csr": True}],
    ids=["dense", "csr", "cliques", "missing"],
)
def test_functions_keep_their_contract(backend, form):
    problems = random_problems(2, num_labels=5, C=5.0, **form)
    weights = np.zeros((problems.num_columns, 5))
    duals = np.zeros(problems.spins.shape)

    backend.shared_sweeps(problems, np.array([1, 3, 4]), weights, duals, 2, 7)
    assert not duals[[0, 4]].any()
    assert duals[1:4].any(1).all()
    swept = problems.dual(duals, weights)
    assert (swept[1:4] > 0).all()

    labels = np.array([1, 2, 4])
    before = duals.copy()
    primal, value, made = backend.solve_labels(problems, labels, weights, duals, 1e-6, 3, 7)
    np.testing.assert_array_equal(duals[[0, 3]], before[[0, 3]])
    np.testing.assert_allclose(weights, problems.weights(duals), atol=1e-9)
    assert (duals >= 0).all()
    assert (duals <= problems.upper * (problems.spins != 0)).all()
    np.testing.assert_allclose(primal, problems.primal(weights)[labels])
    np.testing.assert_allclose(value, problems.dual(duals, weights)[labels])
    assert (value >= swept[labels]).all()
    assert (made >= 1).all()
    assert (made <= 3).all()

    kept = duals.copy(), weights.copy()
    again = backend.solve_labels(problems, labels, weights, duals, 1e-6, 0, 7)
    np.testing.assert_allclose(again[0], primal)
    np.testing.assert_allclose(again[1], value)
    assert not again[2].any()
    np.testing.assert_array_equal(duals, kept[0])
    np.testing.assert_array_equal(weights, kept[1])


def test_without_numba_the_reference_runs_and_says_so_once(monkeypatch):
    problems = random_problems(3)
    compiled = run(dual_coordinate, problems, tol=1e-6)
    monkeypatch.delattr("lmbm_torch.kernels.dual.compiled.network")
    monkeypatch.setitem(sys.modules, "lmbm_torch.kernels.dual.compiled.network", None)
    installed.compiled.cache_clear()
    installed.kernels.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="plain reference"):
            first = run(dual_coordinate, problems, tol=1e-6)
        again = run(dual_coordinate, problems, tol=1e-6)
    finally:
        installed.compiled.cache_clear()
        installed.kernels.cache_clear()
    np.testing.assert_allclose(first.primal, compiled.primal, rtol=1e-5)
    np.testing.assert_array_equal(again.dual_coef, first.dual_coef)


def test_shuffle_permutes_what_it_should_by_the_seed():
    def shuffled(seed: int) -> list[int]:
        entries = np.arange(100, 120)
        random.shuffle(entries, 15, random.random_state(seed))
        return entries.tolist()

    assert sorted(shuffled(0)[:15]) == list(range(100, 115))
    assert shuffled(0)[15:] == list(range(115, 120))
    assert shuffled(0) == shuffled(0)
    assert shuffled(0) != shuffled(1)


def test_shuffle_gives_every_entry_every_place_equally_often():
    state = random.random_state(0)
    counts = np.zeros((4, 4))
    for _ in range(4000):
        entries = np.arange(4)
        random.shuffle(entries, 4, state)
        counts[np.arange(4), entries] += 1
    # Binomial with mean 1000 and standard deviation 27.
    assert np.abs(counts - 1000).max() < 140
