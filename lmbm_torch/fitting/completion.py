"""Missing labels of models that have no order to impute them in, completed by a sigmoid belief network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from lmbm_torch.fitting.dual import dual_problem, fit_dual
from lmbm_torch.fitting.recipe import ROUNDS
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.networks.problems import Features

# Of the network, which need not be learned well to complete labels.
TOL, MAX_ITER = 1e-2, 200


def completed_labels(
    features: Features,
    labels: np.ndarray,
    *,
    C: float,
    sample_weight: np.ndarray | None = None,
    seed: int = 0,
) -> np.ndarray:
    """The labels, (instances, labels), each missing one as a network predicts it from those before it.

    The network learns from every label that is known; those that are known most often come first.

    Args:
        features: (instances, features).
        labels: {0, 1}, NaN where missing.
        C: weight of its losses.
        sample_weight: (instances,), multiplies C.
        seed: of the order in which instances are visited.
    """
    order = np.argsort(np.isnan(labels).sum(0), kind="stable")
    width: int = features.shape[1]  # pyright: ignore[reportOptionalSubscript]
    with torch.device("cpu"):
        model = SigmoidBeliefNetwork(width, labels.shape[1], order.tolist()).double()
    dual = dual_problem(model, features, labels, C=C, sample_weight=sample_weight, seed=seed)
    state = fit_dual(dual, tol=TOL, max_iter=MAX_ITER)
    completed = np.empty_like(labels)
    completed[:, order] = dual.problem.complete(state.weights).spins.T > 0
    return completed


def learn_along(
    features: Features,
    labels: np.ndarray,
    learn: Callable[[np.ndarray], None],
    predict: Callable[[np.ndarray], np.ndarray],
    *,
    C: float,
    sample_weight: np.ndarray | None = None,
    seed: int = 0,
) -> None:
    """Learn from the network's completion, and anew from the model's own until that stays.

    Args:
        features, labels, C, sample_weight, seed: see :func:`completed_labels`.
        learn: from complete labels (instances, labels).
        predict: rows that lack labels → their labels, given those that are known, by what was learned last.
    """
    rows = np.flatnonzero(np.isnan(labels).any(1))
    complete = completed_labels(features, labels, C=C, sample_weight=sample_weight, seed=seed)
    for _ in range(ROUNDS):
        learn(complete)
        again = complete.copy()
        again[rows] = predict(rows)
        if (again == complete).all():
            return
        complete = again


def observed_weights(weights: np.ndarray | None, labels: np.ndarray) -> np.ndarray | None:
    """Losses' weights (instances,) or (instances, labels), 0 where labels are missing; None where all are 1.

    Args:
        labels: (instances, labels), NaN where missing.
    """
    missing = np.isnan(labels)
    if not missing.any():
        return weights
    if weights is None:
        return (~missing).astype(np.float64)
    return (weights if weights.ndim == 2 else weights[:, None]) * ~missing
