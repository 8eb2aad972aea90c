"""The models that training takes, and which of their weights couple labels."""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor, nn

from lmbm_torch.models import BoltzmannMachine, RestrictedBoltzmannMachine, SigmoidBeliefNetwork
from lmbm_torch.shapes import Bool

LinearModel = SigmoidBeliefNetwork | BoltzmannMachine
"""Linear in its parameters, so that a dual solver can train it."""
StructuredModel = LinearModel | RestrictedBoltzmannMachine


@singledispatch
def couples(model: nn.Module) -> Bool[Tensor, " weights"]:
    """Which of ``model.weights()`` belong to two or more labels, or to a label and a hidden unit.

    Raises:
        TypeError: a model of another class than :data:`StructuredModel` has.
    """
    raise TypeError(f"model: expected one of {StructuredModel}, got {type(model).__name__}")


@couples.register
def _(model: SigmoidBeliefNetwork) -> Tensor:
    alone, couplings = (
        sum(part.numel() for part in parts)
        for parts in ((model.feature_weight, model.bias), (model.parent_weight, model.clique_weight))
    )
    return torch.arange(alone + couplings, device=model.bias.device) >= alone


@couples.register
def _(model: BoltzmannMachine) -> Tensor:
    weight = model.feature_weight
    alone = weight.numel() + (0 if model.bias is None else model.num_labels)
    cliques = torch.from_numpy(model.cliques.couples).to(weight.device)
    return torch.cat([cliques.new_zeros(alone), cliques])


@couples.register
def _(model: RestrictedBoltzmannMachine) -> Tensor:
    biases = model.num_visible + model.num_hidden
    found = torch.zeros_like(model.weights(), dtype=torch.bool)
    found[biases : biases + model.coupling.numel()] = True
    return found
