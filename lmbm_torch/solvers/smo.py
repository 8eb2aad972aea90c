"""Sequential minimal optimisation of kernel logistic regression in the dual, to a certified duality gap.

The dual variables of an instance are a distribution α_i over the classes. With w = Σ_i C_i Σ_y (t_iy − α_iy)
φ(x_i, y) the dual is −½‖w‖² + Σ_i C_i H(α_i), and the duality gap is Σ_i C_i KL(α_i ‖ p(· | x_i)), where p is
the prediction of the model with weights w (dual_optimization_conditional_models_2006, Equation 25, and
Equation 5 with its constant, times C = 1/λ).

The kernel is read in blocks: the rows of a block's instances with all instances, in one matrix product.
Inside a block, instances are visited in turn, and scores are updated after every visit. With a multi-class
kernel a visit maximises over the instance's whole distribution; with a joint kernel over two classes at a
time, as in the paper. If many passes leave a gap and the kernel has a low rank, Newton's method continues.

With a kernel matrix K = L Lᵀ of low rank the problem is multinomial logistic regression on the rows of L,

    min_W ½‖W‖² + Σ_i C_i (logsumexp_y (L W)_iy − Σ_y t_iy (L W)_iy),

with as many dimensions as the rank of K. With a large C and few dimensions all dual variables depend on each
other, and coordinate steps are slow. Newton steps are not: they use conjugate gradients with the Hessian of
each class as preconditioner. The predicted distributions are dual variables
(dual_optimization_conditional_models_2006, Equation 25), with a duality gap computed from the whole kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_finite, check_shape
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.shapes import Float, Int
from lmbm_torch.solvers.base import SolverState
from lmbm_torch.solvers.gram import Gram

# Expected number of Newton steps.
STEPS_EXPECTED = 20
# Largest number of multiplications of a Newton step, which also limits memory.
MOST_WORK = 1e10
# Number of kernel rows that a factorisation or product takes at a time.
ROWS_AT_ONCE = 256
# Largest number of Newton steps, and of steps of conjugate gradients in each.
NEWTON_STEPS, CONJUGATE_STEPS = 60, 200
# Newton's method ends at this share of the first squared gradient norm: double precision allows no less.
SOLVED = 1e-20
# A step must gain at least this share of what the slope predicts (Armijo's rule).
ENOUGH = 1e-4
# Smallest share of a Newton step that the line search tries.
SHORTEST_STEP = 1e-8
# Number of instances whose kernel rows are computed together for visits.
BLOCK = 64
# Number of steps on pairs of classes in each visit of an instance: D in Algorithm 1.
PAIR_STEPS = 10
# Number of passes between two computations of the duality gap, which take as long as a full pass.
PASSES_AT_ONCE = 4
# Number of passes that suffices for most problems. Otherwise, the cost of further passes is estimated then,
# and compared with Newton's method.
NEWTON_AFTER = 24


@dataclass(frozen=True, eq=False)
class MulticlassProblem:
    """Kernel logistic regression, min ½‖w‖² + Σ_i C_i loss_i with loss = −Σ_y t_y log p(y | x).

    p(y | x) ∝ exp⟨w, φ(x, y)⟩ with the instances' kernel for equal classes and zero for different classes:
    one weight vector per class (dual_optimization_conditional_models_2006, Section 2, with C = 1/λ).

    Args:
        gram: kernel values between instances.
        targets: distributions over the classes, float64; one-hot for observed classes.
        upper: weights C_i of the instances' losses, float64, above zero.

    Raises:
        ValueError: a shape is wrong; targets have negative entries or do not sum to one; a weight is not
            above zero.
    """

    gram: Gram
    targets: Float[Tensor, "instances classes"]
    upper: Float[Tensor, " instances"]

    def __post_init__(self) -> None:
        _check(self.targets, self.upper)
        check_shape("targets", self.targets, self.gram.num_instances, None)

    def rows(self, index: Int[Tensor, " block"] | slice) -> Float[Tensor, "block instances"]:
        """Return the kernel values of a block's instances with all instances."""
        return self.gram.rows(index)

    def scores(
        self, rows: Tensor, coef: Float[Tensor, "instances classes"]
    ) -> Float[Tensor, "block classes"]:
        """Return the scores ⟨w, φ(x_i, y)⟩ = Σ_j k(x_i, x_j) coef_jy, added up in the kernel's dtype."""
        return (rows @ coef.to(rows.dtype)).to(coef.dtype)

    def among(self, rows: Tensor, index: Int[Tensor, " block"]) -> Float[Tensor, "block block"]:
        """Return the kernel values between a block's instances."""
        return rows[:, index].to(self.targets.dtype).contiguous()


