"""The mean chance of each label over samples of a directed model, compiled.

Samples are drawn several at a time, one beside the other in memory, as the processor adds them.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import fast, inlined
from lmbm_torch.kernels.sampling.plain.chances import Chances
from lmbm_torch.kernels.sampling.plain.network import Network
from lmbm_torch.kernels.threads import by_rows

_BLOCK = 32


def mean_chances(network: Network, noise: np.ndarray) -> Chances:
    """See :func:`lmbm_torch.kernels.sampling.plain.chances.mean_chances`."""
    chances = Chances(np.empty(network.log_odds.shape), np.empty(network.log_odds.shape))
    by_label = np.ascontiguousarray(noise.T)
    by_rows(len(network.log_odds), lambda *rows: _of_rows(network, by_label, chances, *rows))
    return chances


@fast
def _of_rows(network, noise, chances, first, last, stop):
    """Fill in the examples from ``first`` up to ``last``."""
    labels, samples = noise.shape
    log_odds, drawn = np.empty((labels, _BLOCK)), np.empty(_BLOCK)
    for row in range(first, last):
        if stop[0]:
            return
        mean, squares = chances.mean[row], chances.variance[row]
        # What is taken off every chance: a difference of raw moments would cancel.
        shift = 1 / (1 + np.exp(-network.log_odds[row]))
        mean[:], squares[:] = 0.0, 0.0
        for begin in range(0, samples, _BLOCK):
            count = min(_BLOCK, samples - begin)
            _draw(network, noise[:, begin : begin + count], row, log_odds, drawn)
            for label in range(labels):
                total = square = 0.0
                for sample in range(count):
                    beyond = 1 / (1 + np.exp(-log_odds[label, sample])) - shift[label]
                    total += beyond
                    square += beyond * beyond
                mean[label] += total
                squares[label] += square
        for label in range(labels):
            mean[label] /= samples
            squares[label] = max(0.0, squares[label] / samples - mean[label] ** 2)
            mean[label] += shift[label]


@inlined
def _draw(network, noise, row, log_odds, drawn):
    """The log-odds of each label in each sample, given the labels before it."""
    labels, count = noise.shape
    for label in range(labels):
        for sample in range(count):
            log_odds[label, sample] = network.log_odds[row, label]
    for label in range(labels):
        some = False
        for sample in range(count):
            is_one = log_odds[label, sample] > noise[label, sample]
            drawn[sample] = is_one
            some |= is_one
        if some:
            for edge in range(network.start[label], network.start[label + 1]):
                child, step = network.child[edge], network.step[edge]
                for sample in range(count):
                    log_odds[child, sample] += step * drawn[sample]
