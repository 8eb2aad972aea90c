"""Labels of a Boltzmann machine in blocks not coupled within: what updates one at once does so as if in turn.

A sparse graph has few blocks, a grid two, a complete graph one for each label.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmbm_torch.energies.base import to_spins
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.parts.known import clamp
from lmbm_torch.shapes import Float, Int, Shaped

__all__ = ["Block", "uncoupled_blocks"]


@dataclass(frozen=True)
class Block:
    """Labels of which no example couples any two.

    Args:
        index: which they are.
        unary: theirs.
        pairwise: their couplings with all labels, one matrix for each example or one for all.
        known: {0, 1, NaN}, theirs, if any label is known.
    """

    index: Int[Tensor, " block"]
    unary: Float[Tensor, "batch block"]
    pairwise: Float[Tensor, "block labels"] | Float[Tensor, "batch block labels"]
    known: Shaped[Tensor, "batch block"] | None

    def expected(self, labels: Float[Tensor, "*chains batch labels"]) -> Float[Tensor, "*chains batch block"]:
        """The known values, else σ(2 z_i): the chance of 1 given the other labels, or given their means."""
        spins = to_spins(labels)
        if self.pairwise.ndim == 2:
            others = spins @ self.pairwise.mT
        else:
            others = torch.einsum("bij,...bj->...bi", self.pairwise, spins)
        return clamp(torch.sigmoid(2 * (self.unary + others)), self.known)


def uncoupled_blocks(energy: PairwiseEnergy, known: Shaped[Tensor, "batch labels"] | None) -> list[Block]:
    """All labels, each in the first block that it has no coupling with, in the order of their indices."""
    coupled = energy.pairwise != 0
    rows = (coupled if coupled.ndim == 2 else coupled.any(0)).cpu()
    blocks: list[list[int]] = []
    # For each block, which labels it is coupled with.
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
