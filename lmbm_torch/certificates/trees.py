"""Search trees that prove labellings best: given the optimum, the smallest that their bounds allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lmbm_torch.certificates.losses import Losses

__all__ = [
    "ANSWER",
    "BOUND",
    "RULE",
    "SEMIDEFINITE",
    "Choose",
    "Claim",
    "TooManyNodes",
    "Tree",
    "by_bounds",
    "in_order",
    "prove",
]

# Of leaves, in place of the label that a node branches on.
BOUND, RULE, ANSWER, SEMIDEFINITE = -1, -2, -3, -4

# How much the worse way of a label counts beside its better one where labels compete to be branched on.
WORSE = 0.1
# Numbers, parts times labels times labels, that are worked on at a time.
CHUNK = 2**22

Choose = Callable[[Losses, np.ndarray, np.ndarray], np.ndarray]
"""The free label that each part (rows, spins) is to be branched on, or the kind of leaf it is, (parts,)."""


class TooManyNodes(ValueError):
    """A tree has grown beyond its limit."""


class Claim(NamedTuple):
    """What is to be proven: no labelling has a lower loss than the last answer, but for the answers.

    Args:
        known: (batch, labels), given spins, 0 where a label is free.
        answers: (batch, top_k, labels), spins.
        matrix, bounds: rules matrix @ y ≤ bounds over labels y in {0, 1} that labellings obey, if any.
    """

    known: np.ndarray
    answers: np.ndarray
    matrix: np.ndarray
    bounds: np.ndarray

    def least_sums(self, spins: np.ndarray) -> np.ndarray:
        """The least that the left side of each rule can be, (parts, rules)."""
        return (spins > 0) @ self.matrix.T + (spins == 0) @ np.minimum(self.matrix, 0).T


class Tree(NamedTuple):
    """The trees of a batch, level by level; a node's two children stand together on the next level.

    Args:
        nodes: (nodes,), the label that a node branches on, first 0 then 1, or the kind of leaf.
        bounds: (leaves,), on the losses there; infinite where a rule is broken.
    """

    nodes: np.ndarray
    bounds: np.ndarray


def prove(losses: Losses, claim: Claim, choose: Choose, node_limit: int) -> Tree:
    """Trees of which each leaf is closed by its bound, by a rule, or is an answer.

    Raises:
        TooManyNodes: more nodes than allowed.
        ValueError: an answer that another labelling beats by more than rounding.
    """
    rows, spins = np.arange(len(claim.known)), claim.known.astype(np.float64)
    worst = losses.of(rows, claim.answers[:, -1])
    slack = 2.0**-40 * (np.abs(claim.matrix).sum(1) + np.abs(claim.bounds))
    nodes, bounds, count = [], [], 0
    while len(rows):
        count += len(rows)
        if count > node_limit:
            raise TooManyNodes(
                f"node_limit: expected proofs of at most {node_limit} nodes together, got more"
            )
        kinds, (least, bound, most) = np.full(len(rows), BOUND), losses.of(rows, spins)
        is_complete = (spins != 0).all(1)
        is_answer = is_complete & (spins[:, None] == claim.answers[rows]).all(2).any(1)
        breaks = (claim.least_sums(spins) > claim.bounds + slack).any(1)
        beats = is_complete & ~is_answer & ~breaks & (most < worst[0, rows])
        if beats.any():
            raise ValueError(
                f"decoding: expected the best labelling of example {rows[beats][0]}, got one that is beaten"
            )
        kinds[is_answer], kinds[breaks] = ANSWER, RULE
        bound[breaks] = np.inf
        inner = ~is_complete & ~breaks & (least < worst[2, rows])
        kinds[inner] = choose(losses, rows[inner], spins[inner])
        inner &= kinds >= 0
        nodes.append(kinds)
        bounds.append(bound[~inner])
        rows, spins, labels = rows[inner].repeat(2), spins[inner].repeat(2, 0), kinds[inner].repeat(2)
        entry = np.arange(len(rows))
        spins[entry, labels] = 2.0 * (entry % 2) - 1
    return Tree(np.concatenate(nodes).astype(np.int16), np.concatenate(bounds))


def in_order(ordering: np.ndarray) -> Choose:
    """The first free label of an ordering: of networks, whose fields are settled so."""

    def choose(_losses: Losses, _rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
        return ordering[(spins[:, ordering] == 0).argmax(1)] if len(spins) else np.zeros(0, np.int64)

    return choose


def by_bounds(losses: Losses, rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
    """The free label whose better way has the largest bound, as the search of Boltzmann machines does."""
    labels = spins.shape[1]
    step, chosen = max(1, CHUNK // (2 * labels**2)), [np.zeros(0, np.int64)]
    for start in range(0, len(rows), step):
        part = spins[start : start + step]
        tried = np.broadcast_to(part[:, None, None], (len(part), labels, 2, labels)).copy()
        place = np.arange(labels)
        tried[:, place, 0, place], tried[:, place, 1, place] = -1, 1
        each = rows[start : start + step].repeat(2 * labels)
        bounds = losses.of(each, tried.reshape(-1, labels))[1].reshape(-1, labels, 2)
        keys = bounds.min(2) + WORSE * bounds.max(2)
        chosen.append(np.where(part == 0, keys, -np.inf).argmax(1))
    return np.concatenate(chosen)
