"""Allowed values of the estimators' parameters, with a common table for shared parameters.

:func:`check_parameters` refuses other values with messages such as "The 'C' parameter of LMSBNClassifier must
be a float in the range (0.0, inf). Got -1 instead."
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache
from inspect import signature
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.utils import check_random_state

from lmbm_torch import constraints as rules_of
from lmbm_torch.fitting import recipe

Constraints = dict[str, list[Any]]


class ParameterError(ValueError, TypeError):
    """The error for a parameter of an estimator whose type or value is not allowed."""


class Number(NamedTuple):
    """A constraint for numbers in an interval; booleans are not accepted as numbers.

    Args:
        kind: ``Integral`` or ``Real``.
        low: the lower end.
        high: the upper end; None for infinity.
        closed: the ends that belong to the interval: ``"left"``, ``"neither"`` or ``"both"``.
    """

    kind: type
    low: float
    high: float | None
    closed: str = "left"

    def allows(self, value: Any) -> bool:
        """Return whether ``value`` is a number in the interval; False for NaN."""
        if not isinstance(value, self.kind) or isinstance(value, bool):
            return False
        number: Any = value
        high = np.inf if self.high is None else self.high
        above = number > self.low if self.closed == "neither" else number >= self.low
        return above and (number <= high if self.closed == "both" else number < high)

    def __str__(self) -> str:
        opening = "(" if self.closed == "neither" else "["
        high = "inf" if self.high is None else self.high
        closing = "]" if self.closed == "both" else ")"
        noun, low = ("an int", self.low) if self.kind is Integral else ("a float", float(self.low))
        return f"{noun} in the range {opening}{low}, {high}{closing}"


class StrOptions:
    """A constraint for parameters whose value must be one of certain strings."""

    def __init__(self, options: Iterable[str]) -> None:
        self.options = sorted(options)

    def allows(self, value: Any) -> bool:
        """Return whether ``value`` is an allowed string."""
        return isinstance(value, str) and value in self.options

    def __str__(self) -> str:
        return f"a str among {{{', '.join(map(repr, self.options))}}}"


class HasMethods:
    """A constraint for objects that must have certain methods."""

    def __init__(self, methods: Collection[str]) -> None:
        self.methods = sorted(methods)

    def allows(self, value: Any) -> bool:
        """Return whether ``value`` has all methods."""
        return all(callable(getattr(value, method, None)) for method in self.methods)

    def __str__(self) -> str:
        return f"an object implementing {' and '.join(map(repr, self.methods))}"


class Relative(StrOptions):
    """A constraint for strings: ``"scale"`` or a multiple such as ``"0.3*scale"``."""

    def allows(self, value: Any) -> bool:
        """Return whether ``value`` is ``"scale"`` or a multiple of ``"scale"``."""
        return recipe.multiple(value) is not None

    def __str__(self) -> str:
        return f"{super().__str__()} or a multiple such as '0.3*scale'"


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_array_like(value: Any) -> bool:
    """Return whether ``value`` is a sequence or an array; False for strings and sparse matrices."""
    if sparse.issparse(value) or isinstance(value, type) or np.isscalar(value):
        return False
    return any(hasattr(value, name) for name in ("shape", "__array__", "__len__"))


def _is_verbosity(value: Any) -> bool:
    return _is_boolean(value) or Number(Integral, 0, None).allows(value)


def _is_random_state(value: Any) -> bool:
    is_seed = Number(Integral, 0, 2**32 - 1, closed="both").allows(value)
    return value is None or is_seed or isinstance(value, np.random.RandomState)


def _is_splitter(value: Any) -> bool:
    splits = HasMethods(["split", "get_n_splits"]).allows(value) or Number(Integral, 2, None).allows(value)
    return value is None or splits or (isinstance(value, Iterable) and not isinstance(value, str))


# Name of a constraint → function that tests a value, and description of allowed values for error messages.
_NAMED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "boolean": (_is_boolean, "a bool"),
    "array-like": (_is_array_like, "an array-like"),
    "verbose": (_is_verbosity, "a bool or an int in the range [0, inf)"),
    "random_state": (_is_random_state, "an int in the range [0, 4294967295], a RandomState or None"),
    "cv_object": (_is_splitter, "an int in the range [2, inf), a splitter, an iterable of splits or None"),
}


def _allows(constraint: Any, value: Any) -> bool:
    if isinstance(constraint, str):
        return _NAMED[constraint][0](value)
    if constraint is None:
        return value is None
    if isinstance(constraint, type):
        return isinstance(value, constraint)
    return callable(value) if constraint is callable else constraint.allows(value)


def _words(constraint: Any) -> str:
    if isinstance(constraint, str):
        return _NAMED[constraint][1]
    if isinstance(constraint, type):
        of_python = constraint.__module__ == "builtins"
        name = constraint.__qualname__ if of_python else f"{constraint.__module__}.{constraint.__qualname__}"
        return f"an instance of {name!r}"
    return "a callable" if constraint is callable else str(constraint)


def check_parameters(estimator: Any) -> None:
    """Raise ParameterError unless each parameter satisfies a constraint of the estimator's class.

    Args:
        estimator: an instance of a class whose ``_accepted`` maps names of parameters to constraints;
            parameters without an entry may have any value.

    Raises:
        ValueError: torch cannot use the device.
    """
    defaults = _defaults(type(estimator))
    for name, value in estimator.get_params(deep=False).items():
        # Skip the check for default values, which are always allowed.
        if name in defaults and value is defaults[name]:
            continue
        if name == "device":
            _check_available(value)
        allowed = estimator._accepted.get(name)
        if allowed is not None and not any(_allows(each, value) for each in allowed):
            *others, last = map(_words, allowed)
            wanted = f"{', '.join(others)} or {last}" if others else last
            whose = f"The {name!r} parameter of {type(estimator).__name__}"
            raise ParameterError(f"{whose} must be {wanted}. Got {value!r} instead.")


POSITIVE = Number(Real, 0, None, closed="neither")
NOT_NEGATIVE = Number(Real, 0, None, closed="left")
COUNT = Number(Integral, 1, None, closed="left")
FINITE = Number(Real, -np.inf, None, closed="neither")
KERNELS = {"linear", "poly", "rbf"}

CALIBRATE = ["boolean", StrOptions({"scale", "labels", "joint"})]
# Allowed values of ``class_weight``: a setting for all labels, or a list with a setting for each label.
CLASS_WEIGHT: list[Any] = [None, str, dict, list, tuple]
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


@cache
def _defaults(kind: type) -> dict[str, Any]:
    parameters = signature(kind).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def _check_available(device: Any) -> None:
    """Raise ValueError before training unless torch can use the device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as missing:
        raise ValueError(f"device: expected a device that torch can use, got {device!r}: {missing}") from None


def seeds_for(estimator: Any, random_state: Any) -> dict[str, int]:
    """Draw seeds for an estimator and its inner estimators, where ``random_state`` is None.

    Args:
        estimator: an object with scikit-learn's ``get_params``.
        random_state: random state from which seeds are drawn; None for no seeds.

    Returns:
        The arguments of ``estimator.set_params``.
    """
    if random_state is None:
        return {}
    random = check_random_state(random_state)
    return {
        name: int(random.randint(2**31 - 1))
        for name, value in sorted(estimator.get_params(deep=True).items())
        if (name == "random_state" or name.endswith("__random_state")) and value is None
    }