@dataclass(frozen=True, eq=False)
class JointProblem:
    """Kernel logistic regression with any joint kernel k((x, y), (x', y')), given as a matrix.

    The unconditional case, p(y) ∝ exp⟨w, φ(y)⟩ from N samples, is one instance with the samples' empirical
    distribution as target and C_1 = N·C.

    Args:
        matrix: kernel values, float64, symmetric and positive semidefinite as a matrix of pairs (x, y).
        targets: distributions over the classes, see :class:`MulticlassProblem`.
        upper: weights C_i of the instances' losses, see :class:`MulticlassProblem`.

    Raises:
        ValueError: see :class:`MulticlassProblem`; kernel values are not finite or not symmetric.
    """

    matrix: Float[Tensor, "instances classes instances classes"]
    targets: Float[Tensor, "instances classes"]
    upper: Float[Tensor, " instances"]

    def __post_init__(self) -> None:
        _check(self.targets, self.upper)
        check_shape("matrix", self.matrix, *self.targets.shape, *self.targets.shape)
        check_finite("matrix", self.matrix)
        largest = float((self.matrix - self.matrix.permute(2, 3, 0, 1)).abs().max())
        if largest > 1e-8 * float(self.matrix.abs().max()):
            raise ValueError(f"matrix: expected a symmetric matrix, got differences of up to {largest}")

    def rows(self, index: Int[Tensor, " block"] | slice) -> Float[Tensor, "block classes instances classes"]:
        """Return the kernel values of a block's instances with all instances."""
        return self.matrix[index]

    def scores(
        self, rows: Tensor, coef: Float[Tensor, "instances classes"]
    ) -> Float[Tensor, "block classes"]:
        """Return the scores ⟨w, φ(x_i, y)⟩ = Σ_jy' k((x_i, y), (x_j, y')) coef_jy'."""
        return torch.einsum("bcnk,nk->bc", rows, coef)

    def among(
        self, rows: Tensor, index: Int[Tensor, " block"]
    ) -> Float[Tensor, "block classes block classes"]:
        """Return the kernel values between a block's instances."""
        return rows[:, :, index].contiguous()


def _check(targets: Tensor, upper: Tensor) -> None:
    check_shape("targets", targets, None, None)
    if targets.dtype != torch.float64 or upper.dtype != torch.float64:
        raise ValueError(f"targets, upper: expected torch.float64, got {targets.dtype} and {upper.dtype}")
    check_finite("targets", targets)
    sums = targets.sum(-1)
    if bool((targets < 0).any()) or bool(((sums - 1).abs() > 1e-9).any()):
        raise ValueError("targets: expected distributions, got negative entries or sums other than one")
    check_shape("upper", upper, len(targets))
    check_finite("upper", upper)
    if bool((upper <= 0).any()):
        raise ValueError(f"upper: expected values above 0, got {float(upper.min())}")


Problem = MulticlassProblem | JointProblem


def largest_rank(num_instances: int, num_classes: int, passes: float) -> int:
    """Return the largest rank at which Newton's method costs at most ``passes`` passes over the kernel.

    A step takes instances · classes · rank² multiplications, a pass instances² · classes.
    """
    affordable = min(passes * num_instances / STEPS_EXPECTED, MOST_WORK / (num_instances * num_classes))
    return min(num_instances, int(affordable**0.5))


