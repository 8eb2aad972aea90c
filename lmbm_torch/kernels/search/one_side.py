"""Sums over the second side of a restricted Boltzmann machine, for labellings of the first side.

From labelling to labelling, the odds e^f of the second side's fields change by one factor per differing
label, and Σ_j log(1 + e^f_j) is a single logarithm of a product. For labellings in the order of binary
numbers, a unit takes two or three multiplications instead of a row of a matrix product, an exponential and a
logarithm. Odds of fields must not overflow, see :func:`~lmbm_torch.kernels.search.records.suits`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.kernels.jit import fast, fast_part
from lmbm_torch.kernels.matrix_bp.compiled.rows import exponent, mantissa
from lmbm_torch.kernels.search.records import TILE, most_field
from lmbm_torch.kernels.threads import share

_LOG_RANGE = 640.0

# Number of labellings per task. Each task computes its initial odds, so that rounding errors do not
# accumulate over many labellings, and results do not depend on the number of threads.
_ROWS = 256

# Labellings with smaller weights are skipped: even 2^22 of them together are smaller than rounding errors.
_NEGLIGIBLE = 1e-26

Work = Callable[[int, slice, np.ndarray, np.ndarray, np.ndarray], None]


def log_sums(labels: Tensor, hidden: Tensor, coupling: Tensor) -> Tensor:
    """Return Σ_j log(1 + e^f_j) of fields f = hidden + labelsᵀ coupling, (samples, batch).

    Args:
        labels: (samples, batch or 1, labels) of {0, 1}.
        hidden: (batch, others), fields of the second side without labels.
        coupling: (labels, others).
    """
    per_flush = max(1, int(_LOG_RANGE / max(most_field(hidden, coupling), 1.0)))
    values = np.empty((len(labels), len(hidden)))

    def work(example: int, rows: slice, signs: np.ndarray, odds: np.ndarray, up: np.ndarray) -> None:
        _log_sums(signs, odds, up, 1 / up, per_flush, values[rows, example])

    _share_rows(labels, hidden, coupling, work)
    return torch.from_numpy(values).to(hidden.dtype)


def expected_sum(labels: Tensor, weights: Tensor, hidden: Tensor, coupling: Tensor) -> Tensor:
    """Return Σ_s weights_s σ(f_s), (batch, others), with the fields f of :func:`log_sums`.

    Args:
        weights: (samples, batch), the weights of the labellings.
    """
    pieces = -(-len(labels) // _ROWS)
    sums = np.zeros((pieces, *hidden.shape))
    shares = weights.double().numpy()

    def work(example: int, rows: slice, signs: np.ndarray, odds: np.ndarray, up: np.ndarray) -> None:
        _expected_sum(signs, shares[rows, example], odds, up, 1 / up, sums[rows.start // _ROWS, example])

    _share_rows(labels, hidden, coupling, work)
    return torch.from_numpy(sums.sum(0)).to(hidden.dtype)


def _share_rows(labels: Tensor, hidden: Tensor, coupling: Tensor, work: Work) -> None:
    """Call ``work`` for blocks of labellings, with example, rows, labels, odds at labels 0, and factors."""
    signs = labels.to(torch.int8).numpy()
    odds = hidden.detach().double().exp().numpy()
    # Both sides must have the same memory layout, so that the kernel is compiled only once.
    factors = coupling.detach().double().exp().contiguous().numpy()
    pieces = [slice(first, first + _ROWS) for first in range(0, len(signs), _ROWS)]
    tasks = [(example, rows) for example in range(len(hidden)) for rows in pieces]

    def run(task: tuple[int, slice]) -> None:
        example, rows = task
        own = np.ascontiguousarray(signs[rows, example % signs.shape[1]])
        work(example, rows, own, odds[example].copy(), factors)

    share(tasks, run)


@fast_part
def _move(odds, state, labels, up, down):
    """Update the odds when the labels change from ``state`` to ``labels``."""
    for i in range(len(labels)):
        if labels[i] > state[i]:
            for j in range(odds.shape[0]):
                odds[j] *= up[i, j]
        elif labels[i] < state[i]:
            for j in range(odds.shape[0]):
                odds[j] *= down[i, j]
        state[i] = labels[i]


@fast
def _log_sums(labels, odds, up, down, per_flush, values):
    state = np.zeros(labels.shape[1], np.int8)
    product, power = np.empty(TILE), np.empty(TILE)
    for row in range(labels.shape[0]):
        _move(odds, state, labels[row], up, down)
        product[:], power[:] = 1.0, 0.0
        multiplied = 0
        for start in range(0, len(odds), TILE):
            some = odds[start : start + TILE]
            for k in range(some.shape[0]):
                product[k] *= 1 + some[k]
            multiplied += 1
            if multiplied == per_flush:
                multiplied = 0
                for k in range(TILE):
                    power[k] += exponent(product[k])
                    product[k] = mantissa(product[k])
        total, whole = 1.0, 0.0
        for k in range(TILE):
            whole += power[k] + exponent(product[k])
            total *= mantissa(product[k])
        values[row] = math.log(total) + whole * math.log(2.0)


@fast
def _expected_sum(labels, weights, odds, up, down, sums):
    state = np.zeros(labels.shape[1], np.int8)
    for row in range(labels.shape[0]):
        weight = weights[row]
        if weight > _NEGLIGIBLE:
            _move(odds, state, labels[row], up, down)
            for j in range(odds.shape[0]):
                sums[j] += weight * (odds[j] / (1 + odds[j]))
