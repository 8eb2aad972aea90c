"""Parallel tempering of restricted Boltzmann machines: chains at easier energies exchange states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_device, check_labels, check_shape
from lmbm_torch.energies.bipartite import BipartiteEnergy, softplus
from lmbm_torch.inference.common.results import BipartiteSamples
from lmbm_torch.inference.sampling.annealing import between, check_path, uncoupled
from lmbm_torch.inference.sampling.gibbs import draw
from lmbm_torch.shapes import Bool, Float, Shaped
from lmbm_torch.verdicts import one_door, settle

__all__ = ["path_from_base", "sample"]

States = Float[Tensor, "replicas rows visible"]


@dataclass(frozen=True)
class Ladder:
    """Energies of the same examples, stacked along the first axis; each row is one chain of an example.

    Args:
        visible, hidden: the unary log-potentials of each energy.
        coupling: the coupling of each energy.
    """

    visible: Float[Tensor, "replicas _ visible"]
    hidden: Float[Tensor, "replicas _ hidden"]
    coupling: Float[Tensor, "replicas visible hidden"]

    @classmethod
    def of(cls, energies: Sequence[BipartiteEnergy], num_chains: int) -> Ladder:
        """Stack energies of the same batch, each with ``num_chains`` chains for each example."""
        visible, hidden, coupling = (
            torch.stack([getattr(energy, name) for energy in energies])
            for name in ("visible", "hidden", "coupling")
        )
        if energies[0].batch_size > 1:
            visible, hidden = visible.repeat(1, num_chains, 1), hidden.repeat(1, num_chains, 1)
        return cls(visible, hidden, coupling)

    def hidden_fields(self, visible: States, machines: slice = slice(None)) -> Tensor:
        """Return the hidden units' fields at the energies ``machines``, each given one replica's states."""
        return torch.baddbmm(self.hidden[machines], visible, self.coupling[machines])

    def gibbs_step(self, fields: Tensor, generator: torch.Generator | None) -> States:
        """Draw hidden units from their fields; return visible units drawn given the hidden units."""
        hidden = draw(torch.sigmoid(fields), generator)
        return draw(torch.sigmoid(torch.baddbmm(self.visible, hidden, self.coupling.mT)), generator)

    def exchange(
        self, visible: States, fields: Tensor, first: int, generator: torch.Generator | None
    ) -> tuple[States, Tensor, Bool[Tensor, "pairs rows"]]:
        """Swap the states of every second pair of neighbours, starting at ``first``, by Metropolis' rule.

        Returns:
            The states, the hidden fields of the new states, and the accepted swaps.
        """
        pairs = (len(visible) - first) // 2
        hot, cold = slice(first, first + 2 * pairs, 2), slice(first + 1, first + 2 * pairs, 2)
        # For each pair: the fields of each energy given the state of the neighbouring replica.
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
        """Return −free_energy(v), given the fields of the hidden units."""
        return (visible * self.visible[machines]).sum(-1) + softplus(fields).sum(-1)


@one_door
@torch.no_grad()
def sample(
    energy: BipartiteEnergy,
    num_steps: int,
    *,
    path: Sequence[BipartiteEnergy],
    num_chains: int = 1,
    init: Shaped[Tensor, "replicas chains batch visible"] | None = None,
    generator: torch.Generator | None = None,
) -> BipartiteSamples:
    """Run a replica at each energy of ``path`` and at ``energy`` for ``num_steps``; return the last states.

    In a step, every replica draws the hidden units and then the visible units. Then every second pair of
    neighbours a, b swaps the visible units with probability min(1, f_a(v_b) f_b(v_a) / (f_a(v_a) f_b(v_b))),
    where f = exp(−free energy); even and odd pairs take turns. With energies that differ by temperature this
    is parallel tempering (Desjardins et al. 2010), with energies of a model's training trajectory tempering
    (Béreux et al. 2024).

    Args:
        energy: a bipartite energy, on any device.
        num_steps: the number of steps; the first step proposes swaps of the even pairs.
        path: energies from an easy energy to the neighbour of ``energy``, like :func:`path_from_base`.
        num_chains: the number of chains for each example; with ``init``, the shape of ``init`` decides.
        init: {0, 1}, the first states of all replicas, with the replica of ``energy`` last; by default drawn
            without couplings.
        generator: the source of randomness, on the energy's device; by default torch's own.

    Raises:
        ValueError: NaN or infinity in the energy or along the path; a count below 1; an empty path, or a path
            of other sizes, dtypes or devices; ``init`` of another shape, or with values except 0 and 1.
    """
    energy.check_values()
    check_count("num_steps", num_steps)
    check_count("num_chains", num_chains)
    if not path:
        raise ValueError("path: expected at least one energy, got none")
    check_path(energy, path)
    energies = [*path, energy]
    shape = len(energies), None, *energy.visible.shape
    if init is not None:
        check_shape("init", init, *shape)
        check_device("init", init, energy.device)
        check_labels("init", init)
        num_chains = init.shape[1]
    settle()
    ladder = Ladder.of(energies, num_chains)
    if init is None:
        rows = num_chains * energy.batch_size
        visible = draw(torch.sigmoid(ladder.visible).expand(-1, rows, -1), generator)
    else:
        visible = init.flatten(1, 2).to(energy.dtype)
    proposed = energy.visible.new_zeros(len(path))
    accepted = torch.zeros_like(proposed)
    fields = ladder.hidden_fields(visible)
    for step in range(num_steps):
        visible = ladder.gibbs_step(fields, generator)
        fields = ladder.hidden_fields(visible)
        first = step % 2
        if first < len(path):
            visible, fields, swaps = ladder.exchange(visible, fields, first, generator)
            accepted[first::2] += swaps.to(accepted).mean(-1)
            proposed[first::2] += 1
    states = visible.long().unflatten(1, (num_chains, energy.batch_size))
    return BipartiteSamples(states, swap_rate=accepted / proposed)


def path_from_base(
    energy: BipartiteEnergy, count: int, base: Float[Tensor, "#batch visible"] | None = None
) -> list[BipartiteEnergy]:
    """Return ``count`` energies on the straight path from an uncoupled energy to ``energy``, evenly spaced.

    Args:
        energy: the end of the path, not included.
        count: the number of energies, the uncoupled energy included.
        base: log-odds of the visible units at the start, with hidden units at ½; by default the energy's own
            biases on both sides.

    Raises:
        ValueError: a count below 1; a ``base`` of another shape, dtype or device, or not finite.
    """
    check_count("count", count)
    start = uncoupled(energy, base)
    return [between(start, energy, number / count) for number in range(count)]
