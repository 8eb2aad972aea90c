"""Sums over all labellings of pairwise models, half of the labels against the other half.

A labelling's score is a number of its first half, one of its second half, and the couplings between both: the
scores of all pairs of halves are a matrix product, and a labelling takes a few additions and an exponential.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lmbm_torch.energies import Energy, PairwiseEnergy, to_spins
from lmbm_torch.inference.results import Marginals, Status
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float, Int, Known

# Of fewer free labels all examples of a batch are faster summed at once, which single ones gain nothing by.
LEAST_FREE, LEAST_OF_FEW, FEW = 15, 12, 4
# Bytes of the scores that are summed together, which stay in the processor's cache.
BLOCK_BYTES = 2 * 2**20


def marginals(energy: Energy, known: Known | None = None) -> Marginals | None:
    """Those of an energy whose values are checked, example by example.

    None where it does not suit: another than a pairwise one on the CPU, with few labels, or compiled code.

    Args:
        known: {0, 1, NaN}, checked.
    """
    if not isinstance(energy, PairwiseEnergy) or torch.compiler.is_compiling():
        return None
    least = LEAST_OF_FEW if energy.batch_size <= FEW else LEAST_FREE
    if energy.device.type != "cpu" or energy.num_labels < least:
        return None
    free = torch.ones_like(energy.unary, dtype=torch.bool) if known is None else known.isnan()
    counts = free.sum(1)
    if not bool((counts >= least).any()):
        return None
    labels = torch.full_like(energy.unary, torch.nan) if known is None else known.clone()
    # A spin of 0 says nothing.
    spins = to_spins(labels, energy.dtype).nan_to_num(0.0)
    log_sums = []
    for example, mask in enumerate(free):
        coupling = energy.pairwise if energy.pairwise.ndim == 2 else energy.pairwise[example]
        unary, given, places = energy.unary[example], spins[example], mask.nonzero()[:, 0]
        fields = coupling @ given
        ones, log_sum = _sums((unary + fields)[places], coupling[places][:, places])
        labels[example, places] = ones
        log_sums.append(log_sum + given @ (unary + fields / 2))
    status = Status.certain(energy, 2**counts)
    return Marginals(labels.clamp(max=1), torch.stack(log_sums) + energy.constant, status)


def log_partition(energy: Energy, known: Known | None = None) -> Float[Tensor, " batch"] | None:
    """That of an energy whose values are checked; None where :func:`marginals` is, or it takes a gradient."""
    tensors = vars(energy).values()
    if torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in tensors):
        return None
    found = marginals(energy, known)
    return None if found is None else found.log_partition


def _sums(
    unary: Float[Tensor, " free"], coupling: Float[Tensor, "free free"]
) -> tuple[Float[Tensor, " free"], Float[Tensor, ""]]:
    """P(y_i = 1) of each label, and the log partition."""
    middle = len(unary) // 2
    first, second = (_labellings(count, unary) for count in (middle, len(unary) - middle))
    spins, others = 2 * first - 1, 2 * second - 1
    own = spins @ unary[:middle] + (spins @ coupling[:middle, :middle] * spins).sum(1) / 2
    theirs = others @ unary[middle:] + (others @ coupling[middle:, middle:] * others).sum(1) / 2
    fields = spins @ coupling[:middle, middle:]
    # Everything so far is a multiple of e^largest.
    largest = torch.full_like(own[0], -torch.inf)
    total, ones = torch.zeros_like(largest), torch.zeros_like(unary)
    for rows in _blocks(len(own), len(theirs) * unary.itemsize):
        scores = torch.addmm(theirs, fields[rows], others.mT).add_(own[rows, None])
        before, largest = largest, torch.maximum(largest, scores.max())
        weights = scores.sub_(largest).exp_()
        by_row, shrunk = weights.sum(1), (before - largest).exp()
        total = total * shrunk + by_row.sum()
        ones = ones * shrunk + torch.cat([by_row @ first[rows], weights.sum(0) @ second])
    return ones / total, largest + total.log()


def _labellings(count: int, like: Tensor) -> Float[Tensor, "labellings labels"]:
    """All labellings of so many labels, in {0, 1}."""
    numbers: Int[Tensor, "labellings 1"] = torch.arange(2**count, device=like.device)[:, None]
    return (numbers >> torch.arange(count - 1, -1, -1, device=like.device) & 1).to(like.dtype)


def _blocks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Parts of the rows whose scores take ``BLOCK_BYTES`` at most."""
    size = max(1, part_bytes(BLOCK_BYTES) // row_bytes)
    return (slice(start, start + size) for start in range(0, rows, size))
