"""Structural SVMs over given planes by a convex solver (cvxpy, Clarabel): references for small problems."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
from scipy import sparse

from lmbm_torch.solvers.structural.label_vectors import LabelVectorOracle
from lmbm_torch.solvers.structural.problems import (
    CertifiedWeights,
    CuttingPlanes,
    StructuralProblem,
    StructuralWeights,
)

__all__ = ["enumerated_planes", "solve_planes", "statistics"]

SETTINGS = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}


def statistics(problem: StructuralProblem, planes: CuttingPlanes) -> np.ndarray:
    """ψ of each plane, dense: (planes, outputs · (features + 1) + couplings)."""
    every = []
    for p, example in enumerate(planes.example):
        rows = problem.features[problem.start[example] : problem.start[example + 1]]
        rows = rows.toarray() if isinstance(rows, sparse.csr_array) else rows
        rows = np.column_stack([rows, np.ones(len(rows))])
        entries = slice(planes.start[p], planes.start[p + 1])
        index, value = planes.index[entries], planes.value[entries]
        unary = np.zeros((len(rows), problem.num_outputs))
        unary.flat[index[index >= 0]] = value[index >= 0]
        couplings = np.zeros(problem.num_couplings)
        couplings[-1 - index[index < 0]] = value[index < 0]
        every.append(np.concatenate([(unary.T @ rows).ravel(), couplings]))
    return np.array(every)


def solve_planes(problem: StructuralProblem, planes: CuttingPlanes) -> CertifiedWeights:
    """min_w ½‖w‖² + Σ_l C_l ξ_l,  ξ_l ≥ loss_p − ⟨w, ψ_p⟩ for every plane p of example l, and ξ_l ≥ 0.

    With every labelling's plane this is the structural SVM itself. ``dual`` equals ``primal`` but for the
    solver's accuracy of some 1e-9. Every example needs a plane, its truth's at least.

    Raises:
        RuntimeError: the solver has found no optimum.
    """
    width = problem.num_outputs * (problem.num_features + 1)
    features, slack = cp.Variable(width), cp.Variable(problem.num_examples, nonneg=True)
    value = 0.5 * cp.sum_squares(features)
    psi = statistics(problem, planes)
    products = psi[:, :width] @ features
    couplings = cp.Variable(problem.num_couplings) if problem.num_couplings else None
    if couplings is not None:
        products = products + psi[:, width:] @ couplings
        value = value + 0.5 * problem.coupling_penalty * cp.sum_squares(couplings)
    constraints = [slack[planes.example] >= planes.loss - products]
    programme = cp.Problem(cp.Minimize(value + problem.upper @ slack), constraints)
    programme.solve(solver=cp.CLARABEL, **SETTINGS)
    duals = constraints[0].dual_value
    if features.value is None or duals is None:
        raise RuntimeError(f"Clarabel: expected an optimum, got {programme.status}")
    found = np.zeros(0) if couplings is None else couplings.value
    weights = StructuralWeights(features.value.reshape(problem.num_outputs, -1), np.asarray(found))
    first = np.searchsorted(planes.example, np.arange(problem.num_examples))
    hinge = np.maximum.reduceat(problem.values(planes, weights), first)
    dual = problem.dual(planes, duals, problem.weights(planes, duals))
    return CertifiedWeights(weights, problem.primal(weights, hinge), dual)


def enumerated_planes(oracle: LabelVectorOracle) -> CuttingPlanes:
    """The planes of every labelling of every example: 2^labels each."""
    examples, count = oracle.labels.shape
    labellings = np.array(list(product((0, 1), repeat=count)))
    example = np.repeat(np.arange(examples), len(labellings))
    return oracle.planes(example, np.tile(labellings, (examples, 1)))
