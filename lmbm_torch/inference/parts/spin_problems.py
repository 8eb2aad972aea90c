"""Quadratic problems of spins, as semidefinite bounds and the search over them see them.

Field terms are couplings to one more spin, which comes first. In a part of the search some spins equal
another one, or its opposite: they are merged, and the problem has fewer spins. Everything is maximised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

__all__ = ["HingeTerms", "SpinProblem", "with_field_spin"]


@dataclass(frozen=True)
class HingeTerms:
    """−Σ_i [margin − m_i]_+, where m_i = sign_i x_owner_i (fields_i · x) is the margin of label i.

    Args:
        fields: weights of the local field of each label, (labels, spins).
        owner: the spin that each label has become.
        sign: 1, or −1 for a label of the opposite spin.
    """

    fields: np.ndarray
    owner: np.ndarray
    sign: np.ndarray
    margin: float

    def value(self, spins: np.ndarray) -> np.ndarray:
        """Of each row of spins, (rows, spins)."""
        margins = self.sign * spins[:, self.owner] * (spins @ self.fields.T)
        return -np.maximum(self.margin - margins, 0).sum(1)

    def flip_values(self, spins: np.ndarray) -> np.ndarray:
        """Of one row of spins, each spin flipped."""
        local = self.fields @ spins
        after = self.sign * spins[self.owner] * (local - 2 * self.fields.T * spins[:, None])
        after[self.owner, np.arange(len(self.owner))] *= -1
        return -np.maximum(self.margin - after, 0).sum(1)

    def weighted(self, weights: np.ndarray) -> np.ndarray:
        """The symmetric matrix whose quadratic form is Σ_i weights_i m_i."""
        size = self.fields.shape[1]
        rows = np.zeros((size, size))
        np.add.at(rows, self.owner, (self.sign * weights)[:, None] * self.fields)
        return (rows + rows.T) / 2

    def margins(self, products: np.ndarray) -> np.ndarray:
        """m_i by a matrix of products of spins."""
        return self.sign * np.einsum("li,li->l", products[self.owner], self.fields)

    def merged(self, gone: int, kept: int, sign: int) -> HingeTerms:
        """The same where spin ``gone`` is ``sign`` times ``kept``."""
        fields = self.fields.copy()
        fields[:, kept] += sign * fields[:, gone]
        moved = self.owner == gone
        owner = np.where(moved, kept, self.owner)
        signs = np.where(moved, sign * self.sign, self.sign)
        return HingeTerms(np.delete(fields, gone, 1), owner - (owner > gone), signs, self.margin)


@dataclass(frozen=True)
class SpinProblem:
    """max over spins x, x_0 = 1, of xᵀ matrix x + constant + the hinge terms, if there are any.

    Args:
        matrix: symmetric with a zero diagonal, (spins, spins).
        owner: the spin that each of the first problem's spins has become.
        sign: 1, or −1 where it has become the opposite.
        hinge: None for scores.
    """

    matrix: np.ndarray
    constant: float
    owner: np.ndarray
    sign: np.ndarray
    hinge: HingeTerms | None = None

    @classmethod
    def of(cls, matrix: np.ndarray, constant: float = 0.0, hinge: HingeTerms | None = None) -> SpinProblem:
        """The problem with no spins merged."""
        size = len(matrix)
        return cls(matrix, constant, np.arange(size), np.ones(size, np.int8), hinge)

    @classmethod
    def of_machine(cls, fields: np.ndarray, couplings: np.ndarray, margin: float | None) -> SpinProblem:
        """Scores of a Boltzmann machine's labels, or minus their hinge losses; the first spin is the fields'.

        Args:
            fields: unary log-potentials, (labels,).
            couplings: pairwise ones, (labels, labels).
            margin: of the hinge loss; None for scores.
        """
        around = with_field_spin(fields, couplings)
        if margin is None:
            return cls.of(around / 2)
        labels = len(fields)
        hinge = HingeTerms(around[1:], np.arange(1, labels + 1), np.ones(labels), margin)
        return cls.of(np.zeros_like(around), hinge=hinge)

    def __len__(self) -> int:
        return len(self.matrix)

    def values(self, spins: np.ndarray) -> np.ndarray:
        """Of each row of spins, (rows, spins)."""
        values = self.constant + np.einsum("ri,ri->r", spins @ self.matrix, spins)
        return values if self.hinge is None else values + self.hinge.value(spins)

    def flip_gains(self, spins: np.ndarray, products: np.ndarray) -> np.ndarray:
        """By how much the value grows where one spin alone is flipped.

        Args:
            products: ``matrix @ spins``.
        """
        gains = -4 * spins * products
        if self.hinge is not None:
            gains += self.hinge.flip_values(spins) - self.hinge.value(spins[None])
        return gains

    def in_full(self, spins: np.ndarray) -> np.ndarray:
        """The first problem's spins, from rows of this one's; the first spin 1."""
        spins = spins * spins[:, :1]
        return spins[:, self.owner] * self.sign

    def merged(self, gone: int, kept: int, sign: int) -> SpinProblem:
        """The problem where spin ``gone`` is ``sign`` times ``kept``; spin 0 never goes."""
        matrix = self.matrix.copy()
        constant = self.constant + 2 * sign * matrix[gone, kept]
        matrix[kept] += sign * matrix[gone]
        matrix[:, kept] = matrix[kept]
        matrix[kept, kept] = 0
        matrix = np.delete(np.delete(matrix, gone, 0), gone, 1)
        moved = self.owner == gone
        owner = np.where(moved, kept, self.owner)
        signs = np.where(moved, sign * self.sign, self.sign).astype(np.int8)
        hinge = None if self.hinge is None else self.hinge.merged(gone, kept, sign)
        return replace(
            self, matrix=matrix, constant=constant, owner=owner - (owner > gone), sign=signs, hinge=hinge
        )

    def given(self, known: np.ndarray) -> SpinProblem:
        """The problem of the labels that are free: the others are spin 0, or its opposite.

        Args:
            known: spins of the labels, all spins but the first, 0 where one is free.
        """
        problem = self
        # From the last one on, so that the others keep their places.
        for label in np.flatnonzero(known)[::-1]:
            problem = problem.merged(int(label) + 1, 0, int(known[label]))
        return problem


def with_field_spin(fields: np.ndarray, couplings: np.ndarray) -> np.ndarray:
    """Couplings of one spin more, the first, which is 1 and carries the fields; (1 + labels, 1 + labels)."""
    around = np.zeros((len(fields) + 1, len(fields) + 1))
    around[0, 1:], around[1:, 0], around[1:, 1:] = fields, fields, couplings
    return around
