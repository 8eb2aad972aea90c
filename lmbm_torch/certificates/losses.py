"""Lower bounds on the losses of partial labellings, as the certificate checker computes them. Internal.

Free labels have the spin 0. In the field of a label, the terms without a free label are called settled, other
terms waiting. A margin is at most the settled part for the better spin plus the waiting terms' absolute sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

__all__ = []

# Bound on the rounding error, for each label and clique, as a share of the sum of absolute weights.
ROUND_OFF = 2.0**-49
# If all weights are multiples of a unit, and their sum has at most this many binary digits, sums are exact.
DIGITS = 48
# Largest relative errors of hinge and log losses, here and in the checker, whose logarithm may differ.
HINGE_ERROR, LOG_ERROR = 2.0**-39, 2e-10
# Factors of the rounding error, for a bound's lower end, the value and the upper end.
SIDES = np.array([-1, 0, 1])
# Number of partial labellings whose bounds are computed at once.
CHUNK = 2**10


@dataclass(frozen=True, eq=False)
class Losses(ABC):
    """Base class for losses as functions of spins; arrays are float64; a first axis of 1 means all examples.

    Args:
        unary: the unary log-potentials, (batch, labels).
        pair: (batch | 1, labels, labels); row i holds the effects of all labels on the field of label i.
        cliques: sets of labels.
        weight: the weights of the cliques, (batch | 1, cliques).
    """

    unary: np.ndarray
    pair: np.ndarray
    cliques: tuple[tuple[int, ...], ...]
    weight: np.ndarray

    @property
    @abstractmethod
    def tables(self) -> list[np.ndarray]:
        """Return all summands of the loss, (batch | 1, ...), to estimate round-off."""

    @abstractmethod
    def of_parts(self, rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
        """Compute :meth:`of` for partial labellings of one example, or of all if :attr:`is_shared`."""

    @property
    def is_shared(self) -> bool:
        return len(self.pair) == 1

    def of(self, rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
        """Return for each partial labelling a lower bound on the loss of all completions, (3, parts).

        With the rounding error, a bound is an interval: the three rows are lower end, value and upper end.

        Args:
            rows: (parts,), the index of the example of each partial labelling.
            spins: (parts, labels), the spins of partial labellings, 0 for a free label.
        """
        if not len(rows):
            return np.empty((3, 0))
        if self.is_shared:
            order, edges = np.arange(len(rows)), np.arange(CHUNK, len(rows), CHUNK)
        else:
            order = np.argsort(rows, kind="stable")
            edges = np.flatnonzero(np.diff(rows[order])) + 1
        found = np.empty((3, len(rows)))
        for part in np.split(order, edges):
            found[:, part] = self.of_parts(rows[part], spins[part])
        return found

    @cached_property
    def errors(self) -> np.ndarray:
        """Return the largest rounding error of each example's fields and scores, (batch,); 0 if exact."""
        batch, labels = self.unary.shape
        mass = sum((np.abs(table).reshape(len(table), -1).sum(1) for table in self.tables), np.zeros(batch))
        unit = 2.0 ** np.clip(np.floor(DIGITS - np.log2(mass.max(initial=1e-300))), -900, 900)
        if all((table * unit == np.rint(table * unit)).all() for table in self.tables):
            return np.zeros(batch)
        return ROUND_OFF * mass * (labels + len(self.cliques) + 16)

    @property
    def _weights(self) -> np.ndarray:
        return self.weight * np.array([len(clique) for clique in self.cliques], np.float64)


