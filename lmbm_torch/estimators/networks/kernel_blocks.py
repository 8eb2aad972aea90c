"""Fits of networks with a kernel by blocks of labels over any joblib backend, with the bits of one process.

Kernel values are computed here, and sent in single precision, as the solver turns them from label to label.
Workers make the first steps of all labels, which nearly all of the work is; the products in double precision
that certify them, whose rounding depends on how many labels they are made for, are made here.
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
from lmbm_torch.solvers.networks import kernel_dual_coordinate, states
from lmbm_torch.solvers.networks.kernel_dual_coordinate import Ascent, KernelState
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems


@dataclass(frozen=True, eq=False)
class _Values:
    """A Gram matrix that can be sent: processes of one machine share a NumPy array, and no tensor.

    Args:
        matrix: (instances, instances).
    """

    matrix: np.ndarray

    @property
    def num_instances(self) -> int:
        return len(self.matrix)

    def rows(self, index: Tensor | slice) -> Tensor:
        """See :class:`~lmbm_torch.solvers.gram.Gram`."""
        # A copy: torch warns of memory that cannot be written, as what is shared.
        return torch.from_numpy(np.array(self.matrix[index if isinstance(index, slice) else index.numpy()]))

    def between(self, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
        """See :class:`~lmbm_torch.solvers.gram.Gram`."""
        values = self.matrix[rows if isinstance(rows, slice) else rows.numpy()]
        return torch.from_numpy(
            np.array(values[:, columns if isinstance(columns, slice) else columns.numpy()])
        )


class _Start(NamedTuple):
    """What workers begin with."""

    problems: KernelLabelProblems
    state: KernelState


def can_spread(problems: Any) -> bool:
    """Whether these are problems with a kernel whose labels' solutions do not depend on each other.

    Kernel values that are read by parts are read for several labels at once, and those that cliques of three
    or more turn keep the rounding of the labels before.
    """
    is_kernel = isinstance(problems, KernelLabelProblems)
    return is_kernel and not problems.cliques and kernel_dual_coordinate.fits(problems)


def held_out(
    problems: KernelLabelProblems, folds: Sequence[np.ndarray], *, tol: float, seed: int
) -> np.ndarray:
    """:func:`kernel_dual_coordinate.held_out` of all labels, by workers if there are any."""
    settings: Any = {"folds": folds, "tol": tol, "seed": seed}
    if workers() == 1 or problems.num_labels == 1 or not can_spread(problems):
        return kernel_dual_coordinate.held_out(problems, **settings)
    found = spread(partial(_held_out, **settings), _sent(problems), _blocks(np.arange(problems.num_labels)))
    return np.hstack([*found])


def stage_solved(
    problems: KernelLabelProblems, state: KernelState, *, tol: float, max_iter: int, seed: int
) -> KernelState:
    """The state after all updates of its stage, as :func:`solvers.base.run` makes them."""
    assert state.stage is not None
    end, limits = state.num_iters + max_iter, {"tol": tol, "seed": seed}
    labels = np.array(state.stage)[states.unsolved(state, state.stage, tol)]
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
    """The same problems with their kernel values."""
    return replace(problems, gram=_Values(kernel_dual_coordinate.matrix(problems)))


def _blocks(labels: np.ndarray) -> list[np.ndarray]:
    return np.array_split(labels, min(workers(), len(labels)))


def _held_out(problems: KernelLabelProblems, labels: np.ndarray, **settings: Any) -> np.ndarray:
    return kernel_dual_coordinate.held_out(problems, positions=labels.tolist(), **settings)


def _ascent(start: _Start, labels: np.ndarray, **settings: Any) -> Ascent:
    return kernel_dual_coordinate.ascent(*start, positions=labels.tolist(), **settings)
