"""Calibrated probabilities of labels: scales for the log-potentials of a large-margin model.

Training with the hinge loss asks for margins of γ, however many errors there are. Therefore the fields of a
trained model are too small or too large for probabilities, even if the decoded labels are good. Either each
label's field is multiplied by a scale and shifted (Platt 1999), or all fields are multiplied by one scale, an
inverse temperature. Scales and shifts maximise the likelihood of held-out instances.

Label sets are calibrated by a mixture of two scales. In some instances all labels are easy, in other
instances all labels are hard. A scale for each label treats the errors of an instance's labels as
independent. But in easy instances all labels are right together more often than the product of the
probabilities says: the confidence of the best label set is too low (on Yeast .16, at an exact match of .23)
although every marginal is calibrated. The smallest model of such dependent errors is a mixture of two equally
likely factors that multiply the log-potentials of all labels of an instance.

Training of the mixture maximises the likelihood of the true labels, and the likelihood that the share of
right predictions is near the mean confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.extras import naming_extras
from lmbm_torch.losses import exact_negative_log_likelihood
from lmbm_torch.losses.missing import completed
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Bool, Float

with naming_extras():
    from scipy.optimize import minimize, minimize_scalar

# Allowed range, and prior standard deviation, of the logarithm of a scale. Without a prior, the likelihood of
# separable instances would have no maximum.
_RANGE, _SPREAD = (-5.0, 7.0), 1.0
# Largest number of labels of a Boltzmann machine for calibration by enumerating all label sets: if couplings
# differ between instances, and if all instances share the couplings.
MAX_ENUMERATED_LABELS, MAX_SHARED_LABELS = 10, 18
# Largest number of labellings of all instances together that a calibration enumerates.
MAX_LABELLINGS = 2**30
MAX_NEWTON_STEPS = 100
# Largest change of relative scales and of shifts at which Newton's method ends.
NEWTON_TOLERANCE = 1e-6
# Relative decrease of the loss at which the optimisation for Boltzmann machines ends; each step takes long.
LIKELIHOOD_TOLERANCE = 1e-7

AnEnergy = DirectedEnergy | PairwiseEnergy | CliqueEnergy
HeldOut = Sequence[tuple[AnEnergy, Tensor]]
"""Held-out instances: for each fold, the energy of a batch and the true labels (batch, labels)."""
Weights = Sequence[Float[Tensor, " batch"]] | None
"""Weights of each fold's instances, at least 0 and not all 0; only ratios matter. None for equal weights."""


# Factors of the log-potentials to try for label sets, .38 to 6.3; a finer grid does not raise the likelihood.
FACTORS = tuple(1.13**power for power in range(-8, 16))
# Largest number of labels of a Boltzmann machine with shared couplings whose label sets are enumerated.
MAX_JOINT_LABELS = 22
# Weight of the exact match in the likelihood; with weight 1, confidences would change too little.
SHARE_WEIGHT = 10.0
# Prior standard deviations of the changes of each label's scale and shift, and of the logarithm of a factor.
# With larger values, single instances would determine the scale of a label that is nearly constant.
SPREAD, FACTOR_SPREAD = 0.1, 1.0
# Relative decrease of the objective at which the optimisation ends.
TOLERANCE = 1e-6
# Largest number of entries (instances times labels) from which the shared parameters are learned.
MAX_ENTRIES = 2**22


class Instances(NamedTuple):
    """A batch of held-out instances: energy, true labels and weights.

    Args:
        energy: the energy of a model that was trained without these instances.
        labels: (batch, labels) in {0, 1}, NaN for missing labels.
        weight: (batch,), above 0; the mean over all held-out instances is 1.
    """

    energy: AnEnergy
    labels: Tensor
    weight: Tensor

    def select(self, rows: slice | Tensor) -> Instances:
        """Return the instances ``rows``."""
        return Instances(self.energy.select(rows), self.labels[rows], self.weight[rows])

    def to(self, device: str) -> Instances:
        """Copy the instances to a device."""
        return Instances(self.energy.to(device), self.labels.to(device), self.weight.to(device))


def relative_weights(held_out: HeldOut, weights: Weights) -> list[Tensor]:
    """Return the weights divided by the mean of the positive weights; without weights, all weights are 1."""
    if weights is None:
        return [torch.ones_like(labels[:, 0]) for _, labels in held_out]
    mean = sum(float(each.sum()) for each in weights) / sum(int((each > 0).sum()) for each in weights)
    return [each.to(labels) / mean for each, (_, labels) in zip(weights, held_out, strict=True)]


