"""The metrics of :mod:`lmbm_torch.metrics.functional` as torchmetrics classes, for accumulation over batches.

Every state is a sum, so that batches may be updated, merged or reduced over processes in any order. Each
class takes ``num_labels``; ``update`` raises the errors of the function. :func:`multilabel_metrics` makes all
metrics, with the names in logs and reports.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MultilabelExactMatch, MultilabelF1Score, MultilabelHammingDistance

from lmbm_torch.metrics import functional
from lmbm_torch.metrics.functional import Labels, Ratio
from lmbm_torch.shapes import Float, Int


class Sums(Metric):
    """A metric of integer sums, with the names in ``sums``."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    sums: ClassVar[tuple[str, ...]]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in self.sums:
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")


class MissingTargets(Sums):
    """The number of missing targets, NaN, which all other metrics ignore.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import MissingTargets
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
        self.missing += int(torch.as_tensor(target).isnan().sum())

    def compute(self) -> Int[Tensor, ""]:
        return self.missing


class _OnLabels(Metric):
    """A mixin that refuses scores, which the classes of torchmetrics accept."""

    num_labels: int
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels=num_labels, **functional.KNOWN_ALONE, **self.options, **kwargs)

    def update(self, preds: Labels, target: Labels) -> None:
        pair = functional.as_labels(preds, target, self.num_labels)
        if len(pair[0]):
            super().update(*pair)


class ExactMatch(_OnLabels, MultilabelExactMatch):
    """Exact match (subset accuracy) E: the share of instances with all labels predicted right.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import ExactMatch
        >>> ExactMatch(num_labels=2)(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.5000)
    """


class HammingLoss(_OnLabels, MultilabelHammingDistance):
    """Hamming loss H: the share of wrongly predicted labels of all instances.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import HammingLoss
        >>> HammingLoss(num_labels=2)(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.2500)
    """

    options: ClassVar = {"average": "micro"}


class MacroF1(_OnLabels, MultilabelF1Score):
    """Macro F1: the mean of the labels' F1; a label without positives and predictions scores 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import MacroF1
        >>> MacroF1(num_labels=2)(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.8333)
    """

    options: ClassVar = {"average": "macro"}


class MicroF1(_OnLabels, MultilabelF1Score):
    """Micro F1: F1 of the counts summed over all labels; 0 without positives and predictions.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import MicroF1
        >>> MicroF1(num_labels=2)(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.8000)
    """

    options: ClassVar = {"average": "micro"}


class _InstanceAverages(Sums):
    """Averages over instances of ratios of counts.

    Args:
        zero_division: the score of an instance with a ratio of 0/0: 0, 1, or NaN to leave the instance out.
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    sums = ()
    ratios: ClassVar[tuple[Ratio, ...]]
    total: Tensor
    count: Tensor

    def __init__(self, num_labels: int, zero_division: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        functional.check_zero_division(zero_division)
        self.num_labels = num_labels
        self.zero_division = zero_division
        # float64: a float32 sum of ratios would depend on how the instances were batched.
        self.add_state("total", torch.zeros(len(self.ratios), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(len(self.ratios), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Labels, target: Labels) -> None:
        pair = functional.as_labels(preds, target, self.num_labels)
        each = [functional.instance_scores(ratio, *pair, self.zero_division) for ratio in self.ratios]
        scores = torch.stack(each)
        self.total += scores.nansum(-1)
        self.count += (~scores.isnan()).sum(-1)

    def compute(self) -> Float[Tensor, ""]:
        return (self.total / self.count)[0].float()


class _OneWhereEmpty(_InstanceAverages):
    """An average that counts an instance without labels as right if no label is predicted."""

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, 1.0, **kwargs)


class SampleF1(_OneWhereEmpty):
    """Sample F1: the mean of 2|Y∩Ŷ| / (|Y| + |Ŷ|), 1 if both are empty (Fsam in lmbm_and_lmsbn_2010).

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import SampleF1
        >>> SampleF1(num_labels=2)(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.8333)
    """

    ratios = (functional.f1_ratio,)


class InstanceJaccardIndex(_OneWhereEmpty):
    """Jaccard index A: the mean of the instances' |Y∩Ŷ| / |Y∪Ŷ|, 1 if both are empty.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import InstanceJaccardIndex
        >>> InstanceJaccardIndex(num_labels=2)(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.7500)
    """

    ratios = (functional.jaccard_ratio,)


class InstancePrecision(_InstanceAverages):
    """Precision P: the mean of the instances' |Y∩Ŷ| / |Ŷ|; NaN if ``zero_division=nan`` leaves no instance.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import InstancePrecision
        >>> InstancePrecision(num_labels=2)(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.7500)
    """

    ratios = (functional.precision_ratio,)


class InstanceRecall(_InstanceAverages):
    """Recall R: the mean of the instances' |Y∩Ŷ| / |Y|; NaN if ``zero_division=nan`` leaves no instance.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import InstanceRecall
        >>> InstanceRecall(num_labels=2)(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(1.)
    """

    ratios = (functional.recall_ratio,)


class FOfAverages(_InstanceAverages):
    """F = 2PR / (P + R) of the instance averages P and R; 0 if both are 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import FOfAverages
        >>> FOfAverages(num_labels=2)(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.8571)
    """

    ratios = (functional.precision_ratio, functional.recall_ratio)

    def compute(self) -> Float[Tensor, ""]:
        precision, recall = self.total / self.count
        return functional.harmonic_mean(precision, recall).float()


def multilabel_metrics(num_labels: int, prefix: str | None = None) -> MetricCollection:
    """Return all metrics of the library; ``_skipped`` leaves 0/0 out, while the plain name counts 0.

    Args:
        num_labels: K.
        prefix: the start of every name, such as ``"val/"``.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import multilabel_metrics
        >>> metrics = multilabel_metrics(num_labels=2)
        >>> metrics(torch.tensor([[1, 0]]), torch.tensor([[1, 1]]))["hamming_loss"]
        tensor(0.5000)
    """
    return MetricCollection(
        {
            "exact_match": ExactMatch(num_labels),
            "hamming_loss": HammingLoss(num_labels),
            "sample_f1": SampleF1(num_labels),
            "macro_f1": MacroF1(num_labels),
            "micro_f1": MicroF1(num_labels),
            "jaccard_index": InstanceJaccardIndex(num_labels),
            "precision": InstancePrecision(num_labels),
            "precision_skipped": InstancePrecision(num_labels, zero_division=math.nan),
            "recall": InstanceRecall(num_labels),
            "recall_skipped": InstanceRecall(num_labels, zero_division=math.nan),
            "f_of_averages": FOfAverages(num_labels),
            "f_of_averages_skipped": FOfAverages(num_labels, zero_division=math.nan),
        },
        prefix=prefix,
        # torchmetrics would group metrics whose states are equal after the first batch: with a first batch
        # without a mistake it would merge averages that differ later.
        compute_groups=False,
    )
