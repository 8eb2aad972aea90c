"""Calibrated probabilities of label sets: a mixture of two scales of a model's log-potentials.

In some instances all labels are easy, in other instances all labels are hard. A scale for each label treats
the errors of an instance's labels as independent. But in easy instances all labels are right together more
often than the product of the probabilities says: the confidence of the best label set is too low (on Yeast
.16, at an exact match of .23) although every marginal is calibrated. The smallest model of such dependent
errors is a mixture of two equally likely scales that all labels of an instance share.

Training maximises the likelihood of the true labels under the mixture, and the likelihood that the share of
right answers is near the mean confidence.
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

# Factors on the log-potentials to try, from .38 to 6.3, also 1; a finer grid would not change likelihoods.
FACTORS = tuple(1.13**power for power in range(-8, 16))
# Largest number of labels of a Boltzmann machine with shared couplings whose label sets are enumerated.
MAX_JOINT_LABELS = 22
# Weight of the exact match, in observations; a weight of 1 leaves confidences too far from the exact match.
SHARE_WEIGHT = 10.0
# Prior standard deviations: of changes of each label's relative scale and shift, and of a factor's logarithm.
# With larger values single instances would decide about labels that are nearly always the same.
SPREAD, FACTOR_SPREAD = 0.1, 1.0
# Relative decrease of the objective at which the optimisation ends.
TOLERANCE = 1e-6
# Largest number of entries (instances times labels) from which the shared parameters are learned.
MAX_ENTRIES = 2**22


def joint_scales(held_out: HeldOut, answers: Sequence[Tensor], weights: Weights = None) -> Calibration:
    """Return a scale and a shift for each label, and two factors that fit confidences to the exact match.

    For Boltzmann machines with so many labels that :func:`label_scales` does not enumerate label sets, the
    scales and shifts are those of :func:`label_scales`, and only the factors are learned here.

    Args:
        held_out: energies and labels, for belief networks, or for Boltzmann machines with few labels;
            instances with missing labels do not count for the factors.
        answers: (batch, labels) in {0, 1}, predictions for the held-out instances.
        weights: see :data:`~lmbm_torch.calibration.scales.Weights`.

    Raises:
        ValueError: every instance has missing labels, or a Boltzmann machine has too many labels.
    """
    first = held_out[0][0]
    if not sums_labellings(first, MAX_JOINT_LABELS):
        raise ValueError(
            'calibrate: "joint" takes Boltzmann machines of at most '
            f"{MAX_JOINT_LABELS} labels ({MAX_ENUMERATED_LABELS} with cliques, or with couplings that differ "
            f'between instances), got {first.num_labels} labels; expected another value, such as "labels"'
        )
    if not _has_complete(held_out, weights):
        raise ValueError("labels: expected instances without missing labels for calibration, got none")
    alone, parts = label_scales(held_out, weights), list(_parts(held_out, answers, weights))
    right = Right(torch.cat([part.right for part in parts]), torch.cat([part.weight for part in parts]))
    with torch.no_grad():
        under_each = replace(alone, factors=torch.tensor(FACTORS, dtype=torch.float64, device="cpu"))
        factors = two_factors(*_log_probs(parts, under_each), right)
    found = replace(alone, factors=torch.tensor(factors, dtype=torch.float64, device="cpu"))
    return _together(found, parts, right) if sums_labellings(first) else found


def fitted_scales(
    kind: bool | str, held_out: HeldOut, answer: Callable[[AnEnergy], Tensor], weights: Weights = None
) -> Calibration:
    """Return a calibration of a given kind.

    Args:
        kind: ``"scale"``, ``"labels"``, ``"joint"``, or True for the best kind that is possible.
        answer: function from an energy to predictions, (batch, labels) in {0, 1}.
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
    """Return :func:`joint_scales` if possible, else :func:`~lmbm_torch.calibration.scales.label_scales`.

    Args:
        answer: function from an energy to predictions, (batch, labels) in {0, 1}.
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
    """Instances without missing labels.

    Attributes:
        log_probs: function from a calibration to log P of the true labels and of the answers, each of shape
            (members, batch).
        right: (batch,), whether the answers are the true labels.
        weight: (batch,), the weight of each instance.
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
    energy: AnEnergy, truth: Float[Tensor, "batch labels"], answer: Float[Tensor, "batch labels"]
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
    """Return log P of the true labels and of the answers under each member, in double precision."""
    of_truth, of_answer = zip(*(part.log_probs(calibration) for part in parts), strict=True)
    return torch.cat(of_truth, 1), torch.cat(of_answer, 1)


@dataclass(frozen=True)
class Right:
    """The correctness of answers.

    Args:
        each: (batch,), whether the answer for each instance is right.
        weight: (batch,), the weight of each instance.
    """

    each: Bool[Tensor, " batch"]
    weight: Float[Tensor, " batch"]

    @property
    def share(self) -> float:
        """Return the exact match after adding a right and a wrong answer, so never 0 or 1."""
        return (float(self.weight[self.each].sum()) + 1) / (float(self.weight.sum()) + 2)

    @property
    def error(self) -> float:
        """Return the standard error of the share."""
        return math.sqrt(self.share * (1 - self.share) / float(self.weight.sum()))

    def mean(self, values: Float[Tensor, "*members batch"]) -> Float[Tensor, "*members"]:
        """Return the weighted mean over the instances."""
        return values @ self.weight / self.weight.sum()


def two_factors(
    truth: Float[Tensor, "factors batch"], answer: Float[Tensor, "factors batch"], right: Right
) -> tuple[float, float]:
    """Return the most likely pair of ``FACTORS`` among those whose mean confidence is near the exact match.

    Near means within a standard error. If no pair is near, the nearest pairs are compared.

    Args:
        truth, answer: log-probabilities of the true and of the predicted labels under each factor.
        right: which answers are right.
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
    """Optimise scales, shifts and factors together, from a start where each was optimised by itself."""
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
