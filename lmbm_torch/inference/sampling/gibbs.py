"""Block Gibbs sampling of Boltzmann machines: labels that are not coupled with each other are drawn together.

A sparse graph has few such blocks of labels, a grid two, and a complete graph one for each label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypedDict, Unpack, overload

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known
from lmbm_torch.energies import BipartiteEnergy, PairwiseEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.energies.pairwise import from_others
from lmbm_torch.inference.common.given import check_start, clamp
from lmbm_torch.inference.common.results import BipartiteSamples
from lmbm_torch.shapes import Float, Int, Known, Shaped
from lmbm_torch.verdicts import one_door, settle

__all__ = ["sample"]


def draw(probabilities: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw {0, 1} in the probabilities' dtype, each 1 with the given probability.

    Uniform numbers are compared, because torch.bernoulli takes five times as long on a CPU, longer than the
    matrix product that gives the probabilities.
    """
    uniform = torch.rand(
        probabilities.shape, generator=generator, dtype=probabilities.dtype, device=probabilities.device
    )
    return uniform.lt_(probabilities)


@dataclass(frozen=True)
class Block:
    """Labels that are not coupled with each other in any example.

    Args:
        index: the indices of the labels.
        unary: the unary log-potentials of the labels.
        pairwise: couplings with all labels, one matrix for each example or one for all.
        known: {0, 1, NaN}, the known values of the labels; None if no label is known.
    """

    index: Int[Tensor, " block"]
    unary: Float[Tensor, "batch block"]
    pairwise: Float[Tensor, "block labels"] | Float[Tensor, "batch block labels"]
    known: Shaped[Tensor, "batch block"] | None

    def expected(self, labels: Float[Tensor, "*chains batch labels"]) -> Float[Tensor, "*chains batch block"]:
        """Return σ(2 z_i), the probability of 1 given the other labels or means, or the known value."""
        fields = self.unary + from_others(self.pairwise, to_spins(labels))
        return clamp(torch.sigmoid(2 * fields), self.known)


def sweep(
    energy: PairwiseEnergy | BipartiteEnergy, known: Known | None
) -> Callable[[Tensor, Callable[[Tensor], Tensor]], tuple[Tensor, Tensor]]:
    """Return a function that updates each unit once; each block sees the latest values of all other units.

    Returns:
        A function of labels (or means) and of a function that maps a block's probabilities to new values. It
        returns the labels after the sweep, and a bipartite energy's hidden units (else the labels again).
    """
    if isinstance(energy, BipartiteEnergy):

        def both_sides(visible: Tensor, draw: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            hidden = draw(energy.hidden_given_visible(visible))
            return clamp(draw(energy.visible_given_hidden(hidden)), known), hidden

        return both_sides
    blocks = uncoupled_blocks(energy, known)

    def every_block(labels: Tensor, draw: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        labels = labels.clone()
        for block in blocks:
            labels[..., block.index] = draw(block.expected(labels))
        return labels, labels

    return every_block


def uncoupled(energy: PairwiseEnergy | BipartiteEnergy) -> Float[Tensor, "batch labels"]:
    """Return the probability of 1 for each label as if there were no couplings."""
    return torch.sigmoid(2 * energy.unary if isinstance(energy, PairwiseEnergy) else energy.visible)


def uncoupled_blocks(energy: PairwiseEnergy, known: Known | None) -> list[Block]:
    """Divide the labels into blocks: each label joins the first block with which it has no coupling."""
    coupled = energy.pairwise != 0
    rows = (coupled if coupled.ndim == 2 else coupled.any(0)).cpu()
    blocks: list[list[int]] = []
    # For each block, a mask of the labels that the block is coupled with.
    reach: list[Tensor] = []
    for label in range(energy.num_labels):
        free = next((place for place, reached in enumerate(reach) if not reached[label]), len(blocks))
        if free == len(blocks):
            blocks.append([])
            reach.append(torch.zeros_like(rows[0]))
        blocks[free].append(label)
        reach[free] |= rows[label]
    return [
        Block(
            index=index,
            unary=energy.unary[:, index],
            pairwise=energy.pairwise[..., index, :],
            known=None if known is None else known[:, index],
        )
        for index in (torch.tensor(block, device=energy.device) for block in blocks)
    ]


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
    """Make ``num_steps`` sweeps over all labels in every chain, and return the last draws.

    A sweep draws each label given the others. For a bipartite energy it draws h from p(h | v), then v from
    p(v | h) (belief_propagation_in_crbms_2017, Equation 3). CD-k starts from the training labels and makes k
    sweeps; persistent CD continues the chains of the last call.

    Args:
        energy: a Boltzmann machine, restricted or not, on any device; a bipartite energy's labels are the
            visible units.
        num_steps: the number of sweeps.
        init: {0, 1}, the first labels; leading axes hold the chains of each example. By default one chain for
            each example, drawn without couplings.
        generator: the source of randomness, on the energy's device; by default torch's own.
        known: {0, 1, NaN}, NaN for a free label; known labels stay unchanged.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``num_steps`` below 1;
            ``known`` or ``init`` of a wrong shape or with values except 0 and 1, or in contradiction.
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
