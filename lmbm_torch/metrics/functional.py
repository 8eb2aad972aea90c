"""Multi-label metrics as functions of predictions and targets.

Some metrics are means over instances of a ratio, in which Y is the set of true labels of an instance, and Ŷ
the set of predicted labels. If the ratio is 0/0, the value is ``zero_division``: 0, 1, or NaN to leave the
instance out, as in scikit-learn. The means A, P, R and F are defined in
large_margin_boltzmann_machines_2009, Equation 3 of the experiments.

Missing targets (NaN) are ignored: for the exact match, an instance is right if all known labels are right.
Instances without a known label are left out.

Raises (all functions):
    ValueError: predictions and targets have different shapes, or not the shape ``(batch, labels)`` with at
        least one instance and label; a prediction is not 0 or 1, a target is not 0, 1 or NaN, or
        ``zero_division`` is not 0, 1 or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.classification import (
    multilabel_exact_match,
    multilabel_f1_score,
    multilabel_hamming_distance,
    multilabel_stat_scores,
)

from lmbm_torch.checks import check_labels, check_shape
from lmbm_torch.shapes import Float, Int, Shaped

Labels = Shaped[Tensor, "batch labels"] | Shaped[np.ndarray, "batch labels"]
Ratio = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

# Options for functions of torchmetrics, to ignore missing targets, which have the value −1.
KNOWN_ALONE: dict[str, Any] = {"ignore_index": -1, "validate_args": False}


def exact_match(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """Return the exact match (subset accuracy): the share of instances whose labels are all predicted right.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import exact_match
        >>> exact_match(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.5000)
    """
    return _of_known(multilabel_exact_match, preds, target)


def hamming_loss(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """Return the Hamming loss: the share of wrong labels among all labels of all instances.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import hamming_loss
        >>> hamming_loss(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.2500)
    """
    return _of_known(multilabel_hamming_distance, preds, target, average="micro")


def macro_f1(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """Return the mean over labels of F1; the F1 of a label that is neither true nor predicted anywhere is 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import macro_f1
        >>> macro_f1(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.8333)
    """
    return _of_known(multilabel_f1_score, preds, target, average="macro")


def micro_f1(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """Return F1 from true and false positives summed over all labels; 0 if no label is true or predicted.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import micro_f1
        >>> micro_f1(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.8000)
    """
    return _of_known(multilabel_f1_score, preds, target, average="micro")


def sample_f1(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """Return the mean over instances of F1, 2|Y∩Ŷ| / (|Y| + |Ŷ|), with 1 if Y and Ŷ are empty.

    Y and Ŷ are the sets of true and of predicted labels. In lmbm_and_lmsbn_2010 the metric is called Fsam.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import sample_f1
        >>> sample_f1(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.8333)
    """
    return _average(f1_ratio, preds, target, 1.0)


def jaccard_index(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """Return the mean over instances of |Y∩Ŷ| / |Y∪Ŷ|, with 1 if both sets are empty.

    Y and Ŷ are the sets of true and predicted labels. large_margin_boltzmann_machines_2009: accuracy, A.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import jaccard_index
        >>> jaccard_index(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.7500)
    """
    return _average(jaccard_ratio, preds, target, 1.0)


def precision(preds: Labels, target: Labels, zero_division: float = 0.0) -> Float[Tensor, ""]:
    """Return precision, the mean over instances of |Y∩Ŷ| / |Ŷ|, for true labels Y and predicted labels Ŷ.

    The tables of large_margin_boltzmann_machines_2009 leave out instances with an empty prediction, as
    ``zero_division=nan`` does. If no instance is left, the value is NaN.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import precision
        >>> precision(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.7500)
    """
    return _average(precision_ratio, preds, target, zero_division)


def recall(preds: Labels, target: Labels, zero_division: float = 0.0) -> Float[Tensor, ""]:
    """Return recall, the mean over instances of |Y∩Ŷ| / |Y|, for true labels Y and predicted labels Ŷ.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import recall
        >>> recall(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(1.)
    """
    return _average(recall_ratio, preds, target, zero_division)


def f_of_averages(preds: Labels, target: Labels, zero_division: float = 0.0) -> Float[Tensor, ""]:
    """Return the harmonic mean of :func:`precision` and :func:`recall`, or 0 if both are 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics.functional import f_of_averages
        >>> f_of_averages(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.8571)
    """
    return harmonic_mean(precision(preds, target, zero_division), recall(preds, target, zero_division))


def harmonic_mean(precision: Float[Tensor, ""], recall: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Return the harmonic mean of precision and recall: 0 if both are 0, NaN if one is NaN."""
    total = precision + recall
    return torch.where(total == 0, total, 2 * precision * recall / total)


def jaccard_ratio(tp: Tensor, fp: Tensor, fn: Tensor) -> tuple[Tensor, Tensor]:
    """Return numerator and denominator of the Jaccard index, |Y∩Ŷ| and |Y∪Ŷ|, from counts."""
    return tp, tp + fp + fn


def precision_ratio(tp: Tensor, fp: Tensor, fn: Tensor) -> tuple[Tensor, Tensor]:
    """Return numerator and denominator of precision, |Y∩Ŷ| and |Ŷ|, from counts."""
    return tp, tp + fp


def recall_ratio(tp: Tensor, fp: Tensor, fn: Tensor) -> tuple[Tensor, Tensor]:
    """Return numerator and denominator of recall, |Y∩Ŷ| and |Y|, from counts."""
    return tp, tp + fn


def f1_ratio(tp: Tensor, fp: Tensor, fn: Tensor) -> tuple[Tensor, Tensor]:
    """Return numerator and denominator of F1, 2|Y∩Ŷ| and |Y| + |Ŷ|, from counts."""
    return 2 * tp, 2 * tp + fp + fn


def instance_scores(
    ratio: Ratio,
    preds: Int[Tensor, "batch labels"],
    target: Int[Tensor, "batch labels"],
    zero_division: float,
) -> Float[Tensor, " batch"]:
    """Compute ``ratio`` for each instance in float64; ``zero_division`` replaces 0/0."""
    if not len(preds):
        return preds.new_zeros(0, dtype=torch.float64)
    # Exchange instances and labels, because torchmetrics' averages over instances fail for one instance.
    counts = multilabel_stat_scores(preds.mT, target.mT, len(preds), average="none", **KNOWN_ALONE)
    true_positive, false_positive, _, false_negative, _ = counts.reshape(-1, 5).unbind(-1)
    numerator, denominator = ratio(true_positive, false_positive, false_negative)
    return torch.where(denominator == 0, zero_division, numerator.double() / denominator)


def as_labels(
    preds: Labels, target: Labels, num_labels: int | None = None
) -> tuple[Int[Tensor, "known labels"], Int[Tensor, "known labels"]]:
    """Convert predictions and targets to integers; leave out instances without a known label.

    Returns:
        Predictions in {0, 1}, and targets in {0, 1} with −1 for missing labels.
    """
    check_shape("preds", preds, None, num_labels)
    check_shape("target", target, *preds.shape)
    check_labels("preds", preds)
    check_labels("target", target, allow_missing=True)
    preds, target = as_tensor(preds), as_tensor(target)
    if not target.is_floating_point():
        return preds.long(), target.long()
    missing = target.isnan()
    some = ~missing.all(1)
    return preds[some].long(), torch.where(missing, -1, target)[some].long()


def as_tensor(labels: Labels) -> Tensor:
    """Convert labels to a tensor: a tensor keeps the device, an array stays on the CPU."""
    return labels if isinstance(labels, Tensor) else torch.as_tensor(labels, device="cpu")


def check_zero_division(zero_division: float) -> None:
    """Raise ValueError unless ``zero_division`` is 0, 1 or NaN."""
    if zero_division not in (0, 1) and not math.isnan(zero_division):
        raise ValueError(f"zero_division: expected 0, 1 or NaN (to leave out), got {zero_division}")


def _of_known(
    metric: Callable[..., Tensor], preds: Labels, target: Labels, **options: Any
) -> Float[Tensor, ""]:
    """Compute a metric of torchmetrics from the known labels; return NaN if no label is known."""
    preds, target = as_labels(preds, target)
    if not len(preds):
        return torch.tensor(math.nan, device=preds.device)
    return metric(preds, target, preds.shape[1], **options, **KNOWN_ALONE)


def _average(ratio: Ratio, preds: Labels, target: Labels, zero_division: float) -> Tensor:
    check_zero_division(zero_division)
    preds, target = as_labels(preds, target)
    return instance_scores(ratio, preds, target, zero_division).nanmean().float()
