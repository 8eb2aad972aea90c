"""Joint probabilities that mean what they say: two scales of a model's log-potentials, in equal mixture.

Some instances are easy in all of their labels, others hard in all. Under scales that are right label by label
the labels of an instance err by themselves: of easy instances all are right together more often than the
product says, so that the confidence of the best labelling is too low (Yeast: .16 where .23 are right), while
every marginal may be calibrated. A scale that the labels of an instance share, one of two that are equally
likely, is the least that lets them err together.

Maximised is the likelihood of the true labels under the mixture, and with it that of the share of right
answers, which confidences are read as.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lmbm_torch.calibration.scales import (
    MAX_ENUMERATED_LABELS,
    AnEnergy,
    Calibration,
    HeldOut,
    Instances,
    Margins,
    Weights,
    common_scale,
    few,
    label_scales,
    relative_weights,
    sums_labellings,
)
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.losses import exact_negative_log_likelihood
from lmbm_torch.shapes import Bool, Float

with naming_extras():
    from scipy.optimize import minimize

# From .38 to 6.3: one of them is 1, and neighbours are further apart than their likelihoods tell.
FACTORS = tuple(1.13**power for power in range(-8, 16))
# Of machines whose instances share their couplings, and sums under each factor the work.
MAX_JOINT_LABELS = 22
# What the share of right answers is worth, in observations: one leaves confidences too far from it.
SHARE_WEIGHT = 10.0
# The standard deviation, before instances are seen, of what each label's relative scale and its shift still
# change: wider, of labels that are nearly certain single instances decide. Likewise of a factor's logarithm.
SPREAD, FACTOR_SPREAD = 0.1, 1.0
# Relative, of a step.
TOLERANCE = 1e-6
# Labels of instances that have a say in what all members share.
MAX_ENTRIES = 2**22


def joint_scales(held_out: HeldOut, answers: Sequence[Tensor], weights: Weights = None) -> Calibration:
    """Every label's scale and shift, and the two factors by which joint confidences agree with right answers.

    Those of machines of more labels than :func:`label_scales` sums are its own, and the factors alone new.

    Args:
        held_out: of networks, or of machines whose labellings can be summed; instances with missing labels
            have no say in what is joint.
        answers: (batch, labels) in {0, 1}, what is predicted of the instances held out.
        weights: see :data:`~lmbm_torch.calibration.scales.Weights`.

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
    if not _has_complete(held_out, weights):
        raise ValueError("labels: expected some instances without missing ones to calibrate by, got none")
    alone, parts = label_scales(held_out, weights), list(_parts(held_out, answers, weights))
    right = Right(torch.cat([part.right for part in parts]), torch.cat([part.weight for part in parts]))
    with torch.no_grad():
        under_each = replace(alone, factors=torch.tensor(FACTORS, dtype=torch.float64, device="cpu"))
        factors = two_factors(*_log_probs(parts, under_each), right)
    found = replace(alone, factors=torch.tensor(factors, dtype=torch.float64, device="cpu"))
    return _together(found, parts, right) if sums_labellings(first) else found


def fitted_scales(
    kind: bool | str,
    held_out: HeldOut,
    answer: Callable[[AnEnergy], Tensor],
    weights: Weights = None,
) -> Calibration:
    """The calibration that an estimator or a training asks for.

    Args:
        kind: ``"scale"``, ``"labels"``, ``"joint"``, or True for the best that the instances allow.
        answer: what is predicted, (batch, labels) in {0, 1}.
        weights: see :data:`~lmbm_torch.calibration.scales.Weights`.

    Raises:
        ValueError: see :func:`joint_scales`.
    """
    match kind:
        case "scale":
            return common_scale(held_out, weights)
        case "labels":
            return label_scales(held_out, weights)
        case "joint":
            return joint_scales(held_out, [answer(energy) for energy, _ in held_out], weights)
    return best_scales(held_out, answer, weights)


