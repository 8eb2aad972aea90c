"""What training and prediction must know of each kind of model beside the model itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmbm_torch.energies import TiedCliques
from lmbm_torch.models import (
    BoltzmannMachine,
    ConditionalRBM,
    RestrictedBoltzmannMachine,
    SigmoidBeliefNetwork,
)
from lmbm_torch.shapes import Bool

LinearModel = SigmoidBeliefNetwork | BoltzmannMachine
"""Linear in its parameters, so that a dual solver can train it."""
StructuredModel = LinearModel | RestrictedBoltzmannMachine


@dataclass(frozen=True)
class Family:
    """One kind of model.

    Args:
        kind: its class.
        architecture: a model → the arguments of ``build`` in plain types, for a checkpoint.
        build: ``architecture``'s result and ``encoder`` → a model, its weights still to be loaded.
        couples: a model → ``(weights,)``, which of ``model.weights()`` belong to two or more labels.
    """

    kind: type[nn.Module]
    architecture: Callable[[Any], dict[str, Any]]
    build: Callable[..., StructuredModel]
    couples: Callable[[Any], Bool[Tensor, " weights"]]


def name_of(model: nn.Module) -> str:
    """The name of a model's family, a key of :data:`FAMILIES`.

    Raises:
        TypeError: a model of no family.
    """
    for name, family in FAMILIES.items():
        if isinstance(model, family.kind):
            return name
    kinds = ", ".join(family.kind.__name__ for family in FAMILIES.values())
    raise TypeError(f"model: expected one of {kinds}, got {type(model).__name__}")


def family_of(model: nn.Module) -> Family:
    """What is known of a model's kind.

    Raises:
        TypeError: a model of no family.
    """
    return FAMILIES[name_of(model)]


def _network_architecture(model: SigmoidBeliefNetwork) -> dict[str, Any]:
    return {
        "num_features": model.num_features,
        "num_labels": model.num_labels,
        "ordering": model.ordering.tolist(),
        "degree": model.degree,
    }


def _network_couples(model: SigmoidBeliefNetwork) -> Tensor:
    parts = (model.feature_weight, model.bias, model.parent_weight, model.clique_weight)
    alone = sum(part.numel() for part in parts[:2])
    couples = torch.ones(sum(part.numel() for part in parts), dtype=torch.bool, device=model.bias.device)
    couples[:alone] = False
    return couples


def _machine_architecture(model: BoltzmannMachine) -> dict[str, Any]:
    cliques = model.cliques
    return {
        "num_features": model.num_features,
        "num_labels": model.num_labels,
        "cliques": [list(clique) for clique in cliques.cliques],
        "groups": list(cliques.groups),
        "coefficients": list(cliques.coefficients),
        "columns": list(cliques.columns),
        "bias": model.bias is not None,
    }


def _build_machine(
    *,
    num_features: int,
    num_labels: int,
    cliques: list[list[int]],
    groups: list[int],
    coefficients: list[float],
    columns: list[int | None],
    bias: bool,
    encoder: nn.Module | None,
) -> BoltzmannMachine:
    tied = TiedCliques(
        num_labels, tuple(map(tuple, cliques)), tuple(groups), tuple(coefficients), tuple(columns)
    )
    return BoltzmannMachine(num_features, num_labels, tied, bias=bias, encoder=encoder)


def _machine_couples(model: BoltzmannMachine) -> Tensor:
    weight = model.feature_weight
    alone = weight.numel() + (0 if model.bias is None else model.num_labels)
    couples = torch.from_numpy(model.cliques.couples).to(weight.device)
    return torch.cat([couples.new_zeros(alone), couples])


def _restricted_architecture(model: RestrictedBoltzmannMachine) -> dict[str, Any]:
    return {"num_visible": model.num_visible, "num_hidden": model.num_hidden}


def _conditional_architecture(model: ConditionalRBM) -> dict[str, Any]:
    return {"num_features": model.num_features, **_restricted_architecture(model)}


def _build_restricted(
    *, num_visible: int, num_hidden: int, encoder: nn.Module | None
) -> RestrictedBoltzmannMachine:
    return RestrictedBoltzmannMachine(num_visible, num_hidden)


def _restricted_couples(model: RestrictedBoltzmannMachine) -> Tensor:
    """The weights between the two sides."""
    weights, biases = model.weights(), model.num_visible + model.num_hidden
    couples = torch.zeros_like(weights, dtype=torch.bool)
    couples[biases : biases + model.coupling.numel()] = True
    return couples


FAMILIES = {
    "sigmoid_belief": Family(
        SigmoidBeliefNetwork, _network_architecture, SigmoidBeliefNetwork, _network_couples
    ),
    "boltzmann": Family(BoltzmannMachine, _machine_architecture, _build_machine, _machine_couples),
    # Before the class that it is a special case of.
    "conditional_rbm": Family(ConditionalRBM, _conditional_architecture, ConditionalRBM, _restricted_couples),
    "rbm": Family(
        RestrictedBoltzmannMachine, _restricted_architecture, _build_restricted, _restricted_couples
    ),
}
"""By the names that checkpoints use."""
