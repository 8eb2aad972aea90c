"""Quadratic problems over spins, to be maximised, for semidefinite bounds and the search.

Fields become couplings to one additional spin, the first, equal to 1. A part of the search requires that some
spins equal another spin or its opposite: such spins are merged, and the problem has fewer spins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from lmbm_torch.constraints import Constraints


@dataclass(frozen=True)
class RuleTerms:
    """Products (one_t · x)(other_t · x) that are non-negative for all spins x that obey the rules.

    The slack b − a·y of a rule a·y ≤ b is multiplied by 1, and by y_j and 1 − y_j for each label j in the
    rule (Lovász and Schrijver 1991).

    Args:
        constraints: the rules, over the labels of the original problem.
        rule: (products,), the rule of each product.
        literal: (products,), the factor of the slack: 0 for 1, 1 + j for y_j, −1 − j for 1 − y_j.
        one, other: (products, spins), the coefficients of both factors.
    """

    constraints: Constraints
    rule: np.ndarray
    literal: np.ndarray
    one: np.ndarray
    other: np.ndarray

    @classmethod
    def of(cls, constraints: Constraints) -> RuleTerms:
        """Return the products of all rules, for a problem without merged spins."""
        matrix, bounds = constraints.matrix, constraints.bounds
        left = np.concatenate([(bounds - matrix.sum(1) / 2)[:, None], -matrix / 2], 1)
        rule, literal = [np.arange(len(left))], [np.zeros(len(left), np.int64)]
        about, label = np.nonzero(matrix)
        for sign in (1, -1):
            rule.append(about)
            literal.append(sign * (1 + label))
        rule, literal = np.concatenate(rule), np.concatenate(literal)
        other = np.zeros((len(rule), left.shape[1]))
        other[:, 0] = np.where(literal == 0, 1.0, 0.5)
        other[np.arange(len(rule)), np.abs(literal)] += np.sign(literal) / 2
        return cls(constraints, rule, literal, left[rule], other)

    def weighted(self, prices: np.ndarray) -> np.ndarray:
        """Return the symmetric matrix of the quadratic form Σ_t prices_t · product_t."""
        rows = (self.one.T * prices) @ self.other
        return (rows + rows.T) / 2

    def values(self, products: np.ndarray) -> np.ndarray:
        """Return the value of each product, given a matrix of the products of spins."""
        return np.einsum("ts,ts->t", self.one @ products, self.other)

    def size(self, prices: np.ndarray) -> float:
        """Return the sum of the magnitudes of the terms in :meth:`weighted`, the scale of rounding errors."""
        return float(prices @ (np.abs(self.one).sum(1) * np.abs(self.other).sum(1)))

    def merged(self, gone: int, kept: int, sign: int) -> RuleTerms:
        """Return the products after spin ``gone`` is replaced by ``sign`` times spin ``kept``."""
        forms = []
        for form in (self.one, self.other):
            moved = form.copy()
            moved[:, kept] += sign * moved[:, gone]
            forms.append(np.delete(moved, gone, 1))
        return replace(self, one=forms[0], other=forms[1])


@dataclass(frozen=True)
class SpinProblem:
    """Problem max over spins x, with x_0 = 1, of xᵀ matrix x + constant.

    Args:
        matrix: (spins, spins), symmetric with a zero diagonal.
        owner: for each spin of the original problem, the spin with which it was merged, or the spin itself.
        sign: 1 for a spin equal to its owner, −1 for the opposite.
        rules: the rules over the labels, which are all spins but the first; None without rules.
    """

    matrix: np.ndarray
    constant: float
    owner: np.ndarray
    sign: np.ndarray
    rules: RuleTerms | None = None

    @classmethod
    def of(cls, matrix: np.ndarray, constant: float = 0.0) -> SpinProblem:
        """Return the original problem, in which no spins are merged."""
        size = len(matrix)
        return cls(matrix, constant, np.arange(size), np.ones(size, np.int8))

    @classmethod
    def of_machine(
        cls, fields: np.ndarray, couplings: np.ndarray, constraints: Constraints | None = None
    ) -> SpinProblem:
        """Return the problem for a Boltzmann machine's scores; the first spin carries the fields.

        Args:
            fields: unary log-potentials, (labels,).
            couplings: pairwise log-potentials, (labels, labels).
            constraints: rules over the labels.
        """
        rules = None if constraints is None else RuleTerms.of(constraints)
        return replace(cls.of(with_field_spin(fields, couplings) / 2), rules=rules)

    def __len__(self) -> int:
        return len(self.matrix)

    def values(self, spins: np.ndarray) -> np.ndarray:
        """Return the value of each row of spins, (rows, spins); −∞ if the row breaks a rule."""
        values = self.constant + np.einsum("ri,ri->r", spins @ self.matrix, spins)
        return np.where(self.allows(self.in_full(spins)), values, -np.inf)

    def allows(self, spins: np.ndarray) -> np.ndarray:
        """Return whether each row of the original problem's spins obeys all rules, (rows,)."""
        if self.rules is None:
            return np.ones(len(spins), bool)
        return np.logical_not(self.rules.constraints.violated((1 + spins[:, 1:]) / 2).any(axis=1))

    def implied(self) -> list[tuple[int, int]] | None:
        """Return the free spins that the rules decide, with signs, last spin first; None if a rule is broken.

        The method requires that free spins are not merged with one another.
        """
        if self.rules is None:
            return []
        known = np.where(self.owner == 0, (1.0 + self.sign) / 2, np.nan)[1:]
        filled, (obeys,) = self.rules.constraints.propagate(known[None])
        if not obeys:
            return None
        labels = np.flatnonzero(np.isnan(known) & ~np.isnan(filled[0]))[::-1]
        return [(int(self.owner[1 + label]), int(2 * filled[0, label] - 1)) for label in labels]

    def in_full(self, spins: np.ndarray) -> np.ndarray:
        """Convert rows of this problem's spins to the original problem's spins, with first spin 1."""
        spins = spins * spins[:, :1]
        return spins[:, self.owner] * self.sign

    def reduced(self, spins: np.ndarray) -> np.ndarray:
        """Return rows of this problem's spins, from rows of spins of all labels."""
        rows = np.ones((len(spins), len(self)))
        rows[:, self.owner[1:]] = spins * self.sign[1:]
        rows[:, 0] = 1
        return rows

    def merged(self, gone: int, kept: int, sign: int) -> SpinProblem:
        """Return the problem after spin ``gone`` is replaced by ``sign`` times ``kept``; spin 0 must stay."""
        matrix = self.matrix.copy()
        constant = self.constant + 2 * sign * matrix[gone, kept]
        matrix[kept] += sign * matrix[gone]
        matrix[:, kept] = matrix[kept]
        matrix[kept, kept] = 0
        matrix = np.delete(np.delete(matrix, gone, 0), gone, 1)
        moved = self.owner == gone
        owner = np.where(moved, kept, self.owner)
        signs = np.where(moved, sign * self.sign, self.sign).astype(np.int8)
        rules = None if self.rules is None else self.rules.merged(gone, kept, sign)
        owner -= owner > gone
        return replace(self, matrix=matrix, constant=constant, owner=owner, sign=signs, rules=rules)

    def merged_by(self, merges: Iterable[tuple[int, int, int]]) -> SpinProblem:
        """Return the problem after several replacements, in turn, by :meth:`merged`."""
        problem = self
        for gone, kept, sign in merges:
            problem = problem.merged(gone, kept, sign)
        return problem

    def given(self, known: np.ndarray) -> SpinProblem:
        """Return the problem of the free labels: each known label is merged with the first spin, equal to 1.

        Args:
            known: the spins of the labels, which are all spins but the first; 0 for free labels.
        """
        # Merge the last spin first, so that the numbers of earlier spins stay valid.
        labels = np.flatnonzero(known)[::-1]
        return self.merged_by((int(label) + 1, 0, int(known[label])) for label in labels)


