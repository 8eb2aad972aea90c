"""Strengths of the dependencies between labels, as a square matrix."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.shapes import Float, Int

# Beyond these, two labels at a time take too long, and no picture shows so many.
MAX_LABELS = 128
MAX_INSTANCES = 64


@dataclass(frozen=True)
class Dependencies:
    """Influences of every label on every other label.

    Args:
        weights: row i holds the influences on label i, in units of local fields (half log-odds); a positive
            influence raises the probability of equal values. Symmetric without ``ordering``.
        ordering: the order of the labels in a directed model; each label depends on earlier labels alone.
        kind: the meaning of the weights, for readers.
    """

    weights: Float[Tensor, "labels labels"]
    ordering: Int[Tensor, " labels"] | None
    kind: str

    def strongest(self, count: int) -> list[tuple[int, int, float]]:
        """Return the pairs (giver, taker, weight) of largest size; symmetric pairs once.

        Weights below a hundredth of the largest weight are left out as negligible.
        """
        shown = self.weights if self.ordering is not None else self.weights.triu(1)
        sizes, places = shown.abs().flatten().topk(min(count, shown.numel()))
        found = places[(sizes > 0) & (sizes >= 0.01 * sizes[0])].tolist()
        width = len(shown)
        return [(place % width, place // width, float(shown.flatten()[place])) for place in found]


@torch.no_grad()
def dependencies(energy: Any, labels: Int[Tensor, "batch labels"]) -> Dependencies | None:
    """Return parents' weights of a directed model, or couplings; None for too many labels.

    In a model with hidden units or larger cliques, the influence of two labels on each other depends on all
    other labels. The influence is measured at the decoded labels: a quarter of score(1, 1) − score(1, 0) −
    score(0, 1) + score(0, 0) of the pair, with all other labels as in ``labels``, averaged over up to 64
    instances. In a pairwise model the influence equals the coupling.

    Args:
        energy: the energy of a batch.
        labels: the decoded labels of the batch.
    """
    if isinstance(energy, DirectedEnergy):
        parents = energy.parents if energy.parents.ndim == 2 else energy.parents.mean(0)
        return Dependencies(parents, energy.ordering, "weights of parents")
    if isinstance(energy, PairwiseEnergy):
        couplings = energy.pairwise if energy.pairwise.ndim == 2 else energy.pairwise.mean(0)
        return Dependencies(couplings, None, "couplings")
    size = labels.shape[1]
    if size > MAX_LABELS:
        return None
    few = slice(0, MAX_INSTANCES)
    energy, labels = energy.select(few), labels[few]
    weights = torch.zeros(size, size, dtype=energy.dtype, device=labels.device)
    for first, second in combinations(range(size), 2):
        states = labels.repeat(4, 1, 1)
        states[:2, :, first], states[2:, :, first] = 1, 0
        states[::2, :, second], states[1::2, :, second] = 1, 0
        both, first_alone, second_alone, neither = energy.score(states).mean(1)
        weights[first, second] = (both - first_alone - second_alone + neither) / 4
    return Dependencies(weights + weights.mT, None, "effective couplings")