def instances(held_out: HeldOut, weights: Weights = None) -> list[Instances]:
    """Return the instances with positive weight, for each fold with such instances."""
    parts = []
    for (energy, labels), weight in zip(held_out, relative_weights(held_out, weights), strict=True):
        (rows,) = (weight > 0).nonzero(as_tuple=True)
        if len(rows):
            part = Instances(energy, labels, weight)
            parts.append(part if len(rows) == len(weight) else part.select(rows))
    return parts


@dataclass(frozen=True)
class Calibration(Stored):
    """A calibration: every label's field z_i becomes scale_i z_i + shift_i.

    Args:
        scale, shift: float64, (labels,).
        coupling_scale: factor of a Boltzmann machine's couplings. In a belief network, a coupling is scaled
            with the field of the child.
        factors: (members,), a factor of all log-potentials for each member of a mixture; probabilities are
            means over the members.

    Raises:
        ValueError: shapes differ, or values are NaN or infinite.
    """

    scale: Float[Tensor, " labels"]
    shift: Float[Tensor, " labels"]
    coupling_scale: float | Tensor
    factors: Float[Tensor, " members"] = field(
        default_factory=lambda: torch.ones(1, dtype=torch.float64, device="cpu")
    )

    def __post_init__(self) -> None:
        check_shape("scale", self.scale, None)
        check_shape("shift", self.shift, *self.scale.shape)
        check_shape("factors", self.factors, None)
        for name in ("scale", "shift", "coupling_scale", "factors"):
            check_finite(name, torch.as_tensor(getattr(self, name), device="cpu"))

    @classmethod
    def of_scale(cls, scale: float, num_labels: int) -> Calibration:
        """Return a calibration with one scale for all log-potentials, an inverse temperature."""
        ones = torch.ones(num_labels, dtype=torch.float64, device="cpu")
        return cls(scale * ones, 0 * ones, scale)

    def apply_all(self, energy: Any) -> list[Any]:
        """Return the calibrated energies, one for each factor; their equal mixture gives the probabilities.

        Several energies of a Boltzmann machine are normalised, to a log-partition function of 0.

        Raises:
            TypeError: see :meth:`apply`.
        """
        if len(self.factors) == 1:
            return [self.apply(energy)]
        members = [each.apply(energy) for each in self.members()]
        return members if isinstance(energy, DirectedEnergy) else [_normalised(each) for each in members]

    def members(self) -> list[Calibration]:
        """Split the mixture into calibrations with a single factor each."""
        return [
            Calibration(self.scale * each, self.shift * each, self.coupling_scale * each)
            for each in self.factors
        ]

    def apply(self, energy: Any) -> Any:
        """Return the energy with calibrated probabilities.

        Raises:
            TypeError: the energy is not of a belief network or Boltzmann machine.
            ValueError: the calibration has several factors.
        """
        if len(self.factors) > 1:
            raise ValueError(
                f"factors: expected a single factor for a single energy, got {len(self.factors)} factors"
            )
        scale, shift = self.scale.to(energy.device, energy.dtype), self.shift.to(energy.device, energy.dtype)
        coupling_scale = torch.as_tensor(self.coupling_scale, device=scale.device).to(scale)
        match energy:
            case DirectedEnergy():
                weight = energy.clique_weight
                if weight is not None:
                    position = energy.positions.tolist()
                    weight = weight * scale[[max(c, key=position.__getitem__) for c in energy.cliques]]
                unary, parents = energy.unary * scale + shift, energy.parents * scale[:, None]
                return replace(energy, unary=unary, parents=parents, clique_weight=weight)
            case PairwiseEnergy():
                pairwise = energy.pairwise * coupling_scale
                return replace(energy, unary=energy.unary * scale + shift, pairwise=pairwise)
            case CliqueEnergy():
                alone = torch.tensor([len(clique) == 1 for clique in energy.cliques], device=energy.device)
                first = [clique[0] if clique else 0 for clique in energy.cliques]
                scales = torch.where(alone, scale[first], coupling_scale)
                return replace(energy, weight=energy.weight * scales + alone * shift[first])
        raise TypeError(
            f"energy: expected a directed, pairwise or clique energy, got {type(energy).__name__}"
        )


