"""Joint probabilities that mean what they say: two scales of a directed model's log-odds, in equal mixture.

Some instances are easy in all of their labels, others hard in all. Under scales that are right label by label
the labels of an instance err by themselves: of easy instances all are right together more often than the
product says, so that the confidence of the best labelling is too low (Yeast: .16 where .23 are right), while
every marginal may be calibrated. A scale that the labels of an instance share, one of two that are equally
likely, is the least that lets them err together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations_with_replacement

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lmbm_torch.fitting.calibration import Calibration, HeldOut, label_scales
from lmbm_torch.shapes import Bool, Float

# From .38 to 6.3: one of them is 1, and neighbours are further apart than their likelihoods tell.
FACTORS = tuple(1.13**power for power in range(-8, 16))


def joint_scales(held_out: HeldOut, answers: Sequence[Tensor]) -> Calibration:
    """Every label's scale and shift, and the two factors by which joint confidences agree with right answers.

    Args:
        held_out: of directed models; instances with missing labels have no say in the factors.
        answers: (batch, labels) in {0, 1}, what is predicted of the instances held out.

    Raises:
        ValueError: no instance whose labels are all known.
    """
    calibration = label_scales(held_out)
    truths, found, right = [], [], []
    for (energy, labels), answer in zip(held_out, answers, strict=True):
        calibrated, known = calibration.apply(energy), ~labels.isnan().any(1)
        truths.append(calibrated.local_margins(labels.nan_to_num())[known].double().cpu())
        found.append(calibrated.local_margins(answer)[known].double().cpu())
        right.append((answer == labels).all(1)[known].cpu())
    if not sum(map(len, right)):
        raise ValueError("labels: expected some instances without missing ones to calibrate by, got none")
    factors = two_factors(torch.cat(truths), torch.cat(found), torch.cat(right))
    return replace(calibration, factors=torch.tensor(factors, dtype=torch.float64))


def two_factors(
    truth: Float[Tensor, "batch labels"],
    answer: Float[Tensor, "batch labels"],
    right: Bool[Tensor, " batch"],
) -> tuple[float, float]:
    """Of ``FACTORS`` the most likely pair whose mean confidence is that of the answers, to a standard error.

    Where that of none is, those come into question that are nearest to the share of right answers.

    Args:
        truth, answer: local margins of the true and of the predicted labels.
        right: whether these are the same.
    """
    log_prob = torch.stack([logsigmoid(2 * factor * truth).sum(1) for factor in FACTORS])
    confidence = torch.stack([logsigmoid(2 * factor * answer).sum(1).exp().mean() for factor in FACTORS])
    pairs = list(combinations_with_replacement(range(len(FACTORS)), 2))
    first, second = torch.tensor(pairs).T
    # As if one more had been right and one more wrong: of none or all the error is not 0.
    share = (int(right.sum()) + 1) / (len(right) + 2)
    error = math.sqrt(share * (1 - share) / len(right))
    away = (confidence[first] + confidence[second]) / 2 - right.double().mean()
    away = (away.abs() - error).clamp(min=0)
    likely = [pair for pair, far in zip(pairs, away == away.min(), strict=True) if far]
    low, high = max(likely, key=lambda pair: float(torch.logaddexp(*log_prob[list(pair)]).sum()))
    return FACTORS[low], FACTORS[high]
