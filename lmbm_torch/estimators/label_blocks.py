"""Fits of networks whose labels see all labels before them, by blocks of labels over any joblib backend."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from lmbm_torch.estimators.spreading import spread, workers
from lmbm_torch.fitting.dual import DualProblem
from lmbm_torch.solvers.networks import dual_coordinate, states
from lmbm_torch.solvers.networks.problems import LabelProblems
from lmbm_torch.solvers.networks.states import NetworkState


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Problems of all labels and, but for the labels, what ``update`` takes."""

    problems: LabelProblems
    dual_coef: np.ndarray | None
    tol: float
    max_iter: int
    seed: int


def can_spread(dual: DualProblem) -> bool:
    """Whether there are workers, and labels that do not wait for each other.

    Labels that have missing values are imputed before later ones see them; a kernel's values are shared.
    """
    problems = dual.problem
    is_linear = dual.solver is dual_coordinate and isinstance(problems, LabelProblems)
    return is_linear and workers() > 1 and len([*problems.stages()]) == 1


def fit_blocks(dual: DualProblem, *, tol: float, max_iter: int, start: NetworkState | None) -> NetworkState:
    """:func:`~lmbm_torch.fitting.dual.fit_dual`, to the last bit, of problems that can be spread."""
    problems: LabelProblems = dual.problem
    work = _Work(
        problems=problems,
        dual_coef=None if start is None else start.dual_coef,
        tol=tol,
        max_iter=max_iter,
        seed=dual.settings["seed"],
    )
    blocks = np.array_split(np.arange(problems.num_labels), min(workers(), problems.num_labels))
    found = [*spread(_solve, work, blocks)]
    duals = np.concatenate([part for part, _ in found])
    rounds = max(num_iters for _, num_iters in found)
    state = states.certified(problems, duals, rounds, next(problems.stages()))
    dual.assign(state.weights)
    return state


def _solve(work: _Work, labels: np.ndarray) -> tuple[np.ndarray, int]:
    """The duals of these labels, (labels, instances), and the rounds made: as ``solvers.base.run`` does."""
    problems = _writable(work.problems)
    state: Any = dual_coordinate.init(problems, work.dual_coef)
    while states.unsolved(state, labels, work.tol).any() and state.num_iters < work.max_iter:
        before, left = state, work.max_iter - state.num_iters
        limits = {"tol": work.tol, "num_iters": left, "seed": work.seed, "positions": labels.tolist()}
        state = dual_coordinate.update(problems, state, **limits)
        if state is before:
            break
    return state.dual_coef[labels], state.num_iters


def _writable(problems: LabelProblems) -> LabelProblems:
    """The same problems, with copies of memory that was sent or is shared with another process.

    Such memory cannot be written, for which kernels would be compiled anew.
    """
    values = {part.name: getattr(problems, part.name) for part in fields(problems)}
    arrays = {name: np.array(value) for name, value in values.items() if isinstance(value, np.ndarray)}
    return replace(problems, **({"features": problems.features.copy()} | arrays))
