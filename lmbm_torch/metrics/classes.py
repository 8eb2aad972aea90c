"""The metrics of :mod:`lmbm_torch.metrics.functional` as torchmetrics classes, for accumulation over batches.

Every state is a sum, so that batches may be updated, merged or reduced over processes in any order. Each
class takes ``num_labels``; its ``update`` raises the errors of the function.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MultilabelExactMatch, MultilabelF1Score, MultilabelHammingDistance

from lmbm_torch.metrics.functional import (
    Ratio,
    as_labels,
    check_zero_division,
    f1_ratio,
    harmonic_mean,
    instance_scores,
    jaccard_ratio,
    precision_ratio,
    recall_ratio,
)
from lmbm_torch.shapes import Float, Shaped


class _OnLabels(Metric):
    """Refuses scores, which a torchmetrics class would take, too."""

    num_labels: int

    def update(self, preds: Shaped[Tensor, "batch labels"], target: Shaped[Tensor, "batch labels"]) -> None:
        super().update(*as_labels(preds, target, self.num_labels))


class ExactMatch(_OnLabels, MultilabelExactMatch):
    """E: the share of instances whose labels are all predicted right."""

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, validate_args=False, **kwargs)


class HammingLoss(_OnLabels, MultilabelHammingDistance):
    """H: the share of all labels of all instances that are predicted wrong."""

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, average="micro", validate_args=False, **kwargs)


class MacroF1(_OnLabels, MultilabelF1Score):
    """The mean over labels of each label's F1; a label that never occurs and is never predicted scores 0."""

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, average="macro", validate_args=False, **kwargs)


class MicroF1(_OnLabels, MultilabelF1Score):
    """F1 of the counts summed over all labels; 0 where nothing occurs and nothing is predicted."""

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, average="micro", validate_args=False, **kwargs)


class _InstanceAverages(Metric):
    """Averages over instances of ratios of their counts.

    Args:
        zero_division: the score of an instance whose ratio is 0/0: 0, 1, or NaN to leave it out.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    ratios: ClassVar[tuple[Ratio, ...]]
    total: Tensor
    count: Tensor

    def __init__(self, num_labels: int, zero_division: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_zero_division(zero_division)
        self.num_labels = num_labels
        self.zero_division = zero_division
        # float64: a float32 sum of ratios would depend on how the instances were batched.
        self.add_state("total", torch.zeros(len(self.ratios), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(len(self.ratios), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Shaped[Tensor, "batch labels"], target: Shaped[Tensor, "batch labels"]) -> None:
        preds, target = as_labels(preds, target, self.num_labels)
        scores = torch.stack(
            [instance_scores(ratio, preds, target, self.zero_division) for ratio in self.ratios]
        )
        self.total += scores.nansum(-1)
        self.count += (~scores.isnan()).sum(-1)

    def compute(self) -> Float[Tensor, ""]:
        return (self.total / self.count)[0].float()


class SampleF1(_InstanceAverages):
    """Fsam: the mean over instances of 2|Y∩Ŷ| / (|Y| + |Ŷ|), 1 where both are empty (lmbm_and_lmsbn_2010)."""

    ratios = (f1_ratio,)

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, 1.0, **kwargs)


class InstanceAccuracy(_InstanceAverages):
    """A: the mean over instances of |Y∩Ŷ| / |Y∪Ŷ|, 1 where both are empty."""

    ratios = (jaccard_ratio,)

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, 1.0, **kwargs)


class InstancePrecision(_InstanceAverages):
    """P: the mean over instances of |Y∩Ŷ| / |Ŷ|; NaN if ``zero_division=nan`` leaves no instance."""

    ratios = (precision_ratio,)

    def __init__(self, num_labels: int, zero_division: float = 0.0, **kwargs: Any) -> None:
        super().__init__(num_labels, zero_division, **kwargs)


class InstanceRecall(_InstanceAverages):
    """R: the mean over instances of |Y∩Ŷ| / |Y|; NaN if ``zero_division=nan`` leaves no instance."""

    ratios = (recall_ratio,)

    def __init__(self, num_labels: int, zero_division: float = 0.0, **kwargs: Any) -> None:
        super().__init__(num_labels, zero_division, **kwargs)


class FOfAverages(_InstanceAverages):
    """F = 2PR / (P + R) of the averages over instances P and R; 0 where both are 0."""

    ratios = (precision_ratio, recall_ratio)

    def __init__(self, num_labels: int, zero_division: float = 0.0, **kwargs: Any) -> None:
        super().__init__(num_labels, zero_division, **kwargs)

    def compute(self) -> Float[Tensor, ""]:
        precision, recall = self.total / self.count
        return harmonic_mean(precision, recall).float()
