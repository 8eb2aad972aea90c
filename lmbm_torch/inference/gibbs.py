"""Block Gibbs sampling of Boltzmann machines: at once, all labels that are not coupled among each other."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.parts.known import check_start, clamp
from lmbm_torch.inference.parts.label_blocks import uncoupled_blocks
from lmbm_torch.inference.results import BipartiteSamples
from lmbm_torch.shapes import Int, Shaped

__all__ = ["sample"]


@overload
def sample(
    energy: PairwiseEnergy,
    num_steps: int,
    *,
    init: Tensor | None = None,
    generator: torch.Generator | None = None,
    known: Tensor | None = None,
) -> Tensor: ...
@overload
def sample(
    energy: BipartiteEnergy,
    num_steps: int,
    *,
    init: Tensor | None = None,
    generator: torch.Generator | None = None,
    known: Tensor | None = None,
) -> BipartiteSamples: ...
@torch.no_grad()
def sample(
    energy: PairwiseEnergy | BipartiteEnergy,
    num_steps: int,
    *,
    init: Shaped[Tensor, "*chains batch labels"] | None = None,
    generator: torch.Generator | None = None,
    known: Shaped[Tensor, "batch labels"] | None = None,
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
    is_pairwise = isinstance(energy, PairwiseEnergy)
    uncoupled = torch.sigmoid(2 * energy.unary if is_pairwise else energy.visible)
    check_known(known, energy.device, *uncoupled.shape)
    if init is None:
        labels = clamp(torch.bernoulli(uncoupled, generator=generator), known)
    else:
        check_start(init, uncoupled, known)
        labels = init.to(energy.dtype, copy=True)
    if is_pairwise:
        return _pairwise(energy, num_steps, labels, generator, known)
    return _bipartite(energy, num_steps, labels, generator, known)


def _pairwise(
    energy: PairwiseEnergy,
    num_steps: int,
    labels: Tensor,
    generator: torch.Generator | None,
    known: Tensor | None,
) -> Tensor:
    """Block after block; ``labels`` is written over."""
    blocks = uncoupled_blocks(energy, known)
    for _ in range(num_steps):
        for block in blocks:
            labels[..., block.index] = torch.bernoulli(block.expected(labels), generator=generator)
    return labels.long()


def _bipartite(
    energy: BipartiteEnergy,
    num_steps: int,
    visible: Tensor,
    generator: torch.Generator | None,
    known: Tensor | None,
) -> BipartiteSamples:
    """One side after the other."""
    hidden = visible
    for _ in range(num_steps):
        hidden = torch.bernoulli(energy.hidden_given_visible(visible), generator=generator)
        visible = torch.bernoulli(energy.visible_given_hidden(hidden), generator=generator)
        visible = clamp(visible, known)
    return BipartiteSamples(visible.long(), hidden.long())
