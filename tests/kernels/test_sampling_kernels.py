"""What samples are drawn for, against its definition: whatever the kernels pass over."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from lmbm_torch.kernels.search import samples
from lmbm_torch.kernels.search.records import Network


def random_network(seed: int, labels: int, density: float, level: float) -> Network:
    random = np.random.default_rng(seed)
    step = np.tril(random.normal(size=(labels, labels)), -1).T
    step *= random.random(step.shape) < density
    parent, child = np.nonzero(step)
    start = np.searchsorted(parent, np.arange(labels + 1))
    return Network(level + random.normal(size=(7, labels)), start, child, step[parent, child])


def random_problem(labels: int, num_samples: int, density: float, level: float) -> tuple[Network, np.ndarray]:
    """A network, and noise for its samples."""
    noise = np.random.default_rng(1).logistic(size=(num_samples, labels))
    return random_network(labels, labels, density, level), noise


def drawn_of(network: Network, row: int, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The samples of one example, (samples, labels), and their log-odds, by definition."""
    log_odds = np.tile(network.log_odds[row], (len(noise), 1))
    drawn = np.zeros(noise.shape, bool)
    for label in range(noise.shape[1]):
        drawn[:, label] = log_odds[:, label] > noise[:, label]
        edges = slice(network.start[label], network.start[label + 1])
        log_odds[:, network.child[edges]] += network.step[edges] * drawn[:, [label]]
    return drawn, log_odds


def gains(drawn: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """The F1 of an answer at every sample."""
    sizes = drawn.sum(1) + answer.sum()
    return np.where(sizes == 0, 1.0, 2 * (drawn & answer).sum(1) / np.maximum(sizes, 1))


def best_answer(drawn: np.ndarray) -> np.ndarray:
    """The answer of the largest mean F1: for each size the labels of the largest worth."""
    answers = [np.zeros(drawn.shape[1], bool)]
    for size in range(1, drawn.shape[1] + 1):
        worth = (2 * drawn / (size + drawn.sum(1, keepdims=True))).mean(0)
        answers.append(np.isin(np.arange(len(worth)), np.argsort(-worth, kind="stable")[:size]))
    return max(answers, key=lambda answer: gains(drawn, answer).mean())


@pytest.mark.parametrize(("labels", "num_samples"), [(1, 3), (5, 1), (5, 60), (30, 200), (90, 40)])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("level", [-8.0, -1.5, 1.0])
def test_answers_are_those_of_the_definition(labels, num_samples, density, level):
    network, noise = random_problem(labels, num_samples, density, level)
    came = samples.labellings_of_most_f1(network, noise)
    for row, answer in enumerate(came.labels):
        drawn, _ = drawn_of(network, row, noise)
        found = gains(drawn, answer)
        assert came.mean[row] == pytest.approx(found.mean(), abs=1e-12)
        assert came.variance[row] == pytest.approx(found.var(), abs=1e-12)
        assert came.mean[row] == pytest.approx(gains(drawn, best_answer(drawn)).mean(), abs=1e-12)


@pytest.mark.parametrize(("labels", "num_samples"), [(1, 3), (5, 1), (30, 200)])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("level", [-1000.0, -1.5, 1000.0])
def test_chances_are_those_of_the_definition(labels, num_samples, density, level):
    network, noise = random_problem(labels, num_samples, density, level)
    came = samples.mean_chances(network, noise)
    for row in range(len(came.mean)):
        chances = expit(drawn_of(network, row, noise)[1])
        np.testing.assert_allclose(came.mean[row], chances.mean(0), atol=1e-12)
        np.testing.assert_allclose(came.variance[row], chances.var(0), atol=1e-12)


def test_where_no_label_ever_occurs_the_answer_is_empty():
    nothing = random_network(0, 6, 0.5, -1000.0)
    noise = np.zeros((4, 6))
    found = samples.labellings_of_most_f1(nothing, noise)
    assert not found.labels.any()
    assert (found.mean == 1).all()