def best_scales(
    held_out: HeldOut, answer: Callable[[AnEnergy], Tensor], weights: Weights = None
) -> Calibration:
    """Those of :func:`joint_scales` where labellings can be summed and some instance is complete.

    Else those of :func:`~lmbm_torch.calibration.scales.label_scales`.

    Args:
        answer: what is predicted, (batch, labels) in {0, 1}.
        weights: see :data:`~lmbm_torch.calibration.scales.Weights`.
    """
    if not (sums_labellings(held_out[0][0], MAX_JOINT_LABELS) and _has_complete(held_out, weights)):
        return label_scales(held_out, weights)
    return joint_scales(held_out, [answer(energy) for energy, _ in held_out], weights)


def _has_complete(held_out: HeldOut, weights: Weights) -> bool:
    relative = relative_weights(held_out, weights)
    return any(
        bool((~labels.isnan().any(1) & (weight > 0)).any())
        for (_, labels), weight in zip(held_out, relative, strict=True)
    )


@dataclass(frozen=True)
class _Part:
    """Instances whose labels are all known.

    Attributes:
        log_probs: a calibration → log P of the true labels and of the answers, each (members, batch).
        right: (batch,), whether these are the same.
        weight: (batch,), how often each counts.
    """

    log_probs: Callable[[Calibration], tuple[Tensor, Tensor]]
    right: Bool[Tensor, " batch"]
    weight: Float[Tensor, " batch"]


