"""Expectations over samples of directed models, by definition, in NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Network(NamedTuple):
    """A belief network of labels in the model's ordering, in log-odds: P(y_k = 1 | y_<k) = σ(log-odds of k).

    In a sample label k is 1 if the log-odds are above the label's logistic noise.

    Args:
        log_odds: (batch, labels), of each label with all earlier labels 0.
        start: (labels + 1,), label j has the edges ``start[j]`` up to ``start[j + 1]``.
        child: (edges,), child of each edge, behind the parent.
        step: (edges,), increase of the child's log-odds by a parent 1.
    """

    log_odds: np.ndarray
    start: np.ndarray
    child: np.ndarray
    step: np.ndarray


class Chances(NamedTuple):
    """Chances of labels to be 1, given the earlier labels of each sample.

    Args:
        mean: (batch, labels), over the samples.
        variance: (batch, labels), over the samples.
    """

    mean: np.ndarray
    variance: np.ndarray


def mean_chances(network: Network, noise: np.ndarray) -> Chances:
    """Return the means of σ(log-odds) over samples.

    Args:
        noise: (samples, labels), logistic, shared by all examples.
    """
    moments = [_moments(network._replace(log_odds=row), noise) for row in network.log_odds]
    mean, variance = zip(*moments, strict=True)
    return Chances(np.array(mean), np.array(variance))


def _moments(network: Network, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of one example's chances."""
    log_odds = np.tile(network.log_odds, (len(noise), 1))
    for label in range(noise.shape[1]):
        drawn = log_odds[:, label] > noise[:, label]
        edges = slice(network.start[label], network.start[label + 1])
        log_odds[:, network.child[edges]] += network.step[edges] * drawn[:, None]
    chances = np.exp(-np.logaddexp(0, -log_odds))
    return chances.mean(0), chances.var(0)


class Answers(NamedTuple):
    """Labellings of largest mean F1.

    Args:
        labels: (batch, labels), whether each label is in the answer.
        mean: (batch,), the answer's mean F1 over the samples.
        variance: (batch,), variance of the F1.
    """

    labels: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


def labellings_of_most_f1(network: Network, noise: np.ndarray) -> Answers:
    """Return the labellings of largest mean F1 over samples.

    Args:
        noise: (samples, labels), logistic, shared by all examples, so no answer depends on the batch.
    """
    answers = [_answer(network._replace(log_odds=row), noise) for row in network.log_odds]
    labels, mean, variance = zip(*answers, strict=True)
    return Answers(np.array(labels), np.array(mean), np.array(variance))


def _answer(network: Network, noise: np.ndarray) -> tuple[np.ndarray, float, float]:
    log_odds = np.tile(network.log_odds, (len(noise), 1))
    drawn = np.zeros(noise.shape, bool)
    for label in range(noise.shape[1]):
        drawn[:, label] = log_odds[:, label] > noise[:, label]
        edges = slice(network.start[label], network.start[label + 1])
        log_odds[:, network.child[edges]] += network.step[edges] * drawn[:, [label]]
    sizes = drawn.sum(1, keepdims=True)
    best, most = np.zeros(noise.shape[1], bool), float((sizes == 0).mean())
    for size in range(1, noise.shape[1] + 1):
        worth = (2 * drawn / (size + sizes)).mean(0)
        chosen = np.argsort(-worth, kind="stable")[:size]
        if worth[chosen].sum() > most:
            best, most = np.isin(np.arange(len(worth)), chosen), float(worth[chosen].sum())
    both = (drawn & best).sum(1)
    gains = np.where(sizes[:, 0] + best.sum() == 0, 1.0, 2 * both / np.maximum(sizes[:, 0] + best.sum(), 1))
    return best, float(gains.mean()), float(gains.var())
