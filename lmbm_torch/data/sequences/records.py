"""Labelled sequences: the record that every reader returns, and handwritten numbers as an example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.data.features import Features, check_below, check_features, numbered
from lmbm_torch.data.seven_segment import bundled_digits
from lmbm_torch.shapes import Bool, Float, Int


class Sequences(NamedTuple):
    """Sequences in the form for the estimators.

    Args:
        features: a ``(length, features)`` array for each sequence, dense or CSR.
        labels: a ``(length,)`` array of class indices for each sequence.
    """

    features: list[Features]
    labels: list[Int[np.ndarray, " length"]]


@dataclass(frozen=True, eq=False, repr=False)
class SequenceData:
    """Labelled sequences in folds; the positions of all sequences are rows of one array of features.

    Args:
        name: name for messages and reports.
        features: ``(positions, features)``, float32 or float64, dense or CSR in canonical format.
        labels: ``(positions,)``, class indices from 0, int64.
        start: the first position of each sequence, then the number of positions; no sequence is empty.
        label_names: names of the classes.
        feature_names: names of the features.
        fold: the fold of each sequence, from 0; each reader documents the use of the folds.
        schema: a ``ColumnSchema`` if the sequences come from a file of columns, else None.

    Raises:
        ValueError: a field differs from the description; the message names the field.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.data import SequenceData
        >>> labels, start, fold = np.array([0, 1, 1]), np.array([0, 2, 3]), np.array([0, 1])
        >>> data = SequenceData("toy", np.eye(3), labels, start, ("noun", "verb"), ("a", "b", "c"), fold)
        >>> [sequence.tolist() for sequence in data.within(0).labels]
        [[0, 1]]
    """

    name: str
    features: Features
    labels: Int[np.ndarray, " positions"]
    start: Int[np.ndarray, " sequences_and_one"]
    label_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    fold: Int[np.ndarray, " sequences"]
    schema: Any = None

    def __post_init__(self) -> None:
        check_features("features", self.features)
        rows, columns = self.features.shape
        check_shape("labels", self.labels, rows)
        check_below("labels", self.labels, len(self.label_names))
        if self.start[0] != 0 or self.start[-1] != rows or (np.diff(self.start) < 1).any():
            raise ValueError(f"start: expected ascending from 0 to {rows}, got {self.start.tolist()}")
        if len(self.feature_names) != columns:
            raise ValueError(f"feature_names: expected {columns} names, got {len(self.feature_names)}")
        check_shape("fold", self.fold, self.num_sequences)
        if self.fold.min() < 0:
            raise ValueError(f"fold: expected numbers of at least 0, got {self.fold.min()}")

    def __repr__(self) -> str:
        return (
            f"<{self.name}: {self.num_sequences} sequences of {len(self.labels)} positions in all, "
            f"{len(self.feature_names)} features, {len(self.label_names)} labels, {self.num_folds} folds>"
        )

    @property
    def num_sequences(self) -> int:
        return len(self.start) - 1

    @property
    def num_folds(self) -> int:
        return int(self.fold.max()) + 1

    def select(self, chosen: Bool[np.ndarray, " sequences"] | Int[np.ndarray, " chosen"]) -> Sequences:
        """Return some of the sequences, by number or by mask, in the given order."""
        spans = [slice(*self.start[each : each + 2]) for each in np.arange(self.num_sequences)[chosen]]
        return Sequences([self.features[span] for span in spans], [self.labels[span] for span in spans])

    def within(self, fold: int) -> Sequences:
        """Return the sequences of one fold."""
        return self.select(self.fold == fold)

    def outside(self, fold: int) -> Sequences:
        """Return the sequences of all other folds."""
        return self.select(self.fold != fold)


def digit_numbers(num_sequences: int = 120, *, num_folds: int = 2, seed: int = 0) -> SequenceData:
    """Draw random numbers as sequences of scikit-learn's images of digits.

    A number has four to eight digits, drawn from a Markov chain with the probabilities of
    :func:`digit_transitions`. For each digit, an image of the digit is drawn. An image is used in only one
    fold.

    Args:
        num_sequences: number of sequences in all folds together.
        num_folds: number of folds, of about the same size.
        seed: seed of all draws.

    Raises:
        ValueError: a number is below 1, or there are fewer sequences than folds.

    Examples:
        >>> from lmbm_torch.data import digit_numbers
        >>> data = digit_numbers(4, seed=0)
        >>> [len(labels) for labels in data.within(0).labels], data.features.shape[1]
        ([8, 6], 64)
    """
    check_count("num_sequences", num_sequences)
    check_count("num_folds", num_folds)
    if num_sequences < num_folds:
        raise ValueError(f"num_sequences: expected at least {num_folds}, one per fold, got {num_sequences}")
    images, digits = bundled_digits()
    random = np.random.default_rng(seed)
    image_fold = random.permutation(len(images)) % num_folds
    transitions = digit_transitions()
    fold = np.sort(np.arange(num_sequences) % num_folds)
    rows, lengths = [], random.integers(4, 9, num_sequences)
    for part, length in zip(fold, lengths, strict=True):
        digit = random.integers(10)
        for _ in range(length):
            rows.append(random.choice(np.flatnonzero((digits == digit) & (image_fold == part))))
            digit = random.choice(10, p=transitions[digit])
    return SequenceData(
        name="digit_numbers",
        features=(images[rows] / 16).astype(np.float32),
        labels=digits[rows].astype(np.int64),
        start=np.concatenate([[0], lengths.cumsum()]),
        label_names=tuple(map(str, range(10))),
        feature_names=numbered("pixel", images.shape[1]),
        fold=fold,
    )


def digit_transitions() -> Float[np.ndarray, "digits digits"]:
    """Return P(next digit | digit): 0.6 for digit + 1, 0.3 for digit + 2, the rest is divided evenly."""
    towards = np.roll(np.eye(10), 1, axis=1)
    return 0.6 * towards + 0.3 * towards @ towards + 0.1 * np.full((10, 10), 0.1)
