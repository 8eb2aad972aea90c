"""Arrays that solvers share with kernels, importable without numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Share of the mean gap up to which an instance at a bound of the box is inactive.
NEGLIGIBLE = 0.01


class Box(NamedTuple):
    """The dual of one label over some instances; all arrays are (instances,) of float64.

    Args:
        coef: β, s α.
        lower: lower bounds; 0 for instances without a loss.
        upper: upper bounds; 0 for instances without a loss.
        gradient: G β − linear.
        linear: γ s.
    """

    coef: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    gradient: np.ndarray
    linear: np.ndarray

    def shares(self) -> np.ndarray:
        """Return each instance's part of the duality gap, max_b h (β − b) over the box."""
        return self.gradient * (self.coef - np.where(self.gradient > 0, self.lower, self.upper))

    def active(self) -> np.ndarray:
        """Return the instances strictly inside the box, or with a relevant share of the gap."""
        inside, parts = (self.coef > self.lower) & (self.coef < self.upper), self.shares()
        return np.flatnonzero(inside | (parts > NEGLIGIBLE * parts.mean()))


class Marginals(NamedTuple):
    """The dual's distributions over labellings, one for each chain.

    Args:
        log_nodes: (positions, states), unnormalised log-potentials.
        log_pairs: (chains, states, states), unnormalised log-potentials, the same at every step.
        nodes: (positions, states), P(y_t).
        pairs: (chains, states, states), Σ_t P(y_t, y_{t+1}).
        rates: (chains,), each chain's step size.
    """

    log_nodes: np.ndarray
    log_pairs: np.ndarray
    nodes: np.ndarray
    pairs: np.ndarray
    rates: np.ndarray
