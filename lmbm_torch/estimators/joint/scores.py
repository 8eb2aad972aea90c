"""Conversion of other libraries' scores of single labels to log-odds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_finite, check_shape, level_of_caller

KINDS = ("probabilities", "logits", "log_probabilities")


def score_matrix(scores: Any) -> np.ndarray:
    """Convert scores to an array (rows, labels).

    Args:
        scores: a matrix, dense or sparse; a data frame; or a list of arrays (rows, 2), one for each label, as
            ``predict_proba`` of scikit-learn's forests and of ``MultiOutputClassifier`` returns, with the
            probabilities of the labels in the second columns.

    Raises:
        TypeError: entries are not numbers.
        ValueError: the shape is wrong.
    """
    if isinstance(scores, list | tuple) and scores and np.ndim(scores[0]) == 2:
        parts = [np.asarray(each) for each in scores]
        for label, each in enumerate(parts):
            check_shape(f"scores[{label}]", each, len(parts[0]), 2)
        scores = np.column_stack([each[:, 1] for each in parts])
    given: Any = scores
    found = given.toarray() if sparse.issparse(given) else np.asarray(given)
    if found.dtype.kind not in "biuf":
        try:
            found = found.astype(np.float64)
        except (TypeError, ValueError) as strange:
            raise TypeError(f"scores: expected numbers, got {found.dtype}: {strange}") from None
    check_shape("scores", found, None, None)
    return found.astype(np.float64)


def names_of(scores: Any) -> list[str] | None:
    """Return the column names of a data frame as texts; None for other forms."""
    columns = getattr(scores, "columns", None)
    return None if columns is None else [str(name) for name in columns]


def log_odds(scores: np.ndarray, kind: str, clip: float, *, is_training: bool = False) -> np.ndarray:
    """Convert scores (rows, labels) to log-odds.

    Args:
        kind: an entry of ``KINDS``.
        clip: probabilities are clipped to [clip, 1 − clip], and logits to the logits of these limits.
        is_training: whether to warn if logits look like probabilities.

    Raises:
        ValueError: scores are not finite (−∞ is a log-probability), or probabilities not in [0, 1].
    """
    if kind == "log_probabilities":
        if (scores > 0).any():
            strange = scores[scores > 0]
            raise ValueError(
                f"scores: expected log-probabilities of at most 0, got {len(strange)} other values such as "
                f"{strange[0]:.6g}; for log-odds set scores='logits'"
            )
        scores, kind = np.exp(scores), "probabilities"
    check_finite("scores", scores)
    if kind == "probabilities":
        strange = scores[(scores < 0) | (scores > 1)]
        if len(strange):
            raise ValueError(
                f"scores: expected probabilities in [0, 1], got {len(strange)} other values such as "
                f"{strange[0]:.6g}; for log-odds set scores='logits'"
            )
        inside = scores.clip(clip, 1 - clip)
        return np.log(inside) - np.log1p(-inside)
    if is_training and ((scores >= 0) & (scores <= 1)).all():
        warnings.warn(
            "scores: expected logits, got only values in [0, 1]; set scores='probabilities' for such values",
            stacklevel=level_of_caller(),
        )
    most = np.log1p(-clip) - np.log(clip)
    return scores.clip(-most, most)


def positive_probabilities(came: Any, classes: Any, num_labels: int) -> np.ndarray:
    """Return P(label = 1), (rows, labels), from what ``predict_proba`` of a fitted model returns.

    A label with a single value in training has the probability 0 or 1.

    Args:
        came: (rows, labels), or (rows, 2) for a single label, or for each label an array (rows, values).
        classes: ``classes_`` of the model: the values of each label, or of the only label.

    Raises:
        ValueError: ``came`` has another shape.
    """
    if isinstance(came, list | tuple):
        values: Sequence[Any] = [classes] if num_labels == 1 and np.ndim(classes[0]) == 0 else classes
        columns = [
            np.asarray(each)[:, np.asarray(own) == 1].sum(1) for each, own in zip(came, values, strict=True)
        ]
        found = np.column_stack(columns)
    else:
        found = score_matrix(came)
        if num_labels == 1 and classes is not None and np.ndim(classes) == 1:
            # For a single label, ``came`` has a column for each value.
            found = found[:, np.asarray(classes) == 1].sum(1)[:, None]
    check_shape("base.predict_proba", found, len(found), num_labels)
    return found
