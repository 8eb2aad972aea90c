"""Problems of kernel logistic regression: kernel values, targets and weights of the losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.shapes import Float, Int
from lmbm_torch.solvers.gram import Gram


@dataclass(frozen=True, eq=False)
class MulticlassProblem:
    """Kernel logistic regression, min ½‖w‖² + Σ_i C_i loss_i with loss = −Σ_y t_y log p(y | x).

    p(y | x) ∝ exp⟨w, φ(x, y)⟩ with the instances' kernel for equal classes and zero for different classes:
    one weight vector per class (dual_optimization_conditional_models_2006, Section 2, with C = 1/λ).

    Args:
        gram: kernel values between instances.
        targets: distributions over the classes, float64; one-hot for observed classes.
        upper: C_i of each instance, float64, above zero.

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
        """Return ⟨w, φ(x_i, y)⟩ = Σ_j k(x_i, x_j) coef_jy, accumulated in the kernel's own dtype."""
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
        targets: see :class:`MulticlassProblem`.
        upper: see :class:`MulticlassProblem`.

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
        """Return ⟨w, φ(x_i, y)⟩ = Σ_jy' k((x_i, y), (x_j, y')) coef_jy'."""
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
