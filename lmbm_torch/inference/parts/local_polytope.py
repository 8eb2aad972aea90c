"""The programme that decoders of pairwise energies solve, with integrality or without it.

Its variables are y_i in [0, 1] for each label, a product z_ij for each coupled pair and, for the hinge rule,
a loss ξ_i ≥ 0 for each label. The constraints z ≥ 0, z ≤ y_i, z ≤ y_j and y_i + y_j − z ≤ 1 say that z_ij is
y_i y_j where the y are integers, and otherwise that y and z are marginals of one distribution for each pair.
Spins are s_i = 2 y_i − 1, and s_i s_j = 4 z_ij − 2 y_i − 2 y_j + 1. A larger z_ij is better in every respect
where the coupling is positive, so that z ≤ y_i and z ≤ y_j are enough, and a smaller one where it is
negative, so that the other two are. Only such constraints are set up, which for scores halves the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from lmbm_torch.constraints import Constraints
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

    def in_full(self, bound: float) -> float:
        """A bound on cost·x in units of the weights, with the offset."""
        return self.scale * (self.offset + bound)

    def least_within_bounds(self, cost: np.ndarray) -> float:
        """The least cost·x for least ≤ x ≤ most alone, whatever the other constraints say."""
        return float(cost @ np.where(cost > 0, self.least, self.most))


@dataclass(frozen=True)
class LocalPolytope:
    """The structure that the examples of a batch share: variables, constraints and where their weights go.

    Args:
        num_labels: K.
        pairs: the labels of every pair that is coupled in some example.
        start: where in ``rows`` each column of the matrix begins.
        rows: of the matrix, by columns.
        by_column: from the order in which values are written to that by columns.
        values: those that no weight enters, in the order of writing; those of hinges are written after them.
        upper: of the constraints that no weight enters, which come first.
        num_bounds: constraints on one variable, of which the first are y ≥ 0, then y ≤ 1.
        num_losses: variables ξ: one per label for the hinge rule, none for scores.
    """

    num_labels: int
    pairs: np.ndarray
    start: np.ndarray
    rows: np.ndarray
    by_column: np.ndarray
    values: np.ndarray
    upper: np.ndarray
    num_bounds: int
    num_losses: int

    @classmethod
    def of(
        cls, energy: PairwiseEnergy, num_losses: int, constraints: Constraints | None = None
    ) -> LocalPolytope:
        """The structure of a batch; ``num_losses`` is 0 for scores, and K for hinge losses.

        Args:
            constraints: rules, each of them one more row over the labels.
        """
        labels = energy.num_labels
        couplings = energy.pairwise.detach().reshape(-1, labels, labels).triu(1)
        rising, falling = (couplings > 0).any(0), (couplings < 0).any(0)
        coupled = (rising | falling).nonzero().cpu().numpy().T
        first, second = coupled
        product = labels + np.arange(len(first))
        loss = labels + len(first) + np.arange(num_losses)
        up, down = (np.flatnonzero(signs.cpu().numpy()[first, second]) for signs in (rising, falling))
        label = np.arange(labels)
        # One block of constraints after the other: their variables with their factors, and right-hand sides.
        blocks = [
            ([(label, -1)], 0),
            ([(label, 1)], 1),
            ([(loss, -1)], 0),
            ([(product[down], -1)], 0),
            ([(product[up], 1), (first[up], -1)], 0),
            ([(product[up], 1), (second[up], -1)], 0),
            ([(first[down], 1), (second[down], 1), (product[down], -1)], 1),
        ]
        sizes = [len(terms[0][0]) for terms, _ in blocks]
        begins = np.cumsum([0, *sizes])
        row = [begin + np.arange(size) for begin, size in zip(begins, sizes, strict=False)]
        rows = [own for own, (terms, _) in zip(row, blocks, strict=True) for _ in terms]
        columns = [column for terms, _ in blocks for column, _ in terms]
        values = [np.full(len(column), float(factor)) for terms, _ in blocks for column, factor in terms]
        upper = np.repeat([float(bound) for _, bound in blocks], sizes)
        if constraints is not None:
            rule, of_rule = np.nonzero(constraints.matrix)
            rows.append(len(upper) + rule)
            columns.append(of_rule)
            values.append(constraints.matrix[rule, of_rule])
            upper = np.concatenate([upper, constraints.bounds])
        if num_losses:
            hinge = len(upper) + label
            rows += [hinge[index] for index in (label, label, first, second, first, second)]
            columns += [loss, label, second, first, product, product]
        all_rows, column = np.concatenate(rows), np.concatenate(columns)
        by_column = np.lexsort((all_rows, column))
        counts = np.bincount(column, minlength=labels + len(first) + num_losses)
        return cls(
            num_labels=labels,
            pairs=coupled,
            start=np.concatenate([[0], counts.cumsum()]),
            rows=all_rows[by_column],
            by_column=by_column,
            values=np.concatenate(values),
            upper=upper,
            num_bounds=int(begins[4]),
            num_losses=num_losses,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Constraints and variables."""
        return len(self.upper) + self.num_losses, len(self.start) - 1

    @property
    def columns(self) -> np.ndarray:
        """The variable of each entry of ``rows``."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def score_programme(self, unary: np.ndarray, pairwise: np.ndarray) -> Programme:
        """Minimise −score / scale, less the energy's constant."""
        weights, scale = self._weights(pairwise), _largest(unary, pairwise)
        cost = np.concatenate([-2 * (unary - pairwise.sum(1)), -4 * weights]) / scale
        offset = (unary.sum() - weights.sum()) / scale
        least, most = np.zeros(len(cost)), np.ones(len(cost))
        return Programme(cost, self.values[self.by_column], self.upper, least, most, offset, scale)

    def hinge_programme(self, unary: np.ndarray, pairwise: np.ndarray, margin: float) -> Programme:
        """Minimise Σ_i ξ_i / scale, where ξ_i ≥ margin − m_i."""
        scale = max(_largest(unary, pairwise), margin)
        unary, pairwise, margin = unary / scale, pairwise / scale, margin / scale
        weights, total = self._weights(pairwise), pairwise.sum(1)
        own = [-np.ones(self.num_labels), -2 * (unary - total)]
        values = np.concatenate([self.values, *own, 2 * weights, 2 * weights, -4 * weights, -4 * weights])
        marginals = self.num_labels + self.pairs.shape[1]
        cost = np.concatenate([np.zeros(marginals), np.ones(self.num_labels)])
        # No labelling has larger losses.
        worst = margin + np.abs(unary) + np.abs(pairwise).sum(1)
        most = np.concatenate([np.ones(marginals), worst])
        upper = np.concatenate([self.upper, total - unary - margin])
        return Programme(cost, values[self.by_column], upper, np.zeros(len(cost)), most, 0.0, scale)

    def given(self, programme: Programme, known: np.ndarray) -> Programme:
        """The same where labels have the values ``known`` (labels,), NaN where they are free."""
        fixed = np.flatnonzero(~np.isnan(known))
        values = known[fixed]
        least, most, upper = programme.least.copy(), programme.most.copy(), programme.upper.copy()
        least[fixed] = most[fixed] = values
        upper[fixed], upper[self.num_labels + fixed] = -values, values
        return programme._replace(upper=upper, least=least, most=most)

    def _weights(self, pairwise: np.ndarray) -> np.ndarray:
        """The couplings of the pairs."""
        return pairwise[self.pairs[0], self.pairs[1]]


def _largest(unary: np.ndarray, pairwise: np.ndarray) -> float:
    """The largest weight, or 1 where all are zero."""
    return float(max(np.abs(unary).max(), np.abs(pairwise).max())) or 1.0


def hinge_loss(energy: PairwiseEnergy, labels: Tensor, margin: float) -> Tensor:
    """Σ_i [margin − m_i]_+."""
    return (margin - energy.local_margins(labels)).clamp(min=0).sum(-1)
