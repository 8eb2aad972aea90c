"""Compiled enumeration of the prefixes of directed models."""

from __future__ import annotations

import torch

from lmbm_torch.backends.installed import compiled
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.inference.results import Marginals, Status

# Fewer are enumerated in a millisecond as they come, without the kernel's compilation before.
LEAST_LABELS = 11


def marginals(energy: DirectedEnergy) -> Marginals | None:
    """Those of an energy whose values are checked, summed in float64 to within 1e-15, by the compiled kernel.

    None where it does not suit: with cliques, elsewhere than on the CPU, with few labels, or without numba
    (said once).
    """
    suits = not energy.cliques and energy.device.type == "cpu" and energy.num_labels >= LEAST_LABELS
    if not suits or torch.compiler.is_compiling():
        return None
    kernel = compiled("search.directed_sums", "enumeration")
    if kernel is None:
        return None
    order = energy.ordering
    unary = energy.unary.index_select(-1, order)
    parents = energy.parents.index_select(-1, order).index_select(-2, order)
    ones = kernel.marginals(*(each.detach().double().numpy() for each in (unary, parents)))
    labels = torch.from_numpy(ones).to(energy.dtype).index_select(-1, energy.positions)
    # The conditional distributions sum to 1.
    log_partition = torch.zeros_like(labels[:, 0])
    return Marginals(labels, log_partition, Status.certain(energy, 2**energy.num_labels))
