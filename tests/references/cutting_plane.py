"""The n-slack cutting-plane algorithm for structural SVMs: the readable reference of ``frank_wolfe``.

Tsochantaridis et al., "Large margin methods for structured and interdependent output variables", JMLR 2005,
Algorithm 1: solve the quadratic programme over the planes found so far, ask the oracle for the labelling that
violates each example's margin most, and add it. The programme goes to a general convex solver: for small
problems.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmbm_torch.references.structural import structural_primal
from lmbm_torch.solvers.base import SolverState
from lmbm_torch.solvers.structural.problems import (
    CertifiedWeights,
    CuttingPlanes,
    StructuralProblem,
    StructuralWeights,
)


@dataclass(frozen=True)
class CuttingPlaneState(CertifiedWeights, SolverState):
    """Where the algorithm stands; the programme over some of the planes bounds the optimum from below.

    Args:
        planes: of each example the truth first, then the labellings found.
        num_iters: programmes solved.
    """

    planes: CuttingPlanes
    num_iters: int


def init(problem: StructuralProblem) -> CuttingPlaneState:
    """The state at zero weights, with the labellings that violate the margin most there."""
    features = np.zeros((problem.num_outputs, problem.num_features + 1))
    weights = StructuralWeights(features, np.zeros(problem.num_couplings))
    truths = CuttingPlanes.of_truths(np.arange(problem.num_examples))
    return _certified(problem, truths, weights, dual=0.0, num_iters=0)


def update(problem: StructuralProblem, state: CuttingPlaneState) -> CuttingPlaneState:
    """Solve the programme over the planes, and add those that its solution violates.

    Raises:
        RuntimeError: the convex solver has found no optimum.
    """
    solution = structural_primal(problem, state.planes)
    return _certified(problem, state.planes, solution.weights, solution.dual, state.num_iters + 1)


def _certified(
    problem: StructuralProblem,
    planes: CuttingPlanes,
    weights: StructuralWeights,
    dual: float,
    num_iters: int,
) -> CuttingPlaneState:
    found = problem.maximisers(weights)
    primal = problem.primal(weights, found.bound)
    new = problem.violated(planes, found.planes, weights)
    planes, _ = planes.join(found.planes, np.arange(len(planes)), np.flatnonzero(new))
    return CuttingPlaneState(weights, primal, dual, planes, num_iters)
