"""Errors of restored images."""

from __future__ import annotations

from torch import Tensor

from lmbm_torch.checks import check_labels, check_shape
from lmbm_torch.metrics.classes import Sums
from lmbm_torch.metrics.functional import Labels, as_labels
from lmbm_torch.shapes import Float


def changed_pixel_error(preds: Labels, target: Labels, corrupted: Labels) -> Float[Tensor, ""]:
    """Return the share of wrong predictions among the corrupted pixels; NaN if no pixel is corrupted.

    In Tables 1 to 3 of belief_propagation_in_crbms_2017 this is "Changed"; "All" is the Hamming loss.

    Raises:
        ValueError: shapes differ, or an entry is not 0 or 1.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics.pixels import changed_pixel_error
        >>> clean, corrupted = torch.tensor([[1, 0, 1]]), torch.tensor([[0, 1, 1]])
        >>> changed_pixel_error(torch.tensor([[1, 1, 1]]), clean, corrupted)
        tensor(0.5000)
    """
    wrong, changed = _counts(preds, target, corrupted)
    return wrong / changed


class ChangedPixelError(Sums):
    """The metric :func:`changed_pixel_error`, accumulated over batches.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics.pixels import ChangedPixelError
        >>> clean, corrupted = torch.tensor([[1, 0, 1]]), torch.tensor([[0, 1, 1]])
        >>> ChangedPixelError()(torch.tensor([[1, 1, 1]]), clean, corrupted)
        tensor(0.5000)
    """

    higher_is_better = False
    sums = ("wrong", "changed")

    wrong: Tensor
    changed: Tensor

    def update(self, preds: Labels, target: Labels, corrupted: Labels) -> None:
        """Add the counts of a batch."""
        wrong, changed = _counts(preds, target, corrupted)
        self.wrong += wrong
        self.changed += changed

    def compute(self) -> Float[Tensor, ""]:
        """Return the share of wrong predictions over all batches."""
        return self.wrong / self.changed


def _counts(preds: Labels, target: Labels, corrupted: Labels) -> tuple[Tensor, Tensor]:
    check_shape("corrupted", corrupted, *target.shape)
    check_labels("target", target)
    preds, target = as_labels(preds, target)
    corrupted, _ = as_labels(corrupted, target)
    changed = corrupted != target
    return ((preds != target) & changed).sum(), changed.sum()
