"""Sums over all labellings of pairwise models, half of the labels against the other half.

The score of a labelling is a number for the first half of the labels, a number for the second half, and the
couplings between the halves. Examples with shared couplings are summed together by
:mod:`~lmbm_torch.inference.enumeration.half_products`. For an example with its own couplings, a matrix
product gives the scores of all pairs of halves: a labelling takes a few additions and an exponential.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from lmbm_torch.energies import Energy, PairwiseEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.inference.common.results import Marginals, Status
from lmbm_torch.inference.enumeration import half_products
from lmbm_torch.inference.enumeration.half_products import labellings
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Bool, Float, Int, Known
from lmbm_torch.verdicts import is_traced

# Smallest number of free labels for summing examples one by one (LEAST_OF_FEW: for at most FEW examples);
# with fewer, enumeration of all examples at once is faster (scripts/bench/label_sums.py).
LEAST_FREE, LEAST_OF_FEW, FEW = 15, 12, 4
# Smallest number of labellings in the whole batch for which sums with shared couplings are used; with fewer,
# enumeration is faster (scripts/bench/label_sums.py).
LEAST_SHARED = 2**15
# Largest bytes of the scores that are summed together, so that scores stay in the CPU's cache.
BLOCK_BYTES = 2 * 2**20


def are_shared(energy: Energy) -> bool:
    """Return whether the examples are summed together: a pairwise energy with shared couplings on the CPU."""
    return isinstance(energy, PairwiseEnergy) and energy.pairwise.ndim == 2 and energy.device.type == "cpu"


def marginals(energy: Energy, known: Known | None = None) -> Marginals | None:
    """Return the marginals of a checked energy by halves of the labels.

    The result is None if the energy is not pairwise or not on the CPU, for few labellings, or in traced code.

    Args:
        known: {0, 1, NaN}, already checked.
    """
    if not isinstance(energy, PairwiseEnergy) or (free := _suited(energy, known)) is None:
        return None
    labels = torch.full_like(energy.unary, torch.nan) if known is None else known.clone()
    unary, constant = _given(energy, labels)
    log_sums = torch.zeros_like(constant)
    for rows, places in _alike(free):
        fields, alone = unary[rows][:, places], torch.arange(len(rows), device="cpu")
        if energy.pairwise.ndim == 2:
            found = half_products.sums(fields, energy.pairwise[places][:, places])
            labels[rows[:, None], places] = found.ones.to(labels)
            log_sums[rows] = found.log_partition.to(log_sums)
            alone = (~found.is_safe).nonzero()[:, 0]
            if len(alone) and len(places) < _least_alone(energy):
                return None
        for place in alone.tolist():
            row = rows[place]
            coupling = energy.pairwise if energy.pairwise.ndim == 2 else energy.pairwise[row]
            labels[row, places], log_sums[row] = _sums(fields[place], coupling[places][:, places])
    status = Status.certain(energy, 2 ** free.sum(1))
    return Marginals(labels.clamp(max=1), log_sums + constant, status)


def log_partition(energy: Energy, known: Known | None = None) -> Float[Tensor, " batch"] | None:
    """Return the log partition of a checked energy, differentiable; None if the routine does not apply.

    If a gradient is needed, the result is None for couplings of each example, too.
    """
    if not isinstance(energy, PairwiseEnergy):
        return None
    if not torch.is_grad_enabled() or not (energy.unary.requires_grad or energy.pairwise.requires_grad):
        found = marginals(energy, known)
        return None if found is None else found.log_partition
    if energy.pairwise.ndim == 3 or (free := _suited(energy, known)) is None:
        return None
    # Symmetrise, so that each of the two entries of a coupling gets half of the gradient.
    energy = replace(energy, pairwise=(energy.pairwise + energy.pairwise.mT) / 2)
    unary, constant = _given(energy, torch.full_like(energy.unary, torch.nan) if known is None else known)
    order, log_sums = [], []
    for rows, places in _alike(free):
        found, is_safe = half_products.log_partition(
            unary[rows][:, places], energy.pairwise[places][:, places]
        )
        if not bool(is_safe.all()):
            return None
        order.append(rows)
        log_sums.append(found.to(constant))
    return torch.cat(log_sums)[torch.cat(order).argsort()] + constant


def _suited(energy: PairwiseEnergy, known: Tensor | None) -> Bool[Tensor, "batch labels"] | None:
    """Return a mask of the free labels; None if enumeration is faster, or the routine does not apply."""
    if is_traced() or energy.device.type != "cpu":
        return None
    free = torch.ones_like(energy.unary, dtype=torch.bool) if known is None else known.isnan()
    most = energy.num_labels if known is None else int(free.sum(1).max())
    if energy.pairwise.ndim == 3:
        return free if most >= _least_alone(energy) else None
    enumerated = energy.batch_size << most
    if enumerated < LEAST_SHARED:
        return None
    kinds = 1 if known is None else len(free.unique(dim=0))
    return free if enumerated >= kinds * LEAST_SHARED else None


def _least_alone(energy: PairwiseEnergy) -> int:
    return LEAST_OF_FEW if energy.batch_size <= FEW else LEAST_FREE


def _given(
    energy: PairwiseEnergy, labels: Float[Tensor, "batch labels"]
) -> tuple[Float[Tensor, "batch labels"], Float[Tensor, " batch"]]:
    """Return the fields of the free labels (NaN) and the constant part of all scores, given known labels."""
    # Free labels get spin 0, which adds nothing.
    spins = to_spins(labels, energy.dtype).nan_to_num(0.0)
    fields = torch.einsum("...ij,...j->...i", energy.pairwise, spins)
    return energy.unary + fields, (spins * (energy.unary + fields / 2)).sum(1) + energy.constant


def _alike(free: Bool[Tensor, "batch labels"]) -> Iterator[tuple[Int[Tensor, " rows"], Int[Tensor, " free"]]]:
    """Yield groups of examples with the same free labels, and the indices of these labels."""
    if bool((free == free[0]).all()):
        yield torch.arange(len(free), device="cpu"), free[0].nonzero()[:, 0]
        return
    masks, kind = free.unique(dim=0, return_inverse=True)
    for index, mask in enumerate(masks):
        yield (kind == index).nonzero()[:, 0], mask.nonzero()[:, 0]


def _sums(
    unary: Float[Tensor, " free"], coupling: Float[Tensor, "free free"]
) -> tuple[Float[Tensor, " free"], Float[Tensor, ""]]:
    """Return P(y_i = 1) of each label, and the log partition, of an example without known labels."""
    middle = len(unary) // 2
    first, second = (labellings(count, unary) for count in (middle, len(unary) - middle))
    spins, others = 2 * first - 1, 2 * second - 1
    own = spins @ unary[:middle] + (spins @ coupling[:middle, :middle] * spins).sum(1) / 2
    theirs = others @ unary[middle:] + (others @ coupling[middle:, middle:] * others).sum(1) / 2
    fields = spins @ coupling[:middle, middle:]
    # To avoid overflow, keep all sums divided by e^largest.
    largest = torch.full_like(own[0], -torch.inf)
    total, ones = torch.zeros_like(largest), torch.zeros_like(unary)
    size = max(1, part_bytes(BLOCK_BYTES) // (len(theirs) * unary.itemsize))
    for start in range(0, len(own), size):
        rows = slice(start, start + size)
        scores = torch.addmm(theirs, fields[rows], others.mT).add_(own[rows, None])
        before, largest = largest, torch.maximum(largest, scores.max())
        weights = scores.sub_(largest).exp_()
        by_row, shrunk = weights.sum(1), (before - largest).exp()
        total = total * shrunk + by_row.sum()
        ones = ones * shrunk + torch.cat([by_row @ first[rows], weights.sum(0) @ second])
    return ones / total, largest + total.log()
