"""Compiled enumeration for :func:`lmbm_torch.inference.exact.decode`, where a batch shares its couplings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from lmbm_torch.backends.installed import compiled
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.shapes import Int


def suits(energy: PairwiseEnergy) -> bool:
    """Whether couplings are shared, tensors on the CPU, and numba is installed."""
    return energy.pairwise.ndim == 2 and energy.device.type == "cpu" and _search() is not None


def best_numbers(energy: PairwiseEnergy) -> Int[torch.Tensor, " batch"]:
    """The number of each example's labelling of largest score, label 0 its most significant bit.

    The energy is one that :func:`suits`, its values checked.
    """
    search = _search()
    assert search is not None
    tensors = (energy.unary, energy.pairwise)
    return torch.from_numpy(search(*(each.detach().contiguous().numpy() for each in tensors)))


def _search() -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    """The compiled search where numba is installed; else (said once) none."""
    found = compiled("search.enumeration", "enumeration")
    return None if found is None else found.best_numbers
