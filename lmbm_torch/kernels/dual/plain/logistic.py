"""Dual ascent for kernel logistic regression inside one block of instances: any device, all at once.

:mod:`lmbm_torch.kernels.dual.compiled.logistic` updates the instances in turn. Here all instances are updated
together, on a separable lower bound of the dual: Σ_ij d_i·d_j k_ij ≤ Σ_i ‖d_i‖² Σ_j |k_ij|.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FLAT = 1e-12
_NEWTON_STEPS = 30


def class_pass(
    gram: Tensor, upper: Tensor, scores: Tensor, probabilities: Tensor, divergences: Tensor
) -> None:
    """Run one joint step of all instances; arguments as of the compiled function, changed in place."""
    change = _step(gram.abs() @ upper, upper, scores, probabilities, divergences)
    scores += gram @ change


def joint_pass(
    gram: Tensor, upper: Tensor, scores: Tensor, probabilities: Tensor, divergences: Tensor
) -> None:
    """Run one joint step for any joint kernel, with ``gram`` (block, classes, block, classes)."""
    curvature = torch.einsum("iyjz,j->iy", gram.abs(), upper).amax(-1)
    change = _step(curvature, upper, scores, probabilities, divergences)
    scores += torch.einsum("iyjz,jz->iy", gram, change)


def divergence(probabilities: Tensor, scores: Tensor) -> Tensor:
    """Return KL(α ‖ softmax(f)), a sum of non-negative terms, accurate for small values."""
    log_model = scores.log_softmax(-1)
    difference = probabilities.log() - log_model
    near = difference.clamp(-1, 1)
    small = probabilities * (torch.expm1(-near) + near)
    large = log_model.exp() - probabilities * (1 - difference)
    return torch.where(difference.abs() < 1, small, large).sum(-1)


def _step(
    curvature: Tensor, upper: Tensor, scores: Tensor, probabilities: Tensor, divergences: Tensor
) -> Tensor:
    """Move ``probabilities``, store the divergences before the step, and return the change of C(t − α)."""
    divergences.copy_(divergence(probabilities, scores))
    curvature = curvature[:, None]
    found = _simplex_step(scores + curvature * probabilities, curvature, probabilities)
    change = upper[:, None] * (probabilities - found)
    probabilities.copy_(found)
    return change


def _simplex_step(linear: Tensor, curvature: Tensor, start: Tensor) -> Tensor:
    """Maximise linear·a − curvature/2 ‖a‖² − Σ a log a over the simplex, row by row."""
    curvature = curvature.clamp(min=_FLAT)
    largest = start.argmax(-1, keepdim=True)
    most = start.gather(-1, largest)
    shift = curvature * most + most.log() - linear.gather(-1, largest)
    for _ in range(_NEWTON_STEPS):
        omega = _wright_omega(linear + shift + curvature.log())
        found = omega / curvature
        total = found.sum(-1, keepdim=True)
        slope = (found / (1 + omega)).sum(-1, keepdim=True)
        shift = shift - torch.where(total > 1, total - 1, total.log() * total) / slope
    omega = _wright_omega(linear + shift + curvature.log())
    return (omega / omega.sum(-1, keepdim=True)).clamp(min=1e-300)


def _wright_omega(t: Tensor) -> Tensor:
    """Solve ω + log ω = t for ω."""
    above = t.clamp(min=1.0)
    near = t.clamp(-40.0, 1.0)
    omega = torch.where(t > 1, above - above.log() + above.log() / above, torch.sigmoid(near))
    for _ in range(2):
        residual = t.clamp(min=-40.0) - omega - omega.log()
        after = 1 + omega
        base = 2 * after * (after + 2 / 3 * residual)
        omega = omega * (1 + residual / after * (base - residual) / (base - 2 * residual))
    return torch.where(t < -40, t.exp(), omega)
