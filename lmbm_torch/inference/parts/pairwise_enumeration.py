"""Compiled enumeration of all labellings, or of allowed ones, where a batch shares its couplings."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from lmbm_torch.backends.installed import compiled
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.results import Decoding, Status
from lmbm_torch.inference.routes import LIMITS
from lmbm_torch.shapes import Int

# Constraints whose labellings are kept.
NUM_KEPT = 16


def suits(energy: PairwiseEnergy) -> bool:
    """Whether couplings are shared, tensors on the CPU, and numba installed (said once where it is not)."""
    is_plain = energy.pairwise.ndim == 2 and energy.device.type == "cpu"
    return is_plain and compiled("search.enumeration", "enumeration") is not None


@torch.no_grad()
def decode(energy: PairwiseEnergy) -> Decoding | None:
    """The best labellings by the compiled kernel, where it suits and they are few enough; else None."""
    if energy.num_labels > LIMITS.enumerable or not suits(energy):
        return None
    energy.check_values()
    labels = best_labels(energy)
    objective = energy.score(labels)
    return Decoding(labels, objective, objective.clone(), Status.certain(energy, 2**energy.num_labels))


def best_labels(
    energy: PairwiseEnergy, constraints: Constraints | None = None
) -> Int[torch.Tensor, "batch labels"]:
    """Each example's labelling of largest score, of equals up to rounding the first one.

    Args:
        energy: one that :func:`suits`, its values checked.
        constraints: over its labels; None to let all labellings compete.
    """
    kernel = compiled("search.enumeration", "enumeration")
    assert kernel is not None
    tensors = (each.detach().contiguous().numpy() for each in (energy.unary, energy.pairwise))
    numbers = kernel.best_numbers(*tensors, None if constraints is None else _allowed(constraints))
    return torch.from_numpy(_bits(numbers, energy.num_labels))


@lru_cache(NUM_KEPT)
def _allowed(constraints: Constraints) -> np.ndarray:
    """Which labellings obey the rules, by number; (2^labels,)."""
    every = _bits(np.arange(2**constraints.num_labels), constraints.num_labels)
    return np.logical_not(constraints.violated(every).any(1))


def _bits(numbers: np.ndarray, num_labels: int) -> np.ndarray:
    """The labellings of these numbers, whose most significant bit is label 0."""
    return numbers[:, None] >> np.arange(num_labels - 1, -1, -1) & 1
