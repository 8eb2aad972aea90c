"""Metrics of predictions; larger values are better."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch
from torch import Tensor

MEASURES = ("exact_match", "hamming", "sample_f1", "macro_f1", "micro_f1", "jaccard", "log_loss")
# Probabilities are clipped to [LEAST, 1 − LEAST] in log losses, because a wrong 0 or 1 has an infinite loss.
LEAST = 1e-6


def measure(name: str, predicted: np.ndarray | Tensor, truth: np.ndarray | Tensor) -> float:
    """Return the value of a metric for predicted and true labels, both (instances, labels).

    Labels that are NaN in ``truth`` are ignored: for exact match, all known labels must be right. Instances
    without a known label are ignored. For ``"log_loss"``, ``predicted`` holds probabilities of the labels;
    the value is the negative of the mean log loss over known labels, in nats.
    """
    if name == "log_loss":
        likely, known = np.clip(predicted, LEAST, 1 - LEAST), ~np.isnan(truth)
        return float(np.log(np.where(truth == 1, likely, 1 - likely)[known]).mean())
    # Import the metrics only when needed, because importing torchmetrics is slow.
    functional = import_module("lmbm_torch.metrics.functional")
    labels = [torch.as_tensor(each, device="cpu") for each in (predicted, truth)]
    if name == "hamming":
        return 1 - float(functional.hamming_loss(*labels))
    return float(getattr(functional, "jaccard_index" if name == "jaccard" else name)(*labels))


def agreement(name: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the agreement of two label sets for each instance, (instances,), from 0 to 1.

    Args:
        name: name of a metric; for ``"macro_f1"`` and ``"micro_f1"``, the F1 of the two sets is used.
        first, second: label sets (instances, labels); labels that are NaN in ``second`` are ignored.
    """
    missing = np.isnan(second)
    if missing.any():
        if name == "hamming":
            return (first == second).sum(1) / np.maximum((~missing).sum(1), 1)
        first, second = (np.where(missing, 0, each) for each in (first, second))
    same = first == second
    if name == "exact_match":
        return same.all(1).astype(float)
    if name == "hamming":
        return same.mean(1)
    both, sizes = (first * second).sum(1), first.sum(1) + second.sum(1)
    if name == "jaccard":
        return np.where(sizes == 0, 1.0, both / np.maximum(sizes - both, 1))
    return np.where(sizes == 0, 1.0, 2 * both / np.maximum(sizes, 1))
