"""Orderings of the labels of a directed model: ``ordering[t]`` is the label at position t."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from sklearn.model_selection import KFold

from lmbm_torch.checks import check_count
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.gram import Gram, GramOfSome
from lmbm_torch.solvers.networks import dual_coordinate, kernel_dual_coordinate
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import Features, LabelProblems


def index(num_labels: int) -> np.ndarray:
    """Labels in the order of their columns."""
    check_count("num_labels", num_labels)
    return np.arange(num_labels)


def random(num_labels: int, seed: int) -> np.ndarray:
    """Labels in an order drawn from ``seed``."""
    check_count("num_labels", num_labels)
    return np.random.default_rng(seed).permutation(num_labels)


def f_score(
    features: Features, labels: np.ndarray, *, C: float = 1.0, folds: int = 5, seed: int = 0
) -> np.ndarray:
    """Labels by how well independent classifiers predict them, best first (lmbm_and_lmsbn_2010, section 4).

    Args:
        features: (instances, features), dense or CSR.
        labels: (instances, labels) in {0, 1}; NaN is left out.
        C: of the independent linear classifiers, as in ½‖w‖² + C Σ losses.
        folds: of the cross-validation; no more than there are instances.
        seed: of the folds.
    """

    def fields(train: np.ndarray, held_out: np.ndarray) -> np.ndarray:
        problems = LabelProblems.from_labels(features[train], labels[train], parents=False, C=C)
        network = problems.network(run(dual_coordinate, problems, tol=1e-2, seed=seed).weights)
        return features[held_out] @ network.features.T + network.bias

    return _best_first(labels, fields, folds, seed)


def kernel_f_score(
    gram: Gram, labels: np.ndarray, *, C: float = 1.0, folds: int = 5, seed: int = 0
) -> np.ndarray:
    """Same as :func:`f_score`, with independent classifiers that have a kernel.

    Args:
        gram: the kernel's values between all instances.
        labels, C, folds, seed: see :func:`f_score`.
    """

    def fields(train: np.ndarray, held_out: np.ndarray) -> np.ndarray:
        among = GramOfSome(gram, torch.from_numpy(train))
        problems = KernelLabelProblems.from_labels(among, labels[train], parents=False, C=C)
        network = problems.network(run(kernel_dual_coordinate, problems, tol=1e-2, seed=seed).weights)
        values = gram.rows(torch.from_numpy(held_out))[:, torch.from_numpy(train)]
        return values.double().numpy() @ network.features.T + network.bias

    return _best_first(labels, fields, folds, seed)


def _best_first(
    labels: np.ndarray, fields: Callable[[np.ndarray, np.ndarray], np.ndarray], folds: int, seed: int
) -> np.ndarray:
    """The labels by cross-validated F-score, best first.

    Args:
        fields: (training instances, held-out instances) → local fields of the latter, (instances, labels).
    """
    instances, num_labels = labels.shape
    if instances < 2 or num_labels < 2:
        return index(num_labels)
    predicted = np.empty(labels.shape)
    for train, held_out in KFold(min(folds, instances), shuffle=True, random_state=seed).split(labels):
        predicted[held_out] = fields(train, held_out) >= 0
    scores = np.zeros(num_labels)
    for k in range(num_labels):
        observed = ~np.isnan(labels[:, k])
        # F = 2 · true positives / (positives + predicted positives); 0 for a label that never occurs.
        true, found = labels[observed, k], predicted[observed, k]
        scores[k] = 2 * (true @ found) / max(true.sum() + found.sum(), 1)
    return np.argsort(-scores, kind="stable")
