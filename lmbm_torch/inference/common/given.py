"""Checks of the inputs of inference besides the energy: known values, start values, and rules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmbm_torch.checks import check_device, check_known, check_labels, check_shape
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import ChainEnergy, FactorEnergy, PairwiseEnergy, SemiChainEnergy, TreeEnergy
from lmbm_torch.shapes import Known, Shaped
from lmbm_torch.verdicts import refuse_unless


def clamp(
    values: Shaped[Tensor, "*samples units"], known: Shaped[Tensor, "#batch units"] | None
) -> Shaped[Tensor, "*_ units"]:
    """Replace values by the known values; ``known`` is NaN for free units, whose values stay."""
    if known is None:
        return values
    return torch.where(known.isnan(), values, known.nan_to_num().to(values.dtype))


def check_start(
    init: Shaped[Tensor, "*samples units"],
    like: Shaped[Tensor, "batch units"],
    known: Shaped[Tensor, "#batch units"] | None,
) -> None:
    """Check that start labels ``init`` are 0 or 1, have the shape of ``like``, and agree with ``known``.

    Raises:
        ValueError: ``init`` fails one of the checks; ``init`` may have further leading axes, for chains.
    """
    check_shape("init", init, *[None] * (init.ndim - 2), *like.shape)
    check_device("init", init, like.device)
    check_labels("init", init)
    check_agreement(init, known)


def check_agreement(
    init: Shaped[Tensor, "*samples units"], known: Shaped[Tensor, "#batch units"] | None
) -> None:
    """Raise ValueError if the start values ``init`` differ from the ``known`` values of known units."""
    if known is None:
        return
    wanted = "init: expected the known values for all known units"
    against = (init != known) & ~known.isnan()

    def refuse() -> None:
        raise ValueError(f"{wanted}, got other values for {int(against.sum())} known units")

    refuse_unless(wanted, (init, known), lambda: ~against.any(), refuse)


def free_part(energy: PairwiseEnergy, known: Known | None) -> PairwiseEnergy:
    """Return an energy of the free labels only: known labels have unary and pairwise log-potentials of 0."""
    if known is None:
        return energy
    free = known.isnan()
    # Set free labels to ½, a spin of 0, so that only known labels contribute to fields and score.
    labels = clamp(torch.full_like(energy.unary, 0.5), known)
    return PairwiseEnergy(
        unary=torch.where(free, energy.local_fields(labels), 0),
        pairwise=energy.pairwise * (free[:, :, None] & free[:, None, :]),
        constant=energy.score(labels),
    )


def check_rules(energy: Any, constraints: Constraints, known: Tensor | None) -> None:
    """Check that rules and known labels suit the energy.

    Raises:
        TypeError: ``constraints`` is no ``Constraints``; the energy is a chain, a tree or a graph of tables:
            use log-potentials of −∞ instead.
        ValueError: the number of labels of ``known`` or of the rules differs from the energy's.
    """
    if not isinstance(constraints, Constraints):
        came = type(constraints).__name__
        raise TypeError(f"constraints: expected the result of Constraints.of(rules, names), got {came}")
    if isinstance(energy, ChainEnergy | SemiChainEnergy | TreeEnergy | FactorEnergy):
        raise TypeError(f"energy: expected a kind with labels in {{0, 1}}, got {type(energy).__name__}")
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    if constraints.num_labels != energy.num_labels:
        raise ValueError(
            f"constraints: expected rules over {energy.num_labels} labels, got {constraints.num_labels}"
        )
