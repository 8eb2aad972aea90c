"""Errors of restored images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lmbm_torch.checks import check_shape
from lmbm_torch.metrics.functional import as_labels
from lmbm_torch.shapes import Float, Shaped


def changed_pixel_error(
    preds: Shaped[Tensor, "batch labels"],
    target: Shaped[Tensor, "batch labels"],
    corrupted: Shaped[Tensor, "batch labels"],
) -> Float[Tensor, ""]:
    """The share of wrong predictions among the pixels that the corruption changed; NaN if it changed none.

    "Changed" in Tables 1 to 3 of belief_propagation_in_crbms_2017; "All" is the Hamming loss.

    Raises:
        ValueError: shapes that differ, an entry other than 0 or 1.
    """
    wrong, changed = _counts(preds, target, corrupted)
    return wrong / changed


class ChangedPixelError(Metric):
    """:func:`changed_pixel_error`, accumulated over batches."""

    wrong: Tensor
    changed: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("wrong", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("changed", torch.tensor(0), dist_reduce_fx="sum")

    def update(
        self,
        preds: Shaped[Tensor, "batch labels"],
        target: Shaped[Tensor, "batch labels"],
        corrupted: Shaped[Tensor, "batch labels"],
    ) -> None:
        """Add a batch."""
        wrong, changed = _counts(preds, target, corrupted)
        self.wrong += wrong
        self.changed += changed

    def compute(self) -> Float[Tensor, ""]:
        """The share over all batches."""
        return self.wrong / self.changed


def _counts(preds: Tensor, target: Tensor, corrupted: Tensor) -> tuple[Tensor, Tensor]:
    check_shape("corrupted", corrupted, *target.shape)
    preds, target = as_labels(preds, target)
    corrupted, _ = as_labels(corrupted, target)
    changed = corrupted != target
    return ((preds != target) & changed).sum(), changed.sum()
