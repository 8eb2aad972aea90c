"""A Boltzmann machine's hinge problem as interior points see it: blocks of labels, and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lmbm_torch.solvers.interior_point import MatrixRows, Solve, factorised
from lmbm_torch.solvers.machines.problem import SharedProblem, SharedWeights


@dataclass(frozen=True, eq=False)
class MachineRows:
    """The inputs of every label's margins, of all that have a loss, in one vector of weights.

    Labels share no weights but those of cliques. So the system of a step is solved label by label, and for
    the shared weights by its Schur complement. Columns are divided by the root of their penalty, which makes
    all penalties 1.

    Args:
        problem: whose rows they are.
        inputs: features and constant, (instances, features + 1), in float64.
        counted: (labels, instances), which margins have a loss; rows are those, in this order.
    """

    problem: SharedProblem
    inputs: MatrixRows
    counted: np.ndarray

    @cached_property
    def _unit(self) -> np.ndarray:
        return np.sqrt(self.problem.penalty)

    def times(self, weights: np.ndarray) -> np.ndarray:
        """The margins, (rows,)."""
        features, cliques = self._parts(weights)
        return self.problem.margins(SharedWeights(features, cliques / self._unit)).T[self.counted]

    def combine(self, duals: np.ndarray) -> np.ndarray:
        """The weights that duals (rows,) make."""
        features, cliques = self.problem.weights(self._matrix(duals))
        return np.concatenate([features.ravel(), cliques * self._unit])

    def factorise(self, scale: np.ndarray) -> Solve:
        """See :class:`~lmbm_torch.solvers.interior_point.Rows`."""
        schur = np.eye(len(self._unit))
        blocks = []
        for (columns, seen), weight in zip(self.problem.contexts, self._matrix(scale), strict=True):
            shared = columns[:, 1:] / self._unit[seen]
            mixed = self.inputs.combine(weight[:, None] * shared)
            solve = self.inputs.factorise(weight)
            solved = solve(mixed)
            schur[np.ix_(seen, seen)] += shared.T @ (weight[:, None] * shared) - mixed.T @ solved
            blocks.append((seen, solve, solved, mixed))
        # Of no shared weights there is nothing to solve, which LAPACK refuses.
        solve_shared = factorised(schur) if schur.size else np.copy

        def solve_all(right: np.ndarray) -> np.ndarray:
            features, cliques = self._parts(right)
            own = [block[1](column) for block, column in zip(blocks, features.T, strict=True)]
            pull = cliques.copy()
            for (seen, _, _, mixed), part in zip(blocks, own, strict=True):
                pull[seen] -= mixed.T @ part
            shared = solve_shared(pull)
            found = [part - block[2] @ shared[block[0]] for block, part in zip(blocks, own, strict=True)]
            return np.concatenate([np.column_stack(found).ravel(), shared])

        return solve_all

    def _matrix(self, values: np.ndarray) -> np.ndarray:
        """(labels, instances) of values (rows,), 0 where there is no loss."""
        matrix = np.zeros(self.counted.shape)
        matrix[self.counted] = values
        return matrix

    def _parts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights of features, (features + 1, labels), and of cliques."""
        split = self.problem.num_columns * self.problem.num_labels
        return weights[:split].reshape(self.problem.num_columns, -1), weights[split:]
