"""Gradients beside finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import check_grad


def relative_error(
    value_and_gradient: Callable[[np.ndarray], tuple[float, np.ndarray]], at: np.ndarray
) -> float:
    """By how much the gradient there differs from finite differences, relative to its norm."""
    error = check_grad(lambda x: value_and_gradient(x)[0], lambda x: value_and_gradient(x)[1], at)
    return error / float(np.linalg.norm(value_and_gradient(at)[1]))
