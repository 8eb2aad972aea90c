"""The hinge problem of a Boltzmann machine and its dual (large_margin_boltzmann_machines_2009, Section 3)."""

from __future__ import annotations

from lmbm_torch.extras import naming_extras
from lmbm_torch.references.programmes import solve
from lmbm_torch.solvers.machines.problem import SharedProblem, SharedWeights

with naming_extras():
    import cvxpy as cp
    import numpy as np

__all__ = ["machine_dual", "machine_primal"]


def machine_primal(problem: SharedProblem) -> tuple[float, SharedWeights]:
    """Return min ½ Σ_j η_j w_j² + Σ_l C_l Σ_i [γ − m_il]_+, and the weights.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references import machine_dual, machine_primal
        >>> from lmbm_torch.solvers.machines.problem import SharedProblem
        >>> random = np.random.default_rng(0)
        >>> problem = SharedProblem.from_labels(random.normal(size=(6, 2)), random.integers(0, 2, (6, 3)))
        >>> (value, weights), (dual, _) = machine_primal(problem), machine_dual(problem)
        >>> bool(abs(value - dual) < 1e-6), weights.cliques.shape
        (True, (3,))
    """
    features, spins = _with_constant(problem), problem.spins.T
    unary = cp.Variable((features.shape[1], problem.num_labels))
    cliques = cp.Variable(len(problem.penalty))
    losses = 0
    for k in range(problem.num_labels):
        margins = cp.multiply(spins[:, k], features @ unary[:, k]) + _tied_products(problem, k) @ cliques
        losses += np.broadcast_to(problem.upper, problem.spins.shape)[k] @ cp.pos(problem.margin - margins)
    square = cp.sum_squares(unary) + problem.penalty @ cp.square(cliques)
    value = solve(cp.Minimize(square / 2 + losses))
    return value, SharedWeights(np.asarray(unary.value), np.asarray(cliques.value))


def machine_dual(problem: SharedProblem) -> tuple[float, np.ndarray]:
    """Return max γ Σ α − ½ Σ_j η_j w_j² over 0 ≤ α_il ≤ C_l, and the duals (labels, instances).

    Here w_j = (1/η_j) Σ_l Σ_{i ∈ C_j} α_il f_jl; in the paper's dual, η_j² is printed in place of η_j.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references import machine_dual
        >>> from lmbm_torch.solvers.machines.problem import SharedProblem
        >>> value, duals = machine_dual(SharedProblem.from_labels(np.ones((1, 1)), np.ones((1, 2))))
        >>> duals.shape
        (2, 1)
    """
    features, spins = _with_constant(problem), problem.spins
    duals = cp.Variable(spins.shape)
    square = cp.sum_squares(cp.multiply(duals, spins) @ features)
    sums = sum(duals[k] @ _tied_products(problem, k) for k in range(problem.num_labels))
    square += cp.sum_squares(cp.multiply(sums, 1 / np.sqrt(problem.penalty)))
    box = [duals >= 0, duals <= np.broadcast_to(problem.upper, spins.shape)]
    return solve(cp.Maximize(problem.margin * cp.sum(duals) - square / 2), box), np.asarray(duals.value)


def _with_constant(problem: SharedProblem) -> np.ndarray:
    features = problem.features if isinstance(problem.features, np.ndarray) else problem.features.toarray()
    return np.column_stack([features, np.full(problem.num_instances, problem.constant)])


def _tied_products(problem: SharedProblem, label: int) -> np.ndarray:
    """Return f_jl, the sum over all cliques with the label and the weight w_j: (instances, weights)."""
    tied = np.zeros((problem.num_instances, len(problem.penalty)))
    for c, (clique, group) in enumerate(zip(problem.cliques.cliques, problem.cliques.groups, strict=True)):
        if label in clique:
            tied[:, group] += problem.products[:, c]
    return tied
