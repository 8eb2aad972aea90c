"""Constraints of the estimators' parameters in scikit-learn's form; one table for names of the same meaning.

``BaseEstimator._validate_params`` compares the parameters of an estimator with its ``_parameter_constraints``
and refuses others by "The 'C' parameter of LMSBNClassifier must be a float in the range (0.0, inf). Got -1
instead."
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions

from lmbm_torch import constraints as rules_of
from lmbm_torch.fitting import recipe

Constraints = dict[str, list[Any]]


class Number(Interval):
    """An interval of numbers; bools are refused."""

    def is_satisfied_by(self, val: Any) -> bool:
        return not isinstance(val, bool) and super().is_satisfied_by(val)


class Relative(StrOptions):
    """``"scale"``, or a multiple of it such as ``"0.3*scale"``."""

    def is_satisfied_by(self, val: Any) -> bool:
        return recipe.multiple(val) is not None

    def __str__(self) -> str:
        return f"{super().__str__()} or a multiple such as '0.3*scale'"


POSITIVE = Number(Real, 0, np.inf, closed="neither")
NOT_NEGATIVE = Number(Real, 0, np.inf, closed="left")
COUNT = Number(Integral, 1, None, closed="left")
FINITE = Number(Real, -np.inf, np.inf, closed="neither")
KERNELS = {"linear", "poly", "rbf"}

CALIBRATE = ["boolean", StrOptions({"scale", "labels", "joint"})]
RULES = [str, rules_of.Rule, rules_of.Constraints, "array-like", tuple, None]
RELATIVE_PENALTY = [Relative({recipe.SCALE}), POSITIVE]

_POSITIVE = ("C", "tol", "margin", "coupling_penalty", "parent_scale", "learning_rate")
_COUNTS = ("max_iter", "max_cycles", "max_candidates", "num_iters", "num_steps", "num_members", "num_hidden")
SHARED: Constraints = {
    **{name: [POSITIVE] for name in _POSITIVE},
    **{name: [COUNT] for name in (*_COUNTS, "batch_size", "degree")},
    "kernel": [StrOptions({*KERNELS, "precomputed"}), callable],
    "gamma": [StrOptions({"scale", "auto"}), POSITIVE],
    "kernel_degree": [NOT_NEGATIVE],
    "coef0": [FINITE],
    "node_limit": [COUNT, None],
    "constraints": RULES,
    "verbose": ["verbose"],
    "random_state": ["random_state"],
}


def check_available(device: Any) -> None:
    """Raise ValueError unless torch can use the device here: before the training, not after it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as missing:
        raise ValueError(f"device: expected one that torch can use here, got {device!r}: {missing}") from None
