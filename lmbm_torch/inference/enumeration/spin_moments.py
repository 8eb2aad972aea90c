"""Means of spins and of products of two spins over all labellings: gradients of log partitions."""

from __future__ import annotations

import torch
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.enumeration import half_products
from lmbm_torch.inference.enumeration.half_products import Moments
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float
from lmbm_torch.verdicts import one_door

__all__ = []

# Bytes of the scores of all labellings of the examples that are enumerated together.
BLOCK_BYTES = 16 * 2**20


@one_door
@torch.no_grad()
def moments(energy: PairwiseEnergy, weight: Float[Tensor, " batch"]) -> Moments:
    """Return the moments of examples with shared couplings, by halves of the labels.

    An example is enumerated if the best labellings are the best of neither half. The mean spins are the
    gradient of the log partition by the labels' log-potentials.

    Args:
        energy: a Boltzmann machine with couplings (labels, labels).
        weight: of each example in the sums of products.

    Raises:
        ValueError: NaN or infinity in the energy; own couplings of each example; weights of another shape;
            more than 22 labels.
    """
    energy.check_values()
    if energy.pairwise.ndim != 2:
        raise ValueError("energy: expected couplings (labels, labels) that examples share, got their own")
    if energy.num_labels > LIMITS.enumerable:
        raise ValueError(f"energy: expected at most {LIMITS.enumerable} labels, got {energy.num_labels}")
    check_shape("weight", weight, energy.batch_size)
    unary, coupling, weight = (each.double() for each in (energy.unary, energy.pairwise, weight))
    found = half_products.moments(unary, coupling, weight)
    alone = (~found.is_safe).nonzero()[:, 0]
    spins, products, log_sums = found.spins, found.products, found.log_partition
    if len(alone):
        every = 2 * half_products.labellings(energy.num_labels, unary) - 1
        own, size = (every @ coupling * every).sum(1) / 2, len(every) * unary.itemsize
        for rows in alone.split(max(1, part_bytes(BLOCK_BYTES) // size)):
            scores = torch.addmm(own, unary[rows], every.mT)
            shares = scores.softmax(1)
            spins[rows], log_sums[rows] = shares @ every, scores.logsumexp(1)
            products = products + every.mT * (weight[rows] @ shares) @ every
    spins, products, log_sums = (each.to(energy.dtype) for each in (spins, products, log_sums))
    return Moments(spins, products, log_sums + energy.constant, torch.ones_like(found.is_safe))
