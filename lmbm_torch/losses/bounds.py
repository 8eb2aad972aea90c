"""What a small hinge loss proves: bounds on the log loss and on the share of wrong predictions.

Source: lmbm_and_lmsbn_2010, Remark 3, Theorem 4 and Remark 6.
"""

from __future__ import annotations

import math

from torch import Tensor

from lmbm_torch.checks import check_positive
from lmbm_torch.shapes import Float

__all__ = ["directed_threshold", "error_bound", "log_loss_bound"]


def log_loss_bound(
    hinge: Float[Tensor, " batch"], num_labels: int | Tensor, margin: float = 1.0
) -> Float[Tensor, " batch"]:
    """−log P(y) ≤ 2 Σ_i [γ − m_i]_+ + K log(1 + e^{−2γ}) for a directed model.

    Remark 3 with the constant that makes it true, for it follows label by label from
    log(1 + e^{−2m}) ≤ 2 [γ − m]_+ + log(1 + e^{−2γ}). Tight where every m_i = γ.

    Args:
        hinge: Σ_i [γ − m_i]_+ of each example (:func:`lmbm_torch.losses.hinge.local_hinge`).
        num_labels: K, or where labels are missing the number observed in each example.
        margin: γ > 0 of the hinge.

    Raises:
        ValueError: a margin that is not a finite number above 0.
    """
    check_positive("margin", margin)
    return 2 * hinge + num_labels * math.log1p(math.exp(-2 * margin))


def directed_threshold(margin: float = 1.0) -> float:
    """T, the least hinge loss of a training example that a directed model decodes wrongly: γ.

    Remark 6: take the first label in the ordering where truth and prediction differ. Both have the same local
    field there, so one of them pays γ or more, and the prediction, having the least loss of all labellings,
    pays no more than the truth. The weights play no part, unlike in an undirected model.

    Args:
        margin: γ > 0 of the hinge, in training and in decoding.

    Raises:
        ValueError: a margin that is not a finite number above 0.
    """
    check_positive("margin", margin)
    return margin


def error_bound(mean_loss: float, threshold: float) -> float:
    """min(1, mean loss / T): no more than this share of the same examples is decoded wrongly.

    Theorem 4. It holds for exact hinge decoding with the same margin, on the examples that the mean was taken
    over; it says nothing about others. With T = 0 it is vacuous, 1.

    Args:
        mean_loss: mean over examples of Σ_i [γ − m_i]_+.
        threshold: T ≥ 0, for a directed model :func:`directed_threshold`.

    Raises:
        ValueError: a mean loss or threshold that is negative or not finite.
    """
    for name, value in {"mean_loss": mean_loss, "threshold": threshold}.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}: expected a finite number of at least 0, got {value}")
    return 1.0 if mean_loss >= threshold else mean_loss / threshold
