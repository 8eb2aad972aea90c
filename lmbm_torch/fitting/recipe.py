"""The recipe of large-margin training: the default settings of all estimators and commands.

The recipe holds the weight C of the losses and the scaling of features, the penalty on couplings, the number
of completions of missing labels, and the folds for calibration. Estimators, training modules and comparisons
use it. ``scripts/bench/recipes.py`` compares the recipe with alternatives.
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
"""Weight of the losses, for scaled features."""
COUPLING_PENALTY = SCALE
"""Penalty η0 on the couplings of a large-margin Boltzmann machine."""
ORDERING = "f_score"
"""Order of the labels of a belief network in which all earlier labels are parents."""
ORDERING_OF_CHOSEN_PARENTS = "frequency"
"""Order of the labels of a belief network whose parents are chosen."""
ORDERING_OF_STREAMS = "index"
"""Order of the labels of a belief network that learns from a stream of instances."""
MANY_LABELS = 128
"""Largest number of labels of a belief network in which all earlier labels are parents."""
SEARCHED_UNITS = {
    "dense": ("standardised, unit rows", "[0, 1]", "unit rows", "standardised"),
    "sparse": ("unit rows", "largest 1"),
}
"""Scalings of features that an automatic choice tries; the scaling that is usually best comes first."""
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
"""For each family the settings that an automatic choice tries; the setting that is usually best comes first.

A setting is the weight C of the losses, or a kernel and C; for regressions the width γ; for trees the
smallest size of a leaf, or this size and the features to try at each split; for boosting the learning rate.
"""
FOLDS = 5
"""Number of folds for calibration."""
ROUNDS = 4
"""Largest number of trainings with missing labels, which the previous training's predictions complete."""
SEARCHED_C = (1.0, 10.0, 0.1, 3.0, 0.3, 30.0)
"""Multiples of ``"scale"`` that searches try, the most promising first (scripts/bench/recipes.py)."""

_MULTIPLE = re.compile(r"(?:([0-9.]+(?:e[+-]?[0-9]+)?)\s*\*\s*)?scale", re.IGNORECASE)


class Units(NamedTuple):
    """The weight of the losses as a number, with the scaling of the features.

    Args:
        C: weight of the losses, above 0.
        shift, scale: float64, (features,), training is on (X − shift) / scale; 0 and 1 for unchanged X.
    """

    C: float
    shift: np.ndarray | float
    scale: np.ndarray | float

    def scaled(self, X: Features) -> Features:
        """Return (X − shift) / scale, (instances, features); if nothing is scaled, X itself."""
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
    """Return a multiple of ``"scale"`` as text, such as ``"0.3*scale"``, with all digits of ``factor``."""
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
    """Return C as a number, with the scaling of the features.

    If C is a number, features are unchanged. ``"scale"`` stands for 1, and ``"0.3*scale"`` for 0.3, with
    features that are scaled to a mean ‖x‖² of 1; see :mod:`~lmbm_torch.fitting.feature_units`. After
    training, weights are converted to weights for X.

    Args:
        X: (instances, features), dense or CSR.
        sample_weight: (instances,).
    """
    factor = multiple(C)
    return Units(float(C), 0.0, 1.0) if factor is None else Units(factor, *column_units(X, sample_weight))


def coupling_penalty(setting: float | str, C: float, instances: float) -> float:
    """Return the penalty η0 of a Boltzmann machine; ``"scale"`` is half of the total weight of all losses.

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
        instances: number of instances, at least 2.
    """
    folds = KFold(min(FOLDS, instances), shuffle=True, random_state=seed)
    yield from folds.split(np.empty((instances, 1)))
