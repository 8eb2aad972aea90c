"""Shared by tables of multi-label classifiers: a data set's parts as arrays, metrics on its test part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lmbm_torch.data import MultilabelData
from lmbm_torch.metrics import multilabel_metrics


def part(data: MultilabelData, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features in float64 and labels as integers."""
    return data.features[rows].astype(np.float64), data.labels[rows].astype(int)


def scores(predicted: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """The named metrics of predicted labels."""
    metrics = multilabel_metrics(labels.shape[1])
    metrics.update(torch.from_numpy(np.asarray(predicted, int)), torch.from_numpy(labels))
    values = metrics.compute()
    return {name: float(values[name]) for name in names}


def measure(model, data: MultilabelData, names: Sequence[str]) -> dict[str, float]:
    """The named metrics of a fitted model on the test part."""
    X, Y = part(data, data.test)
    return scores(model.predict(X), Y, names)
