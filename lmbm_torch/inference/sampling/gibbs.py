"""Block Gibbs sampling of Boltzmann machines: at once, all labels that are not coupled among each other."""

from __future__ import annotations

from functools import partial
from typing import TypedDict, Unpack, overload

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known
from lmbm_torch.energies import BipartiteEnergy, PairwiseEnergy
from lmbm_torch.inference.common.given import check_start, clamp
from lmbm_torch.inference.results import BipartiteSamples
from lmbm_torch.inference.sampling.label_blocks import draw, sweep, uncoupled
from lmbm_torch.shapes import Int, Known, Shaped
from lmbm_torch.verdicts import one_door, settle

__all__ = ["draw", "sample"]


class _Options(TypedDict, total=False):
    init: Tensor | None
    generator: torch.Generator | None
    known: Tensor | None


@overload
def sample(energy: PairwiseEnergy, num_steps: int, **options: Unpack[_Options]) -> Tensor: ...
@overload
def sample(energy: BipartiteEnergy, num_steps: int, **options: Unpack[_Options]) -> BipartiteSamples: ...
@one_door
@torch.no_grad()
def sample(
    energy: PairwiseEnergy | BipartiteEnergy,
    num_steps: int,
    *,
    init: Shaped[Tensor, "*chains batch labels"] | None = None,
    generator: torch.Generator | None = None,
    known: Known | None = None,
) -> Int[Tensor, "*chains batch labels"] | BipartiteSamples:
    """The last of ``num_steps`` sweeps over all labels, each drawn given the others, in every chain.

    Of a bipartite energy a step draws h from p(h | v), then v from p(v | h)
    (belief_propagation_in_crbms_2017, Equation 3 and what follows it). CD-k starts from the training labels
    and takes k steps; persistent CD goes on from the chains that the last call returned.

    Args:
        energy: a Boltzmann machine, restricted or not, on any device; the labels of a bipartite one are its
            visible units.
        num_steps: times that every label is drawn.
        init: {0, 1}, the labels to start from, with any number of chains for each example in leading axes; by
            default one chain each, drawn as if nothing were coupled.
        generator: the source of randomness, on the energy's device; by default torch's own.
        known: {0, 1, NaN}, NaN for a free label; the others stay as they are.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``num_steps`` below 1;
            ``known`` or ``init`` of another shape or with other values, or against each other.
    """
    energy.check_values()
    check_count("num_steps", num_steps)
    start = uncoupled(energy)
    check_known(known, energy.device, *start.shape)
    if init is not None:
        check_start(init, start, known)
    settle()
    if init is None:
        labels = clamp(torch.bernoulli(start, generator=generator), known)
    else:
        labels = init.to(energy.dtype)
    update, hidden = sweep(energy, known), labels
    for _ in range(num_steps):
        labels, hidden = update(labels, partial(torch.bernoulli, generator=generator))
    is_pairwise = isinstance(energy, PairwiseEnergy)
    return labels.long() if is_pairwise else BipartiteSamples(labels.long(), hidden.long())