def _normalised(energy: PairwiseEnergy | CliqueEnergy) -> PairwiseEnergy | CliqueEnergy:
    labels = torch.zeros(energy.batch_size, energy.num_labels, dtype=energy.dtype, device=energy.device)
    log_partition = exact_negative_log_likelihood(energy, labels) + energy.score(labels)
    return replace(energy, constant=energy.constant - log_partition)


def sums_labellings(energy: AnEnergy, most_shared: int = MAX_SHARED_LABELS) -> bool:
    """Return whether the likelihood of whole label sets can be computed fast enough for a calibration.

    Args:
        most_shared: largest number of labels of a Boltzmann machine whose couplings all instances share.
    """
    if isinstance(energy, DirectedEnergy):
        return True
    is_shared = isinstance(energy, PairwiseEnergy) and energy.pairwise.ndim == 2
    return energy.num_labels <= (most_shared if is_shared else MAX_ENUMERATED_LABELS)


def few(part: Instances, num_parts: int) -> Instances:
    """Copy the first instances of a fold to the CPU, as many as a fast calibration takes."""
    return part.select(slice(max(1, (MAX_LABELLINGS >> part.energy.num_labels) // num_parts))).to("cpu")


def common_scale(held_out: HeldOut, weights: Weights = None) -> Calibration:
    """Fit one scale of all log-potentials, the MAP estimate under a standard log-normal prior."""
    parts = instances(held_out, weights)
    return _common_scale(_loss(parts), parts[0].energy.num_labels)


def _common_scale(loss: Callable[[Calibration], Tensor], num_labels: int) -> Calibration:
    def of_logarithm(log_scale: float) -> float:
        found = loss(Calibration.of_scale(float(np.exp(log_scale)), num_labels)).item()
        return found + 0.5 * (log_scale / _SPREAD) ** 2

    found: Any = minimize_scalar(of_logarithm, bounds=_RANGE, method="bounded", options={"xatol": 1e-3})
    return Calibration.of_scale(float(np.exp(found.x)), num_labels)


def label_scales(held_out: HeldOut, weights: Weights = None) -> Calibration:
    """Fit a scale and a shift for each label's field, and a scale for couplings; no scale is below 0.

    The objective is log-likelihood − ½ Σ (scale / common − 1)² − ½ Σ shift², where ``common`` is the common
    scale. Without the penalty, few instances would lead to probabilities of 0 and 1.
    """
    parts = instances(held_out, weights)
    num_labels = parts[0].energy.num_labels
    if isinstance(parts[0].energy, DirectedEnergy):
        margins = [_margins(each) for each in parts]
        return _scales_apart(margins, _common_scale(_pseudo_likelihood(margins), num_labels))
    loss = _loss(parts)
    return _scales_together(loss, _common_scale(loss, num_labels))


def _scales_apart(margins: Sequence[Margins], common: Calibration) -> Calibration:
    """Fit the scale and the shift of each label of a belief network separately, by Newton's method."""
    theta = torch.stack([torch.ones_like(common.scale), torch.zeros_like(common.shift)])
    step_size = torch.ones_like(common.shift)
    here = _Quadratic.of(margins, common, theta)
    for _ in range(MAX_NEWTON_STEPS):
        towards = here.minimum(theta) - theta
        if towards.abs().max() < NEWTON_TOLERANCE:
            break
        ahead = theta + step_size * towards
        there = _Quadratic.of(margins, common, ahead)
        is_less = there.value <= here.value
        theta, here = torch.where(is_less, ahead, theta), there.where(is_less, here)
        step_size = torch.where(is_less, 1.0, step_size / 2)
    return Calibration(common.scale * theta[0], theta[1], common.coupling_scale)


@dataclass(frozen=True)
class _Quadratic:
    """The quadratic expansion of each label's penalised loss as a function of relative scale and shift.

    Attributes:
        value: the losses, (labels,).
        gradient: the first derivatives by relative scale and shift, (2, labels).
        curvature: the second derivatives, (2, 2, labels).
    """

    value: Tensor
    gradient: Tensor
    curvature: Tensor

    @classmethod
    def of(cls, margins: Sequence[Margins], common: Calibration, theta: Tensor) -> _Quadratic:
        """Expand around ``theta``, the relative scales and the shifts (2, labels)."""
        away = torch.stack([theta[0] - 1, theta[1]])
        value, gradient = 0.5 * away.square().sum(0), away
        curvature = torch.eye(2, dtype=theta.dtype, device=theta.device)[..., None].repeat(
            1, 1, theta.shape[1]
        )
        for each in margins:
            slopes = torch.stack([each.of_scale * common.scale.to(each.of_scale), each.of_shift])
            margin = torch.einsum("vl,vbl->bl", theta.to(slopes), slopes)
            doubt = torch.sigmoid(-2 * margin)
            value = value + (softplus(-2 * margin) * each.observed).sum(0).to(value)
            first, second = -2 * doubt * each.observed, 4 * doubt * (1 - doubt) * each.observed
            gradient = gradient + torch.einsum("bl,vbl->vl", first, slopes).to(value)
            curvature = curvature + torch.einsum("bl,vbl,wbl->vwl", second, slopes, slopes).to(value)
        return cls(value, gradient, curvature)

    def minimum(self, theta: Tensor) -> Tensor:
        """Return the minimum of the expansion over scales of at least 0, (2, labels)."""
        (of_scale, of_both), (_, of_shift) = self.curvature
        by_scale, by_shift = self.gradient
        determinant = of_scale * of_shift - of_both.square()
        scale = theta[0] - (of_shift * by_scale - of_both * by_shift) / determinant
        scale = scale.clamp_min(0)
        shift = theta[1] - (by_shift + of_both * (scale - theta[0])) / of_shift
        return torch.stack([scale, shift])

    def where(self, chosen: Tensor, other: _Quadratic) -> _Quadratic:
        """Return the expansion for the chosen labels, and ``other`` for all other labels."""
        mine, others = vars(self).values(), vars(other).values()
        return _Quadratic(*(torch.where(chosen, *each) for each in zip(mine, others, strict=True)))


def _scales_together(loss: Callable[[Calibration], Tensor], common: Calibration) -> Calibration:
    """Optimise all scales of a Boltzmann machine jointly, because the labels share the couplings' scale."""
    num_labels = len(common.scale)

    def calibration(flat: Tensor) -> Calibration:
        relative, shift = flat[:-num_labels], flat[-num_labels:]
        return Calibration(common.scale * relative[:-1], shift, common.coupling_scale * relative[-1])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(flat).requires_grad_()
        away = torch.cat([theta[:-num_labels] - 1, theta[-num_labels:]])
        value = loss(calibration(theta)) + 0.5 * away.square().sum()
        value.backward()
        return value.item(), cast(Tensor, theta.grad).numpy()

    start = np.concatenate([np.ones(num_labels + 1), np.zeros(num_labels)])
    bounds = [(0, None)] * (num_labels + 1) + [(None, None)] * num_labels
    options = {"ftol": LIKELIHOOD_TOLERANCE}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    best = calibration(torch.from_numpy(found.x))
    return replace(best, coupling_scale=float(best.coupling_scale))


def _loss(parts: Sequence[Instances]) -> Callable[[Calibration], Tensor]:
    """Return the negative log-likelihood as a function of a calibration; missing labels are summed out.

    For Boltzmann machines with many labels, the function is the negative log-pseudo-likelihood.
    """
    first = parts[0].energy
    # Use the pseudo-likelihood, which is the likelihood for belief networks.
    if isinstance(first, DirectedEnergy) or not sums_labellings(first):
        return _pseudo_likelihood([_margins(each) for each in parts])
    summed = [some for each in parts for some in _apart(few(each, len(parts)))]

    def loss(calibration: Calibration) -> Tensor:
        losses = [
            exact_negative_log_likelihood(calibration.apply(energy), labels) @ weight.to(energy.dtype)
            for energy, labels, weight in summed
        ]
        return torch.stack(losses).sum()

    return loss


def _apart(part: Instances) -> list[Instances]:
    """Split a part into instances without missing labels and instances with missing labels."""
    missing = part.labels.isnan().any(1)
    return [part.select(rows.nonzero(as_tuple=True)[0]) for rows in (~missing, missing) if rows.any()]


def _margins(part: Instances) -> Margins:
    """Compute the local margins; a missing label has no loss, and as a parent its predicted value."""
    labels, observed = completed(part.energy, part.labels)
    return Margins.of(part.energy, labels, observed * part.weight[:, None])


def _pseudo_likelihood(held_out: Sequence[Margins]) -> Callable[[Calibration], Tensor]:
    def loss(calibration: Calibration) -> Tensor:
        losses = [(softplus(-2 * each.at(calibration)) * each.observed).sum().cpu() for each in held_out]
        return torch.stack(losses).sum()

    return loss


@dataclass(frozen=True)
class Margins:
    """Local margins (batch, labels) as linear functions of a calibration's parameters.

    Calibration needs the margins about a hundred times; the class computes products of labels only once.
    """

    of_scale: Tensor
    of_shift: Tensor
    of_couplings: Tensor | None
    observed: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, energy: AnEnergy, labels: Tensor, observed: Tensor) -> Margins:
        spins = to_spins(labels, energy.dtype)
        if isinstance(energy, DirectedEnergy):
            return cls(energy.local_margins(labels), spins, None, observed)

        def at(scale: float, coupling_scale: float) -> Tensor:
            ones = torch.ones(energy.num_labels, dtype=torch.float64, device="cpu")
            return Calibration(scale * ones, 0 * ones, coupling_scale).apply(energy).local_margins(labels)

        return cls(at(1, 0), spins, at(0, 1), observed)

    def at(self, calibration: Calibration) -> Tensor:
        scale, shift = calibration.scale.to(self.of_scale), calibration.shift.to(self.of_scale)
        margins = self.of_scale * scale + self.of_shift * shift
        if self.of_couplings is None:
            return margins
        return margins + self.of_couplings * calibration.coupling_scale


with naming_extras():
    from scipy.optimize import minimize


def joint_scales(held_out: HeldOut, answers: Sequence[Tensor], weights: Weights = None) -> Calibration:
    """Fit a scale and a shift for each label, and two factors that fit confidences to the exact match.

    For Boltzmann machines with so many labels that :func:`label_scales` does not enumerate label sets, scales
    and shifts come from :func:`label_scales`, and only the factors are fitted here.

    Args:
        held_out: energies and labels, for belief networks, or for Boltzmann machines with few labels;
            instances with missing labels are not used for the factors.
        answers: (batch, labels) in {0, 1}, the predicted labels of the held-out instances.
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
        raise ValueError("labels: expected instances without missing labels to calibrate, got no such one")
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
    """Fit a calibration of a given kind to held-out instances.

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
    """Fit :func:`joint_scales` if possible, else :func:`~lmbm_torch.calibration.scales.label_scales`.

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
        log_probs: function from a calibration to log P of the true labels and of the predicted labels, each
            of shape (members, batch).
        right: (batch,), whether all labels are predicted right.
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
    """Return log P of the true and of the predicted labels under each factor, in double precision."""
    of_truth, of_answer = zip(*(part.log_probs(calibration) for part in parts), strict=True)
    return torch.cat(of_truth, 1), torch.cat(of_answer, 1)


@dataclass(frozen=True)
class Right:
    """The correctness of predictions.

    Args:
        each: (batch,), whether all labels of the instance are predicted right.
        weight: (batch,), the weight of each instance.
    """

    each: Bool[Tensor, " batch"]
    weight: Float[Tensor, " batch"]

    @property
    def share(self) -> float:
        """Return the exact match, smoothed to stay above 0 and below 1 by a right and a wrong prediction."""
        return (float(self.weight[self.each].sum()) + 1) / (float(self.weight.sum()) + 2)

    @property
    def error(self) -> float:
        """Return the standard error of :attr:`share`."""
        return math.sqrt(self.share * (1 - self.share) / float(self.weight.sum()))

    def mean(self, values: Float[Tensor, "*members batch"]) -> Float[Tensor, "*members"]:
        """Return the weighted mean over the instances."""
        return values @ self.weight / self.weight.sum()


def two_factors(
    truth: Float[Tensor, "factors batch"], answer: Float[Tensor, "factors batch"], right: Right
) -> tuple[float, float]:
    """Return the most likely pair of ``FACTORS`` with a mean confidence near the exact match.

    Near means within a standard error. If no pair is near, the nearest pairs are compared.

    Args:
        truth, answer: log-probabilities of the true and of the predicted labels under each factor.
        right: which predictions are right.
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
    """Optimise scales, shifts and factors jointly, starting from separately optimised values."""
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
