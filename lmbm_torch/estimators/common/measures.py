"""Measures of predictions, larger values better."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch
from torch import Tensor

MEASURES = ("exact_match", "hamming", "sample_f1", "macro_f1", "micro_f1", "jaccard", "log_loss")
# Least probability of a label in log losses, so that a single sure and wrong answer is no infinite loss.
LEAST = 1e-6


def measure(name: str, predicted: np.ndarray | Tensor, truth: np.ndarray | Tensor) -> float:
    """Return a measure of predicted labels (instances, labels) over the known labels of the truth.

    NaN in the truth marks a missing label, which agrees with both values: an instance is right if all known
    labels are right. Instances without a known label do not count. ``"log_loss"`` is of the labels'
    probabilities in place of the labels: the negative mean over known labels, in nats.
    """
    if name == "log_loss":
        likely, known = np.clip(predicted, LEAST, 1 - LEAST), ~np.isnan(truth)
        return float(np.log(np.where(truth == 1, likely, 1 - likely)[known]).mean())
    # Imported at use: torchmetrics imports slowly.
    functional = import_module("lmbm_torch.metrics.functional")
    labels = [torch.as_tensor(each, device="cpu") for each in (predicted, truth)]
    if name == "hamming":
        return 1 - float(functional.hamming_loss(*labels))
    return float(getattr(functional, "jaccard_index" if name == "jaccard" else name)(*labels))


def agreement(name: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the agreement of two label sets of each instance in [0, 1], (instances,), by F1 for averages.

    Args:
        first, second: (instances, labels), NaN in the second for missing labels, which do not count.
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
