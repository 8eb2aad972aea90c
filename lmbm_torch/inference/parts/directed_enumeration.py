"""Compiled enumeration of the prefixes of directed models."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import torch

from lmbm_torch.backends.installed import compiled
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.inference.results import Marginals, Status
from lmbm_torch.shapes import Known
from lmbm_torch.verdicts import is_traced

# Fewer are enumerated in a millisecond as they come, without the kernel's compilation before.
LEAST_LABELS = 11
# What is known and less probable is summed in logarithms.
LEAST_KNOWN = 1e-200


def marginals(energy: DirectedEnergy, known: Known | None = None) -> Marginals | None:
    """Those of an energy whose values are checked, summed in float64 to within 1e-12, by the compiled kernel.

    None where it does not suit: with cliques, elsewhere than on the CPU, with few labels, or without numba
    (said once); or where what is known is less probable than ``LEAST_KNOWN``.

    Args:
        known: {0, 1, NaN}, checked.
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
    # The conditional distributions sum to 1, where nothing is known.
    free = energy.num_labels if known is None else known.isnan().sum(-1)
    status = Status.certain(energy, 2**energy.num_labels)
    if known is not None:
        status = replace(status, num_iters=2**free)
        labels = labels.where(known.isnan(), known)
    return Marginals(labels, total.log().to(energy.dtype), status)


def kernel_for(energy: DirectedEnergy) -> ModuleType | None:
    """The kernel, if it is for such an energy."""
    suits = not energy.cliques and energy.device.type == "cpu" and energy.num_labels >= LEAST_LABELS
    if not suits or is_traced():
        return None
    return compiled("search.directed_sums", "enumeration")
