"""Iterative stratification: labels have their share of every part, and groups are whole."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_score
from sklearn.multiclass import OneVsRestClassifier

from lmbm_torch.data import IterativeStratifiedKFold
from lmbm_torch.data.splits import iterative_split, parts


def rare_labels(instances: int = 300, labels: int = 12, seed: int = 0) -> np.ndarray:
    """Labels from half of the instances down to a few."""
    random = np.random.default_rng(seed)
    return (random.random((instances, labels)) < 0.5 ** np.arange(1, labels + 1)).astype(float)


def unevenness(Y: np.ndarray, folds) -> float:
    """Mean distance of the labels' counts in a fold from their share."""
    return float(np.mean([np.abs(Y[held].sum(0) - Y.sum(0) / 5).mean() for _, held in folds]))


@pytest.mark.parametrize("seed", range(3))
def test_every_label_has_its_share_of_every_fold(seed):
    Y = rare_labels(seed=seed)
    folds = list(IterativeStratifiedKFold(5, random_state=seed).split(Y, Y))
    assert sorted(np.concatenate([held for _, held in folds])) == list(range(300))
    for train, held in folds:
        assert sorted([*train, *held]) == list(range(300))
        assert abs(len(held) - 60) <= 2
        assert (np.abs(Y[held].sum(0) - Y.sum(0) / 5) < 2).all()
    assert unevenness(Y, folds) < 0.4 * unevenness(Y, KFold(5, shuffle=True, random_state=seed).split(Y))


def test_a_label_of_as_many_instances_as_folds_is_in_all_of_them():
    Y = np.zeros((50, 3))
    Y[:5, 0] = Y[3:30, 1] = 1
    assert [Y[held, 0].sum() for _, held in IterativeStratifiedKFold(5).split(Y, Y)] == [1] * 5


def test_groups_are_whole_and_their_labels_spread():
    Y = rare_labels(400)
    groups = np.random.default_rng(1).integers(0, 80, 400).astype(str)
    folds = list(IterativeStratifiedKFold(5).split(Y, Y, groups))
    for train, held in folds:
        assert not set(groups[train]) & set(groups[held])
        assert 60 <= len(held) <= 100
    assert unevenness(Y, folds) < unevenness(Y, KFold(5, shuffle=True, random_state=0).split(Y))


def test_sparse_and_missing_labels_and_a_seed_give_the_same_folds():
    Y = rare_labels()
    expected = parts(Y, np.full(4, 0.25), 3)
    np.testing.assert_array_equal(parts(sparse.csr_array(Y), np.full(4, 0.25), 3), expected)
    np.testing.assert_array_equal(parts(np.where(Y == 0, np.nan, Y), np.full(4, 0.25), 3), expected)
    assert (parts(Y, np.full(4, 0.25), 4) != expected).any()


@pytest.mark.parametrize(
    "coded", [lambda Y: 2 * Y - 1, lambda Y: (2 * Y - 1).astype(int), lambda Y: np.where(Y == 1, "yes", "no")]
)
def test_labels_of_two_values_give_the_folds_of_0_and_1(coded):
    Y = rare_labels(labels=6)
    for given in zip(*(IterativeStratifiedKFold(4).split(Y, each) for each in (Y, coded(Y))), strict=True):
        np.testing.assert_array_equal(given[0][1], given[1][1])


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            np.arange(40) % 3,
            r"y: expected labels of shape .*, got the shape \(40,\); .* scikit-learn's StratifiedKFold",
        ),
        (np.arange(80).reshape(40, 2) % 3, "y: expected 0, 1 or NaN"),
        (sparse.csr_array(-np.eye(40)), "labels: expected 0 or 1"),
    ],
)
def test_what_is_no_label_matrix_is_refused_by_name(targets, message):
    with pytest.raises(ValueError, match=message):
        list(IterativeStratifiedKFold(4).split(targets, targets))


def test_scikit_learn_takes_it():
    Y = rare_labels(200, 4)
    X = Y + 0.1 * np.random.default_rng(0).normal(size=Y.shape)
    scores = cross_val_score(OneVsRestClassifier(LogisticRegression()), X, Y, cv=IterativeStratifiedKFold(4))
    assert scores.shape == (4,)


def test_a_share_is_held_out():
    Y = rare_labels()
    kept, held = iterative_split(Y, 0.3, 0)
    assert sorted([*kept, *held]) == list(range(300))
    assert (np.abs(Y[held].sum(0) - 0.3 * Y.sum(0)) < 2).all()
    assert abs(len(held) - 90) <= 2


def test_groups_are_held_out_whole():
    Y, groups = rare_labels(), np.random.default_rng(1).integers(0, 60, 300)
    kept, held = iterative_split(Y, 0.3, 0, groups)
    assert sorted([*kept, *held]) == list(range(300))
    assert not set(groups[kept]) & set(groups[held])
    assert abs(len(held) - 90) <= 10


def test_the_time_is_linear_in_rows():
    Y = sparse.random_array((20_000, 100), density=0.03, format="csr", rng=np.random.default_rng(0))
    Y.data[:] = 1
    began = time.process_time()
    parts(Y, np.full(5, 0.2), 0)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (None, "instances: expected at least 5, one for each part, got 3"),
        ([0, 0, 1], "groups: expected.* got 2"),
    ],
)
def test_too_little_to_deal_out_is_refused(groups, message):
    Y = np.ones((3, 2))
    with pytest.raises(ValueError, match=message):
        next(IterativeStratifiedKFold(5).split(Y, Y, groups))
    with pytest.raises(ValueError, match="n_splits: expected at least 2 folds, got 1"):
        IterativeStratifiedKFold(1)
