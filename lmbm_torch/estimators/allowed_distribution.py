"""The distribution of a fitted model, restricted to the labellings that rules allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference import constrained_sums
from lmbm_torch.inference.results import Marginals, joined
from lmbm_torch.shapes import Float, Int, Labels

# Instances whose tables are held in memory at a time.
ROWS = 128


@dataclass(frozen=True)
class AllowedDistribution:
    """p(y | y is allowed), of one model or of an equal mixture of sigmoid belief networks.

    Of a mixture, members that give more probability to what is allowed count for more:
    p(y | allowed) = Σ_e P_e(allowed) p_e(y | allowed) / Σ_e P_e(allowed).

    Args:
        energies: of the model, or of the members.
        rules: over their labels.
    """

    energies: Sequence[Any]
    rules: Constraints

    @torch.no_grad()
    def marginals(self) -> Marginals:
        """P(y_i = 1 | allowed), and the log of the probability, or sum, of all that is allowed."""
        return joined([part._marginals() for part in self._parts()])

    @torch.no_grad()
    def log_prob(self, labels: Labels) -> Float[Tensor, " batch"]:
        """log P(y | allowed); −∞ for labels that break a rule."""
        scores = torch.stack([_score(energy, labels) for energy in self.energies]).logsumexp(0)
        parts = [torch.stack(part._log_partitions()).logsumexp(0) for part in self._parts()]
        is_broken = torch.from_numpy(self.rules.violated(labels.cpu().numpy()).any(1)).to(scores.device)
        return (scores - torch.cat(parts)).masked_fill(is_broken, -torch.inf)

    def sample(self, num_samples: int, generator: torch.Generator) -> Int[Tensor, "num_samples batch labels"]:
        """Independent draws."""
        return torch.cat([part._sample(num_samples, generator) for part in self._parts()], 1)

    def _parts(self) -> Iterator[AllowedDistribution]:
        """The same of some instances after others."""
        for start in range(0, self.energies[0].batch_size, ROWS):
            rows = slice(start, start + ROWS)
            yield AllowedDistribution([energy.select(rows) for energy in self.energies], self.rules)

    def _log_partitions(self) -> list[Tensor]:
        return [constrained_sums.log_partition(energy, self.rules) for energy in self.energies]

    def _marginals(self) -> Marginals:
        members = [constrained_sums.marginals(energy, self.rules) for energy in self.energies]
        if len(members) == 1:
            return members[0]
        masses = torch.stack([member.log_partition for member in members])
        labels = (masses.softmax(0)[..., None] * torch.stack([member.labels for member in members])).sum(0)
        log_partition = masses.logsumexp(0) - torch.tensor(len(members)).log()
        return Marginals(labels, log_partition, members[0].status, method=members[0].method)

    def _sample(self, num_samples: int, generator: torch.Generator) -> Tensor:
        drawn = [
            constrained_sums.sample(energy, self.rules, num_samples, generator=generator)
            for energy in self.energies
        ]
        if len(drawn) == 1:
            return drawn[0]
        shares = torch.stack(self._log_partitions(), 1).softmax(1)
        which = torch.multinomial(shares, num_samples, replacement=True, generator=generator).mT
        return torch.stack(drawn).gather(0, which[None, ..., None].expand(1, *drawn[0].shape))[0]


def _score(energy: Any, labels: Tensor) -> Tensor:
    """log-potentials of labels, the hidden units summed out."""
    return -energy.free_energy(labels) if isinstance(energy, BipartiteEnergy) else energy.score(labels)
