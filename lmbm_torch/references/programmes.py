"""The function that solves all reference programmes, by Clarabel with small tolerances."""

from __future__ import annotations

from collections.abc import Sequence

from lmbm_torch.extras import naming_extras

with naming_extras():
    import cvxpy as cp

__all__ = []

# With these tolerances of Clarabel the value has ten correct digits on problems of a few hundred variables.
TOLERANCES = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)


def solve(objective: cp.Minimize | cp.Maximize, constraints: Sequence[cp.Constraint] = ()) -> float:
    """Solve a convex programme; return the optimal value, and leave the solution in the variables.

    Raises:
        RuntimeError: the solver has found no optimum.
    """
    programme = cp.Problem(objective, [*constraints])
    value = programme.solve(solver=cp.CLARABEL, **TOLERANCES)
    if programme.status != cp.OPTIMAL:
        raise RuntimeError(f"expected Clarabel to find an optimum, got the status {programme.status}")
    return float(value)  # pyright: ignore[reportArgumentType]
