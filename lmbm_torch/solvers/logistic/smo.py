"""Sequential minimal optimisation of kernel logistic regression in the dual, to a certified duality gap.

The dual variables of an instance are a distribution α_i over the classes. With w = Σ_i C_i Σ_y (t_iy − α_iy)
φ(x_i, y) the dual is −½‖w‖² + Σ_i C_i H(α_i), and the duality gap is Σ_i C_i KL(α_i ‖ p(· | x_i)), where p is
what the model of these weights predicts (dual_optimization_conditional_models_2006, Equation 5 with its
constant, times C = 1/λ, and Equation 25).

The kernel is read a block of instances at a time, against all others in one matrix product; inside the block
they take turns, each with exact knowledge of what those before it have changed. With a multi-class kernel an
instance's whole distribution is maximised at once; with any joint kernel, two of its classes at a time, as in
the paper. Where many passes leave a gap and the kernel is of low rank, Newton's method goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.backends.dual.plain import logistic
from lmbm_torch.backends.installed import compiled
from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.shapes import Float
from lmbm_torch.solvers.base import run_to_gap
from lmbm_torch.solvers.logistic import newton
from lmbm_torch.solvers.logistic.problems import JointProblem, MulticlassProblem

Problem = MulticlassProblem | JointProblem

BLOCK = 64
CERTIFIED_AT_ONCE = 256
PAIR_STEPS = 10
"""D of Algorithm 1."""
# Passes between two certificates, each of which costs as much as a pass over all instances.
PASSES_AT_ONCE = 4
# Most problems are solved by then; of the others it shows how many passes they would take.
NEWTON_AFTER = 24


@dataclass(frozen=True, eq=False)
class LogisticState:
    """Where the solver stands.

    Args:
        probabilities: α, the dual variables.
        coef: C_i (t_i − α_i), which times the kernel gives scores.
        divergences: C_i KL(α_i ‖ p_i), each instance's share of the duality gap.
        primal: the objective at the weights that the duals make.
        num_passes: passes over instances made so far; with the seed it determines the next one's order.
    """

    probabilities: Float[Tensor, "instances classes"]
    coef: Float[Tensor, "instances classes"]
    divergences: Float[Tensor, " instances"]
    primal: float
    num_passes: int

    @property
    def dual(self) -> float:
        """The dual value, never above the optimum."""
        return self.primal - float(self.divergences.sum())

    @property
    def gap(self) -> float:
        """The duality gap relative to the primal value."""
        return float(self.divergences.sum()) / max(self.primal, np.finfo(np.float64).tiny)


def init(problem: Problem, probabilities: Float[Tensor, "instances classes"] | None = None) -> LogisticState:
    """The state at given dual variables, by default the uniform distribution.

    Raises:
        ValueError: another shape than the targets', entries that are not above zero, rows that do not sum to
            one.
    """
    if probabilities is None:
        probabilities = torch.full_like(problem.targets, 1 / problem.targets.shape[1])
    check_shape("probabilities", probabilities, *problem.targets.shape)
    if bool((probabilities <= 0).any()) or bool(((probabilities.sum(-1) - 1).abs() > 1e-9).any()):
        raise ValueError("probabilities: expected distributions with entries above zero, got others")
    return _certified(problem, probabilities.clone(), num_passes=0)


def update(
    problem: Problem, state: LogisticState, *, passes: int = PASSES_AT_ONCE, seed: int = 0
) -> LogisticState:
    """Further passes over the instances that hold the gap open, then a new certificate.

    Raises:
        ValueError: a state of another problem, ``passes`` below one.
    """
    check_count("passes", passes)
    check_shape("state.probabilities", state.probabilities, *problem.targets.shape)
    probabilities, coef = state.probabilities.clone(), state.coef.clone()
    divergences = state.divergences.clone()
    for made in range(state.num_passes, state.num_passes + passes):
        for index in _blocks(_violators(divergences), seed, made):
            rows = problem.rows(index)
            scores = problem.scores(rows, coef)
            own, upper = probabilities[index], problem.upper[index]
            found = torch.empty_like(upper)
            _block_pass(problem, problem.among(rows, index), upper, scores, own, found)
            probabilities[index], divergences[index] = own, upper * found
            coef[index] = upper[:, None] * (problem.targets[index] - own)
    return _certified(problem, probabilities, state.num_passes + passes)


def run(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_passes: int = 10_000,
    probabilities: Float[Tensor, "instances classes"] | None = None,
    seed: int = 0,
    callback: Callable[[LogisticState], None] | None = None,
) -> LogisticState:
    """Maximise the dual to a relative duality gap of ``tol``.

    With a multi-class kernel, what ``NEWTON_AFTER`` passes have not solved is tried by :func:`finish` once,
    if it is cheaper than the passes that are to be expected.

    Args:
        problem: of the multi-class kernel, or any joint one.
        tol: the gap relative to the primal objective.
        max_passes: the end, reached or not; ``state.gap`` tells.
        probabilities: dual variables to start from, such as those of a smaller C.
        seed: of the order of the instances.
        callback: called after every few passes; may raise to stop.

    Raises:
        ValueError: ``tol`` not above zero, ``max_passes`` below one, starting points as for :func:`init`.
    """

    halfway = np.inf

    def step(state: LogisticState) -> LogisticState:
        nonlocal halfway
        if state.num_passes == NEWTON_AFTER // 2:
            halfway = state.gap
        if state.num_passes == NEWTON_AFTER and isinstance(problem, MulticlassProblem):
            state = finish(problem, state, _passes_ahead(halfway, state.gap, tol))
            if state.gap <= tol:
                return state
        passes = min(PASSES_AT_ONCE, max_passes - state.num_passes)
        return update(problem, state, passes=passes, seed=seed)

    return run_to_gap(
        partial(init, problem, probabilities),
        step,
        tol=tol,
        max_passes=max_passes,
        callback=callback,
    )


def finish(problem: MulticlassProblem, state: LogisticState, passes: float = np.inf) -> LogisticState:
    """The state at what Newton's method finds, if the kernel is of low rank and that is better.

    Args:
        passes: the most that it may cost, as if in passes over the instances.

    Raises:
        ValueError: a state of another problem.
    """
    check_shape("state.probabilities", state.probabilities, *problem.targets.shape)
    instances, classes = problem.targets.shape
    most = newton.largest_rank(instances, classes, passes)
    factor = newton.low_rank_factor(problem.gram, most)
    if factor is None:
        return state
    probabilities = newton.maximise(factor, problem.targets, problem.upper)
    found = _certified(problem, probabilities, state.num_passes)
    return found if found.dual > state.dual else state


def _passes_ahead(halfway: float, gap: float, tol: float) -> float:
    """How many passes the gap will take to ``tol`` if it goes on as in the last half of ``NEWTON_AFTER``."""
    if gap >= halfway:
        return np.inf
    return NEWTON_AFTER / 2 * np.log(gap / tol) / np.log(halfway / gap)


def _violators(divergences: Tensor) -> Tensor:
    """The instances without which hardly anything of the gap is left."""
    return (divergences > 0.01 * divergences.mean()).nonzero()[:, 0]


def _blocks(index: Tensor, seed: int, made: int) -> Iterator[Tensor]:
    order = torch.from_numpy(np.random.default_rng((seed, made)).permutation(len(index)))
    for block in index[order.to(index.device)].split(BLOCK):
        yield block.sort().values


def _certified(problem: Problem, probabilities: Tensor, num_passes: int) -> LogisticState:
    """Both values at the duals, computed afresh from all of the kernel."""
    coef = problem.upper[:, None] * (problem.targets - probabilities)
    square_norm, loss = 0.0, 0.0
    divergences = torch.empty_like(problem.upper)
    for first in range(0, len(coef), CERTIFIED_AT_ONCE):
        index = slice(first, first + CERTIFIED_AT_ONCE)
        scores = problem.scores(problem.rows(index), coef)
        log_model = scores.log_softmax(-1)
        own, upper = probabilities[index], problem.upper[index]
        square_norm += float((coef[index] * scores).sum())
        loss -= float(upper @ (problem.targets[index] * log_model).sum(-1))
        divergences[index] = upper * logistic.divergence(own, scores)
    return LogisticState(probabilities, coef, divergences, 0.5 * square_norm + loss, num_passes)


def _block_pass(
    problem: Problem, gram: Tensor, upper: Tensor, scores: Tensor, own: Tensor, found: Tensor
) -> None:
    """One visit to each of a block's instances: compiled on the CPU, else in torch."""
    joint = isinstance(problem, JointProblem)
    backend = compiled("dual.logistic", "kernel logistic regression") if gram.device.type == "cpu" else None
    if backend is None:
        (logistic.joint_pass if joint else logistic.class_pass)(gram, upper, scores, own, found)
        return
    arrays = tuple(each.numpy() for each in (gram, upper, scores, own, found))
    if joint:
        backend.pair_pass(*arrays, PAIR_STEPS)
    else:
        backend.class_pass(*arrays)
