"""Records of arrays that solvers share with kernels; the module does not import numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# An instance at a bound is inactive if its part of the duality gap is at most this share of the mean.
NEGLIGIBLE = 0.01


class Box(NamedTuple):
    """The dual problem of one label; all arrays are (instances,) of float64.

    Args:
        coef: β = s α, the dual variables times the spins.
        lower: lower bounds; 0 for instances without a loss.
        upper: upper bounds; 0 for instances without a loss.
        gradient: G β − linear, with the kernel matrix G.
        linear: γ s, margin times spin.
    """

    coef: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    gradient: np.ndarray
    linear: np.ndarray

    def shares(self) -> np.ndarray:
        """Return each instance's part of the duality gap, max_b gradient · (β − b) over b in the box."""
        return self.gradient * (self.coef - np.where(self.gradient > 0, self.lower, self.upper))

    def active(self) -> np.ndarray:
        """Return instances strictly inside the box, or with a part of the gap that is not negligible."""
        inside, parts = (self.coef > self.lower) & (self.coef < self.upper), self.shares()
        return np.flatnonzero(inside | (parts > NEGLIGIBLE * parts.mean()))


class Marginals(NamedTuple):
    """The dual variables: a distribution over labellings for each chain.

    Args:
        log_nodes: (positions, states), log-potentials of the distribution.
        log_pairs: (chains, states, states), log-potentials of transitions, equal at all steps.
        nodes: (positions, states), P(y_t).
        pairs: (chains, states, states), Σ_t P(y_t, y_{t+1}).
        rates: (chains,), the step size of each chain.
    """

    log_nodes: np.ndarray
    log_pairs: np.ndarray
    nodes: np.ndarray
    pairs: np.ndarray
    rates: np.ndarray
