"""Readable convex programmes in cvxpy, which the solvers are held to on small problems."""

from __future__ import annotations

import cvxpy as cp
import numpy as np

from lmbm_torch.solvers.machines.problem import SharedProblem, SharedWeights, dense

TOLERANCES = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}


def shared_primal(problem: SharedProblem) -> tuple[float, SharedWeights]:
    """The least ½ Σ_j η_j w_j² + Σ_l C_l Σ_i [γ − m_il]_+, and where it is."""
    features, spins = _with_constant(problem), problem.spins.T
    unary = cp.Variable((features.shape[1], problem.num_labels))
    cliques = cp.Variable(len(problem.penalty))
    losses = 0
    for k in range(problem.num_labels):
        margins = cp.multiply(spins[:, k], features @ unary[:, k]) + _tied_products(problem, k) @ cliques
        losses += problem.upper @ cp.pos(problem.margin - margins)
    square = cp.sum_squares(unary) + problem.penalty @ cp.square(cliques)
    value = _solve(cp.Problem(cp.Minimize(square / 2 + losses)))
    return value, SharedWeights(np.asarray(unary.value), np.asarray(cliques.value))


def shared_dual(problem: SharedProblem) -> tuple[float, np.ndarray]:
    """The largest γ Σ α − ½ Σ_j η_j w_j² over 0 ≤ α_il ≤ C_l, and the duals (labels, instances)."""
    features, spins = _with_constant(problem), problem.spins
    duals = cp.Variable(spins.shape)
    square = cp.sum_squares(cp.multiply(duals, spins) @ features)
    sums = sum(duals[k] @ _tied_products(problem, k) for k in range(problem.num_labels))
    square += cp.sum_squares(cp.multiply(sums, 1 / np.sqrt(problem.penalty)))
    box: list[cp.Constraint] = [duals >= 0, duals <= np.tile(problem.upper, (problem.num_labels, 1))]
    value = _solve(cp.Problem(cp.Maximize(problem.margin * cp.sum(duals) - square / 2), box))
    return value, np.asarray(duals.value)


def _with_constant(problem: SharedProblem) -> np.ndarray:
    return np.hstack([dense(problem.features), np.full((problem.num_instances, 1), problem.constant)])


def _tied_products(problem: SharedProblem, label: int) -> np.ndarray:
    """f_jl of the cliques that hold the label, summed by weight: (instances, weights)."""
    tied = np.zeros((problem.num_instances, len(problem.penalty)))
    for c, (clique, group) in enumerate(zip(problem.cliques.cliques, problem.cliques.groups, strict=True)):
        if label in clique:
            tied[:, group] += problem.products[:, c]
    return tied


def _solve(problem: cp.Problem) -> float:
    value = problem.solve(solver=cp.CLARABEL, **TOLERANCES)
    return float(value)  # pyright: ignore[reportArgumentType]
