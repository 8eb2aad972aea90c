"""Orderings: easy labels first, chance by the seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.solvers.gram import PrecomputedGram


def easy_and_hard(instances: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Labels that are noise, noisy, and certain, in this order of columns; and one that never occurs."""
    random = np.random.default_rng(1)
    X = random.normal(size=(instances, 3))
    noise = random.normal(size=(3, instances))
    scores = [noise[0], X[:, 0] + noise[1], 5 * X[:, 1] + 0.1 * noise[2], np.full(instances, -1.0)]
    return X, (np.stack(scores, 1) > 0).astype(float)


def linear_kernel(X: np.ndarray) -> PrecomputedGram:
    return PrecomputedGram(torch.from_numpy(X @ X.T))


def test_f_score_puts_easy_labels_first_and_absent_ones_last():
    X, Y = easy_and_hard()
    assert orderings.f_score(X, Y).tolist() == [2, 1, 0, 3]
    order = np.array([3, 1, 0, 2])
    assert order[orderings.f_score(X, Y[:, order])].tolist() == [2, 1, 0, 3]
    assert orderings.f_score(sparse.csr_array(X), Y).tolist() == [2, 1, 0, 3]


def test_f_score_counts_observed_labels_alone():
    X, Y = easy_and_hard()
    Y[np.random.default_rng(1).random(Y.shape) < 0.2] = np.nan
    assert orderings.f_score(X, Y).tolist() == [2, 1, 0, 3]
    Y[:, 2] = np.nan
    assert orderings.f_score(X, Y).tolist()[:2] == [1, 0]


@pytest.mark.parametrize("form", ["linear", "kernel"])
def test_instances_that_count_nothing_are_as_good_as_absent(form):
    X, Y = easy_and_hard(160)
    counts = np.arange(160) % 2 == 0
    # Among those that count nothing the hardest label is the easiest.
    X[~counts, 0], X[~counts, 1], Y[~counts, 3] = Y[~counts, 0], 0, 1
    inputs, some = (X, X[counts]) if form == "linear" else map(linear_kernel, (X, X[counts]))
    expected = orderings.f_score(some, Y[counts]).tolist()
    assert orderings.f_score(inputs, Y, sample_weight=counts * 1.0).tolist() == expected == [2, 1, 0, 3]
    assert orderings.f_score(inputs, Y).tolist() != expected
    assert orderings.frequency(Y, counts * 1.0).tolist() == orderings.frequency(Y[counts]).tolist()
    network = LMSBNClassifier(random_state=0).fit(X, Y, counts * 1.0)
    assert network.ordering_.tolist() == [2, 1, 0, 3]


@pytest.mark.parametrize("seed", range(4))
def test_folds_are_those_of_the_instances_that_count(seed):
    # The order of labels that nothing predicts is that of chance in the folds.
    random = np.random.default_rng(seed)
    X, Y = random.normal(size=(60, 3)), random.integers(2, size=(60, 8)).astype(float)
    counts = random.random(60) < 0.6
    expected = orderings.f_score(X[counts], Y[counts]).tolist()
    assert orderings.f_score(X, Y, sample_weight=counts * 1.0).tolist() == expected


def test_weights_count_as_repetitions():
    Y, times = easy_and_hard()[1], np.arange(80) % 4
    repeated = np.repeat(Y, times, axis=0)
    assert orderings.frequency(Y, times * 1.0).tolist() == orderings.frequency(repeated).tolist()
    assert (
        orderings.frequency(sparse.csr_array(Y), times * 1.0).tolist()
        == orderings.frequency(repeated).tolist()
    )


def test_equal_scores_keep_the_order_of_columns():
    X, Y = easy_and_hard()
    assert orderings.f_score(X, Y[:, [3, 3, 2, 3]]).tolist() == [2, 0, 1, 3]


def test_f_score_is_defined_for_the_smallest_data():
    X, Y = easy_and_hard(3)
    assert sorted(orderings.f_score(X, Y).tolist()) == [0, 1, 2, 3]
    assert orderings.f_score(X[:1], Y[:1]).tolist() == [0, 1, 2, 3]
    assert orderings.f_score(X, Y[:, :1]).tolist() == [0]


def test_random_is_a_permutation_by_the_seed():
    drawn = [tuple(orderings.random(8, seed)) for seed in range(20)]
    assert all(sorted(order) == list(range(8)) for order in drawn)
    assert len(set(drawn)) > 15
    assert tuple(orderings.random(8, 3)) == drawn[3]


@pytest.mark.parametrize("num_labels", [1, 2, 3, 7, 10])
def test_random_halves_share_sets_of_parents(num_labels):
    orders = orderings.random_halves(num_labels, 11, 0)
    assert len(orders) == 11
    assert all(sorted(order) == list(range(num_labels)) for order in orders)
    for group in (orders[:4], orders[4:8]):
        sets = {(label, frozenset(order[:place])) for order in group for place, label in enumerate(order)}
        assert len(sets) <= 2 * num_labels
    before = sum(np.less.outer(place, place).astype(int) for place in map(np.argsort, orders[:8]))
    assert (before + 8 * np.eye(num_labels) // 2 == 4).all()
    assert np.array_equal(orders[:5], orderings.random_halves(num_labels, 5, 0))


def test_random_halves_are_drawn_by_the_seed():
    drawn = {tuple(order) for seed in range(5) for order in orderings.random_halves(10, 16, seed)}
    assert len(drawn) == 80


def test_index_is_the_order_of_columns():
    assert orderings.index(3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("ordering", [orderings.index, lambda count: orderings.random(count, 0)])
def test_no_labels_are_refused(ordering):
    with pytest.raises(ValueError, match="num_labels: expected an integer of at least 1"):
        ordering(0)
