"""The labelling of largest mean F1 against samples of a directed model, compiled.

A sample is made from the log-odds of labels that are all 0: each label that is drawn as 1 changes those of
its children, and of many labels few are. Of the sizes that an answer may have few are looked at: what a label
is worth falls with the size, so that the best worths at one size bound what every larger size is worth.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import fast, inlined
from lmbm_torch.kernels.sampling.plain.most_f1 import Answers
from lmbm_torch.kernels.sampling.plain.network import Network
from lmbm_torch.kernels.threads import by_rows


def labellings_of_most_f1(network: Network, noise: np.ndarray) -> Answers:
    """See :func:`lmbm_torch.kernels.sampling.plain.most_f1.labellings_of_most_f1`."""
    batch, labels = network.log_odds.shape
    answers = Answers(np.zeros((batch, labels), np.bool_), np.empty(batch), np.empty(batch))
    by_rows(batch, lambda *rows: _of_rows(network, noise, answers, *rows))
    return answers


@fast
def _of_rows(network, noise, answers, first, last, stop):
    """Answer the examples from ``first`` up to ``last``."""
    samples, labels = noise.shape
    log_odds = np.empty(labels)
    ones, sizes = np.empty((samples, labels), np.int32), np.empty(samples, np.int64)
    for row in range(first, last):
        if stop[0]:
            return
        _draw(network, noise, row, log_odds, ones, sizes)
        _choose(ones, sizes, answers, row)


@inlined
def _draw(network, noise, row, log_odds, ones, sizes):
    """The labels that are 1 in each sample, and how many."""
    for sample in range(len(noise)):
        log_odds[:] = network.log_odds[row]
        count = 0
        for label in range(len(log_odds)):
            if log_odds[label] > noise[sample, label]:
                ones[sample, count] = label
                count += 1
                for edge in range(network.start[label], network.start[label + 1]):
                    log_odds[network.child[edge]] += network.step[edge]
        sizes[sample] = count


@inlined
def _choose(ones, sizes, answers, row):
    """The best answer of the sizes that may be best."""
    samples, best = len(sizes), answers.labels[row]
    order, counts, values = _counts(ones, sizes, len(best))
    worth, gains = np.empty(len(order)), np.empty(len(values))
    most, best_size = 0.0, 0
    if len(values) and values[0] == 0:
        most = (sizes == 0).sum() / samples
    size = 1
    while size <= len(order):
        for column in range(len(values)):
            gains[column] = 2 / (samples * (size + values[column]))
        for place in range(len(order)):
            total = 0.0
            for column in range(len(values)):
                total += counts[order[place], column] * gains[column]
            worth[place] = total
        _sort(worth, order)
        total = worth[:size].sum()
        if total > most:
            most, best_size = total, size
            best[:] = False
            for place in range(size):
                best[order[place]] = True
        size += 1
        while size <= len(order) and total + worth[size - 1] <= most:
            total += worth[size - 1]
            size += 1
    _measure(ones, sizes, answers, row, best_size)


@inlined
def _counts(ones, sizes, labels):
    """The labels that occur, how often each does in samples of each size, (labels, sizes), and the sizes."""
    column_of = np.full(labels + 1, -1)
    for size in sizes:
        column_of[size] = 0
    values = np.flatnonzero(column_of == 0)
    for column in range(len(values)):
        column_of[values[column]] = column
    counts = np.zeros((labels, len(values)))
    occurs = np.zeros(labels, np.bool_)
    for sample in range(len(sizes)):
        for place in range(sizes[sample]):
            label = ones[sample, place]
            occurs[label] = True
            counts[label, column_of[sizes[sample]]] += 1.0
    return np.flatnonzero(occurs), counts, values


@inlined
def _sort(worth, order):
    """Sort by falling worth, by insertion: from one size to the next few labels change places."""
    for place in range(1, len(order)):
        value, label, before = worth[place], order[place], place - 1
        while before >= 0 and worth[before] < value:
            worth[before + 1], order[before + 1] = worth[before], order[before]
            before -= 1
        worth[before + 1], order[before + 1] = value, label


@inlined
def _measure(ones, sizes, answers, row, best_size):
    """Mean and variance of the answer's F1."""
    samples, best = len(sizes), answers.labels[row]
    total = squares = 0.0
    for sample in range(samples):
        both = 0
        for place in range(sizes[sample]):
            both += best[ones[sample, place]]
        gain = 1.0 if sizes[sample] + best_size == 0 else 2 * both / (sizes[sample] + best_size)
        total += gain
        squares += gain * gain
    answers.mean[row] = total / samples
    answers.variance[row] = max(0.0, squares / samples - (total / samples) ** 2)
