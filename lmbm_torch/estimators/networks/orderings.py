"""Orderings of the labels of a directed model: ``ordering[t]`` is the label at position t."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.model_selection import KFold

from lmbm_torch.checks import check_count
from lmbm_torch.estimators.common.spreading import Kept, keep, spread
from lmbm_torch.estimators.networks import kernel_blocks
from lmbm_torch.fitting.dual import dual_problem, fit_dual
from lmbm_torch.kernels.threads import single_threaded
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.gram import Gram
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import Features

FOLDS = 5
# Of classifiers with a kernel, and the relative gap that they are trained to: five folds and closer gaps move
# labels no further than other folds do (Kendall's tau 0.92 and 0.94), for twice the time.
KERNEL_FOLDS = 3
KERNEL_TOL = 0.2


def chosen(
    ordering: Any,
    inputs: Features | Gram,
    labels: np.ndarray,
    *,
    C: float,
    seed: int,
    sample_weight: np.ndarray | None = None,
    kept: Kept | None = None,
) -> np.ndarray:
    """The ordering that a network's setting names, or is.

    Args:
        ordering: ``"auto"`` or the name of a function of this module, or labels by position.
        inputs, labels, C, sample_weight: see :func:`f_score`.
        seed: of its folds, and of a random ordering.
        kept: features, where workers keep them.
    """
    if not isinstance(ordering, str):
        return np.asarray(ordering)
    if ordering in ("auto", "f_score"):
        return f_score(inputs, labels, C=C, seed=seed, sample_weight=sample_weight, kept=kept)
    if ordering == "frequency":
        return frequency(labels, sample_weight)
    return index(labels.shape[1]) if ordering == "index" else random(labels.shape[1], seed)


def index(num_labels: int) -> np.ndarray:
    """Labels in the order of their columns."""
    check_count("num_labels", num_labels)
    return np.arange(num_labels)


def random(num_labels: int, seed: int) -> np.ndarray:
    """Labels in an order drawn from ``seed``."""
    check_count("num_labels", num_labels)
    return np.random.default_rng(seed).permutation(num_labels)


def random_halves(num_labels: int, count: int, seed: int) -> list[np.ndarray]:
    """Random orders that share sets of parents: a label has half as many of them as there are orders.

    The labels are halved at random. An order of each half and its reverse make four orders, which need two
    orders' sets; four more have new orders of the halves, the second one first. Of these eight every label
    comes before every other one in four.
    """
    random, found = np.random.default_rng(seed), []
    while len(found) < count:
        halves = np.split(random.permutation(num_labels), [num_labels // 2])
        for _ in range(2):
            # What is shared comes last, as a part of these may be asked for.
            for turns in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
                found.append(np.concatenate([half[::turn] for half, turn in zip(halves, turns, strict=True)]))
            halves = [random.permutation(half) for half in reversed(halves)]
    return found[:count]


def frequency(labels: Any, sample_weight: np.ndarray | None = None) -> np.ndarray:
    """Labels by how many instances have them, most first; of equal ones the first column comes first.

    Args:
        labels: (instances, labels) in {0, 1}, dense or sparse; NaN counts as 0.
        sample_weight: (instances,), as how many an instance counts; one each by default.
    """
    labels = labels if sparse.issparse(labels) else np.nan_to_num(labels)
    count = labels.T @ _weights(sample_weight, labels.shape[0])
    return np.argsort(-count, kind="stable")


def f_score(
    inputs: Features | Gram,
    labels: np.ndarray,
    *,
    C: float = 1.0,
    folds: int | None = None,
    seed: int = 0,
    sample_weight: np.ndarray | None = None,
    kept: Kept | None = None,
) -> np.ndarray:
    """Labels by how well independent classifiers predict them, best first (lmbm_and_lmsbn_2010, section 4).

    Args:
        inputs: features (instances, features), dense or CSR, for linear classifiers; or a kernel's values
            between all instances, for classifiers with that kernel.
        labels: (instances, labels) in {0, 1}; NaN is left out.
        C: of the independent classifiers, as in ½‖w‖² + C Σ losses.
        folds: of the cross-validation, no more than there are instances; by default 5, with a kernel 3.
        seed: of the folds.
        sample_weight: (instances,), as how many an instance counts; one each by default. Those that count
            nothing are in no fold.
        kept: features, where workers keep them.
    """
    weights = _weights(sample_weight, len(labels))
    if labels.shape[1] < 2 or np.count_nonzero(weights) < 2:
        return index(labels.shape[1])
    if isinstance(inputs, Features):
        splits = [*_splits(weights, FOLDS if folds is None else folds, seed)]
        common = labels, sample_weight, C, seed
        found = spread(_fields, common, splits, keep(inputs) if kept is None else kept)
        fields = np.zeros(labels.shape)
        for (_, held_out), part in zip(splits, found, strict=True):
            fields[held_out] = part
    else:
        splits = _splits(weights, KERNEL_FOLDS if folds is None else folds, seed)
        settings: Any = {"C": C, "sample_weight": sample_weight, "parents": False}
        problems = KernelLabelProblems.from_labels(inputs, labels, **settings)
        # What counts nothing is nowhere learned from.
        held_out = [rows for _, rows in splits]
        held_out[0] = np.append(held_out[0], np.flatnonzero(weights == 0))
        fields = kernel_blocks.held_out(problems, held_out, tol=KERNEL_TOL, seed=seed)
    return _best_first(labels, fields >= 0, weights)


def _weights(sample_weight: np.ndarray | None, instances: int) -> np.ndarray:
    return np.ones(instances) if sample_weight is None else sample_weight


def _splits(weights: np.ndarray, folds: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of the instances that count."""
    rows = np.flatnonzero(weights)
    for train, held_out in KFold(min(folds, len(rows)), shuffle=True, random_state=seed).split(rows):
        yield rows[train], rows[held_out]


def _best_first(labels: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The order of the labels' F-scores; of equal ones the first column comes first."""
    scores = np.zeros(labels.shape[1])
    for k in range(len(scores)):
        observed = ~np.isnan(labels[:, k])
        # F = 2 · true positives / (positives + predicted positives); 0 for a label that never occurs.
        true, found, weight = labels[observed, k], predicted[observed, k], weights[observed]
        if total := weight @ (true + found):
            scores[k] = 2 * (weight @ (true * found)) / total
    return np.argsort(-scores, kind="stable")


@single_threaded()
def _fields(
    common: tuple[np.ndarray, np.ndarray | None, float, int],
    split: tuple[np.ndarray, np.ndarray],
    features: Features,
) -> np.ndarray:
    """Local fields (held-out instances, labels) of independent classifiers, trained on the others."""
    labels, sample_weight, C, seed = common
    train, held_out = split
    weights = None if sample_weight is None else sample_weight[train]
    independent = SigmoidBeliefNetwork(features.shape[1], labels.shape[1], degree=1)  # pyright: ignore[reportOptionalSubscript]
    settings: Any = {"C": C, "sample_weight": weights, "seed": seed}
    dual = dual_problem(independent, features[train], labels[train], **settings)
    network = dual.problem.network(fit_dual(dual, tol=1e-2, max_iter=1000).weights)
    return features[held_out] @ network.features.T + network.bias
