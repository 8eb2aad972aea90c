"""The programme that decoders of pairwise energies solve, with integrality or without it.

Its variables are y_i in [0, 1] for each label, a product z_ij for each coupled pair and, for the hinge rule,
a loss ξ_i ≥ 0 for each label. The constraints z ≥ 0, z ≤ y_i, z ≤ y_j and y_i + y_j − z ≤ 1 say that z_ij is
y_i y_j where the y are integers, and otherwise that y and z are marginals of one distribution for each pair.
Spins are s_i = 2 y_i − 1, and s_i s_j = 4 z_ij − 2 y_i − 2 y_j + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from lmbm_torch.energies.pairwise import PairwiseEnergy

__all__ = ["LocalPolytope", "Programme", "hinge_loss"]


class Programme(NamedTuple):
    """Minimise cost·x + offset over the polytope's x with matrix x ≤ upper and least ≤ x ≤ most.

    Args:
        values: of the matrix, by columns.
        scale: what one unit of the objective is worth: weights are divided by the largest of them, so that
            the tolerances of a solver mean the same for all energies.
    """

    cost: np.ndarray
    values: np.ndarray
    upper: np.ndarray
    least: np.ndarray
    most: np.ndarray
    offset: float
    scale: float


@dataclass(frozen=True)
class LocalPolytope:
    """The structure that the examples of a batch share: variables, constraints and where their weights go.

    Args:
        num_labels: K.
        pairs: the labels of every pair that is coupled in some example.
        start: where in ``rows`` each column of the matrix begins.
        rows: of the matrix, by columns.
        by_column: from the order in which values are written to that by columns.
        num_losses: variables ξ: one per label for the hinge rule, none for scores.
    """

    num_labels: int
    pairs: np.ndarray
    start: np.ndarray
    rows: np.ndarray
    by_column: np.ndarray
    num_losses: int

    @classmethod
    def of(cls, energy: PairwiseEnergy, num_losses: int) -> LocalPolytope:
        """The structure of a batch; ``num_losses`` is 0 for scores, and K for hinge losses."""
        labels = energy.num_labels
        coupled = (energy.pairwise.reshape(-1, labels, labels) != 0).any(0).triu(1)
        first, second = coupled.nonzero().cpu().numpy().T
        products = labels + np.arange(len(first))
        variables = labels + len(first) + num_losses
        # Bounds of single variables, then three rows for each pair, then the hinges.
        pair_rows = variables + labels + np.arange(3 * len(first)).reshape(3, -1)
        hinges = variables + labels + 3 * len(first)
        label = np.arange(num_losses)
        rows = [np.arange(variables + labels), pair_rows[[0, 0, 1, 1, 2, 2, 2]].ravel()]
        columns = [np.arange(variables), np.arange(labels)]
        columns += [products, first, products, second, first, second, products]
        if num_losses:
            rows += [hinges + index for index in (label, label, first, second, first, second)]
            columns += [labels + len(first) + label, label, second, first, products, products]
        row, column = np.concatenate(rows), np.concatenate(columns)
        by_column = np.lexsort((row, column))
        start = np.concatenate([[0], np.bincount(column, minlength=variables).cumsum()])
        return cls(labels, np.stack([first, second]), start, row[by_column], by_column, num_losses)

    @property
    def shape(self) -> tuple[int, int]:
        """Constraints and variables."""
        variables = len(self.start) - 1
        return variables + self.num_labels + 3 * self.pairs.shape[1] + self.num_losses, variables

    @property
    def num_bounds(self) -> int:
        """The constraints that come first, each on one variable: x ≥ least, and y ≤ 1."""
        return len(self.start) - 1 + self.num_labels

    @property
    def columns(self) -> np.ndarray:
        """The variable of each entry of ``rows``."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def score_programme(self, unary: np.ndarray, pairwise: np.ndarray) -> Programme:
        """Minimise −score / scale, less the energy's constant."""
        weights, scale = self._weights(pairwise), _largest(unary, pairwise)
        cost = np.concatenate([-2 * (unary - pairwise.sum(1)), -4 * weights]) / scale
        offset = (unary.sum() - weights.sum()) / scale
        values, upper = self._pair_constraints()
        least, most = np.zeros(len(cost)), np.ones(len(cost))
        return Programme(cost, values[self.by_column], upper, least, most, offset, scale)

    def hinge_programme(self, unary: np.ndarray, pairwise: np.ndarray, margin: float) -> Programme:
        """Minimise Σ_i ξ_i / scale, where ξ_i ≥ margin − m_i."""
        scale = max(_largest(unary, pairwise), margin)
        unary, pairwise, margin = unary / scale, pairwise / scale, margin / scale
        weights, total = self._weights(pairwise), pairwise.sum(1)
        values, upper = self._pair_constraints()
        own = [-np.ones(self.num_labels), -2 * (unary - total)]
        values = np.concatenate([values, *own, 2 * weights, 2 * weights, -4 * weights, -4 * weights])
        marginals = self.num_labels + self.pairs.shape[1]
        cost = np.concatenate([np.zeros(marginals), np.ones(self.num_labels)])
        # No labelling has larger losses.
        worst = margin + np.abs(unary) + np.abs(pairwise).sum(1)
        most = np.concatenate([np.ones(marginals), worst])
        upper = np.concatenate([upper, total - unary - margin])
        return Programme(cost, values[self.by_column], upper, np.zeros(len(cost)), most, 0.0, scale)

    def given(self, programme: Programme, known: np.ndarray) -> Programme:
        """The same where labels have the values ``known`` (labels,), NaN where they are free."""
        fixed = np.flatnonzero(~np.isnan(known))
        values = known[fixed]
        least, most, upper = programme.least.copy(), programme.most.copy(), programme.upper.copy()
        least[fixed] = most[fixed] = values
        upper[fixed], upper[len(least) + fixed] = -values, values
        return programme._replace(upper=upper, least=least, most=most)

    def _weights(self, pairwise: np.ndarray) -> np.ndarray:
        """The couplings of the pairs."""
        return pairwise[self.pairs[0], self.pairs[1]]

    def _pair_constraints(self) -> tuple[np.ndarray, np.ndarray]:
        """Values in the order of writing and right-hand sides, of all but the hinges."""
        variables, pairs = len(self.start) - 1, self.pairs.shape[1]
        signs = np.repeat([1.0, -1, 1, -1, 1, 1, -1], pairs)
        values = np.concatenate([-np.ones(variables), np.ones(self.num_labels), signs])
        upper = [np.zeros(variables), np.ones(self.num_labels), np.zeros(2 * pairs), np.ones(pairs)]
        return values, np.concatenate(upper)


def _largest(unary: np.ndarray, pairwise: np.ndarray) -> float:
    """The largest weight, or 1 where all are zero."""
    return float(max(np.abs(unary).max(), np.abs(pairwise).max())) or 1.0


def hinge_loss(energy: PairwiseEnergy, labels: Tensor, margin: float) -> Tensor:
    """Σ_i [margin − m_i]_+."""
    return (margin - energy.local_margins(labels)).clamp(min=0).sum(-1)
