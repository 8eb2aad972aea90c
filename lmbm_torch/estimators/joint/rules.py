"""Simple rules that turn scores of single labels into label sets: thresholds, and the most probable label."""

from __future__ import annotations

import numpy as np

from lmbm_torch.estimators.common.measures import agreement

OF_LABELS = ("macro_f1", "micro_f1")
"""Metrics that are no means over rows; labels with a probability above a threshold are predicted."""
RULES = ("one threshold", "a threshold for each label", "the most probable label")
# Number of thresholds to try for all labels in common; these are quantiles of all scores.
TRIED = 200
# Thresholds for F1 are chosen by a mean of true labels, with this weight, and predicted probabilities (see
# scripts/bench/joint_heads.py).
COUNTED = 0.25


def learned(
    rule: str, metric: str, log_odds: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Learn the thresholds (labels,) of a rule in ``RULES``; NaN for ``"the most probable label"``.

    A common threshold for all labels maximises the metric. With a threshold for each label, each maximises
    the label's F1 if the metric is an F1 or Jaccard, else the label's accuracy.

    Args:
        metric: name of the metric, see :func:`value`.
        log_odds: (rows, labels), log-odds of single labels.
        labels: (rows, labels) in {0, 1, NaN}, the true labels.
        weights: (rows,), sample weights.
    """
    num_labels = labels.shape[1]
    if rule == "the most probable label":
        return np.full(num_labels, np.nan)
    if rule == "a threshold for each label":
        by_f1 = metric in ("f1", "jaccard", *OF_LABELS)
        each = zip(log_odds.T, labels.T, strict=True)
        return np.array([_threshold(scores, own, weights, by_f1=by_f1) for scores, own in each])
    tried = np.unique(np.append(np.quantile(log_odds, np.linspace(0, 1, TRIED)), 0.0))
    worth = [value(metric, (log_odds > each).astype(int), labels, weights) for each in tried]
    # Among equally good thresholds take the one nearest to 0, which is the log-odds of the probability ½.
    best = np.flatnonzero(np.isclose(worth, max(worth), rtol=0, atol=1e-12))
    return np.full(num_labels, tried[best[np.abs(tried[best]).argmin()]])


def of_marginals(metric: str, marginals: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Choose a threshold for the probability of each label, (labels,).

    For ``"macro_f1"`` each threshold maximises the label's F1; for ``"micro_f1"`` a common threshold
    maximises the F1 of all entries. F1 is computed from a weighted mean of true labels (weight ``COUNTED``)
    and probabilities: with true labels only, the threshold of a rare label depends on a few rows; with
    probabilities only, the threshold is best if probabilities are exact (Lipton, Elkan and Naryanaswamy
    2014). A missing label is replaced by its probability.

    Args:
        metric: ``"macro_f1"`` or ``"micro_f1"``.
        marginals: P(label = 1), (rows, labels).
        labels: (rows, labels) in {0, 1, NaN}, the true labels.
        weights: (rows,), sample weights.
    """
    counted = np.where(np.isnan(labels), marginals, COUNTED * labels + (1 - COUNTED) * marginals)
    if metric == "micro_f1":
        every = np.repeat(weights, marginals.shape[1])
        return np.full(marginals.shape[1], _threshold(marginals.ravel(), counted.ravel(), every, by_f1=True))
    each = zip(marginals.T, counted.T, strict=True)
    return np.array([_threshold(scores, own, weights, by_f1=True) for scores, own in each])


def value(metric: str, predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """Return a metric's value for predictions and true labels, both (rows, labels); NaN if not known.

    ``"macro_f1"`` is the mean F1 of the labels, ``"micro_f1"`` the F1 of all entries; the other metrics are
    means over rows, see :func:`~lmbm_torch.estimators.common.measures.agreement`. NaN labels are ignored.

    Args:
        weights: (rows,), sample weights.
    """
    if metric not in OF_LABELS:
        return float(np.average(agreement(metric, predicted, labels), weights=weights))
    known = ~np.isnan(labels)
    both = weights @ (predicted * (labels == 1))
    sizes = weights @ (predicted * known) + weights @ (labels == 1)
    if metric == "micro_f1":
        both, sizes = both.sum(keepdims=True), sizes.sum(keepdims=True)
    return float((2 * both / np.maximum(sizes, np.finfo(float).tiny)).mean())


def predicted(thresholds: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
    """Predict labels (rows, labels) in {0, 1} by thresholds for the log-odds.

    Args:
        thresholds: (labels,); NaN to predict only the most probable label.
        log_odds: (rows, labels), log-odds of single labels.
    """
    if np.isnan(thresholds).all():
        return np.eye(log_odds.shape[1], dtype=np.int64)[log_odds.argmax(1)]
    return (log_odds > thresholds).astype(np.int64)


def _threshold(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray, *, by_f1: bool) -> float:
    """Return the threshold with the largest accuracy or F1 of one label: a mean of two scores, or ±∞."""
    known = ~np.isnan(labels)
    scores, labels, weights = scores[known], labels[known], weights[known]
    order = np.argsort(-scores, kind="stable")
    ranked, true, weight = scores[order], labels[order], weights[order]
    # Predict the label for the k best-scored rows, k = 0, 1, …; ``hits`` is the weight of true positives.
    hits = np.append(0.0, np.cumsum(weight * true))
    size = np.append(0.0, np.cumsum(weight))
    total = hits[-1]
    if by_f1:
        worth = np.where(size + total > 0, 2 * hits / np.maximum(size + total, np.finfo(float).tiny), 1.0)
    else:
        worth = 2 * hits - size
    between = np.append(True, np.append(ranked[1:] < ranked[:-1], True))
    best = int(np.where(between, worth, -np.inf).argmax())
    if best == 0:
        return np.inf
    return -np.inf if best == len(ranked) else float((ranked[best - 1] + ranked[best]) / 2)
