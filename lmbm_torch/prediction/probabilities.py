"""Probabilities of labels and of labellings, under one energy or an equal mixture of several energies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference import marginals
from lmbm_torch.inference.common.results import BipartiteMarginals
from lmbm_torch.inference.graphs.elimination import is_narrow
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.shapes import Float, Int


@dataclass(frozen=True)
class Probabilities:
    """Marginal probabilities of labels.

    Args:
        labels: P(y_i = 1); for sequences P(tag) at each position.
        log_partition: log Σ_y exp(score(y)); NaN if only an approximation is known.
        method: the name of the routine, for readers.
    """

    labels: Float[Tensor, "batch labels"]
    log_partition: Float[Tensor, " batch"]
    method: str


@torch.no_grad()
def probabilities(energy: Any, inference: MatchedInference | None = None, seed: int = 0) -> Probabilities:
    """Return marginal probabilities and, if exact, the log partition.

    The routine is that of :func:`lmbm_torch.inference.marginals`.

    Args:
        energy: the energy of a batch.
        inference: the inference of the training of a model with hidden units.
        seed: the seed of samples, for many labels of a directed model.

    Raises:
        TypeError: an energy of another kind.
        ValueError: cliques of three or more labels over more labels than can be enumerated.
    """
    generator = torch.Generator(energy.device).manual_seed(seed)
    found = marginals(energy, matched=inference, generator=generator)
    labels = found.visible if isinstance(found, BipartiteMarginals) else found.labels
    # A directed model's is 0, however its marginals were found.
    is_known = found.status.exact | isinstance(energy, DirectedEnergy)
    return Probabilities(labels, found.log_partition.where(is_known, torch.nan), found.method)


def is_dense_network(energy: Any) -> bool:
    """Return whether an energy is a directed model that only enumeration sums exactly."""
    return isinstance(energy, DirectedEnergy) and not is_narrow(energy)


def is_machine(energy: Any) -> bool:
    """Return whether an energy is a pairwise undirected model."""
    return isinstance(energy, PairwiseEnergy)


def mixture_probabilities(
    energies: Sequence[Any], inference: MatchedInference | None = None
) -> Probabilities:
    """Return marginal probabilities under an equal mixture of normalised models, or under one model.

    Args:
        energies: the energies of the members.
        inference: as in :func:`probabilities`.
    """
    members = [probabilities(energy, inference) for energy in energies]
    labels = torch.stack([member.labels for member in members]).mean(0)
    # Of normalised members the same.
    return Probabilities(labels, members[0].log_partition, members[0].method)


@torch.no_grad()
def allowed_probabilities(energies: Sequence[Any], rules: Constraints) -> Probabilities:
    """Return marginal probabilities given all rules; NaN if no exact sum is known."""
    # Of answers without rules nothing of it is needed.
    from lmbm_torch.estimators.common.decoders.distributions import AllowedDistribution

    try:
        found = AllowedDistribution(energies, rules).marginals()
    except ValueError as refused:
        unknown = torch.full_like(energies[0].unary, torch.nan)
        return Probabilities(unknown, unknown[:, 0], f"not known under these rules: {refused}")
    return Probabilities(found.labels, found.log_partition, found.method)


@torch.no_grad()
def mixture_log_prob(
    energies: Sequence[Any],
    labels: Int[Tensor, "*samples batch labels"],
    log_partition: Float[Tensor, " batch"],
) -> Float[Tensor, "*samples batch"]:
    """Return log P(y) of labellings under an equal mixture; NaN if the log partition is NaN."""
    members = torch.stack([energy.score(labels) - log_partition for energy in energies])
    return members.logsumexp(0) - math.log(len(energies))
