"""Completion of missing labels by a sigmoid belief network, for models that cannot complete labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from lmbm_torch.fitting.dual import dual_problem, fit_dual
from lmbm_torch.fitting.recipe import ROUNDS
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.networks.problems import Features

# The belief network's training ends at this relative duality gap, or after this number of iterations: rough
# weights are enough to complete labels.
TOL, MAX_ITER = 1e-2, 200


def completed_labels(
    features: Features,
    labels: np.ndarray,
    *,
    C: float,
    sample_weight: np.ndarray | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Replace missing labels by the predictions of a belief network that learns from all known labels.

    In the network's ordering, labels with fewer missing values come first.

    Args:
        features: (instances, features).
        labels: (instances, labels) in {0, 1}, NaN for missing labels.
        C: weight of the losses.
        sample_weight: (instances,), factors on C.
        seed: seed for the order in which the solver visits instances.
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
    """Train on labels completed by a belief network, then on the model's completions until none changes.

    Args:
        features, labels, C, sample_weight, seed: see :func:`completed_labels`.
        learn: function that trains the model on labels (instances, labels) without missing values.
        predict: function of row numbers that returns the model's labels of the rows given the known labels.
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
    """Set the weights of missing labels' losses to 0; return weights, or None if all weights are 1.

    Args:
        weights: (instances,) or (instances, labels); None if all weights are 1.
        labels: (instances, labels), NaN for missing labels.
    """
    missing = np.isnan(labels)
    if not missing.any():
        return weights
    if weights is None:
        return (~missing).astype(np.float64)
    return (weights if weights.ndim == 2 else weights[:, None]) * ~missing
