"""The measures that a choice is made by, larger ones better, of whole parts and of single instances."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.metrics import functional

MEASURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "exact_match": functional.exact_match,
    "hamming": lambda preds, target: 1 - functional.hamming_loss(preds, target),
    "sample_f1": functional.sample_f1,
    "macro_f1": functional.macro_f1,
    "micro_f1": functional.micro_f1,
    "jaccard": functional.jaccard_index,
}


def measure(name: str, predicted: np.ndarray, truth: np.ndarray) -> float:
    """A measure over all instances, (instances, labels) both."""
    return float(MEASURES[name](torch.from_numpy(predicted).long(), torch.from_numpy(truth).long()))


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
