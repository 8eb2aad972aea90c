"""Dual multipliers that prove that no labelling in a part of the search tree beats given answers.

A search tree proves the answers of :mod:`~lmbm_torch.inference.relaxations.semidefinite.decoding`: each leaf
is a set of labellings, closed by a semidefinite bound. To compute the bound, a leaf needs only the
multipliers y of the spins' squares, and z ≥ 0 of inequalities (b_t·x)² ≥ 1 over an odd number k_t of signs:

    score ≤ constant + Σ_i y_i + Σ_t z_t (k_t − 1)/2 + max over spins x of xᵀ M x,
    M = C − Diag(y) + Σ_t z_t offdiag(b_t b_tᵀ)/2,

where xᵀ C x is the score of the free spins; the first spin is 1 and carries the fields. Under rules, products
of rules and labels are added, with multipliers ≥ 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.relaxations.semidefinite.bound import Relaxation
from lmbm_torch.inference.relaxations.semidefinite.spin_parts import common_unit
from lmbm_torch.inference.relaxations.semidefinite.spin_problems import SpinProblem, with_field_spin
from lmbm_torch.inference.relaxations.semidefinite.spin_search import Best, Limits, least_decided, prove_bound

__all__ = []

# Least distance between the bound of a leaf and the answers' score, as a share of the largest score of a
# label: a checker rounds differently, and must still accept the proof.
CLEARANCE = 1e-8


class Multipliers(NamedTuple):
    """Point of the dual for a part's problem.

    Args:
        diagonal: y, (1 + free labels,); the first entry belongs to the spin that carries the fields.
        members: (inequalities, 5), each sign times (1 + its spin's index in ``diagonal``); 0 for padding.
        prices: z, (inequalities,).
        unit: a number of which all weights are multiples; 0 if there is none.
        rules: (products, 2), the rule and the factor of a product: 0 for 1, 1 + j for y_j, −1 − j for 1 −
            y_j.
        rule_prices: (products,), the multiplier of each product.
    """

    diagonal: np.ndarray
    members: np.ndarray
    prices: np.ndarray
    unit: float
    rules: np.ndarray
    rule_prices: np.ndarray


class _Answers(Best):
    """Given answers; parts are closed only if their bounds are clearly below the answers' scores."""

    @property
    def threshold(self) -> float:
        return self.values[-1] + self.step - self.slack


@dataclass(frozen=True)
class OpenPart:
    """Set of labellings that agree with known labels, still to be proven no better than the answers.

    Args:
        relaxation: the dual of the part's problem, with weights scaled by 2^−``exponent``.
        free: (free,), the indices of the free labels.
        is_first: whether no bound has been computed yet.
    """

    relaxation: Relaxation
    free: np.ndarray
    answers: Best
    exponent: int
    is_first: bool = True

    @classmethod
    def of(
        cls,
        fields: np.ndarray,
        couplings: np.ndarray,
        known: np.ndarray,
        answers: np.ndarray,
        constraints: Constraints | None = None,
    ) -> OpenPart:
        """Return the part that contains all labellings of an example.

        Args:
            fields: unary log-potentials, (labels,).
            couplings: pairwise log-potentials, (labels, labels).
            known: spins, 0 for free labels.
            answers: spins, best first, (answers, labels).
            constraints: rules that labellings obey.
        """
        exponent = int(np.frexp(max(np.abs(fields).max(), np.abs(couplings).max()))[1])
        fields, couplings = np.ldexp(fields, -exponent), np.ldexp(couplings, -exponent)
        problem = SpinProblem.of_machine(fields, couplings, constraints)
        slack = CLEARANCE * np.abs(with_field_spin(fields, couplings)).sum(1).max()
        best = _Answers.of(problem, len(answers), 2 * common_unit(fields, couplings), slack)
        best.offer(np.concatenate([np.ones((len(answers), 1)), answers], 1))
        return cls(Relaxation.of(problem.given(known)), np.flatnonzero(known == 0), best, exponent)

    def closed(self) -> Multipliers | None:
        """Try to close the part: return multipliers that prove the bound, or None if a split is better.

        The relaxation is improved in place, and the halves of a split start from its point.

        Raises:
            ValueError: a labelling better than an answer was found.
        """
        value, generator = self.answers.values[-1], np.random.default_rng(0)
        bound = prove_bound(self.relaxation, np.inf, self.is_first, self.answers, Limits(), generator)
        if self.answers.values[-1] > value + self.answers.slack:
            raise ValueError("answers: expected the best labellings, got one that is beaten")
        return self._multipliers() if bound <= self.answers.threshold else None

    def least_decided(self) -> int:
        """Return the label by which to split the part."""
        return int(self.free[least_decided(self.relaxation.products) - 1])

    def half(self, label: int, spin: int) -> OpenPart:
        """Return the half of the part in which a label has the given spin."""
        place = int(np.flatnonzero(self.free == label)[0])
        merged = self.relaxation.merged(place + 1, 0, spin)
        return replace(self, relaxation=merged, free=np.delete(self.free, place), is_first=False)

    def _multipliers(self) -> Multipliers:
        of_groups = []
        for group in self.relaxation.inequalities.groups:
            signed = group.signs * (1 + group.spins)
            of_groups.append(np.pad(signed, ((0, 0), (0, 5 - group.size))))
        prices = np.ldexp(self.relaxation.prices, self.exponent)
        used = prices > 0
        problem, diagonal = self.relaxation.problem, self.relaxation.diagonal
        which, rule_prices = np.zeros((0, 2), np.int64), np.zeros(0)
        if problem.rules is not None:
            rule_prices = self.relaxation.rule_prices
            # A checker replaces a spin's square by 1: its matrix M lacks the products' diagonal, so change y.
            diagonal = diagonal - problem.rules.weighted(rule_prices).diagonal()
            which = np.stack([problem.rules.rule, problem.rules.literal], 1)
        is_used = rule_prices > 0
        return Multipliers(
            diagonal=np.ldexp(diagonal, self.exponent),
            members=np.concatenate(of_groups)[used].astype(np.int16),
            prices=prices[used],
            unit=float(np.ldexp(self.answers.step / 2, self.exponent)),
            rules=which[is_used],
            rule_prices=np.ldexp(rule_prices[is_used], self.exponent),
        )
