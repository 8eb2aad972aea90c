"""Expectations over samples or weighted labellings of directed models.

For conditional probabilities, samples are drawn in blocks that are contiguous in memory, for vectorised
additions. For F1, a sample starts from the log-odds for labels 0; each label that is drawn as 1 changes the
log-odds of its children. Only few sizes of label sets are examined for the best F1. The worth of a label (a
contribution to the mean F1) decreases with the size: the worths at one size bound all larger sizes.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import fast, inlined
from lmbm_torch.kernels.search.records import Answers, Chances, Network
from lmbm_torch.kernels.threads import by_rows

_BLOCK = 32


def mean_chances(network: Network, noise: np.ndarray) -> Chances:
    """Return the means of σ(log-odds) over samples.

    Args:
        noise: (samples, labels), logistic noise that all examples share.
    """
    chances = Chances(np.empty(network.log_odds.shape), np.empty(network.log_odds.shape))
    by_label = np.ascontiguousarray(noise.T)
    by_rows(len(network.log_odds), lambda *rows: _chances_of_rows(network, by_label, chances, *rows))
    return chances


@fast
def _chances_of_rows(network, noise, chances, first, last, stop):
    """Compute the conditional probabilities of the examples from ``first`` up to ``last``."""
    labels, samples = noise.shape
    log_odds, drawn = np.empty((labels, _BLOCK)), np.empty(_BLOCK)
    for row in range(first, last):
        if stop[0]:
            return
        mean, squares = chances.mean[row], chances.variance[row]
        # Moments are computed after subtracting this value, which avoids cancellation in the variance.
        shift = 1 / (1 + np.exp(-network.log_odds[row]))
        mean[:], squares[:] = 0.0, 0.0
        for begin in range(0, samples, _BLOCK):
            count = min(_BLOCK, samples - begin)
            _draw_block(network, noise[:, begin : begin + count], row, log_odds, drawn)
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
def _draw_block(network, noise, row, log_odds, drawn):
    """Draw samples, and compute the log-odds of each label given the earlier labels of the sample."""
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


def labellings_of_most_f1(network: Network, noise: np.ndarray) -> Answers:
    """Return the labellings of largest mean F1 over samples.

    Args:
        noise: (samples, labels), logistic noise, equal for all examples and all batches.
    """
    batch, labels = network.log_odds.shape
    answers = Answers(np.zeros((batch, labels), np.bool_), np.empty(batch), np.empty(batch))
    by_rows(batch, lambda *rows: _answers_of_rows(network, noise, answers, *rows))
    return answers


@fast
def _answers_of_rows(network, noise, answers, first, last, stop):
    """Compute the answers of the examples from ``first`` up to ``last``."""
    samples, labels = noise.shape
    log_odds = np.empty(labels)
    ones, sizes = np.empty((samples, labels), np.int32), np.empty(samples, np.int64)
    for row in range(first, last):
        if stop[0]:
            return
        _draw_ones(network, noise, row, log_odds, ones, sizes)
        _choose(ones, sizes, answers, row)


@inlined
def _draw_ones(network, noise, row, log_odds, ones, sizes):
    """Draw the labels that are 1 in each sample, and count them."""
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
    """Write the best labelling of all sizes that can be best."""
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
    """Return the labels that occur, their counts by size of the sample, (labels, sizes), and the sizes."""
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
    """Sort labels by decreasing worth; insertion sort is fast, because the order changes little."""
    for place in range(1, len(order)):
        value, label, before = worth[place], order[place], place - 1
        while before >= 0 and worth[before] < value:
            worth[before + 1], order[before + 1] = worth[before], order[before]
            before -= 1
        worth[before + 1], order[before + 1] = value, label


@inlined
def _measure(ones, sizes, answers, row, best_size):
    """Compute mean and variance of the F1 of the chosen labelling."""
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


def size_masses(labels: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ_y P(y) [|y| = s] y_i, (batch, sizes, labels), and P(|y| = s), (batch, sizes), for sizes s ≥ 0.

    Args:
        labels: (batch, labellings, labels) of {0, 1}, int64.
        probability: (batch, labellings), float64.
    """
    batch, _, width = labels.shape
    of_labels, of_sizes = np.zeros((batch, width + 1, width)), np.zeros((batch, width + 1))
    _add_masses(labels, probability, of_labels, of_sizes)
    return of_labels, of_sizes


@fast
def _add_masses(labels, probability, of_labels, of_sizes):
    for row in range(len(labels)):
        for one in range(labels.shape[1]):
            own, share = labels[row, one], probability[row, one]
            size = own.sum()
            of_sizes[row, size] += share
            if share != 0:
                total = of_labels[row, size]
                for label in range(len(own)):
                    total[label] += share * own[label]