def with_field_spin(fields: np.ndarray, couplings: np.ndarray) -> np.ndarray:
    """Return the couplings with a first row and column for the fields, (1 + labels, 1 + labels)."""
    around = np.zeros((len(fields) + 1, len(fields) + 1))
    around[0, 1:], around[1:, 0], around[1:, 1:] = fields, fields, couplings
    return around


# Smallest gain of a flip that is not rounding, as a share of the sum of all weights.
LEAST = 1e-12
# Flips of a tabu search for each spin; flips for which a flipped spin must stay (scripts/bench/dense_map.py).
TABU_FLIPS, TABU_TENURE = 20, 10


def climbed(problem: SpinProblem, spins: np.ndarray, trust: np.ndarray) -> np.ndarray:
    """Improve rows of spins by the best flip, repeatedly, until no flip raises the value.

    Args:
        spins: (rows, spins).
        trust: (spins,), the confidence in each spin: rules change the least trusted spins.
    """
    least = LEAST * np.abs(problem.matrix).sum()
    if problem.rules is not None:
        allowed = _repaired(problem, spins, trust)
        return np.stack([_climb_allowed(problem, row, least) for row in allowed])
    return _climb(problem, spins.copy(), least)


def tabu(problem: SpinProblem, row: np.ndarray) -> np.ndarray:
    """Return the best labelling that a tabu search finds for scores without rules.

    Each step flips the best spin that was not flipped recently, even if the value falls.

    Args:
        row: (spins,), the labelling to start from.
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
    """Improve all rows by flips together, in place, for problems without rules."""
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


def _repaired(problem: SpinProblem, spins: np.ndarray, trust: np.ndarray) -> np.ndarray:
    """Change rows to obey the rules: spins are fixed in order of trust, unless earlier spins decide them."""
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
        # No value is possible: keep the wish; the row breaks a rule and is dropped later.
        labels[free, label] = wished[free, label]
    repaired = np.ones_like(spins)
    repaired[:, owner] = (2 * labels - 1) * problem.sign[1:]
    repaired[:, 0] = 1
    return repaired


def _climb_allowed(problem: SpinProblem, row: np.ndarray, least: float) -> np.ndarray:
    """Improve an allowed row in place, by flips of single spins and of pairs that keep all rules."""
    assert problem.rules is not None
    one = problem.rules.one[problem.rules.literal == 0]
    for _ in range(10 * len(row)):
        # ``taken`` is the decrease of each rule's slack by each flip.
        taken, left = 2 * one * row, (one @ row)[:, None]
        gains = -4 * row * (problem.matrix @ row)
        single = np.where((left < taken).any(0), -np.inf, gains)
        single[0] = -np.inf
        flips = [int(single.argmax())]
        gain = single[flips[0]]
        if gain <= least:
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
