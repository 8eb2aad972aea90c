"""A Boltzmann machine's hinge problem as interior points see it: blocks of labels, and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lmbm_torch.kernels.threads import share
from lmbm_torch.solvers.interior_point import MatrixRows, Solve, factorised
from lmbm_torch.solvers.machines.problem import SharedProblem, SharedWeights


class _Block(NamedTuple):
    """What a label adds to a factorisation.

    Args:
        seen: the shared weights that it sees.
        solve: by the block of its own weights.
        solved: the block's solution for ``mixed``.
        mixed: the entries between its own weights and the shared ones, (features + 1, seen).
        own: its part of the Schur complement, (seen, seen).
    """

    seen: np.ndarray
    solve: Solve
    solved: np.ndarray
    mixed: np.ndarray
    own: np.ndarray


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
        weights, found = self._matrix(scale), {}

        def add(label: int) -> None:
            columns, seen = self.problem.contexts[label]
            shared = columns[:, 1:] / self._unit[seen]
            weighed = weights[label, :, None] * shared
            mixed = self.inputs.combine(weighed)
            solve = self.inputs.factorise(weights[label])
            solved = solve(mixed)
            found[label] = _Block(seen, solve, solved, mixed, shared.T @ weighed - mixed.T @ solved)

        share(range(self.problem.num_labels), add)
        # In the order of the labels, whichever thread was first: sums depend on it.
        blocks = [found[label] for label in range(self.problem.num_labels)]
        schur = np.eye(len(self._unit))
        for block in blocks:
            schur[np.ix_(block.seen, block.seen)] += block.own
        # Of no shared weights there is nothing to solve, which LAPACK refuses.
        solve_shared = factorised(schur) if schur.size else np.copy

        def solve_all(right: np.ndarray) -> np.ndarray:
            features, cliques = self._parts(right)
            alone = [block.solve(column) for block, column in zip(blocks, features.T, strict=True)]
            pull = cliques.copy()
            for block, part in zip(blocks, alone, strict=True):
                pull[block.seen] -= block.mixed.T @ part
            shared = solve_shared(pull)
            own = [
                part - block.solved @ shared[block.seen] for block, part in zip(blocks, alone, strict=True)
            ]
            return np.concatenate([np.column_stack(own).ravel(), shared])

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