def _parts(held_out: HeldOut, answers: Sequence[Tensor], weights: Weights) -> Iterator[_Part]:
    most = max(1, MAX_ENTRIES // (held_out[0][0].num_labels * len(held_out)))
    relative = relative_weights(held_out, weights)
    for (energy, labels), answer, weight in zip(held_out, answers, relative, strict=True):
        counts = ~labels.isnan().any(1) & (weight > 0)
        known = counts.nonzero(as_tuple=True)[0][:most]
        if not len(known):
            continue
        true = Instances(energy, labels, weight).select(known)
        answered = true._replace(labels=answer[known].to(labels))
        if isinstance(energy, DirectedEnergy):
            log_probs = _of_network(true.energy, true.labels, answered.labels)
        else:
            true, answered = (few(each, len(held_out)) for each in (true, answered))
            log_probs = _of_machine(true.energy, true.labels, answered.labels)
        right = (answered.labels == true.labels).all(1)
        yield _Part(log_probs, right.cpu(), true.weight.double().cpu())


def _of_network(
    energy: AnEnergy, truth: Float[Tensor, "batch labels"], answer: Float[Tensor, "batch labels"]
) -> Callable[[Calibration], tuple[Tensor, Tensor]]:
    margins = [Margins.of(energy, labels, torch.ones_like(labels)) for labels in (truth, answer)]

    def log_probs(calibration: Calibration) -> tuple[Tensor, Tensor]:
        factors = calibration.factors
        of_truth, of_answer = (
            torch.stack([logsigmoid(2 * factor * found).sum(1).cpu() for factor in factors])
            for found in (each.at(calibration).double() for each in margins)
        )
        return of_truth, of_answer

    return log_probs


def _of_machine(
    energy: AnEnergy,
    truth: Float[Tensor, "batch labels"],
    answer: Float[Tensor, "batch labels"],
) -> Callable[[Calibration], tuple[Tensor, Tensor]]:
    def log_probs(calibration: Calibration) -> tuple[Tensor, Tensor]:
        scaled = [member.apply(energy) for member in calibration.members()]
        of_truth = -torch.stack([exact_negative_log_likelihood(each, truth) for each in scaled]).double()
        further = torch.stack([each.score(answer) - each.score(truth) for each in scaled]).double()
        return of_truth, of_truth + further

    return log_probs


def _log_probs(
    parts: Sequence[_Part], calibration: Calibration
) -> tuple[Float[Tensor, "members batch"], Float[Tensor, "members batch"]]:
    """log P of the true labels and of the answers under each member, in double precision."""
    of_truth, of_answer = zip(*(part.log_probs(calibration) for part in parts), strict=True)
    return torch.cat(of_truth, 1), torch.cat(of_answer, 1)


@dataclass(frozen=True)
class Right:
    """Which answers are right.

    Args:
        each: (batch,).
        weight: (batch,), how often each counts.
    """

    each: Bool[Tensor, " batch"]
    weight: Float[Tensor, " batch"]

    @property
    def share(self) -> float:
        """As if one more had been right and one more wrong: of none or all it is not certain."""
        return (float(self.weight[self.each].sum()) + 1) / (float(self.weight.sum()) + 2)

    @property
    def error(self) -> float:
        """The standard error of the share."""
        return math.sqrt(self.share * (1 - self.share) / float(self.weight.sum()))

    def mean(self, values: Float[Tensor, "*members batch"]) -> Float[Tensor, "*members"]:
        """Over the instances."""
        return values @ self.weight / self.weight.sum()


def two_factors(
    truth: Float[Tensor, "factors batch"], answer: Float[Tensor, "factors batch"], right: Right
) -> tuple[float, float]:
    """Of ``FACTORS`` the most likely pair whose mean confidence is that of the answers, to a standard error.

    Where that of none is, those come into question that are nearest to the share of right answers.

    Args:
        truth, answer: log-probabilities of the true and of the predicted labels under each factor.
        right: whether these are the same.
    """
    confidence = right.mean(answer.exp())
    pairs = list(combinations_with_replacement(range(len(FACTORS)), 2))
    first, second = torch.tensor(pairs, device="cpu").T
    away = (confidence[first] + confidence[second]) / 2 - right.share
    away = (away.abs() - right.error).clamp(min=0)
    likely = [pair for pair, far in zip(pairs, away == away.min(), strict=True) if far]
    unlikely = 0.5 * (torch.tensor(FACTORS, dtype=torch.float64, device="cpu").log() / FACTOR_SPREAD).square()

    def probable(pair: tuple[int, int]) -> float:
        mixed = torch.logaddexp(*truth[list(pair)])
        return float(mixed @ right.weight - unlikely[list(pair)].sum())

    low, high = max(likely, key=probable)
    return FACTORS[low], FACTORS[high]


def _together(start: Calibration, parts: Sequence[_Part], right: Right) -> Calibration:
    """Scales, shifts and factors that are the best together, from those that are it one after the other."""
    num_labels = len(start.scale)

    def calibration(flat: Tensor) -> Calibration:
        relative, coupling, shift, log_factors = flat.split([num_labels, 1, num_labels, 2])
        return Calibration(
            start.scale * relative,
            start.shift + shift,
            start.coupling_scale * coupling[0],
            start.factors * log_factors.exp(),
        )

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(flat).requires_grad_()
        found = calibration(theta)
        of_truth, of_answer = _log_probs(parts, found)
        away = torch.cat([(theta - neutral)[:-2] / SPREAD, found.factors.log() / FACTOR_SPREAD])
        loss = 0.5 * away.square().sum() - torch.logaddexp(*of_truth) @ right.weight
        doubt = (right.mean(of_answer.exp()).mean() - right.share) / right.error
        loss = loss + 0.5 * SHARE_WEIGHT * doubt.square()
        loss.backward()
        return loss.item(), cast(Tensor, theta.grad).numpy()

    neutral = torch.cat(
        [torch.ones(num_labels + 1, device="cpu"), torch.zeros(num_labels + 2, device="cpu")]
    ).double()
    start_factors = start.factors.log().numpy()
    lowest, highest = math.log(FACTORS[0]), math.log(FACTORS[-1])
    bounds = [(0, None)] * (num_labels + 1) + [(None, None)] * num_labels
    bounds += [(lowest - each, highest - each) for each in start_factors]
    best = minimize(
        objective, neutral.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": TOLERANCE}
    )
    found = calibration(torch.from_numpy(best.x))
    return replace(found, coupling_scale=float(found.coupling_scale))
