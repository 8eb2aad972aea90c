"""Probabilities of an equal mixture of Boltzmann machines, from the energies of its members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from lmbm_torch import inference
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from lmbm_torch.inference.results import Marginals

__all__ = ["MachineMixture"]


@dataclass(frozen=True)
class MachineMixture:
    """P(y | x) ∝ exp(score) of a Boltzmann machine, or the equal mixture of two of a joint calibration.

    Args:
        energies: calibrated where they are.
    """

    energies: Sequence[PairwiseEnergy | CliqueEnergy]

    def marginals(self) -> Marginals:
        """Return P(y_i = 1): exact for up to 22 labels or a sparse graph, else those of the mean field.

        Raises:
            ValueError: more than 22 labels in cliques of three or more.
        """
        members = [cast(Marginals, inference.marginals(each)) for each in self.energies]
        return replace(members[0], labels=torch.stack([each.labels for each in members]).mean(0))

    def log_prob(self, labels: Tensor) -> Tensor:
        """Return log P(labels), (instances,), exactly.

        Raises:
            ValueError: more than 22 labels, unless their graph is sparse.
        """
        members = [energy.score(labels) - inference.log_partition(energy) for energy in self.energies]
        return torch.stack(members).logsumexp(0) - math.log(len(members))

    def log_weights(self, codes: Tensor) -> Tensor:
        """Return the scores of label vectors (classes, 1, labels), (classes, instances)."""
        return torch.stack([energy.score(codes) for energy in self.energies]).logsumexp(0)
