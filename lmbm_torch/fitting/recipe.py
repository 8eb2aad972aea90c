"""The recipe of large-margin training: the default settings of all estimators and commands.

Estimators, training modules and comparisons read the recipe: the weight C of the losses and the units of
features, the penalty of couplings, the rounds of completion of missing labels, and the folds of calibration.
``scripts/bench/recipes.py`` compares the recipe with alternatives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.checks import check_positive
from lmbm_torch.extras import naming_extras
from lmbm_torch.fitting.feature_units import column_units, scaled
from lmbm_torch.solvers.networks.problems import Features

with naming_extras():
    from sklearn.model_selection import KFold

SCALE = "scale"
C = SCALE
"""Weight of the losses, in units of the columns."""
COUPLING_PENALTY = SCALE
"""η0 of a large-margin Boltzmann machine."""
ORDERING = "f_score"
"""Order of a belief network's labels whose parents are all labels before them."""
ORDERING_OF_CHOSEN_PARENTS = "frequency"
"""Order of a belief network's labels whose parents are chosen."""
ORDERING_OF_STREAMS = "index"
"""Order of a belief network's labels that learns from a stream of instances."""
MANY_LABELS = 128
"""Labels of a belief network beyond which parents are chosen."""
SEARCHED_UNITS = {
    "dense": ("standardised, unit rows", "[0, 1]", "unit rows", "standardised"),
    "sparse": ("unit rows", "largest 1"),
}
"""Units of features that an automatic choice tries, the usually best units first."""
SEARCHED: dict[str, tuple[Any, ...]] = {
    "logistic regressions": (1.0, 0.1, 10.0),
    "network": (1.0, 10.0, 0.1, 3.0, 0.3),
    "kernel network": (3.0, 10.0, 1.0, 30.0),
    "ten networks": (("linear", 1.0), ("rbf", 10.0)),
    "Boltzmann machine": (10.0, 1.0, 100.0),
    "label powerset": (("rbf", 10.0), ("linear", 1.0), ("rbf", 1.0), ("linear", 10.0), ("linear", 0.1)),
    "regression of label sets": (3.0, 1.0, 0.3, 10.0),
    "forest": (1, 3),
    "label boosting": (0.1, 0.05),
    "forest of label sets": (1, 3),
    "chain of extra trees": ((1, "sqrt"), (1, 0.3), (3, "sqrt"), (3, 0.3)),
    "chain of logistic regressions": (1.0, 10.0, 0.1),
    "chain of boosting": (0.1, 0.05),
}
"""Settings that an automatic choice tries, by family, the usually best setting first.

The weight C of the losses, with a kernel's name before C where both vary; the width γ of a regression; the
smallest leaf of trees, and the share of features that a split sees; the learning rate of boosting.
"""
FOLDS = 5
"""Folds of calibration."""
ROUNDS = 4
"""The largest number of trainings with missing labels, each on the predictions of the previous training."""
SEARCHED_C = (1.0, 10.0, 0.1, 3.0, 0.3, 30.0)
"""Multiples of ``"scale"`` that searches try, the most promising first (scripts/bench/recipes.py)."""

_MULTIPLE = re.compile(r"(?:([0-9.]+(?:e[+-]?[0-9]+)?)\s*\*\s*)?scale", re.IGNORECASE)


class Units(NamedTuple):
    """The weight of the losses as a number, with the units of the features.

    Args:
        C: above 0.
        shift, scale: float64, (features,), training is on (X − shift) / scale; 0 and 1 for unchanged X.
    """

    C: float
    shift: np.ndarray | float
    scale: np.ndarray | float

    def scaled(self, X: Features) -> Features:
        """Return (X − shift) / scale, (instances, features); X itself for shift 0 and scale 1."""
        return X if np.ndim(self.scale) == 0 else scaled(X, np.asarray(self.shift), np.asarray(self.scale))


def multiple(setting: float | str) -> float | None:
    """Return the factor of ``"scale"``: 0.3 for ``"0.3*scale"``; None for other settings."""
    found = _MULTIPLE.fullmatch(setting.strip()) if isinstance(setting, str) else None
    if found is None:
        return None
    try:
        factor = float(found[1] or 1)
    except ValueError:
        return None
    return factor if 0 < factor < np.inf else None


def times_scale(factor: float) -> str:
    """Return the setting of a multiple of ``"scale"``, to the last bit."""
    return f"{factor!r}*{SCALE}"


def check_relative(name: str, setting: float | str) -> None:
    """Raise ValueError unless a setting is a number above 0, ``"scale"`` or a multiple of ``"scale"``."""
    if not isinstance(setting, str):
        check_positive(name, setting)
    elif multiple(setting) is None:
        raise ValueError(
            f"{name}: expected a number above 0, 'scale' or a multiple such as '0.3*scale', got {setting!r}"
        )


def units(C: float | str, X: Features, sample_weight: np.ndarray | None = None) -> Units:
    """Return the number C of a setting, with the units of the features.

    A number C belongs to unchanged X. ``"scale"`` is 1, and ``"0.3*scale"`` is 0.3, in units of the columns,
    with a mean of ‖x‖² of 1; see :mod:`~lmbm_torch.fitting.feature_units`. Learned weights are converted to
    weights of X.

    Args:
        X: (instances, features), dense or CSR.
        sample_weight: (instances,).
    """
    factor = multiple(C)
    return Units(float(C), 0.0, 1.0) if factor is None else Units(factor, *column_units(X, sample_weight))


def coupling_penalty(setting: float | str, C: float, instances: float) -> float:
    """Return η0 of a Boltzmann machine: ``"scale"`` is half of the weight of all losses together.

    Args:
        setting: a number, ``"scale"`` or a multiple of ``"scale"``.
        C: the weight of the losses.
        instances: the number of instances, or the sum of the instances' weights.
    """
    factor = multiple(setting)
    return float(setting) if factor is None else factor * C * float(instances) / 2


def calibration_folds(instances: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield training rows and held-out rows of each calibration fold.

    Args:
        instances: 2 or more.
    """
    folds = KFold(min(FOLDS, instances), shuffle=True, random_state=seed)
    yield from folds.split(np.empty((instances, 1)))
