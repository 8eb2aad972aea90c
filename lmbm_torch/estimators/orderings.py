"""Orderings of the labels of a directed model: ``ordering[t]`` is the label at position t."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold

from lmbm_torch.checks import check_count
from lmbm_torch.fitting.dual import dual_problem, fit_dual
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.gram import Gram, GramOfSome
from lmbm_torch.solvers.networks.problems import Features


def index(num_labels: int) -> np.ndarray:
    """Labels in the order of their columns."""
    check_count("num_labels", num_labels)
    return np.arange(num_labels)


def random(num_labels: int, seed: int) -> np.ndarray:
    """Labels in an order drawn from ``seed``."""
    check_count("num_labels", num_labels)
    return np.random.default_rng(seed).permutation(num_labels)


def f_score(
    inputs: Features | Gram, labels: np.ndarray, *, C: float = 1.0, folds: int = 5, seed: int = 0
) -> np.ndarray:
    """Labels by how well independent classifiers predict them, best first (lmbm_and_lmsbn_2010, section 4).

    Args:
        inputs: features (instances, features), dense or CSR, for linear classifiers; or a kernel's values
            between all instances, for classifiers with that kernel.
        labels: (instances, labels) in {0, 1}; NaN is left out.
        C: of the independent classifiers, as in ½‖w‖² + C Σ losses.
        folds: of the cross-validation; no more than there are instances.
        seed: of the folds.
    """
    instances, num_labels = labels.shape
    if instances < 2 or num_labels < 2:
        return index(num_labels)
    predicted = np.empty(labels.shape)
    for train, held_out in KFold(min(folds, instances), shuffle=True, random_state=seed).split(labels):
        predicted[held_out] = _fields(inputs, labels, train, held_out, C=C, seed=seed) >= 0
    scores = np.zeros(num_labels)
    for k in range(num_labels):
        observed = ~np.isnan(labels[:, k])
        # F = 2 · true positives / (positives + predicted positives); 0 for a label that never occurs.
        true, found = labels[observed, k], predicted[observed, k]
        scores[k] = 2 * (true @ found) / max(true.sum() + found.sum(), 1)
    return np.argsort(-scores, kind="stable")


def kernel_f_score(gram: Gram, labels: np.ndarray, **options: Any) -> np.ndarray:
    """:func:`f_score` of a kernel's values between all instances."""
    return f_score(gram, labels, **options)


def _fields(
    inputs: Features | Gram, labels: np.ndarray, train: np.ndarray, held_out: np.ndarray, **options: Any
) -> np.ndarray:
    """Local fields (held-out instances, labels) of independent classifiers, trained on the others."""
    num_labels, others = labels.shape[1], torch.from_numpy(train)
    if isinstance(inputs, Features):
        known, values, width = inputs[train], inputs[held_out], inputs.shape[1]  # pyright: ignore[reportOptionalSubscript]
    else:
        known, width = GramOfSome(inputs, others), num_labels
        values = inputs.rows(torch.from_numpy(held_out))[:, others].double().numpy()
    independent = SigmoidBeliefNetwork(width, num_labels, degree=1)
    dual = dual_problem(independent, known, labels[train], **options)
    network = dual.problem.network(fit_dual(dual, tol=1e-2, max_iter=1000).weights)
    return values @ network.features.T + network.bias
