"""Joint probabilities that mean what they say: two scales of a model's log-potentials, in equal mixture.

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

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.fitting.calibration import (
    MAX_ENUMERATED_LABELS,
    AnEnergy,
    Calibration,
    HeldOut,
    few,
    label_scales,
    sums_labellings,
)
from lmbm_torch.losses import exact_negative_log_likelihood
from lmbm_torch.shapes import Bool, Float

# From .38 to 6.3: one of them is 1, and neighbours are further apart than their likelihoods tell.
FACTORS = tuple(1.13**power for power in range(-8, 16))
# Of machines whose instances share their couplings, and sums under each factor the work.
MAX_JOINT_LABELS = 22


def joint_scales(held_out: HeldOut, answers: Sequence[Tensor]) -> Calibration:
    """Every label's scale and shift, and the two factors by which joint confidences agree with right answers.

    Args:
        held_out: of networks, or of machines whose labellings can be summed; instances with missing labels
            have no say in the factors.
        answers: (batch, labels) in {0, 1}, what is predicted of the instances held out.

    Raises:
        ValueError: no instance whose labels are all known; a machine of too many labels.
    """
    first = held_out[0][0]
    if not sums_labellings(first, MAX_JOINT_LABELS):
        raise ValueError(
            f'calibrate: expected another than "joint" for machines of more than {MAX_JOINT_LABELS} labels, '
            f"or {MAX_ENUMERATED_LABELS} of cliques or of couplings of each example's own, got "
            f"{first.num_labels} labels"
        )
    if not _has_complete(held_out):
        raise ValueError("labels: expected some instances without missing ones to calibrate by, got none")
    calibration = label_scales(held_out)
    truths, found, right = [], [], []
    for (energy, labels), answer in zip(held_out, answers, strict=True):
        (known,) = (~labels.isnan().any(1)).nonzero(as_tuple=True)
        if not len(known):
            continue
        part, truth = calibration.apply(energy).select(known), labels[known]
        pair = torch.cat([truth, answer[known].to(truth)], 1)
        if not isinstance(part, DirectedEnergy):
            part, pair = few((part, pair), len(held_out))
        truth, answer = pair.chunk(2, dim=1)
        of_truth, of_answer = _log_probs(part, truth, answer)
        truths.append(of_truth.cpu())
        found.append(of_answer.cpu())
        right.append((answer == truth).all(1).cpu())
    factors = two_factors(torch.cat(truths, 1), torch.cat(found, 1), torch.cat(right))
    return replace(calibration, factors=torch.tensor(factors, dtype=torch.float64))


def has_joint_scales(held_out: HeldOut) -> bool:
    """Whether :func:`joint_scales` takes them: labellings can be summed, and some instance is complete."""
    return sums_labellings(held_out[0][0], MAX_JOINT_LABELS) and _has_complete(held_out)


def _has_complete(held_out: HeldOut) -> bool:
    return any(bool((~labels.isnan()).all(1).any()) for _, labels in held_out)


@torch.no_grad()
def _log_probs(
    energy: AnEnergy, truth: Float[Tensor, "batch labels"], answer: Float[Tensor, "batch labels"]
) -> tuple[Float[Tensor, "factors batch"], Float[Tensor, "factors batch"]]:
    """log P of two labellings under each of ``FACTORS``, in double precision."""
    if isinstance(energy, DirectedEnergy):
        both = (energy.local_margins(labels).double() for labels in (truth, answer))
        of_truth, of_answer = (
            torch.stack([logsigmoid(2 * factor * margins).sum(1) for factor in FACTORS]) for margins in both
        )
        return of_truth, of_answer
    scaled = [Calibration.of_scale(factor, energy.num_labels).apply(energy) for factor in FACTORS]
    of_truth = -torch.stack([exact_negative_log_likelihood(each, truth) for each in scaled]).double()
    further = torch.stack([each.score(answer) - each.score(truth) for each in scaled]).double()
    return of_truth, of_truth + further


def two_factors(
    truth: Float[Tensor, "factors batch"],
    answer: Float[Tensor, "factors batch"],
    right: Bool[Tensor, " batch"],
) -> tuple[float, float]:
    """Of ``FACTORS`` the most likely pair whose mean confidence is that of the answers, to a standard error.

    Where that of none is, those come into question that are nearest to the share of right answers.

    Args:
        truth, answer: log-probabilities of the true and of the predicted labels under each factor.
        right: whether these are the same.
    """
    confidence = answer.exp().mean(1)
    pairs = list(combinations_with_replacement(range(len(FACTORS)), 2))
    first, second = torch.tensor(pairs).T
    # As if one more had been right and one more wrong: of none or all the error is not 0.
    share = (int(right.sum()) + 1) / (len(right) + 2)
    error = math.sqrt(share * (1 - share) / len(right))
    away = (confidence[first] + confidence[second]) / 2 - right.double().mean()
    away = (away.abs() - error).clamp(min=0)
    likely = [pair for pair, far in zip(pairs, away == away.min(), strict=True) if far]
    low, high = max(likely, key=lambda pair: float(torch.logaddexp(*truth[list(pair)]).sum()))
    return FACTORS[low], FACTORS[high]
