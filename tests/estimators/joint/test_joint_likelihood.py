"""The likelihood of the joint head: its gradient, its optimum, and its networks against enumeration."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from scipy.special import expit

from lmbm_torch import inference
from lmbm_torch.estimators.joint import likelihood
from lmbm_torch.estimators.joint.likelihood import (
    Parameters,
    count_objective,
    fit_counts,
    fit_network,
    logistic,
)

LABELS = 4
EVERY = np.array(list(itertools.product([0, 1], repeat=LABELS)))


def data(rows: int = 80) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    log_odds = 2 * random.normal(size=(rows, LABELS)) - 1
    labels = (random.random((rows, LABELS)) < expit(log_odds)).astype(float)
    labels[:, 1] = np.where(random.random(rows) < 0.8, labels[:, 0], labels[:, 1])
    return log_odds, labels, random.random(rows) + 0.5


def network(orders: int = 2) -> Parameters:
    random = np.random.default_rng(1)
    coef = random.normal(size=(orders, LABELS, 2 * LABELS + 2))
    for each in coef:
        each[:, LABELS + 1 : -1] = np.tril(each[:, LABELS + 1 : -1], -1)
    orderings = np.array([random.permutation(LABELS) for _ in range(orders)], np.int64).reshape(-1, LABELS)
    start = replace(Parameters.unchanged(LABELS, 2), count_weight=random.normal(size=3))
    return replace(start, orderings=orderings, coef=coef)


def hidden(labels: np.ndarray) -> np.ndarray:
    """Labels with 40 % of the entries missing."""
    return np.where(np.random.default_rng(4).random(labels.shape) < 0.4, np.nan, labels)


@pytest.mark.parametrize("largest", [0, 2, LABELS])
def test_the_gradient_is_that_of_finite_differences(largest):
    log_odds, labels, weights = data(20)
    packed = np.random.default_rng(2).normal(size=2 * LABELS + largest + 1)
    numeric: Any = approx_fprime(packed, lambda at: count_objective(at, log_odds, labels, weights, 0.7)[0])
    _, gradient = count_objective(packed, log_odds, labels, weights, 0.7)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("largest", [0, 2])
def test_the_gradient_of_known_labels_is_that_of_finite_differences(largest):
    log_odds, labels, weights = data(20)
    labels = hidden(labels)
    packed = np.random.default_rng(2).normal(size=2 * LABELS + largest + 1)
    numeric: Any = approx_fprime(packed, lambda at: count_objective(at, log_odds, labels, weights, 0.7)[0])
    _, gradient = count_objective(packed, log_odds, labels, weights, 0.7)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)


def test_known_labels_of_networks_have_about_the_sum_of_their_labellings(monkeypatch):
    monkeypatch.setattr(likelihood, "DRAWS", 2000)
    parameters, (log_odds, labels, _) = network(2), data(30)
    every = np.stack([parameters.log_prob(log_odds, np.tile(each, (30, 1))) for each in EVERY], 1)
    labels = hidden(labels)
    fits = ((labels[:, None] == EVERY) | np.isnan(labels)[:, None]).all(2)
    exact = np.logaddexp.reduce(np.where(fits, every, -np.inf), axis=1)
    found = parameters.log_prob(log_odds, labels)
    assert np.abs(found - exact).max() < 0.5
    assert np.abs(found - exact).mean() < 0.05
    whole = ~np.isnan(labels).any(1)
    np.testing.assert_allclose(found[whole], exact[whole], rtol=1e-9)


def test_missing_labels_teach_nothing_false():
    log_odds, labels, weights = data(2000)
    start = Parameters.unchanged(LABELS, 3)
    orderings = np.arange(LABELS)[None]

    def learned(some: np.ndarray) -> Parameters:
        counts = fit_counts(log_odds, some, weights, 1.0, start)
        return fit_network(log_odds, some, weights, counts, orderings, (1.0, 100.0, 1.0))

    whole, part = learned(labels), learned(hidden(labels))
    # A column that is mostly unknown where the label is absent would make an absent-blind learner say 1.
    np.testing.assert_allclose(part.offset, whole.offset, atol=0.25)
    assert part.coef[0, 1, LABELS + 1] > 1
    loss = [-(weights @ each.log_prob(log_odds, labels)) / weights.sum() for each in (whole, part)]
    assert loss[1] < loss[0] + 0.05


@pytest.mark.parametrize("largest", [0, 3])
def test_the_optimum_has_no_gradient(largest):
    log_odds, labels, weights = data()
    found = fit_counts(log_odds, labels, weights, 1.0, Parameters.unchanged(LABELS, largest))
    packed = np.concatenate([found.slope, found.offset, found.count_weight])
    first = np.concatenate([np.ones(LABELS), np.zeros(LABELS + largest + 1)])
    ends = [count_objective(each, log_odds, labels, weights, 1.0) for each in (packed, first)]
    assert ends[0][0] < ends[1][0]
    assert np.abs(ends[0][1]).max() < 0.02 * np.abs(ends[1][1]).max()


def test_a_strong_penalty_leaves_the_scores_as_they_are():
    log_odds, labels, weights = data()
    found = fit_counts(log_odds, labels, weights, 1e8, Parameters.unchanged(LABELS))
    np.testing.assert_allclose(found.slope, 1, atol=1e-5)
    np.testing.assert_allclose(found.offset, 0, atol=1e-5)


def test_logistic_regression_is_shrunk_to_its_prior():
    log_odds, labels, weights = data()
    prior, penalty = np.array([1.0, 0, 0, 0]), np.array([2.0, 1, 1, 3])
    coef = logistic(log_odds, labels[:, 1], weights, prior, penalty, prior)
    warm = logistic(log_odds, labels[:, 1], weights, prior, penalty, prior + 1)
    np.testing.assert_allclose(warm, coef, atol=1e-3)
    gradient = log_odds.T @ (weights * (expit(log_odds @ coef) - labels[:, 1])) + penalty * (coef - prior)
    assert np.abs(gradient).max() < 0.01
    np.testing.assert_allclose(
        logistic(log_odds, labels[:, 1], weights, prior, 1e9 * penalty, prior), prior, atol=1e-6
    )


def test_a_network_of_strong_penalties_is_the_distribution_by_number():
    log_odds, labels, weights = data()
    start = fit_counts(log_odds, labels, weights, 1.0, Parameters.unchanged(LABELS, 3))
    orderings = np.array([[0, 1, 2, 3], [2, 0, 3, 1]])
    found = fit_network(log_odds, labels, weights, start, orderings, (1e9, 1e9, 1e9))
    np.testing.assert_allclose(found.log_prob(log_odds, labels), start.log_prob(log_odds, labels), atol=1e-6)


def test_a_network_learns_what_labels_have_in_common():
    log_odds, labels, weights = data(400)
    start = fit_counts(log_odds, labels, weights, 1.0, Parameters.unchanged(LABELS, 3))
    found = fit_network(log_odds, labels, weights, start, np.arange(LABELS)[None], (1.0, 100.0, 1.0))
    # Label 1 follows label 0, which stands before it.
    assert found.coef[0, 1, LABELS + 1] > 1
    assert weights @ found.log_prob(log_odds, labels) > weights @ start.log_prob(log_odds, labels)


@pytest.mark.parametrize("parameters", [network(0), network(1), network(2)], ids=["number", "one", "two"])
def test_probabilities_of_all_labellings_sum_to_one(parameters):
    log_odds = data(6)[0]
    every = [parameters.log_prob(log_odds, np.tile(each, (6, 1))) for each in EVERY]
    np.testing.assert_allclose(np.exp(every).sum(0), 1, rtol=1e-10)


@pytest.mark.parametrize("parameters", [network(0), network(1)], ids=["number", "network"])
def test_the_energy_of_searches_has_the_same_probabilities(parameters):
    log_odds = data(6)[0]
    (energy,) = parameters.energies(log_odds)
    for each in EVERY:
        labels = np.tile(each, (6, 1))
        found = energy.log_prob(torch.from_numpy(labels)).numpy()
        np.testing.assert_allclose(found, parameters.log_prob(log_odds, labels), rtol=1e-10)
    scores = np.stack([parameters.log_prob(log_odds, np.tile(each, (6, 1))) for each in EVERY], 1)
    np.testing.assert_array_equal(inference.decode(energy).labels.numpy(), EVERY[scores.argmax(1)])
