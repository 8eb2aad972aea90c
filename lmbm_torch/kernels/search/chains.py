"""Dynamic programming on chains: Viterbi's algorithm and forward–backward."""

from __future__ import annotations

import math

import numpy as np

from lmbm_torch.kernels.jit import compiled, fast
from lmbm_torch.kernels.sums import LEAST_SUM, MOST_FORBIDDEN, joins
from lmbm_torch.kernels.threads import by_rows

# With fewer pairs of states at all positions (0.5 ms, scripts/bench/crf_layer.py), one thread is fastest.
_FEW_STEPS = 10**6


def best_paths(scores, first, lengths, tables, strides, labels):
    """Write the labelling of largest score of each chain, by Viterbi's algorithm.

    Of two labellings with equal scores, the one with the lower state at the last differing position wins.

    Args:
        scores: (rows, states) log-potentials, finite or −∞, chain after chain.
        first: (chains,), first row of each chain.
        lengths: (chains,), number of rows of each chain, at least 1.
        tables: (tables, states, states) log-potentials of transitions from rows to columns, finite or −∞.
        strides: distance in ``tables`` from the first table of a chain to that of the next chain, and from
            the table of a step to that of the next step.
        labels: (rows,), written for chains with an allowed labelling.

    Returns:
        For each chain, whether there is an allowed labelling; otherwise labels stay unchanged.
    """
    are_possible = np.empty(len(first), np.bool_)
    arrays = scores, first, lengths, tables, *strides, labels, are_possible
    if len(scores) * scores.shape[1] ** 2 < _FEW_STEPS:
        _best_paths(0, len(first), *arrays, np.zeros(1, np.bool_))
    else:
        by_rows(len(first), lambda begin, end, stop: _best_paths(begin, end, *arrays, stop))
    return are_possible


@compiled
def _best_paths(
    begin, end, scores, first, lengths, tables, chain_stride, step_stride, labels, are_possible, stop
):
    longest, states = 0, scores.shape[1]
    for x in range(begin, end):
        longest = max(longest, lengths[x])
    messages = np.empty((longest, states))
    for x in range(begin, end):
        if stop[0]:
            return
        start, length = first[x], lengths[x]
        are_possible[x] = True
        for t in range(length):
            row, message = scores[start + t], messages[t]
            if t == 0:
                for s in range(states):
                    message[s] = row[s]
            else:
                table, before = tables[x * chain_stride + (t - 1) * step_stride], messages[t - 1]
                last = states - 1
                for s in range(states):
                    message[s] = before[last] + table[last, s]
                # Two rows together halve the loads and stores of messages, which are the slowest part.
                for r in range(0, last, 2):
                    steps, others, score, other_score = table[r], table[r + 1], before[r], before[r + 1]
                    for s in range(states):
                        value, other = score + steps[s], other_score + others[s]
                        value = value if value > other else other
                        message[s] = value if value > message[s] else message[s]
                for s in range(states):
                    message[s] += row[s]
            largest = message[0]
            for s in range(states):
                largest = message[s] if message[s] > largest else largest
            if largest == -np.inf:
                are_possible[x] = False
                break
            # Subtract the maximum, so that rounding errors do not grow with the length of the chain.
            for s in range(states):
                message[s] -= largest
        if not are_possible[x]:
            continue
        state = 0
        for s in range(states):
            if messages[length - 1, s] > messages[length - 1, state]:
                state = s
        labels[start + length - 1] = state
        for t in range(length - 2, -1, -1):
            message, table = messages[t], tables[x * chain_stride + t * step_stride]
            best, largest = 0, -np.inf
            for r in range(states):
                value = message[r] + table[r, state]
                if value > largest:
                    best, largest = r, value
            state = best
            labels[start + t] = state