def low_rank_factor(gram: Gram, max_rank: int) -> Float[Tensor, "instances rank"] | None:
    """Compute L with L Lᵀ = K up to round-off, by Cholesky's method with pivots.

    Every row of the kernel matrix K is read once for the diagonal, and the rows of the pivots again.

    Returns:
        L in float64, or None if the rank of K is above ``max_rank``.
    """
    num_instances = gram.num_instances
    blocks = [slice(first, first + ROWS_AT_ONCE) for first in range(0, num_instances, ROWS_AT_ONCE)]
    parts = [gram.rows(block).diagonal(offset=block.start) for block in blocks]
    remaining = torch.cat(parts).double()
    least = 64 * torch.finfo(parts[0].dtype).eps * float(remaining.max())
    factor = remaining.new_empty(num_instances, max_rank)
    for rank in range(max_rank):
        pivot = int(remaining.argmax())
        if float(remaining[pivot]) <= least:
            return factor[:, :rank].contiguous()
        row = gram.rows(torch.tensor([pivot], device=remaining.device))[0].double()
        column = (row - factor[:, :rank] @ factor[pivot, :rank]) / remaining[pivot].sqrt()
        factor[:, rank] = column
        remaining = (remaining - column.square()).clamp(min=0)
        remaining[pivot] = 0
    return factor if float(remaining.max()) <= least else None


def maximise(
    factor: Float[Tensor, "instances rank"],
    targets: Float[Tensor, "instances classes"],
    upper: Float[Tensor, " instances"],
) -> Float[Tensor, "instances classes"]:
    """Fit W by Newton's method, and return the predicted distributions over the classes, above zero.

    Args:
        factor: L with L Lᵀ = K, the kernel matrix.
        targets: distributions over the classes.
        upper: weights C_i of the instances' losses.
    """
    # Start at zero: for large C, weights computed from duals far from the optimum are a worse start.
    weights = factor.new_zeros(factor.shape[1], targets.shape[1])
    value, scores = _value(factor, targets, upper, weights)
    first = None
    for _ in range(NEWTON_STEPS):
        model = scores.softmax(-1)
        gradient = weights + factor.mT @ (upper[:, None] * (model - targets))
        square = float(gradient.square().sum())
        first = square if first is None else first
        if square <= SOLVED * first:
            break
        step = _newton_step(factor, upper, model, gradient)
        slope = float((step * gradient).sum())
        share = 1.0
        while share > SHORTEST_STEP:
            moved = weights + share * step
            after, moved_scores = _value(factor, targets, upper, moved)
            if after <= value + ENOUGH * share * slope:
                break
            share /= 2
        else:
            # No step length gains enough: round-off hides the remaining gain, so stop.
            break
        weights, value, scores = moved, after, moved_scores
    probabilities = scores.softmax(-1).clamp(min=1e-300)
    return probabilities / probabilities.sum(-1, keepdim=True)


def _value(factor: Tensor, targets: Tensor, upper: Tensor, weights: Tensor) -> tuple[float, Tensor]:
    """Return the objective, and the scores of all instances."""
    scores = factor @ weights
    losses = -(targets * scores.log_softmax(-1)).sum(-1)
    return float(0.5 * weights.square().sum() + upper @ losses), scores


def _newton_step(factor: Tensor, upper: Tensor, model: Tensor, gradient: Tensor) -> Tensor:
    """Compute −Hessian⁻¹ gradient by conjugate gradients; the tolerance shrinks with the gradient."""

    def hessian(direction: Tensor) -> Tensor:
        change = model * (factor @ direction)
        change -= model * change.sum(-1, keepdim=True)
        return direction + factor.mT @ (upper[:, None] * change)

    precondition = _preconditioner(factor, upper, model)
    step, residual = torch.zeros_like(gradient), -gradient
    solved = precondition(residual)
    direction, product = solved, float((residual * solved).sum())
    enough = product * min(0.01, product**0.5) ** 2
    for _ in range(CONJUGATE_STEPS):
        image = hessian(direction)
        rate = product / float((direction * image).sum())
        step = step + rate * direction
        residual = residual - rate * image
        solved = precondition(residual)
        last, product = product, float((residual * solved).sum())
        if product <= enough:
            break
        direction = solved + product / last * direction
    return step


