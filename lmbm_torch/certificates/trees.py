"""The smallest search trees by which bounds prove labellings optimal. Internal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lmbm_torch.certificates.losses import Losses

__all__ = []

# Kinds of leaves, in place of the label on which a node branches.
BOUND, RULE, ANSWER, SEMIDEFINITE = -1, -2, -3, -4

# Weight of a label's worse branch beside the better branch, when labels to branch on are compared.
WORSE = 0.1
# The size of a chunk: parts times labels times labels.
CHUNK = 2**22

Choose = Callable[[Losses, np.ndarray, np.ndarray], np.ndarray]
"""The free label on which each part (rows, spins) branches, or the kind of leaf, (parts,)."""


class TooManyNodes(ValueError):
    """The error of a tree beyond the limit of nodes."""


class Claim(NamedTuple):
    """The claim to prove: apart from the answers, no labelling has a lower loss than the last answer.

    Args:
        known: (batch, labels), given spins, 0 for a free label.
        answers: (batch, top_k, labels), spins.
        matrix, bounds: rules matrix @ y ≤ bounds over labels y in {0, 1}, if any.
    """

    known: np.ndarray
    answers: np.ndarray
    matrix: np.ndarray
    bounds: np.ndarray

    def least_sums(self, spins: np.ndarray) -> np.ndarray:
        """Return the least left side of each rule, (parts, rules)."""
        return (spins > 0) @ self.matrix.T + (spins == 0) @ np.minimum(self.matrix, 0).T


class Tree(NamedTuple):
    """The trees of a batch, level by level; both children of a node stand together on the next level.

    Args:
        nodes: (nodes,), the label on which a node branches, first 0 then 1, or the kind of leaf.
        bounds: (leaves,), on the losses of a leaf; infinite for a broken rule.
    """

    nodes: np.ndarray
    bounds: np.ndarray


def prove(losses: Losses, claim: Claim, choose: Choose, node_limit: int) -> Tree:
    """Return trees with each leaf closed by a bound or a rule, or equal to an answer.

    Raises:
        TooManyNodes: more nodes than allowed.
        ValueError: a labelling is better than an answer by more than rounding.
    """
    rows, spins = np.arange(len(claim.known)), claim.known.astype(np.float64)
    worst = losses.of(rows, claim.answers[:, -1])
    slack = 2.0**-40 * (np.abs(claim.matrix).sum(1) + np.abs(claim.bounds))
    nodes, bounds, count = [], [], 0
    while len(rows):
        count += len(rows)
        if count > node_limit:
            raise TooManyNodes(
                f"node_limit: expected at most {node_limit} nodes in the proofs of all rows, got more"
            )
        kinds, (least, bound, most) = np.full(len(rows), BOUND), losses.of(rows, spins)
        is_complete = (spins != 0).all(1)
        is_answer = is_complete & (spins[:, None] == claim.answers[rows]).all(2).any(1)
        breaks = (claim.least_sums(spins) > claim.bounds + slack).any(1)
        beats = is_complete & ~is_answer & ~breaks & (most < worst[0, rows])
        if beats.any():
            raise ValueError(
                f"decoding: expected the best labelling of example {rows[beats][0]}, got a worse labelling"
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
    """Return the choice of the first free label of an ordering, as belief networks need."""

    def choose(_losses: Losses, _rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
        return ordering[(spins[:, ordering] == 0).argmax(1)] if len(spins) else np.zeros(0, np.int64)

    return choose


def by_bounds(losses: Losses, rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
    """Return the choice of the free label with the largest bound, as searches of Boltzmann machines do."""
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
