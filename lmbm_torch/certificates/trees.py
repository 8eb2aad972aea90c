"""Search trees with bounds as proofs of optimal labellings. Internal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lmbm_torch.certificates.losses import Losses

__all__ = []

# Codes of leaves by the reason why the search ends; other nodes hold the index of the label to branch on.
BOUND, RULE, ANSWER, SEMIDEFINITE = -1, -2, -3, -4

# The label to branch on has the largest sum of the smaller bound of its two branches plus WORSE · the larger.
WORSE = 0.1
# Largest number of spins tried at once: about 2 · partial labellings · labels².
CHUNK = 2**22

Choose = Callable[[Losses, np.ndarray, np.ndarray], np.ndarray]
"""Function of losses and partial labellings (rows, spins) that returns for each a free label to branch on, or
the code of a leaf."""


class TooManyNodes(ValueError):
    """The error raised if trees need more nodes than the limit allows."""


class Claim(NamedTuple):
    """The claim to prove: the answers (decoded labellings) are the labellings with the lowest losses.

    Args:
        known: (batch, labels), known spins, 0 for a free label.
        answers: (batch, top_k, labels), the spins of the decoded labellings, best first.
        matrix, bounds: rules matrix @ y ≤ bounds on labels y in {0, 1}, or arrays without rows.
    """

    known: np.ndarray
    answers: np.ndarray
    matrix: np.ndarray
    bounds: np.ndarray

    def least_sums(self, spins: np.ndarray) -> np.ndarray:
        """Return the smallest possible value of matrix @ y for partial labellings, (parts, rules)."""
        return (spins > 0) @ self.matrix.T + (spins == 0) @ np.minimum(self.matrix, 0).T


class Tree(NamedTuple):
    """The search trees of a batch, level by level; the two children of a node are adjacent on the next level.

    Args:
        nodes: (nodes,), the label on which a node branches (first child: value 0), or a leaf's code.
        bounds: (leaves,), a lower bound on the losses in each leaf; infinite if a rule is broken.
    """

    nodes: np.ndarray
    bounds: np.ndarray


def prove(losses: Losses, claim: Claim, choose: Choose, node_limit: int) -> Tree:
    """Build trees in which each leaf is an answer, breaks a rule, or has a bound not below the worst answer.

    Raises:
        TooManyNodes: the trees need more nodes than ``node_limit``.
        ValueError: a labelling is better than an answer by more than round-off.
    """
    rows, spins = np.arange(len(claim.known)), claim.known.astype(np.float64)
    worst = losses.of(rows, claim.answers[:, -1])
    slack = 2.0**-40 * (np.abs(claim.matrix).sum(1) + np.abs(claim.bounds))
    nodes, bounds, count = [], [], 0
    while len(rows):
        count += len(rows)
        if count > node_limit:
            raise TooManyNodes(
                f"node_limit: expected at most {node_limit} nodes in the proofs of all rows, got more nodes"
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
    """Return a function that chooses the first free label in an ordering, for belief networks."""

    def choose(_losses: Losses, _rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
        return ordering[(spins[:, ordering] == 0).argmax(1)] if len(spins) else np.zeros(0, np.int64)

    return choose


def by_bounds(losses: Losses, rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
    """Choose for each partial labelling the free label whose branches have the largest bounds."""
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
