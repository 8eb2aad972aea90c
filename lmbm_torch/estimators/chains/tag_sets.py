"""Partly known tags (classes of positions): at each position a tag, a set of possible tags, or unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from lmbm_torch.checks import is_absent
from lmbm_torch.constraints.transitions import allowed_transitions
from lmbm_torch.solvers.chains.problems import AllowedSteps, allowed_labels

__all__: list[str] = []


class Tags(NamedTuple):
    """The tags of all positions of a training set.

    Args:
        classes: (classes,), the different tags, sorted.
        codes: (positions,), the class index of each position; None if any tag is only partly known.
        mask: (positions, classes), True for each possible class of a position; None if all tags are known.
    """

    classes: np.ndarray
    codes: np.ndarray | None
    mask: np.ndarray | None

    @classmethod
    def of(cls, labels: np.ndarray) -> Tags:
        """Convert labels of positions; the classes are all tags in ``labels``.

        Args:
            labels: (positions,), each a tag, a set of possible tags, or None or NaN for an unknown tag.

        Raises:
            ValueError: there is no tag at all, a set is empty, or tags cannot be classes.
        """
        if not are_partial(labels):
            check_classification_targets(labels)
            return cls(*np.unique(labels, return_inverse=True), None)
        given = [_tags(each, "y") for each in labels.tolist()]
        known = [tag for each in given if each is not None for tag in each]
        if not known:
            raise ValueError("y: expected at least one tag, got none")
        check_classification_targets(known)
        classes = np.unique(np.array(known))
        if classes.dtype.kind == "f":
            # Convert back to integers: NumPy made them floats because of NaN.
            classes = classes.astype(np.int64)
        return cls(classes, None, _mask(given, classes, "y"))

    def labelling(self, lengths: np.ndarray, steps: AllowedSteps | None) -> np.ndarray:
        """Return a class index for each position, (positions,), possible by the tags and allowed steps.

        Raises:
            ValueError: a sequence has no possible classes.
        """
        if self.codes is not None and steps is None:
            return self.codes
        mask = np.eye(len(self.classes), dtype=np.bool_)[self.codes] if self.mask is None else self.mask
        return labelling_within(mask, lengths, steps, "y")


def are_partial(labels: np.ndarray) -> bool:
    """Return whether any tag is a set, None or NaN, so not fully known."""
    return any(isinstance(each, set | frozenset) or is_absent(each) for each in labels.tolist())


def known_classes(known: Sequence[Any], lengths: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Convert partly known tags to a mask (positions, classes), True for each possible class.

    Args:
        known: for each sequence a list with None, NaN, a tag or a set of tags at each position.
        lengths: (sequences,), the lengths of the sequences.
        classes: the classes seen in training.

    Raises:
        ValueError: a list has not the length of the sequence, a tag is unknown, or a set is empty.
    """
    rows = label_rows(known, lengths.tolist(), "known")
    return _mask([_tags(each, "known") for each in rows.tolist()], classes, "known")


def label_rows(labels: Sequence[Any], lengths: list[int], name: str = "y") -> np.ndarray:
    """Join the labels of all sequences to a single array, (positions,).

    Raises:
        ValueError: the number of labels of a sequence is not the sequence's length.
    """
    if labels is None:
        raise ValueError(f"{name}: expected an array of labels for each sequence, got None")
    rows = [_array(each) for each in labels]
    if len(rows) != len(lengths):
        raise ValueError(f"{name}: expected {len(lengths)} arrays of labels, one a sequence, got {len(rows)}")
    for number, (each, length) in enumerate(zip(rows, lengths, strict=True)):
        if each.shape != (length,):
            raise ValueError(
                f"{name}: expected {length} labels for sequence {number}, got shape {each.shape}"
            )
    if any(each.dtype == object for each in rows):
        # Join as objects, because otherwise numbers next to texts would become texts.
        rows = [each.astype(object) for each in rows]
    return np.concatenate(rows)


def steps_of(classes: np.ndarray, constraints: Any) -> AllowedSteps | None:
    """Return the allowed transitions between neighbouring classes; None without constraints.

    Args:
        constraints: see :func:`~lmbm_torch.constraints.allowed_transitions`.

    Raises:
        ValueError: see :func:`~lmbm_torch.constraints.allowed_transitions`.
    """
    if constraints is None:
        return None
    pairs = constraints if isinstance(constraints, str) else tuple(map(tuple, constraints))
    return _steps_of(tuple(classes.tolist()), pairs)


def labelling_within(
    allowed: np.ndarray, lengths: np.ndarray, steps: AllowedSteps | None, name: str
) -> np.ndarray:
    """Return a class index for each position, (positions,), with allowed classes and transitions.

    Args:
        allowed: (positions, classes), True for each allowed class.
        lengths: (sequences,), the lengths of the sequences.
        steps: the allowed transitions; None if all are allowed.
        name: name of the argument with the tags, for the error message.

    Raises:
        ValueError: a sequence has no allowed classes.
    """
    labels, are_possible = allowed_labels(allowed, lengths, steps)
    if not are_possible.all():
        wrong = np.flatnonzero(~are_possible)
        raise ValueError(
            f"{name}: expected tags that the constraints allow, got others in {len(wrong)} sequences, "
            f"the first in sequence {wrong[0]}"
        )
    return labels


@lru_cache(maxsize=16)
def _steps_of(classes: tuple[Any, ...], constraints: Any) -> AllowedSteps:
    return AllowedSteps(*(mask.numpy() for mask in allowed_transitions(classes, constraints)))


def _array(labels: Any) -> np.ndarray:
    """Convert the labels of a sequence to an array; to an array of objects if any is a set or missing."""
    if isinstance(labels, np.ndarray) or not isinstance(labels, list | tuple):
        return np.asarray(labels)
    if any(is_absent(each) or isinstance(each, set | frozenset) for each in labels):
        found = np.empty(len(labels), dtype=object)
        found[:] = labels
        return found
    return np.asarray(labels)


def _tags(given: Any, name: str) -> frozenset[Any] | None:
    """Return the set of tags that an entry of ``known`` allows; None if all tags are allowed."""
    if isinstance(given, set | frozenset):
        if not given:
            raise ValueError(f"{name}: expected a tag in each set of tags, got an empty set")
        return frozenset(given)
    return None if is_absent(given) else frozenset([given])


def _mask(given: Iterable[frozenset[Any] | None], classes: np.ndarray, name: str) -> np.ndarray:
    place = {tag: index for index, tag in enumerate(classes.tolist())}
    given = list(given)
    mask = np.zeros((len(given), len(classes)), np.bool_)
    for row, tags in enumerate(given):
        if tags is None:
            mask[row] = True
            continue
        for tag in tags:
            if tag not in place:
                raise ValueError(f"{name}: expected one of {classes.tolist()}, got {tag!r}")
            mask[row, place[tag]] = True
    return mask
