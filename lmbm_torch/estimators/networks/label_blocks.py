"""Training of belief networks in blocks of labels over any joblib backend.

Labels are independent unless a label has missing values, imputed before the labels behind it are trained.
Such labels end a stage, and each stage has blocks of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.estimators.common.spreading import Kept, keep, spread, workers
from lmbm_torch.estimators.networks import kernel_blocks
from lmbm_torch.fitting.dual import DualProblem
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate, states
from lmbm_torch.solvers.networks.problems import Features, LabelProblems
from lmbm_torch.solvers.networks.states import NetworkState


@dataclass(frozen=True)
class _Block(NetworkState):
    """The state of a stage with some labels to solve.

    Args:
        positions: of the labels to solve.
    """

    positions: Sequence[int] = ()

    def solved(self, tol: float) -> bool:
        """Return whether every label of the block has a relative gap of at most ``tol``."""
        return not states.unsolved(self, np.array(self.positions), tol).any()


def _limits(state: _Block, tol: float, left: int, watched: bool) -> dict[str, Any]:
    return dual_coordinate.limits(state, tol, left, watched) | {"positions": state.positions}


# No next stage: imputed labels are sent to the workers again.
BLOCKS: Any = SimpleNamespace(init=dual_coordinate.init, update=dual_coordinate.update, limits=_limits)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Problems of all labels, their state, and the arguments of ``update``.

    Args:
        problems: without features, which are the same in all stages.
    """

    problems: LabelProblems
    state: NetworkState
    tol: float
    max_iter: int
    seed: int


class _Solved(NamedTuple):
    """The solution of some labels.

    Args:
        dual_coef: (labels, instances).
        weights: (columns, labels).
        num_iters: rounds, including earlier stages.
    """

    dual_coef: np.ndarray
    weights: np.ndarray
    num_iters: int


def can_spread(dual: DualProblem) -> bool:
    """Return whether several labels are independent of each other."""
    problems = dual.problem
    is_linear = dual.solver is dual_coordinate and isinstance(problems, LabelProblems)
    can = is_linear or kernel_blocks.can_spread(problems)
    return can and any(len(stage) > 1 for stage in problems.stages())


def fit_blocks(
    dual: DualProblem, *, tol: float, max_iter: int, start: NetworkState | None, kept: Kept | None
) -> NetworkState:
    """Return the result of :func:`~lmbm_torch.fitting.dual.fit_dual`, to the last bit, computed by workers.

    Imputed labels are sent again for each stage of several labels; features stay with the workers.

    Args:
        kept: the features, if workers keep them already.
    """
    problems: Any = dual.problem
    solver: Any = dual.solver
    state: Any = dual.init() if start is None else start
    limits = {"tol": tol, "max_iter": max_iter, "seed": dual.settings["seed"]}
    is_linear = solver is dual_coordinate
    rows: Any = keep(problems.features) if is_linear and kept is None else kept
    while problems is not None:
        if is_linear:
            work = _Work(problems=problems, state=state, **limits)
            state = _with(state, _stage_solved(work, rows))
        else:
            state = kernel_blocks.stage_solved(problems, state, **limits)
        problems, state = solver.next_stage(problems, state)
    dual.assign(state.weights)
    return state


def _stage_solved(work: _Work, kept: Kept) -> Iterator[tuple[np.ndarray, _Solved]]:
    """Return the solutions of the state's stage, block by block."""
    stage = work.state.stage
    assert stage is not None
    blocks = np.array_split(np.array(stage), min(workers(), len(stage)))
    # A single label is solved here.
    if len(blocks) == 1:
        return zip(blocks, [_solved(work.problems, work, blocks[0])], strict=True)
    sent = replace(work, problems=replace(work.problems, features=work.problems.features[:0]))
    return zip(blocks, spread(_solve, sent, blocks, kept), strict=True)


def _with(state: NetworkState, found: Iterable[tuple[np.ndarray, _Solved]]) -> NetworkState:
    """Return the state with the solutions of some labels, not certified yet."""
    duals, weights, rounds = state.dual_coef.copy(), state.weights.copy(), state.num_iters
    for labels, part in found:
        duals[labels], weights[:, labels] = part.dual_coef, part.weights
        rounds = max(rounds, part.num_iters)
    return replace(state, dual_coef=duals, weights=weights, num_iters=rounds)


def _solve(work: _Work, labels: np.ndarray, features: Features) -> _Solved:
    """Return the solution of some labels, computed by a worker."""
    return _solved(_writable(replace(work.problems, features=features)), work, labels)


def _solved(problems: LabelProblems, work: _Work, labels: np.ndarray) -> _Solved:
    start = _Block(**vars(work.state), positions=labels.tolist())
    limits: Any = {"tol": work.tol, "max_iter": work.max_iter, "seed": work.seed}
    state = run(BLOCKS, problems, start=start, **limits)
    return _Solved(state.dual_coef[labels], state.weights[:, labels], state.num_iters)


def _writable(problems: LabelProblems) -> LabelProblems:
    """Return the problems with copies of read-only memory, for which kernels would be compiled again."""
    values = {part.name: getattr(problems, part.name) for part in fields(problems)}
    arrays = {name: np.array(value) for name, value in values.items() if isinstance(value, np.ndarray)}
    return replace(problems, **({"features": problems.features.copy()} | arrays))
