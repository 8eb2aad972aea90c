"""Minimisation of smooth functions of variables between bounds: projected L-BFGS.

Variables that lie at a bound, and would leave it, are held for one step; the others take a quasi-Newton step
by the last pairs of steps and changes of the gradient, restricted to them, cut off at their bounds and
shortened until the function falls enough (Nocedal and Wright, Numerical Optimization, 2006, algorithm 7.4;
Bertsekas, Projected Newton methods, 1982).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

__all__ = ["minimise"]

MEMORY = 10
# A step must achieve this share of what the gradient promises, and is halved until it does, so many times.
SUFFICIENT, HALVINGS = 1e-4, 12


def minimise(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]],
    point: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    *,
    step: float,
    num_iters: int,
) -> np.ndarray:
    """The point after ``num_iters`` steps, or where none leads further down.

    Args:
        function: its value and gradient.
        step: the inverse curvature to begin with.
    """
    value, gradient = function(point)
    pairs: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=MEMORY)
    for _ in range(num_iters):
        held = (point <= lower) & (gradient > 0) | (point >= upper) & (gradient < 0)
        free = np.flatnonzero(~held)
        direction = np.zeros_like(point)
        direction[free] = -_scaled(gradient[free], [(one[free], two[free]) for one, two in pairs], step)
        if direction @ gradient >= 0:
            return point
        length = 1.0
        for _ in range(HALVINGS):
            trial = np.clip(point + length * direction, lower, upper)
            moved = trial - point
            found, slope = function(trial)
            if found <= value + SUFFICIENT * (gradient @ moved):
                break
            length /= 2
        else:
            return point
        change = slope - gradient
        if moved @ change > 0:
            pairs.append((moved, change))
        elif not pairs:
            # As far as this step went there is no curvature.
            step *= 4
        point, value, gradient = trial, found, slope
    return point


def _scaled(gradient: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray]], step: float) -> np.ndarray:
    """The gradient times the inverse of the Hessian that the pairs tell of."""
    result, weights = gradient.copy(), []
    pairs = [(moved, change) for moved, change in pairs if moved @ change > 0]
    for moved, change in reversed(pairs):
        weight = (moved @ result) / (moved @ change)
        result -= weight * change
        weights.append(weight)
    if pairs:
        moved, change = pairs[-1]
        step = float((moved @ change) / (change @ change))
    result *= step
    for (moved, change), weight in zip(pairs, reversed(weights), strict=True):
        result += moved * (weight - (change @ result) / (moved @ change))
    return result
