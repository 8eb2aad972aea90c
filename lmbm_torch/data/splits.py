"""Splits of instances into parts, by scikit-learn's seeded splitters or by iterative stratification.

Iterative stratification gives each part a share of every label (Sechidis, Tsoumakas and Vlahavas 2011, "On
the stratification of multi-label data", Algorithm 1). The rarest label is distributed first; each instance
goes to the part that lacks the label most. Even labels with few instances then occur in all parts, which a
random split does not ensure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_count, check_labels, check_shape
from lmbm_torch.data.rows import two_valued
from lmbm_torch.extras import naming_extras
from lmbm_torch.shapes import Float, Int

Labels = Float[np.ndarray, "instances labels"]
Rows = tuple[Int[np.ndarray, " kept"], Int[np.ndarray, " held"]]
"""Rows to keep and rows to hold out, both ascending."""
Splitter = Callable[[np.ndarray, float, int], tuple[np.ndarray, np.ndarray]]


def random_split(labels: Labels, fraction: float, seed: int) -> Rows:
    """Return rows to keep and rows to hold out, both ascending.

    Raises:
        ValueError: ``fraction`` is not between 0 and 1, or one of the two parts would be empty.
    """
    return _split(len(labels), fraction, seed, None)


def stratified_split(labels: Labels, fraction: float, seed: int) -> Rows:
    """Return rows to keep and rows to hold out; each label set has the same proportion in both parts.

    Rare label sets, with less than one expected instance in a part, are stratified as one group. A missing
    label counts as a third value.
    """
    _check_fraction(fraction)
    _, strata, counts = np.unique(
        np.nan_to_num(labels, nan=-1), axis=0, return_inverse=True, return_counts=True
    )
    enough = max(2, np.ceil(1 / min(fraction, 1 - fraction)))
    rare = counts < enough
    pooled = np.where(rare, -1, np.arange(len(counts)))
    if 0 < counts[rare].sum() < enough and not rare.all():
        pooled[np.argmin(np.where(rare, counts.max() + 1, counts))] = -1
    return _split(len(labels), fraction, seed, pooled[strata.reshape(-1)])


def iterative_split(labels: Labels, fraction: float, seed: int, groups: np.ndarray | None = None) -> Rows:
    """Return rows to keep and rows to hold out; each label has the same proportion in both parts.

    This split is for data with rare labels; see :func:`parts`.

    Args:
        groups: (instances,), groups of any type; the instances of a group, such as a patient, stay together.
    """
    _check_fraction(fraction)
    part = parts(labels, np.array([1 - fraction, fraction]), seed, groups)
    return np.flatnonzero(part == 0), np.flatnonzero(part == 1)


def held_out(
    labels: Labels,
    fraction: float,
    seed: int,
    splitter: Splitter = stratified_split,
    groups: np.ndarray | None = None,
    *,
    argument: str = "fraction",
) -> Rows:
    """Return rows to keep and rows to hold out, drawn from the completely labelled rows.

    Rows with missing labels are kept, because metrics need all labels, but training does not.

    Args:
        fraction: share of the completely labelled rows to hold out.
        splitter: function that splits the rows, not used with ``groups``.
        groups: (instances,), groups of any type; the instances of a group stay together. Groups with missing
            labels are kept, all others are split by :func:`iterative_split`.
        argument: name of the fraction in messages.

    Raises:
        ValueError: there are fewer than two such rows, a part would be empty, or the splitter raises it.
    """
    lacking = np.isnan(labels).any(1)
    if groups is not None:
        lacking = np.isin(groups, groups[lacking])
    complete = np.flatnonzero(~lacking)
    together = "" if groups is None else ", in groups of such rows,"
    refusal = (
        f"{argument}: expected rows that have all labels{together} to hold some of them out, "
        f"found {len(complete)} in {len(labels)} rows: label more of them in full, or give 0"
    )
    if len(complete) < 2:
        raise ValueError(refusal)
    if groups is None:
        _, drawn = splitter(labels[complete], fraction, seed)
    else:
        _, drawn = iterative_split(labels[complete], fraction, seed, groups[complete])
    held = complete[drawn]
    if not 0 < len(held) < len(labels):
        raise ValueError(refusal)
    return np.setdiff1d(np.arange(len(labels)), held), held


def _split(count: int, fraction: float, seed: int, strata: np.ndarray | None) -> Rows:
    with naming_extras():
        from sklearn.model_selection import train_test_split

    _check_fraction(fraction)
    kept, held = train_test_split(np.arange(count), test_size=fraction, random_state=seed, stratify=strata)
    return np.sort(kept), np.sort(held)


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise ValueError(f"fraction: expected a number between 0 and 1, got {fraction}")


class IterativeStratifiedKFold:
    """A splitter for ``cv`` of scikit-learn whose folds have a share of every label and whole groups.

    ``StratifiedKFold`` refuses label matrices, and random folds may lack rare labels.

    Args:
        n_splits: number of folds, at least 2.
        random_state: seed for choices between equally good parts; every call returns the same folds.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.data import IterativeStratifiedKFold
        >>> Y = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 0], [0, 0]])
        >>> [Y[test].sum(0).tolist() for _, test in IterativeStratifiedKFold(2).split(None, Y)]
        [[1, 1], [1, 1]]
    """

    def __init__(self, n_splits: int = 5, *, random_state: int = 0) -> None:
        check_count("n_splits", n_splits)
        if n_splits < 2:
            raise ValueError(f"n_splits: expected at least 2 folds, got {n_splits}")
        self.n_splits = n_splits
        self.random_state = random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds; the arguments are ignored."""
        return self.n_splits

    def split(self, X: Any, y: Any, groups: Any = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield training and test rows of each fold, ascending.

        Args:
            X: ignored.
            y: (instances, labels), see :func:`parts`, or two different values, such as −1 and 1.
            groups: see :func:`parts`.

        Raises:
            ValueError: see :func:`parts`; also if y holds classes instead of labels, or more than two values.
        """
        if not sparse.issparse(y):
            y = np.asarray(y)
            if y.ndim != 2:
                raise ValueError(
                    f"y: expected labels of shape (instances, labels), got the shape {y.shape}; for a "
                    "single class per instance use scikit-learn's StratifiedKFold"
                )
            y = two_valued(y)[0]
            check_labels("y", y, allow_missing=True)
        shares = np.full(self.n_splits, 1 / self.n_splits)
        part = parts(y, shares, self.random_state, groups)
        for fold in range(self.n_splits):
            yield np.flatnonzero(part != fold), np.flatnonzero(part == fold)


def parts(
    labels: Any, shares: np.ndarray, seed: int, groups: np.ndarray | None = None
) -> Int[np.ndarray, " instances"]:
    """Return the part of each instance, a number from 0 to len(shares) − 1.

    Args:
        labels: (instances, labels) in {0, 1}, dense or sparse; NaN, a missing label, counts as 0.
        shares: share of the instances in each part; positive, with sum 1.
        seed: seed for choices between equally good parts.
        groups: (instances,), groups of any type; the instances of a group get the same part.

    Raises:
        ValueError: labels have other values; there are fewer groups (or instances, without groups) than
            parts; or the length of ``groups`` differs.
    """
    marks: Any = sparse.csr_array(labels if sparse.issparse(labels) else np.nan_to_num(labels))
    check_labels("labels", marks.data)
    instances = marks.shape[0]
    unit = np.arange(instances)
    if groups is not None:
        check_shape("groups", np.asarray(groups), instances)
        unit = np.unique(np.asarray(groups), return_inverse=True)[1]
        members = sparse.csr_array((np.ones(instances), (unit, np.arange(instances))))
        marks = sparse.csr_array(members @ marks)
    sizes = np.bincount(unit)
    if len(sizes) < len(shares):
        what = "instances" if groups is None else "groups"
        raise ValueError(f"{what}: expected at least {len(shares)}, one for each part, got {len(sizes)}")
    return _dealt(marks, sizes, np.asarray(shares, np.float64), np.random.default_rng(seed))[unit]


def _dealt(
    marks: sparse.csr_array, sizes: np.ndarray, shares: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Return the part of each unit (a group or an instance), given sizes and label counts of the units."""
    part = np.full(len(sizes), -1)
    room = shares * sizes.sum()
    left = np.asarray(marks.sum(0), np.float64).ravel()
    wanted = shares[:, None] * left
    by_label: Any = sparse.csc_array(marks)

    def deal(unit: int, wishes: np.ndarray) -> None:
        """Move a unit to the part that lacks most labels; if several do, to the part with most room."""
        best = np.lexsort((random.random(len(shares)), room, wishes))[-1]
        part[unit] = best
        room[best] -= sizes[unit]
        own = slice(marks.indptr[unit], marks.indptr[unit + 1])
        wanted[best, marks.indices[own]] -= marks.data[own]
        left[marks.indices[own]] -= marks.data[own]

    while (left > 0).any():
        rarest = int(np.where(left > 0, left, np.inf).argmin())
        column = slice(by_label.indptr[rarest], by_label.indptr[rarest + 1])
        # Large groups are distributed first, while every part has room for a large group.
        units, counts = by_label.indices[column], by_label.data[column]
        for unit in units[np.lexsort((random.random(len(units)), -counts))]:
            if part[unit] < 0:
                deal(unit, wanted[:, rarest])
    rest = np.flatnonzero(part < 0)
    for unit in rest[np.lexsort((random.random(len(rest)), -sizes[rest]))]:
        deal(unit, room)
    return part
