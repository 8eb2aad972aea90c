"""Metrics of predicted labels as functions, and as one torchmetrics collection.

Predictions and targets are labels in {0, 1} of shape ``(batch, labels)``, tensors or arrays of any dtype.
Scores are refused, because torchmetrics would treat floats outside of [0, 1] as logits. Missing targets (NaN)
are ignored: an instance is right if all known labels are right. :class:`MissingTargets` counts them.
"""

from lmbm_torch.extras import naming_extras

with naming_extras():
    from lmbm_torch.metrics.classes import multilabel_metrics
    from lmbm_torch.metrics.functional import (
        exact_match,
        hamming_loss,
        jaccard_index,
        macro_f1,
        micro_f1,
        precision,
        recall,
        sample_f1,
    )
    from lmbm_torch.metrics.sequences import chunk_confusion, chunk_f1, chunk_report, sequence_accuracy

__all__ = [
    "chunk_confusion",
    "chunk_f1",
    "chunk_report",
    "exact_match",
    "hamming_loss",
    "jaccard_index",
    "macro_f1",
    "micro_f1",
    "multilabel_metrics",
    "precision",
    "recall",
    "sample_f1",
    "sequence_accuracy",
]
