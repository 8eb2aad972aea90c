"""Compiled enumeration: best labellings for shared couplings, and sums for directed models."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import ModuleType

import numpy as np
import torch

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, Marginals, Status
from lmbm_torch.kernels.installed import compiled
from lmbm_torch.shapes import Int, Known
from lmbm_torch.verdicts import is_traced

# Smallest number of labels of a directed model for which the kernel is used; with fewer, PyTorch takes a
# millisecond, and nothing must be compiled.
LEAST_LABELS = 11
# Smallest probability of known labels for which the kernel is used; otherwise sums are taken in logarithms.
LEAST_KNOWN = 1e-200


def marginals(energy: DirectedEnergy, known: Known | None = None) -> Marginals | None:
    """Return the marginals of a checked energy by the compiled kernel, in float64 to within 1e-12.

    The result is None if the kernel does not apply: with cliques, few labels, or on another device than the
    CPU; without numba (reported once); or if the known labels are less probable than ``LEAST_KNOWN``.

    Args:
        known: {0, 1, NaN}, already checked.
    """
    kernel = kernel_for(energy)
    if kernel is None:
        return None
    order = energy.ordering
    unary = energy.unary.index_select(-1, order)
    parents = energy.parents.index_select(-1, order).index_select(-2, order)
    given = torch.full_like(unary, -1) if known is None else known.index_select(-1, order).nan_to_num(-1)
    arrays = (each.detach().double().numpy() for each in (unary, parents, given))
    ones, total = map(torch.from_numpy, kernel.marginals(*arrays))
    if known is not None and not bool((total >= LEAST_KNOWN).all()):
        return None
    labels = (ones / total[:, None]).to(energy.dtype).index_select(-1, energy.positions)
    free = energy.num_labels if known is None else known.isnan().sum(-1)
    status = Status.certain(energy, 2**energy.num_labels)
    if known is not None:
        status = replace(status, num_iters=2**free)
        labels = labels.where(known.isnan(), known)
    return Marginals(labels, total.log().to(energy.dtype), status)


def kernel_for(energy: DirectedEnergy) -> ModuleType | None:
    """Return the kernel if it applies to this energy, else None."""
    suits = not energy.cliques and energy.device.type == "cpu" and energy.num_labels >= LEAST_LABELS
    if not suits or is_traced():
        return None
    return compiled("search.directed_sums")


# Largest number of rule sets whose allowed labellings are cached.
NUM_KEPT = 16


def suits(energy: PairwiseEnergy) -> bool:
    """Return whether the kernel applies: shared couplings, on the CPU, with numba (reported once if missing).

    In traced code the kernel does not apply.
    """
    is_plain = energy.pairwise.ndim == 2 and energy.device.type == "cpu" and not is_traced()
    return is_plain and compiled("search.enumeration") is not None


@torch.no_grad()
def decode(energy: PairwiseEnergy) -> Decoding | None:
    """Return the best labellings by the compiled kernel; None if the kernel does not apply."""
    if energy.num_labels > LIMITS.enumerable or not suits(energy):
        return None
    energy.check_values()
    labels = best_labels(energy)
    objective = energy.score(labels)
    return Decoding(labels, objective, objective.clone(), Status.certain(energy, 2**energy.num_labels))


def best_labels(
    energy: PairwiseEnergy, constraints: Constraints | None = None
) -> Int[torch.Tensor, "batch labels"]:
    """Return each example's labelling of largest score; at ties (up to rounding) the smallest number.

    Args:
        energy: an energy for which :func:`suits` is true, already checked.
        constraints: rules over the labels; None if all labellings are allowed.
    """
    kernel = compiled("search.enumeration")
    assert kernel is not None
    tensors = (each.detach().contiguous().numpy() for each in (energy.unary, energy.pairwise))
    numbers = kernel.best_numbers(*tensors, None if constraints is None else _allowed(constraints))
    return torch.from_numpy(_bits(numbers, energy.num_labels))


@lru_cache(NUM_KEPT)
def _allowed(constraints: Constraints) -> np.ndarray:
    """Return, for each labelling by its number, whether it obeys the rules, (2^labels,)."""
    every = _bits(np.arange(2**constraints.num_labels), constraints.num_labels)
    return np.logical_not(constraints.violated(every).any(1))


def _bits(numbers: np.ndarray, num_labels: int) -> np.ndarray:
    """Convert numbers to labellings, with label 0 as the most significant bit."""
    return numbers[:, None] >> np.arange(num_labels - 1, -1, -1) & 1
