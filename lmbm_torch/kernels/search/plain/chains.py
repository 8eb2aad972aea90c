"""Viterbi's algorithm for chains in plain NumPy: the readable reference."""

from __future__ import annotations

import numpy as np


def best_paths(scores, first, lengths, tables, strides, labels):
    """Write each chain's labelling of largest score: Viterbi's algorithm.

    Among equal scores, the labelling with the lower state at the last differing position wins.

    Args:
        scores: (rows, states) log-potentials, finite or −∞, chain after chain.
        first: (chains,), first row of each chain.
        lengths: (chains,), each at least 1.
        tables: (tables, states, states) log-potentials of steps, finite or −∞, row before and column after.
        strides: distance from a chain's first table to the next chain's, and from step to step.
        labels: (rows,), overwritten for possible chains.

    Returns:
        Whether each chain has a labelling that is not forbidden; labels of impossible chains stay unchanged.
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


def _lowered(message: np.ndarray) -> np.ndarray:
    """Subtract the largest entry from a message, if finite."""
    largest = message.max()
    return message - largest if np.isfinite(largest) else message
