"""Metrics of predicted labels as functions, and as one torchmetrics collection.

Predictions and targets are {0, 1} labels of shape ``(batch, labels)``, tensors or arrays of any dtype, never
scores, since torchmetrics would take floats outside [0, 1] for logits. Missing targets, NaN, are ignored:
metrics count known labels alone, and an instance is right if all known labels are right.
:class:`MissingTargets` counts missing targets.
"""

from lmbm_torch.extras import naming_extras

with naming_extras():
    from lmbm_torch.metrics.chunks import chunk_confusion, chunk_report
    from lmbm_torch.metrics.classes import multilabel_metrics
    from lmbm_torch.metrics.functional import (
        exact_match,
        f_of_averages,
        hamming_loss,
        jaccard_index,
        macro_f1,
        micro_f1,
        precision,
        recall,
        sample_f1,
    )
    from lmbm_torch.metrics.pixels import changed_pixel_error
    from lmbm_torch.metrics.sequences import chunk_f1, sequence_accuracy

__all__ = [
    "changed_pixel_error",
    "chunk_confusion",
    "chunk_f1",
    "chunk_report",
    "exact_match",
    "f_of_averages",
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
