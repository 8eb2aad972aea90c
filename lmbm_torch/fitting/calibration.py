"""Probabilities that mean what they say: scales for a large-margin model's log-potentials.

The hinge is content with margins of γ, whatever the share of errors, so that the fields of a model that it
trained are too small or too large for probabilities, however good its labellings are. Every label's field
gets a scale and a shift (Platt 1999), or all fields one scale, an inverse temperature. Both maximise the
likelihood of instances under models that were trained without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor
from torch.nn.functional import softplus

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.losses import exact_negative_log_likelihood
from lmbm_torch.losses.missing import impute
from lmbm_torch.shapes import Float

FOLDS = 5
# The natural logarithm of a scale.
_RANGE = (-5.0, 7.0)
# Of undirected models: the joint likelihood is enumerated some hundred times.
MAX_ENUMERATED_LABELS = 10

AnEnergy = DirectedEnergy | PairwiseEnergy | CliqueEnergy
HeldOut = Sequence[tuple[AnEnergy, Tensor]]
"""Energies of instances under models that were trained without them, and their labels (batch, labels)."""


@dataclass(frozen=True)
class Calibration:
    """Every label's field z_i becomes scale_i z_i + shift_i.

    Args:
        scale, shift: float64, (labels,).
        coupling_scale: multiplies an undirected model's couplings; those of a directed one belong to the
            fields of their children.

    Raises:
        ValueError: two shapes that differ, or NaN or infinity.
    """

    scale: Float[Tensor, " labels"]
    shift: Float[Tensor, " labels"]
    coupling_scale: float | Tensor

    def __post_init__(self) -> None:
        check_shape("scale", self.scale, None)
        check_shape("shift", self.shift, *self.scale.shape)
        for name in ("scale", "shift", "coupling_scale"):
            check_finite(name, torch.as_tensor(getattr(self, name)))

    @classmethod
    def of_scale(cls, scale: float, num_labels: int) -> Calibration:
        """One scale of everything, an inverse temperature."""
        ones = torch.ones(num_labels, dtype=torch.float64)
        return cls(scale * ones, 0 * ones, scale)

    def state(self) -> dict[str, Any]:
        """The fields, for a file: ``Calibration(**state)`` is this one again."""
        return {"scale": self.scale, "shift": self.shift, "coupling_scale": self.coupling_scale}

    def apply(self, energy: Any) -> Any:
        """The energy whose probabilities are calibrated.

        Raises:
            TypeError: an energy of another kind than those of networks and Boltzmann machines.
        """
        scale, shift = self.scale.to(energy.device, energy.dtype), self.shift.to(energy.device, energy.dtype)
        match energy:
            case DirectedEnergy():
                weight = energy.clique_weight
                if weight is not None:
                    position = energy.positions.tolist()
                    weight = weight * scale[[max(c, key=position.__getitem__) for c in energy.cliques]]
                unary, parents = energy.unary * scale + shift, energy.parents * scale[:, None]
                return replace(energy, unary=unary, parents=parents, clique_weight=weight)
            case PairwiseEnergy():
                pairwise = energy.pairwise * self.coupling_scale
                return replace(energy, unary=energy.unary * scale + shift, pairwise=pairwise)
            case CliqueEnergy():
                alone = torch.tensor([len(clique) == 1 for clique in energy.cliques], device=energy.device)
                first = [clique[0] if clique else 0 for clique in energy.cliques]
                scales = torch.where(alone, scale[first], self.coupling_scale)
                return replace(energy, weight=energy.weight * scales + alone * shift[first])
        raise TypeError(
            f"energy: expected a directed, pairwise or clique energy, got {type(energy).__name__}"
        )


def common_scale(held_out: HeldOut) -> Calibration:
    """One scale of everything; its search ends at 1e-3 of it."""
    loss, num_labels = _loss(held_out), held_out[0][0].num_labels

    def of_logarithm(log_scale: float) -> float:
        return loss(Calibration.of_scale(float(np.exp(log_scale)), num_labels)).item()

    found: Any = minimize_scalar(of_logarithm, bounds=_RANGE, method="bounded", options={"xatol": 1e-3})
    return Calibration.of_scale(float(np.exp(found.x)), num_labels)


def label_scales(held_out: HeldOut) -> Calibration:
    """Scale and shift of every label's field, and the couplings' scale, no scale below 0.

    Maximised is the likelihood less ½ Σ (scale / common − 1)² + ½ Σ shift², without which the labels of few
    instances would be told apart with certainty.
    """
    loss, common = _loss(held_out), common_scale(held_out)
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
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)
    best = calibration(torch.from_numpy(found.x))
    return replace(best, coupling_scale=float(best.coupling_scale))


def _loss(held_out: HeldOut) -> Callable[[Calibration], Tensor]:
    """Calibration → Σ −log P(y | x); the pseudo-likelihood of many labels that are undirected.

    A missing label's own factor is left out, and where it is a parent it is imputed.
    """
    completed = [(energy, *impute(energy, labels)) for energy, labels in held_out]

    def loss(calibration: Calibration) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for energy, labels, observed in completed:
            changed = calibration.apply(energy)
            if isinstance(changed, DirectedEnergy) or energy.num_labels > MAX_ENUMERATED_LABELS:
                losses = softplus(-2 * changed.local_margins(labels)) * observed
            else:
                losses = exact_negative_log_likelihood(changed, labels)
            total = total + losses.sum().cpu()
        return total

    return loss
