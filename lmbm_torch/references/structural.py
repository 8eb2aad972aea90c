"""Reference programmes of structural SVMs over given cutting planes; planes of all labellings are exact."""

from __future__ import annotations

from itertools import product

from lmbm_torch.extras import naming_extras
from lmbm_torch.references.programmes import solve
from lmbm_torch.solvers.structural.label_vectors import LabelVectorOracle
from lmbm_torch.solvers.structural.problems import (
    CertifiedWeights,
    CuttingPlanes,
    StructuralProblem,
    StructuralWeights,
)

with naming_extras():
    import cvxpy as cp
    import numpy as np

__all__ = []


def statistics(problem: StructuralProblem, planes: CuttingPlanes) -> np.ndarray:
    """Return the statistics ψ of all planes as a dense matrix, (planes, weights)."""
    every = []
    for p, example in enumerate(planes.example):
        rows = problem.features[problem.start[example] : problem.start[example + 1]]
        rows = rows if isinstance(rows, np.ndarray) else rows.toarray()
        rows = np.column_stack([rows, np.ones(len(rows))])
        entries = slice(planes.start[p], planes.start[p + 1])
        index, value = planes.index[entries], planes.value[entries]
        unary = np.zeros((len(rows), problem.num_outputs))
        unary.flat[index[index >= 0]] = value[index >= 0]
        couplings = np.zeros(problem.num_couplings)
        couplings[-1 - index[index < 0]] = value[index < 0]
        every.append(np.concatenate([(unary.T @ rows).ravel(), couplings]))
    return np.array(every)


def structural_primal(problem: StructuralProblem, planes: CuttingPlanes) -> CertifiedWeights:
    """Return min ½‖w‖² + Σ_l C_l ξ_l with ξ_l ≥ loss_p − ⟨w, ψ_p⟩ for each plane p of example l, and ξ ≥ 0.

    The solver's dual variables give ``dual``, which differs from ``primal`` by about 1e-9. Every example
    needs at least one plane, such as the plane of the true labelling.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.inference.enumeration import exact
        >>> from lmbm_torch.references.structural import enumerated_planes, structural_dual, structural_primal
        >>> from lmbm_torch.solvers.structural.label_vectors import label_vector_problem
        >>> inputs, labels = np.array([[1.0], [2.0]]), np.array([[0, 1], [1, 1]])
        >>> problem = label_vector_problem(inputs, labels, exact.decode, pairs=[(0, 1)])
        >>> planes = enumerated_planes(problem.oracle)
        >>> found = structural_primal(problem, planes)
        >>> bool(abs(found.primal - structural_dual(problem, planes)) < 1e-6)
        True
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
    solve(cp.Minimize(value + problem.upper @ slack), constraints)
    found = np.zeros(0) if couplings is None else np.asarray(couplings.value)
    weights = StructuralWeights(np.asarray(features.value).reshape(problem.num_outputs, -1), found)
    first = np.searchsorted(planes.example, np.arange(problem.num_examples))
    hinge = np.maximum.reduceat(problem.values(planes, weights), first)
    duals = np.asarray(constraints[0].dual_value)
    dual = problem.dual(planes, duals, problem.weights(planes, duals))
    return CertifiedWeights(weights, problem.primal(weights, hinge), dual)


def structural_dual(problem: StructuralProblem, planes: CuttingPlanes) -> float:
    """Return max Σ_p α_p loss_p − ½‖Σ_p α_p ψ_p‖² over α ≥ 0 whose sum for example l is at most C_l.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.inference.enumeration import exact
        >>> from lmbm_torch.references.structural import enumerated_planes, structural_dual
        >>> from lmbm_torch.solvers.structural.label_vectors import label_vector_problem
        >>> problem = label_vector_problem(np.zeros((1, 1)), np.ones((1, 1)), exact.decode, pairs=())
        >>> round(structural_dual(problem, enumerated_planes(problem.oracle)), 6)
        0.125
    """
    psi, width = statistics(problem, planes), problem.num_outputs * (problem.num_features + 1)
    # Divide the couplings' statistics by √penalty, which has the same effect as the penalty.
    psi[:, width:] /= np.sqrt(problem.coupling_penalty)
    alpha = cp.Variable(len(planes.loss), nonneg=True)
    of_example = (planes.example == np.arange(problem.num_examples)[:, None]).astype(float)
    objective = planes.loss @ alpha - cp.sum_squares(psi.T @ alpha) / 2
    return solve(cp.Maximize(objective), [of_example @ alpha <= problem.upper])


def enumerated_planes(oracle: LabelVectorOracle) -> CuttingPlanes:
    """Return the planes of all labellings of all examples: 2^labels planes for each example.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.inference.enumeration import exact
        >>> from lmbm_torch.references.structural import enumerated_planes
        >>> from lmbm_torch.solvers.structural.label_vectors import label_vector_problem
        >>> problem = label_vector_problem(np.zeros((1, 1)), np.ones((1, 2)), exact.decode, pairs=())
        >>> enumerated_planes(problem.oracle).loss
        array([2., 1., 1., 0.])
    """
    examples, count = oracle.labels.shape
    labellings = np.array(list(product((0, 1), repeat=count)))
    example = np.repeat(np.arange(examples), len(labellings))
    return oracle.planes(example, np.tile(labellings, (examples, 1)))
