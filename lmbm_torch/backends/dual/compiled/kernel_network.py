"""Dual coordinate descent on some instances of kernel label problems, compiled.

Both functions take what those of :mod:`lmbm_torch.backends.dual.plain.kernel_network` take. Coordinate
descent finds the face of the box on which the optimum lies in a few sweeps, but crawls along it: conjugate
gradients finish it there, up to the first bound.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.backends.dual.plain.kernel_network import TINY, Losses
from lmbm_torch.backends.jit import SUMS, njit

# Share of the squared gradient on a face at which there is nothing left to gain in double precision.
SOLVED = 1e-12


@njit(cache=True, nogil=True, fastmath=SUMS)
def solve_block(kernel, losses, sweeps):
    """``sweeps`` sweeps over a block's instances for each of the labels."""
    gram, context, shared, own, labels = kernel
    upper, margin, spins, fields, duals = losses
    joint, seen = gram.copy(), 0
    for row in range(len(labels)):
        label = labels[row]
        # Labels come in order, and each sees the shared columns of those before it.
        _add_columns(joint, context, seen, shared[label], 1.0)
        seen = shared[label]
        _add_columns(joint, context, own[label], own[label + 1], 1.0)
        for _ in range(sweeps):
            _sweep(joint, Losses(upper, margin, spins[row], fields[row], duals[row]))
        _add_columns(joint, context, own[label], own[label + 1], -1.0)


@njit(cache=True, nogil=True, fastmath=SUMS)
def solve_label(joint, losses, goal, cycles, sweeps, steps):
    """Up to ``cycles`` times ``sweeps`` sweeps, and ``steps`` conjugate gradient steps on the face."""
    for _ in range(cycles):
        for _ in range(sweeps):
            _sweep(joint, losses)
        if _gap(losses) <= goal:
            return
        _face(joint, losses, steps)


@njit(cache=True, nogil=True, fastmath=SUMS)
def _add_columns(joint, context, first, last, sign):
    """joint += sign Σ_c context_c context_cᵀ over columns from ``first`` up to ``last``."""
    for i in range(len(joint)):
        own = joint[i]
        for column in range(first, last):
            value = sign * context[i, column]
            for j in range(len(own)):
                own[j] += value * context[j, column]


@njit(cache=True, nogil=True, fastmath=SUMS)
def _sweep(joint, losses):
    upper, margin, spins, fields, duals = losses
    for i in range(len(spins)):
        if spins[i] == 0 or upper[i] == 0:
            continue
        similar = joint[i]
        gradient = spins[i] * fields[i] - margin
        new = min(max(duals[i] - gradient / max(similar[i], TINY), 0.0), upper[i])
        step = (new - duals[i]) * spins[i]
        if step != 0:
            duals[i] = new
            for j in range(len(fields)):
                fields[j] += step * similar[j]


@njit(cache=True, nogil=True, fastmath=SUMS)
def _gap(losses):
    """Σ_i α_i g_i where the gradient g_i = s_i z_i − γ is positive, else (α_i − C_i) g_i."""
    upper, margin, spins, fields, duals = losses
    total = 0.0
    for i in range(len(spins)):
        if spins[i] != 0:
            gradient = spins[i] * fields[i] - margin
            total += (duals[i] if gradient > 0 else duals[i] - upper[i]) * gradient
    return total


@njit(cache=True, nogil=True, fastmath=SUMS)
def _face(joint, losses, steps):
    """Conjugate gradients in β = s α over the duals strictly inside their box, which stay inside it."""
    upper, margin, spins, fields, duals = losses
    free = np.flatnonzero((duals > 0) & (duals < upper))
    count = len(free)
    if count == 0:
        return
    among = np.empty((count, count))
    residual, moved = np.empty(count), np.zeros(count)
    for a in range(count):
        source, target = joint[free[a]], among[a]
        for b in range(count):
            target[b] = source[free[b]]
        residual[a] = spins[free[a]] * margin - fields[free[a]]
    direction = residual.copy()
    square = residual @ residual
    solved = SOLVED * square
    for _ in range(steps):
        pulled = among @ direction
        curvature = direction @ pulled
        if curvature <= 0:
            break
        step, room = square / curvature, np.inf
        for a in range(count):
            value, pace = duals[free[a]] + spins[free[a]] * moved[a], spins[free[a]] * direction[a]
            if pace > 0:
                room = min(room, (upper[free[a]] - value) / pace)
            elif pace < 0:
                room = min(room, -value / pace)
        moved += min(step, room) * direction
        if room <= step:
            break
        residual -= step * pulled
        before, square = square, residual @ residual
        if square <= solved:
            break
        direction = residual + square / before * direction
    for a in range(count):
        i = free[a]
        new = min(max(duals[i] + spins[i] * moved[a], 0.0), upper[i])
        change, similar = spins[i] * (new - duals[i]), joint[i]
        duals[i] = new
        for j in range(len(fields)):
            fields[j] += change * similar[j]
