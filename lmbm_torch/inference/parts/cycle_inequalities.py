"""Inequalities that every labelling satisfies and the local polytope does not: those of three labels.

Of the three pairs among three labels either none differs or two do (Barahona and Mahjoub, "On the cut
polytope", Mathematical Programming 36, 1986): with y and z as in
:mod:`lmbm_torch.inference.parts.local_polytope`,

    z_ij + z_ik ≤ y_i + z_jk,   and so for j and k,   y_i + y_j + y_k ≤ 1 + z_ij + z_ik + z_jk

There are too many to set up; solvers are given those that their last solution violates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lmbm_torch.inference.parts.local_polytope import LocalPolytope

__all__ = ["CycleInequalities", "Rows"]

# A violation of less than this is a solver's own tolerance.
VIOLATED = 1e-5


class Rows(NamedTuple):
    """Constraints factors · x[columns] ≤ upper.

    Args:
        columns: (rows, 6), variables.
        factors: (rows, 6).
        upper: (rows,).
    """

    columns: np.ndarray
    factors: np.ndarray
    upper: np.ndarray


# Of y_i, y_j, y_k, z_ij, z_ik, z_jk, one row for each inequality of three labels.
FACTORS = np.array(
    [
        [-1.0, 0, 0, 1, 1, -1],
        [0, -1.0, 0, 1, -1, 1],
        [0, 0, -1.0, -1, 1, 1],
        [1, 1, 1, -1, -1, -1],
    ]
)
UPPER = np.array([0.0, 0, 0, 1])


@dataclass(frozen=True)
class CycleInequalities:
    """Those of every three labels that are all coupled.

    Args:
        columns: (triples, 6), the variables of each three labels, in the order of ``FACTORS``.
    """

    columns: np.ndarray

    @classmethod
    def of(cls, polytope: LocalPolytope) -> CycleInequalities:
        """Of a batch's structure."""
        labels = polytope.num_labels
        first, second = polytope.pairs
        product = np.zeros((labels, labels), dtype=np.int64)
        product[first, second] = labels + np.arange(len(first))
        pair, third = ((product[first] > 0) & (product[second] > 0)).nonzero()
        one, other = first[pair], second[pair]
        columns = [one, other, third, product[one, other], product[one, third], product[other, third]]
        return cls(np.stack(columns, 1))

    def violated(self, values: np.ndarray, most: int) -> Rows:
        """The inequalities that a solution violates, at most so many, the worst first."""
        excess = (values[self.columns] @ FACTORS.T - UPPER).ravel()
        worst = np.argsort(-excess, kind="stable")[:most]
        triple, kind = np.divmod(worst[excess[worst] > VIOLATED], len(FACTORS))
        return Rows(self.columns[triple], FACTORS[kind], UPPER[kind])
