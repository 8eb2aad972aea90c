"""What samples say of a network whose couplings all examples share.

All examples' samples are made from the same random numbers: no answer depends on the others of its batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.backends.installed import kernels
from lmbm_torch.backends.sampling.plain.chances import Chances
from lmbm_torch.backends.sampling.plain.most_f1 import Answers
from lmbm_torch.backends.sampling.plain.network import Network
from lmbm_torch.energies import DirectedEnergy

__all__ = ["is_for", "labellings_of_most_f1", "mean_chances"]


def is_for(energy: object) -> bool:
    """Whether an energy is such a network, on the CPU."""
    return (
        isinstance(energy, DirectedEnergy)
        and energy.device.type == "cpu"
        and energy.parents.ndim == 2
        and energy.clique_weight is None
    )


def labellings_of_most_f1(
    energy: DirectedEnergy, num_samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The best labelling of each example, (batch, labels), its mean F1 against the samples, and its error."""
    search = kernels("sampling.most_f1", "decoding for F1 by samples")
    answers: Answers = search.labellings_of_most_f1(_network(energy), _noise(energy, num_samples, generator))
    labels = torch.from_numpy(answers.labels).long()[:, energy.positions]
    error = (torch.from_numpy(answers.variance) / num_samples).sqrt()
    return labels, torch.from_numpy(answers.mean), error


def mean_chances(
    energy: DirectedEnergy, num_samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """The means of P(y_i = 1 | y_pa(i)), (batch, labels), in float64, and their standard errors."""
    draw = kernels("sampling.chances", "sampling of marginals")
    chances: Chances = draw.mean_chances(_network(energy), _noise(energy, num_samples, generator))
    error = (torch.from_numpy(chances.variance) / (num_samples - 1)).sqrt()
    return torch.from_numpy(chances.mean)[:, energy.positions], error[:, energy.positions]


def _noise(energy: DirectedEnergy, num_samples: int, generator: torch.Generator | None) -> np.ndarray:
    uniform = torch.rand(num_samples, energy.num_labels, dtype=torch.float64, generator=generator)
    return uniform.logit().numpy()


def _network(energy: DirectedEnergy) -> Network:
    """Spins as labels: log-odds are twice the fields, and a parent's spin moves them by two."""
    ordered = energy.in_order()
    parents = ordered.parents.double().numpy()
    parent, child = np.nonzero(parents.T)
    start = np.searchsorted(parent, np.arange(energy.num_labels + 1))
    log_odds = 2 * (ordered.unary.double().numpy() - parents.sum(1))
    return Network(np.ascontiguousarray(log_odds), start, child, 4 * parents[child, parent])
