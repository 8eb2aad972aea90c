"""Probabilities that mean what they say: the scale of a large-margin model's log-potentials.

The hinge is content with margins of γ, so that the fields of a model that it trained are too small for
probabilities, however good its labellings are. A scale of them, an inverse temperature, is fitted to the
likelihood of training instances under models that were trained without them (Platt 1999; Guo et al. 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from sklearn.base import clone
from sklearn.model_selection import KFold
from torch import Tensor
from torch.nn.functional import softplus

from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.estimators.targets import label_tensor
from lmbm_torch.losses import exact_negative_log_likelihood
from lmbm_torch.losses.missing import impute
from lmbm_torch.solvers.networks.problems import Features

FOLDS = 5
# The natural logarithm of a scale.
_RANGE = (-5.0, 7.0)
# Of undirected models: the joint likelihood is enumerated some hundred times.
MAX_ENUMERATED_LABELS = 10

AnEnergy = DirectedEnergy | PairwiseEnergy | CliqueEnergy
Loss = Callable[[Tensor, Tensor, float | Tensor], Tensor]
"""Scales and shifts of the fields, scale of the couplings → the loss of all instances held out."""


class CalibratedMixin:
    """An estimator with a parameter ``calibrate``, whose probabilities are those of calibrated energies.

    Attributes:
        field_scale_, field_shift_: (labels,), every label's field z_i becomes scale_i z_i + shift_i; 1 and 0
            without calibration.
        coupling_scale_: multiplies the couplings of an undirected model. Those of a directed one belong to
            the fields of their children.
    """

    calibrate: bool | str
    field_scale_: np.ndarray
    field_shift_: np.ndarray
    coupling_scale_: float

    def calibrated(self, energy: Any) -> Any:
        """The energy whose probabilities are reported, from one of this model."""
        if self.calibrate is False:
            return energy
        scale, shift = (
            torch.from_numpy(each).to(energy.device, energy.dtype)
            for each in (self.field_scale_, self.field_shift_)
        )
        return rescaled(energy, scale, shift, self.coupling_scale_)

    def _fit_calibration(
        self, X: Features, labels: np.ndarray, sample_weight: np.ndarray | None, **settings: Any
    ) -> None:
        """Note the scales, from models with the same parameters but for ``settings``."""
        num_labels = labels.shape[1]
        self.field_scale_, self.field_shift_ = np.ones(num_labels), np.zeros(num_labels)
        self.coupling_scale_ = 1.0
        if self.calibrate is False or len(labels) < 2:
            return
        model = clone(self).set_params(calibrate=False, **settings)
        folds = KFold(min(FOLDS, len(labels)), shuffle=True, random_state=self._seed())
        held_out = list(held_out_energies(model, X, labels, sample_weight, folds.split(labels)))
        losses = [loss_of(energy, labels) for energy, labels in held_out]
        self.coupling_scale_ = common_scale(losses, num_labels)
        self.field_scale_ *= self.coupling_scale_
        if self.calibrate != "scale":
            found = label_scales(losses, num_labels, self.coupling_scale_)
            self.field_scale_, self.field_shift_, self.coupling_scale_ = found


def held_out_energies(
    model: Any, X: Features, labels: np.ndarray, sample_weight: np.ndarray | None, splits: Any
) -> Iterator[tuple[Any, Tensor]]:
    """For each split the energy of the instances held out, by a model of the others, and their labels.

    Args:
        model: an estimator, which is not changed.
        splits: pairs of the training rows and those held out.
    """
    of_kernel = getattr(model, "kernel", None) == "precomputed"
    for train, held_out in splits:
        weight = None if sample_weight is None else sample_weight[train]
        rows, others = (X[np.ix_(some, train)] if of_kernel else X[some] for some in (train, held_out))  # pyright: ignore[reportOptionalSubscript]
        energy = clone(model).fit(rows, labels[train], weight).energy(others)
        yield energy, label_tensor("y", labels[held_out], energy, allow_missing=True)


def common_scale(losses: Sequence[Loss], num_labels: int) -> float:
    """The inverse temperature of largest likelihood; its search ends at 1e-3 of it."""
    ones = torch.ones(num_labels, dtype=torch.float64)

    def total(log_scale: float) -> float:
        scale = float(np.exp(log_scale))
        return sum(float(loss(scale * ones, 0 * ones, scale)) for loss in losses)

    found: Any = minimize_scalar(total, bounds=_RANGE, method="bounded", options={"xatol": 1e-3})
    return float(np.exp(found.x))


def label_scales(
    losses: Sequence[Loss], num_labels: int, common: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Scale and shift of every label's field, (labels,) each, and the couplings' scale, none below 0.

    Maximised is the likelihood less ½ Σ (scale / common − 1)² + ½ Σ shift², without which the labels of few
    instances would be told apart with certainty.
    """

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(flat).requires_grad_()
        relative, shift = theta[:-num_labels], theta[-num_labels:]
        loss = 0.5 * ((relative - 1).square().sum() + shift.square().sum())
        for each in losses:
            loss = loss + each(common * relative[:-1], shift, common * relative[-1])
        loss.backward()
        return loss.item(), cast(Tensor, theta.grad).numpy()

    start = np.concatenate([np.ones(num_labels + 1), np.zeros(num_labels)])
    bounds = [(0, None)] * (num_labels + 1) + [(None, None)] * num_labels
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)
    relative, shift = found.x[:-num_labels], found.x[-num_labels:]
    return common * relative[:-1], shift, float(common * relative[-1])


def rescaled(energy: AnEnergy, scale: Tensor, shift: Tensor, coupling_scale: float | Tensor) -> AnEnergy:
    """The energy with each label's field z_i replaced by scale_i z_i + shift_i, (labels,) each.

    Args:
        coupling_scale: of an undirected energy's couplings; a directed one's go with their child's field.
    """
    match energy:
        case DirectedEnergy():
            weight = energy.clique_weight
            if weight is not None:
                position = energy.positions.tolist()
                weight = weight * scale[[max(clique, key=position.__getitem__) for clique in energy.cliques]]
            unary, parents = energy.unary * scale + shift, energy.parents * scale[:, None]
            return replace(energy, unary=unary, parents=parents, clique_weight=weight)
        case PairwiseEnergy():
            return replace(
                energy, unary=energy.unary * scale + shift, pairwise=energy.pairwise * coupling_scale
            )
        case CliqueEnergy():
            alone = torch.tensor([len(clique) == 1 for clique in energy.cliques], device=energy.device)
            first = [clique[0] if clique else 0 for clique in energy.cliques]
            scales = torch.where(alone, scale[first], coupling_scale)
            return replace(energy, weight=energy.weight * scales + alone * shift[first])
    raise TypeError(f"energy: expected a directed, pairwise or clique energy, got {type(energy).__name__}")


def loss_of(energy: AnEnergy, labels: Tensor) -> Loss:
    """−log P(y | x) of the rescaled energy, summed; the pseudo-likelihood of many labels that are undirected.

    A missing label's own factor is left out, and where it is a parent it is imputed.
    """
    complete, observed = impute(energy, labels)

    def loss(scale: Tensor, shift: Tensor, coupling_scale: float | Tensor) -> Tensor:
        changed = rescaled(energy, scale, shift, coupling_scale)
        if isinstance(changed, DirectedEnergy) or energy.num_labels > MAX_ENUMERATED_LABELS:
            return (softplus(-2 * changed.local_margins(complete)) * observed).sum()
        return exact_negative_log_likelihood(changed, complete).sum()

    return loss
