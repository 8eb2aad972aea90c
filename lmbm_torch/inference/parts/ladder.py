"""Several restricted Boltzmann machines of the same sizes, whose chains exchange their states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmbm_torch.energies.bipartite import BipartiteEnergy, softplus
from lmbm_torch.inference.parts.draws import draw
from lmbm_torch.shapes import Bool, Float

__all__ = ["Ladder"]

States = Float[Tensor, "replicas rows visible"]


@dataclass(frozen=True)
class Ladder:
    """Machines that share their examples, stacked: rows are the chains of all examples, one after another.

    Args:
        visible, hidden: log-potentials.
        coupling: theirs.
    """

    visible: Float[Tensor, "replicas _ visible"]
    hidden: Float[Tensor, "replicas _ hidden"]
    coupling: Float[Tensor, "replicas visible hidden"]

    @classmethod
    def of(cls, energies: Sequence[BipartiteEnergy], num_chains: int) -> Ladder:
        """Energies of the same batch of examples, each with so many chains."""
        visible, hidden, coupling = (
            torch.stack([getattr(energy, name) for energy in energies])
            for name in ("visible", "hidden", "coupling")
        )
        if energies[0].batch_size > 1:
            visible, hidden = visible.repeat(1, num_chains, 1), hidden.repeat(1, num_chains, 1)
        return cls(visible, hidden, coupling)

    def hidden_fields(self, visible: States, machines: slice = slice(None)) -> Tensor:
        """Of some of the machines, each given the states of one replica."""
        return torch.baddbmm(self.hidden[machines], visible, self.coupling[machines])

    def gibbs_step(self, fields: Tensor, generator: torch.Generator | None) -> States:
        """Visible units drawn given hidden ones, which are drawn by their fields."""
        hidden = draw(torch.sigmoid(fields), generator)
        return draw(torch.sigmoid(torch.baddbmm(self.visible, hidden, self.coupling.mT)), generator)

    def exchange(
        self, visible: States, fields: Tensor, first: int, generator: torch.Generator | None
    ) -> tuple[States, Tensor, Bool[Tensor, "pairs rows"]]:
        """Neighbours swap their states by the rule of Metropolis, every second pair from ``first`` on.

        Returns:
            The states, their fields under the machines that have them now, and which swaps were accepted.
        """
        pairs = (len(visible) - first) // 2
        hot, cold = slice(first, first + 2 * pairs, 2), slice(first + 1, first + 2 * pairs, 2)
        # Fields of the machine's own state, and of its neighbour's.
        of_hot, of_cold = (
            self.hidden_fields(visible[other], own) for own, other in ((hot, cold), (cold, hot))
        )
        gain = (
            self._log_weight(hot, visible[cold], of_hot)
            + self._log_weight(cold, visible[hot], of_cold)
            - self._log_weight(hot, visible[hot], fields[hot])
            - self._log_weight(cold, visible[cold], fields[cold])
        )
        accepted = draw(gain.clamp(max=0).exp(), generator).bool()
        swap = accepted[..., None]
        moved, moved_fields = visible.clone(), fields.clone()
        moved[hot] = torch.where(swap, visible[cold], visible[hot])
        moved[cold] = torch.where(swap, visible[hot], visible[cold])
        moved_fields[hot] = torch.where(swap, of_hot, fields[hot])
        moved_fields[cold] = torch.where(swap, of_cold, fields[cold])
        return moved, moved_fields, accepted

    def _log_weight(self, machines: slice, visible: States, fields: Tensor) -> Float[Tensor, "pairs rows"]:
        """−free_energy(v), given the fields of the hidden units."""
        return (visible * self.visible[machines]).sum(-1) + softplus(fields).sum(-1)
