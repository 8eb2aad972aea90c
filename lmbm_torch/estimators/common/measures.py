"""The measures that a choice is made by, larger ones better, of whole parts and of single instances."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch
from torch import Tensor

MEASURES = ("exact_match", "hamming", "sample_f1", "macro_f1", "micro_f1", "jaccard")


def measure(name: str, predicted: np.ndarray | Tensor, truth: np.ndarray | Tensor) -> float:
    """A measure over all instances, (instances, labels) both, of the labels that the truth knows.

    NaN in the truth, a missing label, agrees with everything: an instance is right if all its known labels
    are. Instances without any known label are left out.
    """
    # At use: torchmetrics takes longer to import than all else here.
    functional = import_module("lmbm_torch.metrics.functional")
    predicted, truth = torch.as_tensor(predicted, device="cpu"), torch.as_tensor(truth, device="cpu")
    known = ~truth.isnan()
    counted = known.any(1)
    labels = [torch.where(known, each, 0).long()[counted] for each in (predicted, truth)]
    if name == "hamming":
        return 1 - float(functional.hamming_loss(*labels)) / float(known[counted].double().mean())
    return float(getattr(functional, "jaccard_index" if name == "jaccard" else name)(*labels))


def agreement(name: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How much two labellings of each instance agree, in [0, 1], (instances,); by F1 for averages."""
    same = first == second
    if name == "exact_match":
        return same.all(1).astype(float)
    if name == "hamming":
        return same.mean(1)
    both, sizes = (first * second).sum(1), first.sum(1) + second.sum(1)
    if name == "jaccard":
        return np.where(sizes == 0, 1.0, both / np.maximum(sizes - both, 1))
    return np.where(sizes == 0, 1.0, 2 * both / np.maximum(sizes, 1))
