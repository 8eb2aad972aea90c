"""Strongest features of each label, in models with linear fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lmbm_torch.data.features import Features
from lmbm_torch.extras import naming_extras
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.shapes import Float, Int

with naming_extras():
    from scipy.sparse import issparse

# Features of each label to either side, and labels.
NUM_SHOWN = 4
MAX_LABELS = 60
# Of less than this share of a label's largest pull nothing is said.
LEAST = 0.01
# Of more rows, so many evenly spaced ones say how much a feature varies.
MAX_ROWS = 20_000


@dataclass(frozen=True)
class FeaturePulls:
    """The features with the largest weights of each label, largest first.

    A weight counts times the standard deviation of the feature: the rise of the label's field (half the
    log-odds given the other labels) for a rise of the feature by one standard deviation.

    Args:
        labels: the described labels, most frequent first.
        towards, against: the names of features and the pulls of each label, above and below zero.
    """

    labels: tuple[int, ...]
    towards: tuple[tuple[tuple[str, float], ...], ...]
    against: tuple[tuple[tuple[str, float], ...], ...]


@torch.no_grad()
def feature_pulls(
    saved: Predictor, features: Features, names: Sequence[str], true: Int[np.ndarray, " labels"]
) -> FeaturePulls | None:
    """Return the strongest features of the most frequent labels.

    Args:
        saved: the predictor.
        features: raw rows.
        names: the names of the features.
        true: the number of rows with each label true.

    Returns:
        None unless fields are linear in features: encoders, kernels, hidden units, trees, ensembles.
    """
    coef = saved.estimator.field_weights()
    if coef is None:
        return None
    deviation = _deviations(saved.inputs(_some(features)))
    if coef.shape[1] != len(deviation) or len(names) != len(deviation):
        return None
    labels = np.argsort(-true, kind="stable")[:MAX_LABELS]
    pulls = [coef[label] * deviation for label in labels]
    return FeaturePulls(
        tuple(labels.tolist()),
        tuple(_largest(names, pull, 1) for pull in pulls),
        tuple(_largest(names, pull, -1) for pull in pulls),
    )


def _some(features: Features) -> Features:
    """Return at most :data:`MAX_ROWS` evenly spaced rows."""
    count = features.shape[0]
    return features[np.linspace(0, count - 1, min(count, MAX_ROWS)).astype(np.int64)]


def _deviations(features: Any) -> Float[np.ndarray, " features"]:
    """Return the standard deviation of each column, dense or CSR."""
    if not issparse(features):
        # Rounding may leave a constant column some.
        varies = features.max(0) > features.min(0)
        return np.where(varies, features.std(0, dtype=np.float64), 0)
    columns = features.astype(np.float64)
    means, squares = (np.asarray(each.mean(0)).ravel() for each in (columns, columns.multiply(columns)))
    variance = squares - means**2
    return np.sqrt(np.where(variance > 1e-12 * squares, variance, 0))


def _largest(
    names: Sequence[str], pulls: Float[np.ndarray, " features"], sign: int
) -> tuple[tuple[str, float], ...]:
    """Return the largest pulls of one sign, largest first."""
    count = min(NUM_SHOWN, len(pulls))
    places = np.argpartition(-sign * pulls, count - 1)[:count]
    least = LEAST * np.abs(pulls).max(initial=0)
    first = sorted(places.tolist(), key=lambda place: -sign * pulls[place])
    return tuple((str(names[place]), float(pulls[place])) for place in first if sign * pulls[place] > least)
