"""Metrics of :mod:`lmbm_torch.metrics.functional` as one torchmetrics collection, accumulated over batches.

Every state is a sum: batches may come in any order, and states may be added over processes. ``update`` raises
the errors of the functions.

The error of restored images is also here.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MultilabelExactMatch, MultilabelF1Score, MultilabelHammingDistance

from lmbm_torch.checks import check_labels, check_shape
from lmbm_torch.metrics import functional
from lmbm_torch.metrics.functional import Labels, Ratio, as_labels
from lmbm_torch.shapes import Float, Int


class Sums(Metric):
    """Base class for metrics whose states are integer sums; ``sums`` holds the names of the states."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    sums: ClassVar[tuple[str, ...]]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in self.sums:
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")


class MissingTargets(Sums):
    """The number of missing targets (NaN); all other metrics ignore missing targets.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics.classes import MissingTargets
        >>> MissingTargets(num_labels=2)(torch.tensor([[1, 0]]), torch.tensor([[1, torch.nan]]))
        tensor(1)
    """

    higher_is_better = False
    sums = ("missing",)
    missing: Tensor

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_labels = num_labels

    def update(self, preds: Labels, target: Labels) -> None:
        functional.as_labels(preds, target, self.num_labels)
        self.missing += int(functional.as_tensor(target).isnan().sum())

    def compute(self) -> Int[Tensor, ""]:
        return self.missing


class _OnLabels(Metric):
    """A mixin for classes of torchmetrics that accepts only labels and refuses scores."""

    num_labels: int

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels=num_labels, **functional.KNOWN_ALONE, **kwargs)

    def update(self, preds: Labels, target: Labels) -> None:
        pair = functional.as_labels(preds, target, self.num_labels)
        if len(pair[0]):
            super().update(*pair)


class _ExactMatch(_OnLabels, MultilabelExactMatch):
    """Exact match of labels."""


class _HammingLoss(_OnLabels, MultilabelHammingDistance):
    """Hamming loss of labels."""


class _F1(_OnLabels, MultilabelF1Score):
    """F1 of labels; the F1 of a label that is neither true nor predicted anywhere is 0."""


class _InstanceAverages(Sums):
    """The mean over instances of a ratio such as precision; for two ratios, the harmonic mean of both means.

    Args:
        zero_division: the value of an instance whose ratio is 0/0: 0, 1, or NaN to leave the instance out.
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    sums = ()
    total: Tensor
    count: Tensor

    def __init__(self, num_labels: int, *ratios: Ratio, zero_division: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        functional.check_zero_division(zero_division)
        self.num_labels = num_labels
        self.ratios = ratios
        self.zero_division = zero_division
        # Use float64: a sum in float32 would depend on how instances are divided into batches.
        self.add_state("total", torch.zeros(len(ratios), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(len(ratios), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Labels, target: Labels) -> None:
        pair = functional.as_labels(preds, target, self.num_labels)
        each = [functional.instance_scores(ratio, *pair, self.zero_division) for ratio in self.ratios]
        scores = torch.stack(each)
        self.total += scores.nansum(-1)
        self.count += (~scores.isnan()).sum(-1)

    def compute(self) -> Float[Tensor, ""]:
        averages = self.total / self.count
        value = averages[0] if len(averages) == 1 else functional.harmonic_mean(*averages)
        return value.float()


def multilabel_metrics(num_labels: int, prefix: str | None = None) -> MetricCollection:
    """Return all metrics of the library as one collection.

    A value 0/0 of an instance is replaced by 0; metrics named ``…_skipped`` leave such instances out.

    Args:
        num_labels: number of labels.
        prefix: the start of every name, such as ``"val/"``.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import multilabel_metrics
        >>> metrics = multilabel_metrics(num_labels=2)
        >>> metrics(torch.tensor([[1, 0]]), torch.tensor([[1, 1]]))["hamming_loss"]
        tensor(0.5000)
    """
    precision, recall, skipped = functional.precision_ratio, functional.recall_ratio, math.nan
    return MetricCollection(
        {
            "exact_match": _ExactMatch(num_labels),
            "hamming_loss": _HammingLoss(num_labels, average="micro"),
            # If an instance has no label and none is predicted, the value is 1.
            "sample_f1": _InstanceAverages(num_labels, functional.f1_ratio, zero_division=1.0),
            "macro_f1": _F1(num_labels, average="macro"),
            "micro_f1": _F1(num_labels, average="micro"),
            "jaccard_index": _InstanceAverages(num_labels, functional.jaccard_ratio, zero_division=1.0),
            "precision": _InstanceAverages(num_labels, precision),
            "precision_skipped": _InstanceAverages(num_labels, precision, zero_division=skipped),
            "recall": _InstanceAverages(num_labels, recall),
            "recall_skipped": _InstanceAverages(num_labels, recall, zero_division=skipped),
            "f_of_averages": _InstanceAverages(num_labels, precision, recall),
            "f_of_averages_skipped": _InstanceAverages(num_labels, precision, recall, zero_division=skipped),
        },
        prefix=prefix,
        # Switch off groups: torchmetrics would treat metrics as one whose states are equal after the first
        # batch, such as a batch without mistakes, although the metrics differ later.
        compute_groups=False,
    )


def changed_pixel_error(preds: Labels, target: Labels, corrupted: Labels) -> Float[Tensor, ""]:
    """Return the share of wrong predictions among the corrupted pixels; NaN if no pixel is corrupted.

    Tables 1 to 3 of belief_propagation_in_crbms_2017 call this error "Changed", and the Hamming loss "All".

    Raises:
        ValueError: shapes differ, or an entry is not 0 or 1.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics.classes import changed_pixel_error
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
        >>> from lmbm_torch.metrics.classes import ChangedPixelError
        >>> clean, corrupted = torch.tensor([[1, 0, 1]]), torch.tensor([[0, 1, 1]])
        >>> ChangedPixelError()(torch.tensor([[1, 1, 1]]), clean, corrupted)
        tensor(0.5000)
    """

    higher_is_better = False
    sums = ("wrong", "changed")

    wrong: Tensor
    changed: Tensor

    def update(self, preds: Labels, target: Labels, corrupted: Labels) -> None:
        """Add the numbers of wrong predictions and of corrupted pixels in a batch."""
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
