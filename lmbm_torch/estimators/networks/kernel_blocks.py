"""Parallel training of kernel networks by joblib, with exactly the same result as in one process.

Kernel values are computed in the main process and sent in single precision, the precision of the solver's
steps. Each worker makes the first steps for a block of labels, nearly all of the work. The main process
checks the duality gap by products in double precision, whose rounding depends on the number of labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.estimators.common.spreading import spread, workers
from lmbm_torch.solvers.networks import kernel_dual_coordinate
from lmbm_torch.solvers.networks.kernel_dual_coordinate import Ascent, KernelState
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import unsolved


@dataclass(frozen=True, eq=False)
class _Values:
    """A Gram matrix as a NumPy array, because joblib shares NumPy arrays between processes, but no tensors.

    Args:
        matrix: (instances, instances), the kernel values.
    """

    matrix: np.ndarray

    @property
    def num_instances(self) -> int:
        return len(self.matrix)

    def rows(self, index: Tensor | slice) -> Tensor:
        """Return the kernel values of some rows, as :class:`~lmbm_torch.solvers.gram.Gram` does."""
        # Copy the values, because torch warns of read-only memory such as shared memory.
        return torch.from_numpy(np.array(self.matrix[index if isinstance(index, slice) else index.numpy()]))

    def between(self, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
        """Return the kernel values of some rows and columns, as :class:`~lmbm_torch.solvers.gram.Gram`."""
        values = self.matrix[rows if isinstance(rows, slice) else rows.numpy()]
        return torch.from_numpy(
            np.array(values[:, columns if isinstance(columns, slice) else columns.numpy()])
        )


class _Start(NamedTuple):
    """The training problems and the solver's state that a worker starts from."""

    problems: KernelLabelProblems
    state: KernelState


def can_spread(problems: Any) -> bool:
    """Return whether the labels of kernel problems can be trained in different processes.

    They cannot if kernel values do not fit into memory, because parts are then read for several labels at
    once, nor with cliques of three or more labels, whose rounding depends on earlier labels.
    """
    is_kernel = isinstance(problems, KernelLabelProblems)
    return is_kernel and not problems.cliques and kernel_dual_coordinate.fits(problems)


def held_out(
    problems: KernelLabelProblems, folds: Sequence[np.ndarray], *, tol: float, seed: int
) -> np.ndarray:
    """Compute :func:`kernel_dual_coordinate.held_out` for all labels, in parallel if possible."""
    settings: Any = {"folds": folds, "tol": tol, "seed": seed}
    if workers() == 1 or problems.num_labels == 1 or not can_spread(problems):
        return kernel_dual_coordinate.held_out(problems, **settings)
    found = spread(partial(_held_out, **settings), _sent(problems), _blocks(np.arange(problems.num_labels)))
    return np.hstack([*found])


def stage_solved(
    problems: KernelLabelProblems, state: KernelState, *, tol: float, max_iter: int, seed: int
) -> KernelState:
    """Train the stage's labels in parallel, and return the same state as :func:`solvers.base.run`."""
    assert state.stage is not None
    end, limits = state.num_iters + max_iter, {"tol": tol, "seed": seed}
    labels = np.array(state.stage)[unsolved(state, state.stage, tol)]
    if len(labels) > 1:
        ascend = partial(_ascent, num_iters=max_iter, **limits)
        found = spread(ascend, _Start(_sent(problems), state), _blocks(labels))
        state = kernel_dual_coordinate.after(problems, state, [*found])
    while not state.solved(tol) and state.num_iters < end:
        before, left = state, {"num_iters": end - state.num_iters, "positions": state.stage}
        state = kernel_dual_coordinate.update(problems, state, **limits, **left)
        if state is before:
            break
    return state


def _sent(problems: KernelLabelProblems) -> KernelLabelProblems:
    """Return a copy of the problems that can be sent to workers, with all kernel values in an array."""
    return replace(problems, gram=_Values(kernel_dual_coordinate.matrix(problems)))


def _blocks(labels: np.ndarray) -> list[np.ndarray]:
    return np.array_split(labels, min(workers(), len(labels)))


def _held_out(problems: KernelLabelProblems, labels: np.ndarray, **settings: Any) -> np.ndarray:
    return kernel_dual_coordinate.held_out(problems, positions=labels.tolist(), **settings)


def _ascent(start: _Start, labels: np.ndarray, **settings: Any) -> Ascent:
    return kernel_dual_coordinate.ascent(*start, positions=labels.tolist(), **settings)
