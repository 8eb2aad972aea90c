"""Rows of features and the two values of a training: shared by the checks of trainings and of chains."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certificate_checker.fields import array, require


class Values(NamedTuple):
    """Both values, the size of all of their terms, and what the gap may be larger, rounding aside."""

    instances: int
    roundings: int
    primal: float
    dual: float
    mass: float
    slack: float = 0.0


class Rows:
    """Rows of features, as those of CSR, and what weights of some outputs make of them."""

    def __init__(self, problem, count):
        self.count, self.size = count, int(problem["features"])
        starts = array(problem["starts"], "int64", count + 1)
        require((np.diff(starts) >= 0).all() and starts[0] == 0, "strange rows")
        self.columns = array(problem["columns"], "int64", starts[-1])
        self.x = array(problem["values"], "float64", starts[-1])
        self.rows = np.arange(count).repeat(np.diff(starts))
        require((self.columns >= 0) & (self.columns < self.size), "a feature that there is not")
        places = self.rows * self.size + self.columns
        require(len(np.unique(places)) == len(places), "a feature comes twice")

    def sums(self, signed, x):
        """Return Σ_l x_l signed_l, (features, outputs)."""
        each = [np.bincount(self.columns, x * own[self.rows], self.size) for own in signed.T]
        return np.stack(each, 1)

    def fields(self, features, x):
        """Return (rows, outputs)."""
        each = [np.bincount(self.rows, x * own[self.columns], self.count) for own in features.T]
        return np.stack(each, 1)


def same(weights, made, sizes):
    """Require weights that the duals make, of terms that add up to sizes without their signs."""
    for own, exactly, size in zip(weights, made, sizes, strict=True):
        require(np.abs(own - exactly) <= 1e-9 * size, "weights that the duals do not make")
