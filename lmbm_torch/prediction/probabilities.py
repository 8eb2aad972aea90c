"""How probable labels are under an energy of any kind, by the routine that suits its kind and size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy, CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference import ancestral, exact, matrix_bp, mean_field
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.inference.results import BipartiteMarginals
from lmbm_torch.shapes import Float, Int

NUM_SAMPLES = 1000


@dataclass(frozen=True)
class Probabilities:
    """What a model says of labels, whichever are decoded.

    Args:
        labels: P(y_i = 1).
        log_partition: log Σ_y exp(score(y)); NaN where only an approximation is known.
        method: how, for readers.
    """

    labels: Float[Tensor, "batch labels"]
    log_partition: Float[Tensor, " batch"]
    method: str


@torch.no_grad()
def probabilities(
    energy: DirectedEnergy | PairwiseEnergy | CliqueEnergy | BipartiteEnergy,
    inference: MatchedInference | None = None,
    seed: int = 0,
) -> Probabilities:
    """Marginal probabilities, exact up to 20 labels or, of a model with hidden units, on its smaller side.

    Args:
        inference: what a model with hidden units was trained with; its iterations and, if it is the mean
            field, its routine are used where labels are not enumerated.
        seed: of the samples that stand for many labels of a directed model.

    Raises:
        ValueError: cliques of three or more labels over more labels than can be enumerated.
    """
    units = (
        min(energy.num_visible, energy.num_hidden)
        if isinstance(energy, BipartiteEnergy)
        else energy.num_labels
    )
    # Nothing but enumeration is at hand for larger cliques, which are decoded by it, too.
    if units <= exact.MAX_MARGINAL_LABELS or isinstance(energy, CliqueEnergy):
        found = exact.marginals(energy)
        labels = found.visible if isinstance(found, BipartiteMarginals) else found.labels
        return Probabilities(labels, found.log_partition, "exact, by enumeration")
    if isinstance(energy, DirectedEnergy):
        generator = torch.Generator(energy.device).manual_seed(seed)
        sampled = ancestral.marginals(energy, NUM_SAMPLES, generator=generator)
        return Probabilities(sampled.labels, sampled.log_partition, f"means over {NUM_SAMPLES} samples")
    unknown = torch.full((energy.batch_size,), torch.nan, dtype=energy.dtype, device=energy.device)
    if isinstance(energy, PairwiseEnergy):
        return Probabilities(mean_field.marginals(energy).labels, unknown, "approximate, by mean field")
    settings: dict[str, Any] = {}
    if inference is not None:
        settings = {"num_iters": inference.num_iters, **inference.settings}
    if inference is not None and inference.routine is mean_field.marginals:
        found = mean_field.marginals(energy, **settings)
        return Probabilities(found.visible, unknown, "approximate, by mean field")
    found = matrix_bp.marginals(energy, **settings)
    return Probabilities(found.visible, unknown, "approximate, by belief propagation")


def mixture_probabilities(
    energies: Sequence[Any], inference: MatchedInference | None = None
) -> Probabilities:
    """Those of an equal mixture of directed models, or of one model of any kind.

    Args:
        inference: as for :func:`probabilities`.
    """
    members = [probabilities(energy, inference) for energy in energies]
    labels = torch.stack([member.labels for member in members]).mean(0)
    # Directed models are normalised, so that their mixture is.
    return Probabilities(labels, members[0].log_partition, members[0].method)


def mixture_log_prob(
    energies: Sequence[Any],
    labels: Int[Tensor, "*samples batch labels"],
    log_partition: Float[Tensor, " batch"],
) -> Float[Tensor, "*samples batch"]:
    """log P(y) of whole labellings under the same, given its log partition; NaN where that is."""
    members = torch.stack([log_prob(energy, labels, log_partition) for energy in energies])
    return members.logsumexp(0) - math.log(len(energies))


@torch.no_grad()
def log_prob(
    energy: DirectedEnergy | PairwiseEnergy | CliqueEnergy | BipartiteEnergy,
    labels: Int[Tensor, "*samples batch labels"],
    log_partition: Float[Tensor, " batch"],
) -> Float[Tensor, "*samples batch"]:
    """log P(y) of whole labellings, given the log partition; NaN where that is."""
    if isinstance(energy, BipartiteEnergy):
        return -energy.free_energy(labels) - log_partition
    return energy.score(labels) - log_partition