def _preconditioner(factor: Tensor, upper: Tensor, model: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that solves, for each class, a system with the Hessian I + Lᵀ diag(C p (1 − p)) L."""
    identity = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
    weight = upper[:, None] * model * (1 - model)
    blocks = [identity + factor.mT @ (weight[:, each, None] * factor) for each in range(model.shape[1])]
    hessians = torch.stack(blocks)
    lower, failed = torch.linalg.cholesky_ex(hessians)
    if failed.any():
        # If the weights C are extremely large, round-off removes the identity; then add a larger multiple of
        # the identity: any positive definite matrix is a valid preconditioner.
        round_off = 10 * len(identity) * torch.finfo(identity.dtype).eps
        largest = hessians.diagonal(dim1=-2, dim2=-1).amax(-1)
        lower = torch.linalg.cholesky(hessians + round_off * largest[:, None, None] * identity)

    def solve(right: Tensor) -> Tensor:
        return torch.cholesky_solve(right.mT[..., None], lower)[..., 0].mT

    return solve


@dataclass(frozen=True, eq=False)
class LogisticState(SolverState):
    """The dual variables, and the primal and dual values.

    Args:
        probabilities: α, the dual variables.
        coef: C_i (t_i − α_i); kernel values times ``coef`` give scores.
        divergences: C_i KL(α_i ‖ p_i), each instance's share of the duality gap.
        primal: the objective at the weights of the duals.
        num_iters: the number of passes over the instances so far.
        halfway: the gap after half of ``NEWTON_AFTER`` passes, to estimate the number of further passes.
    """

    probabilities: Float[Tensor, "instances classes"]
    coef: Float[Tensor, "instances classes"]
    divergences: Float[Tensor, " instances"]
    primal: float
    num_iters: int
    halfway: float = np.inf

    @property
    def dual(self) -> float:
        """Return the dual value, never above the optimum."""
        return self.primal - float(self.divergences.sum())

    @property
    def gap(self) -> float:
        """Return the duality gap relative to the primal value."""
        return float(self.divergences.sum()) / max(self.primal, np.finfo(np.float64).tiny)


def init(problem: Problem, probabilities: Float[Tensor, "instances classes"] | None = None) -> LogisticState:
    """Return the state at given dual variables, by default the uniform distribution.

    Raises:
        ValueError: the shape is not that of the targets; an entry is not above zero; a row does not sum to
            one.
    """
    if probabilities is None:
        probabilities = torch.full_like(problem.targets, 1 / problem.targets.shape[1])
    check_shape("probabilities", probabilities, *problem.targets.shape)
    if bool((probabilities <= 0).any()) or bool(((probabilities.sum(-1) - 1).abs() > 1e-9).any()):
        raise ValueError("probabilities: expected positive entries that sum to 1, got other entries or sums")
    return _certified(problem, probabilities.clone(), num_iters=0)


def update(
    problem: Problem,
    state: LogisticState,
    *,
    num_iters: int = PASSES_AT_ONCE,
    tol: float | None = None,
    seed: int = 0,
) -> LogisticState:
    """Make passes over the instances that contribute to the gap, then compute the duality gap again.

    Args:
        num_iters: the number of passes.
        tol: the gap to reach. With ``tol``, a multi-class problem that is not solved after ``NEWTON_AFTER``
            passes is given once to :func:`finish`, if this is cheaper than the expected passes.
        seed: the seed of the order of the instances.

    Raises:
        ValueError: the state does not fit the problem, or ``num_iters`` is below one.
    """
    check_count("num_iters", num_iters)
    check_shape("state.probabilities", state.probabilities, *problem.targets.shape)
    if tol is not None and state.num_iters == NEWTON_AFTER and isinstance(problem, MulticlassProblem):
        # Estimate the passes until ``tol`` from the decrease of the gap in the last NEWTON_AFTER / 2 passes.
        ahead, halfway, gap = np.inf, state.halfway, state.gap
        if gap < halfway:
            ahead = NEWTON_AFTER / 2 * np.log(gap / tol) / np.log(halfway / gap)
        state = finish(problem, state, ahead)
        if state.gap <= tol:
            return state
    probabilities, coef = state.probabilities.clone(), state.coef.clone()
    divergences = state.divergences.clone()
    for made in range(state.num_iters, state.num_iters + num_iters):
        # Visit only the instances that make up nearly all of the gap.
        violators = (divergences > 0.01 * divergences.mean()).nonzero()[:, 0]
        for index in _blocks(violators, seed, made):
            rows = problem.rows(index)
            scores = problem.scores(rows, coef)
            own, upper = probabilities[index], problem.upper[index]
            found = torch.empty_like(upper)
            _block_pass(problem, problem.among(rows, index), upper, scores, own, found)
            probabilities[index], divergences[index] = own, upper * found
            coef[index] = upper[:, None] * (problem.targets[index] - own)
    new = _certified(problem, probabilities, state.num_iters + num_iters)
    return replace(new, halfway=new.gap if new.num_iters == NEWTON_AFTER // 2 else state.halfway)


def limits(state: LogisticState, tol: float, left: int, watched: bool) -> dict[str, Any]:
    """Return the arguments ``tol`` and ``num_iters``, at most ``left``, for the next ``update``."""
    return {"tol": tol, "num_iters": min(PASSES_AT_ONCE, left)}


def finish(problem: MulticlassProblem, state: LogisticState, passes: float = np.inf) -> LogisticState:
    """Run Newton's method if the kernel has a low rank; return the state with the higher dual value.

    Args:
        passes: the largest cost, in units of passes over the instances.

    Raises:
        ValueError: the state does not fit the problem.
    """
    check_shape("state.probabilities", state.probabilities, *problem.targets.shape)
    instances, classes = problem.targets.shape
    most = largest_rank(instances, classes, passes)
    factor = low_rank_factor(problem.gram, most)
    if factor is None:
        return state
    probabilities = maximise(factor, problem.targets, problem.upper)
    found = _certified(problem, probabilities, state.num_iters)
    return found if found.dual > state.dual else state


def _blocks(index: Tensor, seed: int, made: int) -> Iterator[Tensor]:
    order = torch.from_numpy(np.random.default_rng((seed, made)).permutation(len(index)))
    for block in index[order.to(index.device)].split(BLOCK):
        yield block.sort().values


def _certified(problem: Problem, probabilities: Tensor, num_iters: int) -> LogisticState:
    """Return the state at given duals, with primal and dual values computed from all kernel values."""
    coef = problem.upper[:, None] * (problem.targets - probabilities)
    square_norm, loss = 0.0, 0.0
    divergences = torch.empty_like(problem.upper)
    for first in range(0, len(coef), ROWS_AT_ONCE):
        index = slice(first, first + ROWS_AT_ONCE)
        scores = problem.scores(problem.rows(index), coef)
        log_model = scores.log_softmax(-1)
        own, upper = probabilities[index], problem.upper[index]
        square_norm += float((coef[index] * scores).sum())
        loss -= float(upper @ (problem.targets[index] * log_model).sum(-1))
        divergences[index] = upper * _divergence(own, scores)
    return LogisticState(probabilities, coef, divergences, 0.5 * square_norm + loss, num_iters)


def _divergence(probabilities: Tensor, scores: Tensor) -> Tensor:
    """Compute KL(α ‖ softmax(scores)) as a sum of non-negative terms, accurate for small values."""
    log_model = scores.log_softmax(-1)
    difference = probabilities.log() - log_model
    near = difference.clamp(-1, 1)
    small = probabilities * (torch.expm1(-near) + near)
    large = log_model.exp() - probabilities * (1 - difference)
    return torch.where(difference.abs() < 1, small, large).sum(-1)


def _block_pass(
    problem: Problem, gram: Tensor, upper: Tensor, scores: Tensor, own: Tensor, found: Tensor
) -> None:
    """Optimise the distribution of each instance of a block once, on the CPU; write ``own`` and ``found``.

    A block on a GPU is copied to the CPU: each instance needs the results of the instance before, and only a
    few numbers per class are computed, so a GPU would launch some ten kernels for every instance.
    """
    block = tuple(each.cpu() for each in (gram, upper, scores, own, found))
    backend = kernels("dual.logistic")
    if isinstance(problem, JointProblem):
        backend.pair_pass(*(each.numpy() for each in block), PAIR_STEPS)
    else:
        backend.class_pass(*(each.numpy() for each in block))
    if gram.device.type != "cpu":
        own.copy_(block[3])
        found.copy_(block[4])
