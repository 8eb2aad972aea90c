"""The dual of one label of a kernel problem: a quadratic over a box.

With β = s α it is, up to its sign,

    min_β ½ βᵀGβ − linearᵀβ,  lower ≤ β ≤ upper,

without an equality constraint, since the intercept is part of the joint kernel G.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TINY = 1e-30
"""Curvature of an instance that is alike to nothing, itself included: its dual goes to a bound."""
PARALLEL = 1e-6
"""Share of an instance's curvature that others leave to it at least."""


class Box(NamedTuple):
    """The dual of one label over some instances; all arrays are (instances,) of float64.

    Args:
        coef: β, s α.
        lower, upper: the box; both are 0 where there is no loss.
        gradient: G β − linear.
        linear: γ s.
    """

    coef: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    gradient: np.ndarray
    linear: np.ndarray


def shares(box):
    """Each instance's part of the duality gap, max_b h (β − b) over its box."""
    return box.gradient * (box.coef - np.where(box.gradient > 0, box.lower, box.upper))
