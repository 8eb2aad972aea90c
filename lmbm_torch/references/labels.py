"""Training problems of a single label: support vector machines and kernel logistic regression."""

from __future__ import annotations

from typing import Any

from lmbm_torch.extras import naming_extras
from lmbm_torch.references.programmes import solve

with naming_extras():
    import cvxpy as cp
    import numpy as np

__all__ = ["hinge_dual", "hinge_primal", "logistic_dual", "logistic_primal"]


def hinge_primal(
    inputs: np.ndarray, spins: np.ndarray, upper: np.ndarray, *, margin: float = 1.0, free_bias: bool = False
) -> tuple[float, np.ndarray, float]:
    """Return min ½‖w‖² + Σ_l C_l [γ − s_l (⟨w, x_l⟩ + b)]_+, a binary SVM, with the best w and b.

    The problem of one label of a belief network has the same form (lmbm_and_lmsbn_2010, Section 2), with the
    features, a constant and the spins of the parents as inputs.

    Args:
        inputs: (instances, columns).
        spins: (instances,) in {−1, +1}; an instance of spin 0 has no loss.
        upper: (instances,), the weights C_l of the losses.
        margin: γ.
        free_bias: whether there is a bias b without penalty; if not, b is 0, and the inputs may have a
            constant column.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references import hinge_dual, hinge_primal
        >>> inputs, spins = np.array([[2.0], [1.0], [-1.0]]), np.array([1, 1, -1])
        >>> value, weights, bias = hinge_primal(inputs, spins, np.ones(3))
        >>> round(value, 4), weights.round(4), bias
        (0.5, array([1.]), 0.0)
        >>> round(hinge_dual(inputs @ inputs.T, spins, np.ones(3))[0], 6)
        0.5
    """
    weights, bias = cp.Variable(inputs.shape[1]), cp.Variable()
    losses = cp.pos(margin - cp.multiply(spins, inputs @ weights + bias))
    objective = cp.sum_squares(weights) / 2 + (upper * (spins != 0)) @ losses
    value = solve(cp.Minimize(objective), [] if free_bias else [bias == 0])
    return value, np.asarray(weights.value), float(np.asarray(bias.value)) if free_bias else 0.0


def hinge_dual(
    gram: np.ndarray, spins: np.ndarray, upper: np.ndarray, *, margin: float = 1.0, free_bias: bool = False
) -> tuple[float, np.ndarray]:
    """Return max γ Σ α − ½ Σ_lm α_l α_m s_l s_m k(x_l, x_m) over 0 ≤ α_l ≤ C_l, and α.

    Args:
        gram: (instances, instances), the values k of a kernel, or inner products of the inputs.
        spins, upper, margin: as in :func:`hinge_primal`.
        free_bias: whether Σ α_l s_l = 0 is a constraint, as follows from a bias without penalty.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references import hinge_dual
        >>> value, duals = hinge_dual(np.eye(2), np.array([1, -1]), np.ones(2))
        >>> round(value, 4), duals.round(4)
        (1.0, array([1., 1.]))
    """
    duals = cp.Variable(len(spins))
    signed = cp.multiply(duals, spins)
    box = [duals >= 0, duals <= upper * (spins != 0)] + ([cp.sum(signed) == 0] if free_bias else [])
    value = solve(cp.Maximize(margin * cp.sum(duals) - cp.sum_squares(_root(gram).T @ signed) / 2), box)
    return value, np.asarray(duals.value)


def logistic_primal(features: np.ndarray, targets: np.ndarray, upper: np.ndarray) -> tuple[float, np.ndarray]:
    """Return min ½‖w‖² + Σ_i C_i (logsumexp_y ⟨w, φ(x_i, y)⟩ − Σ_y t_iy ⟨w, φ(x_i, y)⟩), and w.

    Source: dual_optimization_conditional_models_2006, Equation 4, with C = 1/λ. If φ are the features of
    whole labellings, this is the problem of a conditional random field.

    Args:
        features: (instances, classes, columns), φ(x_i, y).
        targets: (instances, classes), a distribution over the classes for each instance.
        upper: (instances,), the weights C_i of the losses.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references import logistic_dual, logistic_primal
        >>> features, targets = np.array([[[1.0], [-1.0]]]), np.array([[1.0, 0.0]])
        >>> value, _ = logistic_primal(features, targets, np.ones(1))
        >>> matrix = np.einsum("iyf,jzf->iyjz", features, features)
        >>> round(value, 6) == round(logistic_dual(matrix, targets, np.ones(1))[0], 6)
        True
    """
    weights = cp.Variable(features.shape[2])
    scores = [rows @ weights for rows in features]
    losses = [
        bound * (cp.log_sum_exp(row) - target @ row)
        for row, target, bound in zip(scores, targets, upper, strict=True)
    ]
    return solve(cp.Minimize(cp.sum_squares(weights) / 2 + sum(losses))), np.asarray(weights.value)


def logistic_dual(matrix: np.ndarray, targets: np.ndarray, upper: np.ndarray) -> tuple[float, np.ndarray]:
    """Return max Σ_i C_i H(p_i) − ½‖Σ_iy C_i (t_iy − p_iy) φ(x_i, y)‖² (H: entropy), and the distributions p.

    Source: dual_optimization_conditional_models_2006, Equation 5, plus the constant that is missing there.

    Args:
        matrix: (instances, classes, instances, classes), the joint kernel's values.
        targets, upper: as in :func:`logistic_primal`.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references import logistic_dual
        >>> value, probabilities = logistic_dual(np.zeros((1, 2, 1, 2)), np.array([[1.0, 0.0]]), np.ones(1))
        >>> round(value, 4), probabilities.round(4)
        (0.6931, array([[0.5, 0.5]]))
    """
    probabilities = cp.Variable(targets.shape)
    missed = cp.multiply(upper[:, None], targets - probabilities)
    square = cp.sum_squares(_root(matrix.reshape(targets.size, targets.size)).T @ cp.vec(missed, order="C"))
    entropy = upper @ cp.sum(cp.entr(probabilities), axis=1)
    sums: Any = cp.sum(probabilities, axis=1) == 1
    value = solve(cp.Maximize(entropy - square / 2), [sums])
    return value, np.asarray(probabilities.value)


def _root(gram: np.ndarray) -> np.ndarray:
    """Return a matrix R with R Rᵀ = gram, from the eigenvalues."""
    values, vectors = np.linalg.eigh(gram)
    return vectors * np.sqrt(values.clip(0))
