"""Penalties: functions of a model that return the part of the objective in only the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_positive
from lmbm_torch.models import ConditionalRBM, Model, RestrictedBoltzmannMachine
from lmbm_torch.shapes import Float


def quadratic(model: Model, coupling_penalty: float = 1.0) -> Float[Tensor, ""]:
    """Return ½ Σ_j η_j w_j² over the weights of the model's head.

    η_j is ``coupling_penalty`` for the weight of a clique of two or more labels, and 1 for all other weights
    (large_margin_boltzmann_machines_2009, section 5, where the factor is η_0).

    Raises:
        ValueError: ``coupling_penalty`` is not a finite number above 0.
    """
    check_positive("coupling_penalty", coupling_penalty)
    weights = model.weights()
    if coupling_penalty == 1:
        return 0.5 * weights @ weights
    strength = 1 + (coupling_penalty - 1) * model.couples().to(weights.dtype)
    return 0.5 * (strength * weights) @ weights


def none(model: nn.Module) -> Float[Tensor, ""]:
    """Return 0, whatever the weights."""
    return next(model.parameters()).new_zeros(())


def frobenius(model: RestrictedBoltzmannMachine, strength: float) -> Float[Tensor, ""]:
    """Return ½ · strength · Σ W² over the couplings and, if the model has input, the features' weights.

    Biases are not penalised. Early stopping is better (belief_propagation_in_crbms_2017, footnote 3).

    Raises:
        ValueError: ``strength`` is not a finite number above 0.
    """
    check_positive("strength", strength)
    matrices = [model.coupling]
    if isinstance(model, ConditionalRBM):
        matrices += [model.visible_weight, model.hidden_weight]
    # Inner products take half the time of sums of squares, which would store the squares first.
    return 0.5 * strength * torch.stack([matrix.flatten() @ matrix.flatten() for matrix in matrices]).sum()
