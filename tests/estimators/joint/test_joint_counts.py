"""Labels under a weight of their number, held to the enumeration of all labellings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lmbm_torch.estimators.common.measures import agreement
from lmbm_torch.estimators.joint.likelihood import GAINS, CountModel

LABELS = 5
EVERY = np.array(list(itertools.product([0, 1], repeat=LABELS)))
WEIGHTS = pytest.mark.parametrize("largest", [0, 1, 3, LABELS])


def drawn(largest: int) -> CountModel:
    random = np.random.default_rng(largest)
    return CountModel(3 * random.normal(size=(20, LABELS)), 2 * random.normal(size=largest + 1))


def scores_of(model: CountModel) -> np.ndarray:
    """log-potentials, (rows, labellings)."""
    largest = len(model.count_weight) - 1
    return model.fields @ EVERY.T + model.count_weight[np.minimum(EVERY.sum(1), largest)]


def probabilities_of(model: CountModel) -> np.ndarray:
    scores = scores_of(model)
    return np.exp(scores - np.logaddexp.reduce(scores, axis=1)[:, None])


def hidden(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Labels with half of the entries missing."""
    return np.where(np.random.default_rng(seed).random(labels.shape) < 0.5, np.nan, labels)


@WEIGHTS
def test_missing_labels_are_summed_over(largest):
    model = drawn(largest)
    labels = hidden(EVERY[np.random.default_rng(3).integers(len(EVERY), size=20)])
    fits = ((labels[:, None] == EVERY) | np.isnan(labels)[:, None]).all(2)
    scores = np.where(fits, scores_of(model), -np.inf)
    exact = np.logaddexp.reduce(scores, axis=1)
    marginals, numbers, log_known = model.moments_given(labels)
    np.testing.assert_allclose(log_known, exact, rtol=1e-11)
    np.testing.assert_allclose(model.log_prob(labels), exact - model.log_partition(), atol=1e-11)
    share = np.exp(scores - exact[:, None])
    np.testing.assert_allclose(marginals, share @ EVERY, atol=1e-12)
    np.testing.assert_allclose(
        numbers, share @ np.eye(largest + 1)[np.minimum(EVERY.sum(1), largest)], atol=1e-12
    )
    for found, expected in zip(model.moments_given(EVERY[:20]), (EVERY[:20], None, None), strict=True):
        assert expected is None or (found == expected).all()


@WEIGHTS
def test_draws_follow_the_distribution_given_known_labels(largest):
    model = drawn(largest)
    labels = hidden(EVERY[np.random.default_rng(3).integers(len(EVERY), size=20)])
    random, given = np.random.default_rng(0), model.given(labels)
    draws = np.stack([given.drawn(random) for _ in range(1000)])
    known = np.broadcast_to(~np.isnan(labels), draws.shape)
    np.testing.assert_array_equal(draws[known], np.broadcast_to(labels, draws.shape)[known])
    np.testing.assert_allclose(draws.mean(0), given.moments()[0], atol=0.06)


@WEIGHTS
def test_sums_are_those_of_enumeration(largest):
    model = drawn(largest)
    marginals, counts, log_partition = model.moments()
    exact, probability = np.logaddexp.reduce(scores_of(model), axis=1), probabilities_of(model)
    np.testing.assert_allclose(model.log_partition(), exact, rtol=1e-12)
    np.testing.assert_allclose(log_partition, exact, rtol=1e-12)
    np.testing.assert_allclose(marginals, probability @ EVERY, rtol=1e-10)
    for number in range(largest + 1):
        of_number = np.minimum(EVERY.sum(1), largest) == number
        np.testing.assert_allclose(counts[:, number], probability[:, of_number].sum(1), rtol=1e-10)


@WEIGHTS
def test_the_most_probable_labelling_is_that_of_enumeration(largest):
    model = drawn(largest)
    np.testing.assert_array_equal(model.most_probable(), EVERY[scores_of(model).argmax(1)])


@WEIGHTS
@pytest.mark.parametrize("measure", GAINS)
def test_the_best_labelling_for_a_measure_is_that_of_enumeration(measure, largest):
    model = drawn(largest)
    gains = np.stack([agreement(measure, np.broadcast_to(each, EVERY.shape), EVERY) for each in EVERY], 1)
    expected = probabilities_of(model) @ gains
    found, worth = model.best(measure)
    np.testing.assert_allclose(worth, expected.max(1), rtol=1e-10)
    np.testing.assert_array_equal(found, EVERY[expected.argmax(1)])


@WEIGHTS
def test_conditional_log_odds_multiply_to_the_distribution(largest):
    model, ordering = drawn(largest), np.array([3, 0, 4, 1, 2])
    table = model.conditional_log_odds(ordering)
    for labels in EVERY:
        total = np.zeros(len(model.fields))
        for position, label in enumerate(ordering):
            before = min(int(labels[ordering[:position]].sum()), largest)
            field = table[position, before]
            total -= np.logaddexp(0, -field if labels[label] else field)
        np.testing.assert_allclose(total, model.log_prob(np.tile(labels, (len(total), 1))), rtol=1e-10)


def test_sums_of_hundreds_of_labels_are_exact():
    random = np.random.default_rng(0)
    fields = np.tile(random.normal(size=300) - 4, (2, 1))
    marginals, _, log_partition = CountModel(fields, np.array([-1e2, 0.0, -1e2])).moments()
    # One label is left, as good as alone.
    np.testing.assert_allclose(marginals[0], np.exp(fields[0] - np.logaddexp.reduce(fields[0])), atol=1e-10)
    np.testing.assert_allclose(log_partition, np.logaddexp.reduce(fields[0]), rtol=1e-10)


def test_rows_in_parts_are_the_rows(monkeypatch):
    model = drawn(3)
    whole = model.moments()
    monkeypatch.setattr("lmbm_torch.estimators.joint.likelihood.CHUNK_BYTES", 1)
    for part, own in zip(model.moments(), whole, strict=True):
        np.testing.assert_allclose(part, own, rtol=1e-12)
    np.testing.assert_array_equal(model.best("f1")[0], drawn(3).best("f1")[0])
