"""Labellings made better by flipping single spins, and where rules forbid many of these, pairs."""

from __future__ import annotations

import numpy as np

from lmbm_torch.inference.parts.spin_problems import SpinProblem

__all__ = ["climbed", "tabu"]

# Gains that are no larger, as a share of all weights, are rounding.
LEAST = 1e-12
# Flips of a tabu search for each spin, and those for which a spin that was flipped stays.
TABU_FLIPS, TABU_TENURE = 20, 10


def climbed(problem: SpinProblem, spins: np.ndarray, trust: np.ndarray) -> np.ndarray:
    """Rows of spins, each improved by the best flip until none is better.

    Args:
        spins: (rows, spins).
        trust: how sure each spin is: rows are made to obey the rules from the surest on, (spins,).
    """
    least = LEAST * np.abs(problem.matrix).sum()
    if problem.rules is not None:
        allowed = _repaired(problem, spins, trust)
        return np.stack([_climb_allowed(problem, row, least) for row in allowed])
    if problem.hinge is not None:
        return np.stack([_climb_hinge(problem, row, least) for row in spins.copy()])
    return _climb(problem, spins.copy(), least)


def tabu(problem: SpinProblem, row: np.ndarray) -> np.ndarray:
    """The best labelling that flips come upon, each the best of a spin that was not flipped lately.

    Unlike a climb it goes on where every flip costs something. Of scores without rules.

    Args:
        row: to begin with, (spins,).
    """
    row, best, gained, most = row.copy(), row.copy(), 0.0, 0.0
    products, stays = problem.matrix @ row, np.zeros(len(row))
    least = LEAST * np.abs(problem.matrix).sum()
    for step in range(TABU_FLIPS * len(row)):
        gains = -4 * row * products
        is_open = (stays <= step) | (gained + gains > most + least)
        flip = int(np.where(is_open, gains, -np.inf).argmax())
        gained += gains[flip]
        row[flip] *= -1
        products += 2 * row[flip] * problem.matrix[flip]
        stays[flip] = step + 1 + min(TABU_TENURE, len(row) // 4)
        if gained > most + least:
            best, most = row.copy(), gained
    return best


def _climb(problem: SpinProblem, spins: np.ndarray, least: float) -> np.ndarray:
    """Rows of scores, all at once, in place."""
    products, rows = spins @ problem.matrix, np.arange(len(spins))
    for _ in range(10 * len(problem)):
        gains = -spins * products
        flips = gains.argmax(1)
        better = gains[rows, flips] > least
        if not better.any():
            break
        spins[rows[better], flips[better]] *= -1
        changed = spins[rows, flips][:, None] * problem.matrix[flips]
        products += 2 * better[:, None] * changed
    return spins


def _climb_hinge(problem: SpinProblem, row: np.ndarray, least: float) -> np.ndarray:
    """One row of hinge losses, in place."""
    for _ in range(10 * len(row)):
        gains = problem.flip_gains(row, problem.matrix @ row)
        flip = int(gains.argmax())
        if gains[flip] <= least:
            break
        row[flip] *= -1
    return row


def _repaired(problem: SpinProblem, spins: np.ndarray, trust: np.ndarray) -> np.ndarray:
    """Rows whose spins are kept from the surest on, unless those before them say otherwise by the rules."""
    assert problem.rules is not None
    constraints = problem.rules.constraints
    wished = (1 + problem.in_full(spins)[:, 1:]) / 2
    owner = problem.owner[1:]
    labels = np.where(owner == 0, wished, np.nan)
    for label in np.argsort(-trust[owner], kind="stable"):
        free = np.isnan(labels[:, label])
        if not free.any():
            continue
        for value in (wished[:, label], 1 - wished[:, label]):
            tried = labels[free]
            tried[:, label] = value[free]
            filled, obeys = constraints.propagate(tried)
            rows = np.flatnonzero(free)[obeys]
            labels[rows] = filled[obeys]
            free[rows] = False
            if not free.any():
                break
        # A labelling that breaks a rule is not offered to anyone.
        labels[free, label] = wished[free, label]
    repaired = np.ones_like(spins)
    repaired[:, owner] = (2 * labels - 1) * problem.sign[1:]
    repaired[:, 0] = 1
    return repaired


def _climb_allowed(problem: SpinProblem, row: np.ndarray, least: float) -> np.ndarray:
    """One row that obeys the rules, and does so after every flip, in place; scores flip pairs, too."""
    assert problem.rules is not None
    one = problem.rules.one[problem.rules.literal == 0]
    for _ in range(10 * len(row)):
        # What a flip takes of what each rule leaves.
        taken, left = 2 * one * row, (one @ row)[:, None]
        gains = problem.flip_gains(row, problem.matrix @ row)
        single = np.where((left < taken).any(0), -np.inf, gains)
        single[0] = -np.inf
        flips = [int(single.argmax())]
        gain = single[flips[0]]
        if gain <= least and problem.hinge is None:
            pairs = gains[:, None] + gains + 8 * problem.matrix * np.outer(row, row)
            pairs[(left[:, :, None] < taken[:, :, None] + taken[:, None, :]).any(0)] = -np.inf
            pairs[0] = pairs[:, 0] = -np.inf
            np.fill_diagonal(pairs, -np.inf)
            flips = list(np.unravel_index(pairs.argmax(), pairs.shape))
            gain = pairs[flips[0], flips[1]]
        if gain <= least:
            break
        row[flips] *= -1
    return row