def marginals(unary, lengths, tables, strides, nodes, edges):
    """Write P(y_t) and P(y_t, y_{t+1}) of chains, up to the length of each chain, by forward–backward.

    Args:
        unary: (chains, length, states) log-potentials whose maximum is 0 at each position; forbidden states
            have at most ``MOST_FORBIDDEN``.
        lengths: (chains,), length of each chain.
        tables: (tables, states, states) unnormalised probabilities of transitions, from ``LEAST_SUM`` to 1,
            or 0 for forbidden transitions.
        strides: see :func:`best_paths`.
        nodes: (chains, length, states), written; (0, …) if only the log partition is needed.
        edges: (chains, length − 1, states, states), written; (chains, 1, states, states) for sums over steps.

    Returns:
        The log partition (chains,) in double precision. It is NaN, and marginals are undefined, if sums of a
        chain may have lost terms by underflow, or if all labellings of a chain are forbidden.
    """
    log_partition = np.empty(len(unary))
    arrays = unary, lengths, tables, *strides, nodes, edges, log_partition
    by_rows(len(unary), lambda begin, end, stop: _marginals(begin, end, *arrays, stop))
    return log_partition


@fast
def _marginals(
    begin, end, unary, lengths, tables, chain_stride, step_stride, nodes, edges, log_partition, stop
):
    longest, states = 0, unary.shape[2]
    for x in range(begin, end):
        longest = max(longest, lengths[x])
    forward, odds = np.empty((longest, states)), np.empty((longest, states))
    ahead, behind = np.empty(states), np.empty(states)
    # Whether an allowed path leads to each state of the current and of the previous position.
    is_reached, was_reached = np.empty(states, np.bool_), np.empty(states, np.bool_)
    # If there is only one table of edges for a chain, it gets the sum over all steps.
    is_summed, whole = edges.shape[1] == 1, np.empty((states, states))
    for x in range(begin, end):
        if stop[0]:
            return
        length, total = lengths[x], 0.0
        for t in range(length):
            row, message, own = unary[x, t], forward[t], odds[t]
            for s in range(states):
                own[s], is_reached[s] = math.exp(row[s]), row[s] > MOST_FORBIDDEN
                message[s] = 1.0 if t == 0 else 0.0
            norm, is_lost = 0.0, False
            if t > 0:
                table, before = tables[x * chain_stride + (t - 1) * step_stride], forward[t - 1]
                for r in range(states):
                    steps = table[r]
                    for s in range(states):
                        message[s] += before[r] * steps[s]
                for s in range(states):
                    if message[s] < LEAST_SUM and is_reached[s]:
                        is_reached[s] = joins(table[:, s], was_reached)
                        is_lost |= is_reached[s]
            for s in range(states):
                was_reached[s] = is_reached[s]
                message[s] *= own[s]
                norm += message[s]
            if is_lost or norm < LEAST_SUM:
                total = np.nan
                break
            for s in range(states):
                message[s] /= norm
            total += math.log(norm)
        log_partition[x] = total
        if len(nodes) == 0 or math.isnan(total):
            continue
        whole[:] = 0.0
        for s in range(states):
            behind[s] = 1.0
        for t in range(length - 1, -1, -1):
            norm, largest = 0.0, 0.0
            for s in range(states):
                norm += forward[t, s] * behind[s]
            for s in range(states):
                nodes[x, t, s] = forward[t, s] * behind[s] / norm
            if t == 0:
                break
            for s in range(states):
                ahead[s] = odds[t, s] * behind[s]
                largest = max(largest, ahead[s])
            for s in range(states):
                ahead[s] /= largest
            table, norm = tables[x * chain_stride + (t - 1) * step_stride], 0.0
            for r in range(states):
                steps, behind[r] = table[r], 0.0
                for s in range(states):
                    behind[r] += steps[s] * ahead[s]
                norm += forward[t - 1, r] * behind[r]
            # If the sum of a message is this small, terms may have been lost by underflow.
            if norm < LEAST_SUM:
                log_partition[x] = np.nan
                break
            # The order of the multiplications prevents underflow of relevant values.
            if is_summed:
                for r in range(states):
                    share, steps, sums = forward[t - 1, r] / norm, table[r], whole[r]
                    for s in range(states):
                        sums[s] += share * steps[s] * ahead[s]
            else:
                for r in range(states):
                    share, steps, pairs = forward[t - 1, r] / norm, table[r], edges[x, t - 1, r]
                    for s in range(states):
                        pairs[s] = share * steps[s] * ahead[s]
        if is_summed:
            for r in range(states):
                for s in range(states):
                    edges[x, 0, r, s] = whole[r, s]
