"""Multi-label metrics as functions of predictions and targets.

Some are averages over instances of a ratio of counts, which is 0/0 for an instance with nothing to count.
``zero_division`` is the score of such an instance: 0, 1, or NaN to leave it out of the average, like the
argument of that name in scikit-learn. The averages A, P, R and F are those of
large_margin_boltzmann_machines_2009, Equation 3 of its experiments.

Raises (all functions):
    ValueError: not two equal shapes ``(batch, labels)`` with at least one of each; an entry other than 0 or
        1, NaN included; a ``zero_division`` other than 0, 1 or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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

Labels = Shaped[Tensor, "batch labels"]
Ratio = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def exact_match(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """E: the share of instances whose labels are all predicted right."""
    preds, target = as_labels(preds, target)
    return multilabel_exact_match(preds, target, preds.shape[1], validate_args=False)


def hamming_loss(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """H: the share of all labels of all instances that are predicted wrong."""
    preds, target = as_labels(preds, target)
    return multilabel_hamming_distance(preds, target, preds.shape[1], average="micro", validate_args=False)


def macro_f1(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """The mean over labels of each label's F1; a label that never occurs and is never predicted scores 0."""
    preds, target = as_labels(preds, target)
    return multilabel_f1_score(preds, target, preds.shape[1], average="macro", validate_args=False)


def micro_f1(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """F1 of the counts summed over all labels; 0 where nothing occurs and nothing is predicted."""
    preds, target = as_labels(preds, target)
    return multilabel_f1_score(preds, target, preds.shape[1], average="micro", validate_args=False)


def sample_f1(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """Fsam: the mean over instances of 2|Y∩Ŷ| / (|Y| + |Ŷ|), 1 where both are empty (lmbm_and_lmsbn_2010)."""
    return _average(f1_ratio, preds, target, 1.0)


def jaccard_index(preds: Labels, target: Labels) -> Float[Tensor, ""]:
    """The mean over instances of |Y∩Ŷ| / |Y∪Ŷ|, 1 where both are empty.

    large_margin_boltzmann_machines_2009 calls it accuracy, A.
    """
    return _average(jaccard_ratio, preds, target, 1.0)


def precision(preds: Labels, target: Labels, zero_division: float = 0.0) -> Float[Tensor, ""]:
    """P: the mean over instances of |Y∩Ŷ| / |Ŷ|.

    The tables of large_margin_boltzmann_machines_2009 leave out instances with an empty prediction, which
    ``zero_division=nan`` does; NaN if that leaves none.
    """
    return _average(precision_ratio, preds, target, zero_division)


def recall(preds: Labels, target: Labels, zero_division: float = 0.0) -> Float[Tensor, ""]:
    """R: the mean over instances of |Y∩Ŷ| / |Y|; NaN if ``zero_division=nan`` leaves no instance."""
    return _average(recall_ratio, preds, target, zero_division)


def f_of_averages(preds: Labels, target: Labels, zero_division: float = 0.0) -> Float[Tensor, ""]:
    """F = 2PR / (P + R) of the averages :func:`precision` and :func:`recall`; 0 where both are 0."""
    return harmonic_mean(precision(preds, target, zero_division), recall(preds, target, zero_division))


def harmonic_mean(precision: Float[Tensor, ""], recall: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """2PR / (P + R), 0 where both are 0, NaN where one is."""
    total = precision + recall
    return torch.where(total == 0, total, 2 * precision * recall / total)


def jaccard_ratio(tp: Tensor, fp: Tensor, fn: Tensor) -> tuple[Tensor, Tensor]:
    """|Y∩Ŷ| and |Y∪Ŷ|."""
    return tp, tp + fp + fn


def precision_ratio(tp: Tensor, fp: Tensor, fn: Tensor) -> tuple[Tensor, Tensor]:
    """|Y∩Ŷ| and |Ŷ|."""
    return tp, tp + fp


def recall_ratio(tp: Tensor, fp: Tensor, fn: Tensor) -> tuple[Tensor, Tensor]:
    """|Y∩Ŷ| and |Y|."""
    return tp, tp + fn


def f1_ratio(tp: Tensor, fp: Tensor, fn: Tensor) -> tuple[Tensor, Tensor]:
    """2|Y∩Ŷ| and |Y| + |Ŷ|."""
    return 2 * tp, 2 * tp + fp + fn


def instance_scores(
    ratio: Ratio,
    preds: Int[Tensor, "batch labels"],
    target: Int[Tensor, "batch labels"],
    zero_division: float,
) -> Float[Tensor, " batch"]:
    """The ratio of each instance's counts in float64, ``zero_division`` where it is 0/0."""
    # Instances take the place of labels: torchmetrics' own sample-wise mode fails on a batch of one.
    counts = multilabel_stat_scores(preds.mT, target.mT, len(preds), average="none", validate_args=False)
    true_positive, false_positive, _, false_negative, _ = counts.reshape(-1, 5).unbind(-1)
    numerator, denominator = ratio(true_positive, false_positive, false_negative)
    return torch.where(denominator == 0, zero_division, numerator.double() / denominator)


def as_labels(
    preds: Labels, target: Labels, num_labels: int | None = None
) -> tuple[Int[Tensor, "batch labels"], Int[Tensor, "batch labels"]]:
    """Both as integers, after a check that they are {0, 1} labels of one shape."""
    check_shape("preds", preds, None, num_labels)
    check_shape("target", target, *preds.shape)
    check_labels("preds", preds)
    check_labels("target", target)
    return preds.long(), target.long()


def check_zero_division(zero_division: float) -> None:
    """Raise ValueError unless ``zero_division`` is 0, 1 or NaN."""
    if zero_division not in (0, 1) and not math.isnan(zero_division):
        raise ValueError(f"zero_division: expected 0, 1 or NaN (leave out), got {zero_division}")


def _average(ratio: Ratio, preds: Tensor, target: Tensor, zero_division: float) -> Tensor:
    check_zero_division(zero_division)
    preds, target = as_labels(preds, target)
    return instance_scores(ratio, preds, target, zero_division).nanmean().float()
