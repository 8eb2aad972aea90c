"""All metrics together, under the names that logs and reports use."""

from __future__ import annotations

import math

from torchmetrics import MetricCollection

from lmbm_torch.metrics.classes import (
    ExactMatch,
    FOfAverages,
    HammingLoss,
    InstanceAccuracy,
    InstancePrecision,
    InstanceRecall,
    MacroF1,
    MicroF1,
    SampleF1,
)


def multilabel_metrics(num_labels: int, prefix: str | None = None) -> MetricCollection:
    """Every metric of the library; ``_skipped`` leaves 0/0 out of the average, where the plain name counts 0.

    Args:
        prefix: put before every name, such as ``"val/"``.
    """
    return MetricCollection(
        {
            "exact_match": ExactMatch(num_labels),
            "hamming_loss": HammingLoss(num_labels),
            "sample_f1": SampleF1(num_labels),
            "macro_f1": MacroF1(num_labels),
            "micro_f1": MicroF1(num_labels),
            "accuracy": InstanceAccuracy(num_labels),
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
