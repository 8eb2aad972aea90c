"""The contract of dual coordinate descent for networks, and random orders."""

from __future__ import annotations

import numpy as np
import pytest
from strategies.label_problems import random_problems

from lmbm_torch.kernels.dual import network, random


@pytest.mark.parametrize(
    "form",
    [{}, {"csr": True}, {"num_cliques": 4, "weighted": True}, {"missing": 0.3, "csr": True}],
    ids=["dense", "csr", "cliques", "missing"],
)
def test_functions_keep_their_contract(form):
    problems = random_problems(2, num_labels=5, C=5.0, **form)
    weights = np.zeros((problems.num_columns, 5))
    duals = np.zeros(problems.spins.shape)

    network.shared_sweeps(problems, np.array([1, 3, 4]), weights, duals, 2, 7)
    assert not duals[[0, 4]].any()
    assert duals[1:4].any(1).all()
    swept = problems.dual(duals, weights)
    assert (swept[1:4] > 0).all()

    labels = np.array([1, 2, 4])
    before = duals.copy()
    primal, value, made = network.solve_labels(problems, labels, weights, duals, 1e-6, 3, 7)
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
    again = network.solve_labels(problems, labels, weights, duals, 1e-6, 0, 7)
    np.testing.assert_allclose(again[0], primal)
    np.testing.assert_allclose(again[1], value)
    assert not again[2].any()
    np.testing.assert_array_equal(duals, kept[0])
    np.testing.assert_array_equal(weights, kept[1])


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
