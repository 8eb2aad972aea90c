"""Orders of the labels of a belief network, where ``ordering[t]`` is the label at position t.

If users give a graph of parents, the graph is converted to a matrix here, and to an order.
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

# Number of folds for orders by linear classifiers.
FOLDS = 5
# Number of folds and relative duality gap for orders by kernel classifiers: five folds and smaller gaps
# change the order no more than different folds do (Kendall's tau 0.92 and 0.94), but double the time.
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
    """Return the order of the labels, (labels,), for a belief network's setting ``ordering``.

    Args:
        ordering: ``"f_score"``, ``"frequency"``, ``"index"``, ``"random"``, ``"auto"`` for ``default``; or
            labels.
        inputs, labels, C, sample_weight, kept: see :func:`f_score`; labels may be sparse.
        draw_seed: function that draws the seed of the folds or of the random order.
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
    """Return the labels in the order of the columns, from 0 on."""
    check_count("num_labels", num_labels)
    return np.arange(num_labels)


def random(num_labels: int, seed: int) -> np.ndarray:
    """Return the labels in a random order that is drawn with ``seed``."""
    check_count("num_labels", num_labels)
    return np.random.default_rng(seed).permutation(num_labels)


def random_halves(num_labels: int, count: int, seed: int) -> list[np.ndarray]:
    """Return ``count`` random orders in which each label has only half as many sets of parents as orders.

    The labels are divided into two random halves, each in a random order. Both halves, forward or reversed,
    make four orders, in which each label has two sets of parents. Four further orders start with the second
    half, in new random orders. In these eight orders each label precedes each other label four times.
    """
    random, found = np.random.default_rng(seed), []
    while len(found) < count:
        halves = np.split(random.permutation(num_labels), [num_labels // 2])
        for _ in range(2):
            # Put orders that share parent sets with earlier ones last: callers may use only the first orders.
            for turns in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
                found.append(np.concatenate([half[::turn] for half, turn in zip(halves, turns, strict=True)]))
            halves = [random.permutation(half) for half in reversed(halves)]
    return found[:count]


def frequency(labels: Any, sample_weight: np.ndarray | None = None) -> np.ndarray:
    """Order the labels by the number of positive instances, largest first; ties by column.

    Args:
        labels: (instances, labels) in {0, 1}, dense or sparse; NaN is treated as 0.
        sample_weight: (instances,), weights of the instances in the number; 1 by default.
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
    """Order the labels by the cross-validated F-score of independent classifiers, largest first.

    This is the order of lmbm_and_lmsbn_2010, section 4.

    Args:
        inputs: features (instances, features), dense or CSR, for linear classifiers; or kernel values of all
            pairs of instances, for classifiers with the kernel.
        labels: (instances, labels) in {0, 1}; missing labels (NaN) are left out.
        C: weight of the losses of the independent classifiers, as in ½‖w‖² + C Σ losses.
        folds: number of folds, at most the number of instances; by default 5, with a kernel 3.
        seed: seed of the folds.
        sample_weight: (instances,), weights of the instances; 1 by default. Instances of weight 0 are in no
            fold.
        kept: handle of the features, if the workers already hold them.
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
        # Hold out instances of weight 0 in the first fold, too; in training these have no effect.
        held_out = [rows for _, rows in splits]
        held_out[0] = np.append(held_out[0], np.flatnonzero(weights == 0))
        fields = kernel_blocks.held_out(problems, held_out, tol=KERNEL_TOL, seed=seed)
    return _best_first(labels, fields >= 0, weights)


def _splits(weights: np.ndarray, folds: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the training rows and held-out rows of each fold, without instances of weight 0."""
    rows = np.flatnonzero(weights)
    for train, held_out in KFold(min(folds, len(rows)), shuffle=True, random_state=seed).split(rows):
        yield rows[train], rows[held_out]


def _best_first(labels: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Order the labels by the F-score of predicted labels, largest first; ties by column."""
    scores = np.zeros(labels.shape[1])
    for k in range(len(scores)):
        observed = ~np.isnan(labels[:, k])
        # F = 2 · true positives / (positives + predicted positives); 0 if the sum below the line is 0.
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
    """Train independent classifiers without a fold; return the fields (held-out instances, labels) on it."""
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
    """Convert a graph to a matrix (labels, labels), True if the row's label has the column's as parent.

    Args:
        parents: such a matrix; or a dictionary {label: its parents}; or a graph with ``edges`` from parents
            to children, such as ``networkx.DiGraph``. Labels are names or column numbers.
        names: (labels,), the names of the labels; None if labels are only given by number.

    Raises:
        ValueError: the matrix has not the shape (labels, labels) or holds values except 0 and 1, a label is
            unknown, the graph is undirected, or the graph has a circle.
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
    """Return a topological order of the labels, parents first; among possible labels the least number."""
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
