"""Search for the most probable labellings of belief networks.

For each example, the search decides one label after another, and keeps the prefixes (labellings of the first
labels) above a threshold of the probability. If too much probability is left out, the search starts again
with a lower threshold. :mod:`lmbm_torch.inference.search.most_probable` is the reference with tensors.
Probabilities are relative to the best prefix; a prefix then takes one exponential. Labels are bits, and a
field is a sum of table entries for groups of four labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lmbm_torch.kernels.jit import SUMS, fast, njit, part
from lmbm_torch.kernels.threads import by_rows

# Labels per table entry; below, labels per word of bits, and prefixes from which a table is faster.
_GROUP = 4
_WORD = 60
_LEAST_PREFIXES = 12
# Relative probabilities are rescaled if they are below _SMALL; thresholds are at least _LEAST.
_SMALL = 1e-100
_LEAST = 1e-300
# A positive float belongs to the bin that its bits, shifted right by _UNBINNED, give as an integer: 32 bins
# for each power of two. _BINS is the number of bins; all smaller floats share the last bin.
_UNBINNED = 47
_BINS = 1024

_step = part(nogil=True, fastmath=SUMS, error_model="numpy")


class Network(NamedTuple):
    """A belief network, with labels in the order of the model, in float64.

    Args:
        unary: (batch, labels), fields without parents.
        parents: (1 or batch, labels, labels), row t has the weights of the labels before label t.
        clique_start: (labels + 1,), the first clique of each child, then the number of cliques.
        clique_parents: (cliques, largest number of parents), padded with −1.
        clique_weight: (1 or batch, cliques), weights of the cliques.
    """

    unary: np.ndarray
    parents: np.ndarray
    clique_start: np.ndarray
    clique_parents: np.ndarray
    clique_weight: np.ndarray


class Limits(NamedTuple):
    """The conditions under which a search ends, and the thresholds of its passes.

    A pass finds all labellings whose probability is at least the threshold.

    Args:
        mass_left: largest total probability of the labellings that are not found.
        width: largest number of labellings that are kept.
        step: by how much the logarithm of the threshold falls from pass to pass.
        slack: by how much the first threshold's logarithm is lowered, against rounding.
    """

    mass_left: float
    width: int
    step: float
    slack: float


class Found(NamedTuple):
    """The labellings of one example.

    Args:
        log_prob: (found,), log-probabilities of the labellings, largest first.
        bits: (found, words), the labels.
        left: share of the labellings not found in the probability of all labellings with the known labels.
        log_known: upper bound on log P(known).
        reached: whether ``left`` is at most the limit.
        nodes: number of expanded prefixes.
    """

    log_prob: np.ndarray
    bits: np.ndarray
    left: float
    log_known: float
    reached: bool
    nodes: int


def labellings(network: Network, known: np.ndarray, limits: Limits) -> list[Found]:
    """Return the most probable labellings of each example, until little mass is left or ``width`` are found.

    Args:
        known: (batch, labels), in the order of the network; −1 for a free label.
    """
    return _by_example(len(known), lambda row, stop: _search(network, known[row], row, limits, stop))


def above(network: Network, known: np.ndarray, least: np.ndarray, width: int) -> list[Found]:
    """Return the labellings of each example with a log-probability of at least ``least``.

    ``reached`` tells whether the list is complete; if there are more than ``width`` prefixes of a length,
    some are dropped. If an example has no such labelling, one greedy labelling is returned.

    Args:
        known: (batch, labels), in the order of the network; −1 for a free label.
        least: (batch,), the smallest log-probability.
    """
    return _by_example(
        len(known), lambda row, stop: _above(network, known[row], row, least[row], width, stop)
    )


def _by_example(count: int, search: Callable[[int, np.ndarray], tuple]) -> list[Found]:
    found: list[Found | None] = [None] * count

    def work(first: int, last: int, stop: np.ndarray) -> None:
        for row in range(first, last):
            found[row] = Found(*search(row, stop))

    by_rows(count, work)
    return [each for each in found if each is not None]


def read_labels(bits: np.ndarray, ordering: np.ndarray, labels: np.ndarray) -> None:
    """Convert bits (found, words) to ``labels`` (found, labels)."""

    def work(first: int, last: int, stop: np.ndarray) -> None:
        if not stop[0]:
            _read(bits[first:last], ordering, labels[first:last])

    by_rows(len(bits), work)


@njit(nogil=True, cache=True)
def _read(bits, ordering, labels):
    for one in range(len(bits)):
        for first in range(0, len(ordering), _WORD):
            word = bits[one, first // _WORD]
            for position in range(first, min(first + _WORD, len(ordering))):
                labels[one, ordering[position]] = word & 1
                word >>= 1


@fast
def _search(network, known, row, limits, stop):
    """Return the fields of :class:`Found`, in order, for a search with several thresholds."""
    least, nodes = -np.inf, 0
    if limits.mass_left > 0:
        log_prob, bits, mass, _, nodes = _sweep(network, known, row, np.inf, 1, stop)
        least = np.log((np.exp(log_prob[0]) + mass) * limits.mass_left)
        least = min(log_prob[0], least) - limits.slack
    while True:
        log_prob, bits, mass, is_cut, expanded = _sweep(network, known, row, least, limits.width, stop)
        nodes += expanded
        total = np.exp(log_prob).sum() + mass
        # If the known values are impossible, the total is 0.
        share = mass / total if total > 0 else 1.0
        reached = share <= limits.mass_left
        # Labellings not found are less probable than the threshold, so at least this number is missing.
        missing = (share - limits.mass_left) * total / np.exp(least)
        if reached or is_cut or stop[0] or not len(log_prob) + missing <= limits.width:
            break
        least -= limits.step
    order = np.argsort(-log_prob, kind="mergesort")
    return log_prob[order], bits[order], share, np.log(total), reached, nodes


@fast
def _above(network, known, row, least, width, stop):
    """Return the fields of :class:`Found`, in order, for a single threshold."""
    log_prob, bits, mass, is_cut, nodes = _sweep(network, known, row, least, width, stop)
    total = np.exp(log_prob).sum() + mass
    order = np.argsort(-log_prob, kind="mergesort")
    return log_prob[order], bits[order], mass / total, np.log(total), not is_cut, nodes


@_step
def _sweep(network, known, row, least, width, stop):
    """Run one pass: keep prefixes of log-probability ``least``, at most ``width`` of each length.

    Returns:
        Log-probabilities of the labellings; their bits; the probability of all dropped prefixes; whether a
        dropped prefix was as probable as ``least``; the number of expanded prefixes. One prefix always stays.
    """
    values, bits = np.ones(1), np.zeros((1, (len(known) - 1) // _WORD + 1), np.int64)
    offset, mass, is_cut, nodes = 0.0, 0.0, False, 0
    for position in range(len(known)):
        if stop[0]:
            break
        nodes += len(values)
        children = _children(network, known[position], row, position, values, bits)
        # If ``least`` is too small to represent, the smallest threshold is used.
        relative = max(np.exp(least - offset), _LEAST if least > -np.inf else 0.0)
        bar, kept, equals, is_full = _bar(children, relative, width)
        is_cut |= is_full
        values, bits, dropped = _kept(children, bits, position, bar, kept, equals)
        mass += dropped * np.exp(offset)
        best = values.max()
        if 0 < best < _SMALL:
            values /= best
            offset += np.log(best)
    return np.log(values) + offset, bits, mass, is_cut, nodes


@_step
def _children(network, given, row, position, values, bits):
    """Return the probability of each prefix followed by 0 and by 1, (2 · prefixes,).

    The value is −1 if the new label contradicts a known label.
    """
    fields = _fields(network, row, position, bits)
    children = np.empty(2 * len(values))
    for node in range(len(values)):
        less = np.exp(-2 * abs(fields[node]))
        more = values[node] / (1 + less)
        agrees = fields[node] >= 0
        children[2 * node + agrees] = more
        children[2 * node + 1 - agrees] = more * less
    if given >= 0:
        children[1 - given :: 2] = -1.0
    return children


@_step
def _fields(network, row, position, bits):
    """Return the local field of the label at a position, given each prefix, (prefixes,)."""
    parents = network.parents[row if len(network.parents) > 1 else 0, position]
    fields = np.full(len(bits), network.unary[row, position])
    if len(bits) < _LEAST_PREFIXES:
        for node in range(len(bits)):
            for first in range(0, position, _WORD):
                word, total = bits[node, first // _WORD], 0.0
                for label in range(first, min(first + _WORD, position)):
                    total += parents[label] * (2 * (word & 1) - 1)
                    word >>= 1
                fields[node] += total
    else:
        table = _table(parents, position)
        for node in range(len(bits)):
            total = 0.0
            for first in range(0, len(table), _WORD // _GROUP):
                word = bits[node, first // (_WORD // _GROUP)]
                for group in range(first, min(first + _WORD // _GROUP, len(table))):
                    total += table[group, word & (2**_GROUP - 1)]
                    word >>= _GROUP
            fields[node] += total
    for clique in range(network.clique_start[position], network.clique_start[position + 1]):
        weight = network.clique_weight[row if len(network.clique_weight) > 1 else 0, clique]
        for node in range(len(bits)):
            term = weight
            for label in network.clique_parents[clique]:
                if label >= 0 and not (bits[node, label // _WORD] >> (label % _WORD)) & 1:
                    term = -term
            fields[node] += term
    return fields


@_step
def _table(parents, position):
    """Return the effects of groups of four earlier labels on the field, (groups, values of four labels)."""
    table = np.zeros(((position + _GROUP - 1) // _GROUP, 2**_GROUP))
    for label in range(position):
        own, size = table[label // _GROUP], 1 << (label % _GROUP)
        for code in range(size):
            own[code + size] = own[code] + parents[label]
            own[code] -= parents[label]
    return table


@_step
def _bar(children, least, width):
    """Choose the threshold for keeping children.

    Returns:
        The smallest probability to keep; how many children are kept; how many of these have exactly this
        probability; whether children above ``least`` are dropped.
    """
    likely, best = 0, 0.0
    for value in children:
        likely += value >= least
        best = max(best, value)
    if likely == 0:
        return best, 1, 1, False
    if likely <= width:
        return least, likely, likely, False
    bar = _largest(children, best, width)
    above = 0
    for value in children:
        above += value > bar
    return bar, width, width - above, True


@_step
def _largest(children, best, width):
    """Return the ``width``-th largest value; at least ``width`` values must not be negative."""
    numbers = children.view(np.int64)
    # Positive floats are ordered like their bits, so the upper bits give bins below the best value.
    top = np.array([best]).view(np.int64)[0] >> _UNBINNED
    counts = np.zeros(_BINS, np.int64)
    for number in numbers:
        if number >= 0:
            counts[min(top - (number >> _UNBINNED), _BINS - 1)] += 1
    place, above = 0, 0
    while above + counts[place] < width:
        above += counts[place]
        place += 1
    some = np.empty(counts[place])
    count = 0
    for node in range(len(numbers)):
        if numbers[node] >= 0 and min(top - (numbers[node] >> _UNBINNED), _BINS - 1) == place:
            some[count] = children[node]
            count += 1
    some.sort()
    return some[count - (width - above)]


@_step
def _kept(children, bits, position, bar, kept, equals):
    """Return probabilities and bits of the kept children, and the probability of the dropped children."""
    values, longer, dropped, count = np.empty(kept), np.empty((kept, bits.shape[1]), np.int64), 0.0, 0
    word, one = position // _WORD, 1 << (position % _WORD)
    for child in range(len(children)):
        value = children[child]
        if value < 0:
            continue
        is_kept = value > bar
        if value == bar and equals > 0:
            is_kept = True
            equals -= 1
        if is_kept:
            values[count] = value
            for each in range(bits.shape[1]):
                longer[count, each] = bits[child // 2, each]
            if child % 2:
                longer[count, word] |= one
            count += 1
        else:
            dropped += value
    return values, longer, dropped
