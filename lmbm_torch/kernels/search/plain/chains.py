"""Chains by dynamic programming in plain NumPy: the readable reference."""

from __future__ import annotations

import numpy as np


def best_paths(scores, first, lengths, tables, strides, labels):
    """Write each chain's labelling of largest score: Viterbi's.

    Of labellings that are equally good, the one with the lower state at the last position where they differ
    wins.

    Args:
        scores: (rows, states) log-potentials, finite or −∞, those of a chain one after another.
        first: (chains,), the row of each chain's first position.
        lengths: (chains,), each at least 1.
        tables: (tables, states, states) log-potentials of steps, row before and column after, likewise.
        strides: how far the table of a chain's first step lies from that of the chain before it, and the
            table of each further step from the one before.
        labels: (rows,), those of these chains are overwritten.

    Returns:
        Whether each chain has a labelling that is not forbidden; if not, its labels stay as they are.
    """
    are_possible = np.empty(len(first), np.bool_)
    for x, (start, length) in enumerate(zip(first, lengths, strict=True)):
        steps = [tables[x * strides[0] + t * strides[1]] for t in range(length - 1)]
        messages = [_lowered(scores[start].astype(np.float64))]
        for row, table in zip(scores[start + 1 : start + length], steps, strict=True):
            messages.append(_lowered((messages[-1][:, None] + table).max(0) + row))
        are_possible[x] = np.isfinite(messages[-1].max())
        if not are_possible[x]:
            continue
        state = messages[-1].argmax()
        labels[start + length - 1] = state
        for t in range(length - 2, -1, -1):
            state = (messages[t] + steps[t][:, state]).argmax()
            labels[start + t] = state
    return are_possible


def marginals(unary, lengths, tables, strides, nodes, edges):
    """Write P(y_t) and P(y_t, y_{t+1}) of chains, as far as each goes: forward–backward.

    Args:
        unary: (chains, length, states) log-potentials, of each position at most 0 and the largest 0.
        lengths: (chains,).
        tables: (tables, states, states) probabilities of steps, up to a factor: at most 1, and so large that
            their inverse times the number of states is a number of double precision.
        strides: see :func:`best_paths`.
        nodes: (chains, length, states), or (0, …) where the log partition alone is asked for.
        edges: (chains, length − 1, states, states), or (chains, 1, states, states) for sums over all steps.

    Returns:
        (chains,) the log partition, in double precision.
    """
    log_partition = np.empty(len(unary))
    for x, length in enumerate(lengths):
        steps = [
            np.log(tables[x * strides[0] + t * strides[1]].astype(np.float64)) for t in range(length - 1)
        ]
        rows = unary[x, :length].astype(np.float64)
        forward, backward = [rows[0]], [np.zeros_like(rows[0])]
        for row, step in zip(rows[1:], steps, strict=True):
            forward.append(row + np.logaddexp.reduce(forward[-1][:, None] + step, 0))
        for row, step in zip(rows[:0:-1], steps[::-1], strict=True):
            backward.append(np.logaddexp.reduce(step + row + backward[-1], 1))
        backward = backward[::-1]
        log_partition[x] = total = np.logaddexp.reduce(forward[-1])
        if not len(nodes):
            continue
        nodes[x, :length] = np.exp(np.add(forward, backward) - total)
        pairs = [
            np.exp(forward[t][:, None] + step + rows[t + 1] + backward[t + 1] - total)
            for t, step in enumerate(steps)
        ]
        if edges.shape[1] == 1:
            edges[x, 0] = sum(pairs)
        else:
            edges[x, : len(pairs)] = np.reshape(pairs, (-1, *edges.shape[2:]))
    return log_partition


def _lowered(message: np.ndarray) -> np.ndarray:
    """The message less its largest entry, if that is finite."""
    largest = message.max()
    return message - largest if np.isfinite(largest) else message
