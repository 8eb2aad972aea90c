"""Orders of the labels of a belief network: ``ordering[t]`` is the label at position t.

Given graphs of the labels are names, a matrix, or a graph of networkx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.model_selection import KFold

from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.estimators.common.spreading import Kept, keep, spread
from lmbm_torch.estimators.networks import kernel_blocks
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.dual import dual_problem, fit_dual
from lmbm_torch.kernels.threads import single_threaded
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.gram import Gram
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import Features

FOLDS = 5
# Folds and relative gap of classifiers with a kernel: five folds and smaller gaps change the order no more
# than a new split does (Kendall's tau 0.92 and 0.94), and double the time.
KERNEL_FOLDS = 3
KERNEL_TOL = 0.2


def chosen(
    ordering: Any,
    inputs: Features | Gram,
    labels: Any,
    *,
    C: float,
    draw_seed: Callable[[], int],
    default: str = recipe.ORDERING,
    sample_weight: np.ndarray | None = None,
    kept: Kept | None = None,
) -> np.ndarray:
    """Return the label at each position, (labels,), for a belief network's setting ``ordering``.

    Args:
        ordering: the name of a function of this module, ``"auto"`` for ``default``, or labels by position.
        inputs, labels, C, sample_weight, kept: see :func:`f_score`; labels may be sparse.
        draw_seed: draws the seed of the folds or of the random order.
    """
    if not isinstance(ordering, str):
        return np.asarray(ordering)
    name = default if ordering == "auto" else ordering
    if name == "frequency":
        return frequency(labels, sample_weight)
    if name == "index":
        return index(labels.shape[1])
    if name == "random":
        return random(labels.shape[1], draw_seed())
    dense = labels.toarray() if sparse.issparse(labels) else labels
    return f_score(inputs, dense, C=C, seed=draw_seed(), sample_weight=sample_weight, kept=kept)


def index(num_labels: int) -> np.ndarray:
    """Return the labels in the order of their columns."""
    check_count("num_labels", num_labels)
    return np.arange(num_labels)


def random(num_labels: int, seed: int) -> np.ndarray:
    """Return the labels in an order drawn from ``seed``."""
    check_count("num_labels", num_labels)
    return np.random.default_rng(seed).permutation(num_labels)


def random_halves(num_labels: int, count: int, seed: int) -> list[np.ndarray]:
    """Return ``count`` random orders with shared sets of parents: half as many sets per label as orders.

    The labels are halved at random. The orders of each half and their reverses make four orders with the
    parent sets of two; four further orders have new orders of the halves, the second half first. Among these
    eight orders every label precedes every second label in four.
    """
    random, found = np.random.default_rng(seed), []
    while len(found) < count:
        halves = np.split(random.permutation(num_labels), [num_labels // 2])
        for _ in range(2):
            # Shared halves last, because callers may use a prefix of the list.
            for turns in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
                found.append(np.concatenate([half[::turn] for half, turn in zip(halves, turns, strict=True)]))
            halves = [random.permutation(half) for half in reversed(halves)]
    return found[:count]


def frequency(labels: Any, sample_weight: np.ndarray | None = None) -> np.ndarray:
    """Return the labels by number of positive instances, largest first; ties in the order of the columns.

    Args:
        labels: (instances, labels) in {0, 1}, dense or sparse; NaN counts as 0.
        sample_weight: (instances,), counts of the instances; 1 by default.
    """
    labels = labels if sparse.issparse(labels) else np.nan_to_num(labels)
    count = labels.T @ (np.ones(labels.shape[0]) if sample_weight is None else sample_weight)
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
    """Return the labels by cross-validated F-score of independent classifiers, largest first.

    The order of lmbm_and_lmsbn_2010, section 4.

    Args:
        inputs: features (instances, features), dense or CSR, for linear classifiers; or kernel values of all
            pairs of instances, for classifiers with the kernel.
        labels: (instances, labels) in {0, 1}; NaN is left out.
        C: of the independent classifiers, as in ½‖w‖² + C Σ losses.
        folds: of the cross-validation, at most the number of instances; by default 5, with a kernel 3.
        seed: of the folds.
        sample_weight: (instances,), counts of the instances; 1 by default. Instances of weight 0 are in no
            fold.
        kept: the features, if workers keep them already.
    """
    weights = np.ones(len(labels)) if sample_weight is None else sample_weight
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
        # Instances of weight 0 are never in a training part.
        held_out = [rows for _, rows in splits]
        held_out[0] = np.append(held_out[0], np.flatnonzero(weights == 0))
        fields = kernel_blocks.held_out(problems, held_out, tol=KERNEL_TOL, seed=seed)
    return _best_first(labels, fields >= 0, weights)


def _splits(weights: np.ndarray, folds: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield training rows and held-out rows among the instances with a weight."""
    rows = np.flatnonzero(weights)
    for train, held_out in KFold(min(folds, len(rows)), shuffle=True, random_state=seed).split(rows):
        yield rows[train], rows[held_out]