@dataclass(frozen=True, eq=False)
class MarginLosses(Losses):
    """Base class for losses Σ_i φ(s_i z_i), where z_i is the field of label i; subclasses define φ.

    Args:
        owners: for each clique, the labels whose fields contain the clique.
    """

    owners: tuple[tuple[int, ...], ...]

    @property
    def tables(self) -> list[np.ndarray]:
        return [self.unary, self.pair, self._weights]

    def of_parts(self, rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
        pair, free = self.pair[rows[0] % len(self.pair)], spins == 0
        fields = self.unary[rows] + spins @ pair.T
        waiting = free.astype(np.float64) @ np.abs(pair).T
        for clique, owners, column in zip(self.cliques, self.owners, self.weight.T, strict=True):
            weight = column[rows % len(column)]
            for owner in owners:
                others = [label for label in clique if label != owner]
                fields[:, owner] += weight * spins[:, others].prod(1)
                waiting[:, owner] += np.abs(weight) * free[:, others].any(1)
        return self._sums(np.where(free, np.abs(fields), spins * fields) + waiting, rows)

    @abstractmethod
    def _sums(self, margins: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return Σ_i φ(margin_i) for margins (parts, labels): lower end, value, upper end, (3, parts)."""


@dataclass(frozen=True, eq=False)
class HingeLosses(MarginLosses):
    """The hinge loss Σ_i [γ − s_i z_i]_+.

    Args:
        margin: the margin γ.
    """

    margin: float

    @property
    def tables(self) -> list[np.ndarray]:
        return [*super().tables, np.full((1, self.unary.shape[1]), self.margin)]

    def _sums(self, margins: np.ndarray, rows: np.ndarray) -> np.ndarray:
        errors, share = self.errors[rows][:, None], HINGE_ERROR if self.errors.any() else 0.0
        shifted = (self.margin - margins + side * errors for side in SIDES)
        return np.stack([np.maximum(each, 0).sum(1) for each in shifted]) * (1 + share * SIDES[:, None])


@dataclass(frozen=True, eq=False)
class LogLosses(MarginLosses):
    """The log loss Σ_i log(1 + exp(−2 s_i z_i)) of a belief network's labels."""

    def _sums(self, margins: np.ndarray, rows: np.ndarray) -> np.ndarray:
        losses = np.logaddexp(0, -2 * margins).sum(1)
        error = margins.shape[1] * (2 * self.errors[rows] + LOG_ERROR) + LOG_ERROR * losses
        return losses + np.outer(SIDES, error)


@dataclass(frozen=True, eq=False)
class CliqueScoreLosses(MarginLosses):
    """The negative score of a Boltzmann machine with cliques; a clique enters the field of one label only.

    Args:
        constant: the constant of the score, (batch,).
    """

    constant: np.ndarray

    @property
    def tables(self) -> list[np.ndarray]:
        return [*super().tables, self.constant[:, None]]

    def _sums(self, margins: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return -self.constant[rows] - margins.sum(1) + np.outer(SIDES, self.errors[rows])


@dataclass(frozen=True, eq=False)
class PairScoreLosses(Losses):
    """The negative score of a Boltzmann machine with pairwise couplings.

    Args:
        constant: the constant of the score, (batch,).
        messages: (batch, labels, labels); row i holds the shares of couplings that move to the field of label
            i. Any messages give a bound, messages of :mod:`lmbm_torch.kernels.search.roof_duality` a tight
            bound.
    """

    constant: np.ndarray
    messages: np.ndarray

    @property
    def is_shared(self) -> bool:
        return False

    @property
    def tables(self) -> list[np.ndarray]:
        return [self.unary, self.pair, self.constant[:, None], 2 * self.messages]

    def of_parts(self, rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
        pair, given = self.pair[rows[0] % len(self.pair)], self.messages[rows[0]]
        settled, free = spins @ pair.T, (spins == 0).astype(np.float64)
        fields = self.unary[rows] + settled + free @ given.T
        most = np.maximum(pair + np.abs(given + given.T), np.abs(given - given.T) - pair)
        score = self.constant[rows] + (spins * (self.unary[rows] + settled / 2)).sum(1)
        least = -(score + (free * np.abs(fields)).sum(1) + ((free @ most) * free).sum(1) / 2)
        return least + np.outer(SIDES, self.errors[rows])
