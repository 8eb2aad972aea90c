"""Dual coordinate descent for label problems, after Hsieh et al. 2008, to a certified duality gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from lmbm_torch.backends.installed import kernels
from lmbm_torch.checks import check_positive
from lmbm_torch.solvers.base import Callback, SolverState
from lmbm_torch.solvers.networks import states
from lmbm_torch.solvers.networks.problems import LabelProblems

# Nearly every instance matters to nearly every label until here; more were not faster on any data set tried.
SHARED_SWEEPS = 4


def init(problems: LabelProblems, dual_coef: np.ndarray | None = None) -> SolverState:
    """The state at ``dual_coef`` (labels, instances), by default at zero.

    Raises:
        ValueError: duals of the wrong shape or outside their box [0, C_l].
    """
    return states.initial(problems, dual_coef)


def update(
    problems: LabelProblems,
    state: SolverState,
    *,
    tol: float = 1e-3,
    rounds: int = 1,
    seed: int = 0,
    positions: Sequence[int] | None = None,
) -> SolverState:
    """Up to ``rounds`` further rounds for every label whose relative gap is above ``tol``.

    A round looks at all instances once, then sweeps over those that matter to the label until little of their
    violation is left. An update from zero begins with sweeps over all instances, each visited once for all
    labels.

    Args:
        positions: the labels to work on, by position in the ordering; all by default.

    Returns:
        The state after them; the same however many updates the rounds are made in.

    Raises:
        ValueError: a state of other problems, positions that are not there.
    """
    labels = states.labels_to_solve(problems, state, tol, positions)
    if not len(labels):
        return state
    backend = kernels("dual.network", "dual coordinate descent")
    weights, duals = state.weights.copy(), state.dual_coef.copy()
    # A stored state goes on with the random numbers that it would have had.
    seed = int(np.random.SeedSequence(seed).generate_state(1)[0]) + state.num_passes
    first, last = labels[0], labels[-1] + 1
    # A block has no gaps: labels between those to work on must be left as they are.
    if not duals[labels].any() and np.array_equal(labels, np.arange(first, last)):
        blocks = min(torch.get_num_threads(), last - first)
        bounds = np.linspace(first, last, blocks + 1).astype(np.int64)
        backend.shared_sweeps(problems, bounds, weights, duals, SHARED_SWEEPS, seed)
    values = backend.solve_labels(problems, labels, weights, duals, tol, rounds, seed)
    primal, dual = state.primal.copy(), state.dual.copy()
    primal[labels], dual[labels], made = values
    return SolverState(duals, weights, primal, dual, state.num_passes + int(made.max()))


def run(
    problems: LabelProblems,
    *,
    tol: float = 1e-3,
    max_rounds: int = 1000,
    dual_coef: np.ndarray | None = None,
    seed: int = 0,
    callback: Callback | None = None,
) -> SolverState:
    """Solve every label's problem to a relative duality gap of ``tol``.

    Labels with missing values are learned in stages: what a label lacks is imputed by its own prediction
    before the labels behind it in the ordering see it.

    Args:
        tol: the relative duality gap of each label at which it is done.
        max_rounds: the end, reached or not; ``state.gap`` tells.
        dual_coef: (labels, instances), duals to start from, such as those of a smaller C.
        seed: of the order in which instances are visited.
        callback: called after every few rounds.

    Returns:
        The state, its weights and both values computed afresh from the duals.

    Raises:
        ValueError: ``tol`` not above zero, ``max_rounds`` below one, or duals outside their box.
    """
    return states.run_stages(
        problems,
        partial(update, seed=seed),
        tol=tol,
        max_rounds=max_rounds,
        dual_coef=dual_coef,
        callback=callback,
    )


def path(
    problems: LabelProblems,
    penalties: Sequence[float],
    *,
    tol: float = 1e-3,
    max_rounds: int = 1000,
    seed: int = 0,
) -> Iterator[SolverState]:
    """Solve for one C after the other, each from the last one's duals scaled to the new box.

    Yields:
        The state for each of ``penalties``, values of C, in the order given (fastest when they rise).

    Raises:
        ValueError: as :func:`run`; penalties not above zero.
    """
    weight = problems.upper / problems.C
    duals, last = None, None
    for C in penalties:
        check_positive("penalties", C)
        problems = replace(problems, C=C, upper=C * weight)
        if duals is not None:
            duals = np.minimum(duals * (C / last), problems.upper)
        state = run(problems, tol=tol, max_rounds=max_rounds, dual_coef=duals, seed=seed)
        yield state
        duals, last = state.dual_coef, C