def _best_first(labels: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the labels by F-score, largest first; ties in the order of the columns."""
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
    """Return local fields (held-out instances, labels) of independent classifiers of the other rows."""
    labels, sample_weight, C, seed = common
    train, held_out = split
    weights = None if sample_weight is None else sample_weight[train]
    with torch.device("cpu"):
        independent = SigmoidBeliefNetwork(features.shape[1], labels.shape[1], degree=1)  # pyright: ignore[reportOptionalSubscript]
    settings: Any = {"C": C, "sample_weight": weights, "seed": seed}
    dual = dual_problem(independent, features[train], labels[train], **settings)
    network = dual.problem.network(fit_dual(dual, tol=1e-2, max_iter=1000).weights)
    return features[held_out] @ network.features.T + network.bias


def parent_matrix(parents: Any, num_labels: int, names: Sequence[str] | None) -> np.ndarray:
    """Return (labels, labels), True where the row's label has the column's label as parent.

    Args:
        parents: the matrix; or {label: its parents}; or a graph with ``edges`` parent → child, such as
            ``networkx.DiGraph``. Labels are names or numbers.
        names: of the labels, (labels,); None for numbers alone.

    Raises:
        ValueError: a matrix of another shape or with other values than 0 and 1, an unknown label, an
            undirected graph, a circle.
    """
    if isinstance(parents, Mapping):
        arrows = [(parent, child) for child, given in parents.items() for parent in given]
    elif hasattr(parents, "edges"):
        if not parents.is_directed():
            raise ValueError("parents: expected a directed graph, got an undirected one")
        arrows = [(parent, child) for parent, child in parents.edges]
    else:
        matrix = np.asarray(parents)
        check_shape("parents", matrix, num_labels, num_labels)
        if not np.isin(matrix, (0, 1)).all():
            raise ValueError("parents: expected a matrix of 0 and 1, got other values")
        _check_acyclic(matrix.astype(bool))
        return matrix.astype(bool)
    place: dict[Any, int] = {label: label for label in range(num_labels)}
    place |= {name: label for label, name in enumerate(names or ())}
    found = np.zeros((num_labels, num_labels), bool)
    for parent, child in arrows:
        for label in (parent, child):
            if label not in place:
                raise ValueError(f"parents: expected names or numbers of the labels, got {label!r}")
        found[place[child], place[parent]] = True
    _check_acyclic(found)
    return found


def topological(parents: np.ndarray) -> np.ndarray:
    """Return the labels in an order with parents first, among free labels the least number first."""
    waiting, order = parents.copy(), []
    left = np.ones(len(parents), bool)
    while left.any():
        label = int(np.flatnonzero(left & ~waiting.any(1))[0])
        order.append(label)
        left[label], waiting[:, label] = False, False
    return np.array(order)


def _check_acyclic(parents: np.ndarray) -> None:
    try:
        TopologicalSorter(
            {label: np.flatnonzero(row).tolist() for label, row in enumerate(parents)}
        ).prepare()
    except CycleError as error:
        raise ValueError(f"parents: expected no circle of labels, got {error.args[1]}") from None
