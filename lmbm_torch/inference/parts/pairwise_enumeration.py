"""Compiled enumeration for :func:`lmbm_torch.inference.exact.decode`, where a batch shares its couplings."""

from __future__ import annotations

import torch

from lmbm_torch.backends.installed import compiled
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.shapes import Int


def suits(energy: PairwiseEnergy) -> bool:
    """Whether couplings are shared, tensors on the CPU, and numba installed (said once where it is not)."""
    is_plain = energy.pairwise.ndim == 2 and energy.device.type == "cpu"
    return is_plain and compiled("search.enumeration", "enumeration") is not None


def best_numbers(energy: PairwiseEnergy) -> Int[torch.Tensor, " batch"]:
    """The number of each example's labelling of largest score, label 0 its most significant bit.

    The energy is one that :func:`suits`, its values checked.
    """
    kernel = compiled("search.enumeration", "enumeration")
    assert kernel is not None
    tensors = (energy.unary, energy.pairwise)
    return torch.from_numpy(kernel.best_numbers(*(each.detach().contiguous().numpy() for each in tensors)))
