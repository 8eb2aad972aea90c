"""Holding out a share of the instances, by scikit-learn's seeded splitters or label by label."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lmbm_torch.data import stratification
from lmbm_torch.extras import naming_extras
from lmbm_torch.shapes import Float, Int

Labels = Float[np.ndarray, "instances labels"]
Rows = tuple[Int[np.ndarray, " kept"], Int[np.ndarray, " held"]]
"""Those to keep and those to hold out, both ascending."""
Splitter = Callable[[np.ndarray, float, int], tuple[np.ndarray, np.ndarray]]


def random_split(labels: Labels, fraction: float, seed: int) -> Rows:
    """Rows to keep and rows to hold out, both ascending.

    Raises:
        ValueError: ``fraction`` is not between 0 and 1, or leaves one of the two without an instance.
    """
    return _split(len(labels), fraction, seed, None)


def stratified_split(labels: Labels, fraction: float, seed: int) -> Rows:
    """Rows to keep and rows to hold out, each set of labels in both parts in the same proportion.

    Sets too rare to expect one instance in each part are pooled, and stratified as one; a missing label
    counts as a third value.
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
    """Rows to keep and rows to hold out, each label in both parts in the same proportion.

    For labels of which some are rare: see :mod:`lmbm_torch.data.stratification`.

    Args:
        groups: (instances,), of any type: instances of one group, such as a patient's, stay together.
    """
    _check_fraction(fraction)
    part = stratification.parts(labels, np.array([1 - fraction, fraction]), seed, groups)
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
    """Rows to keep and rows to hold out, which are drawn from those whose labels are all known.

    Metrics need all labels, training does not: whatever lacks labels is kept.

    Args:
        fraction: of the rows that have all labels.
        groups: (instances,), of any type: instances of one group stay together, and one whose labels lack
            keeps its whole group. They are split by :func:`iterative_split`, whatever the ``splitter``.
        argument: the fraction's name, for messages.

    Raises:
        ValueError: fewer than two such rows; a split that leaves nothing to keep or to hold out; what the
            splitter refuses.
    """
    lacking = np.isnan(labels).any(1)
    if groups is not None:
        lacking = np.isin(groups, groups[lacking])
    complete = np.flatnonzero(~lacking)
    together = "" if groups is None else ", in groups of such,"
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
