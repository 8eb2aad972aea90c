"""Weights of the classes of each label, as weights of instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_sample_weight


def label_weights(
    class_weight: Any,
    labels: np.ndarray,
    missing: np.ndarray,
    sample_weight: np.ndarray | None,
) -> np.ndarray | None:
    """The weight of each label of each instance, (instances, labels); None where all are 1.

    Args:
        class_weight: ``"balanced"`` (known instances / (classes · instances of the class), which
            ``sample_weight`` does not change), weights by class, others 1, or None, for all labels alike; or
            a sequence of these, one a label.
        labels: (instances, labels); those in {0, 1} may lack a class.
        missing: (instances, labels), where labels are not known; any weight stands there.
        sample_weight: (instances,), multiplies.

    Raises:
        ValueError: another setting, not as many as labels, classes that there are none of, weights that are
            negative or no numbers.
    """
    instances, count = labels.shape
    several = isinstance(class_weight, Sequence) and not isinstance(class_weight, str)
    settings = list(class_weight) if several else [class_weight] * count
    if len(settings) != count:
        raise ValueError(
            f"class_weight: expected one setting for each of {count} labels, got {len(settings)}"
        )
    if sample_weight is None and all(setting is None for setting in settings):
        return None
    weights = np.ones((instances, count)) if sample_weight is None else np.tile(sample_weight, (count, 1)).T
    for label, setting in enumerate(settings):
        if setting is None:
            continue
        known = ~missing[:, label]
        weights[known, label] *= _of_classes(setting, labels[known, label])
    return weights


def _of_classes(setting: Any, values: np.ndarray) -> np.ndarray:
    if isinstance(setting, Mapping):
        numbers = [*setting.values()]
        if not all(isinstance(w, int | float | np.number) and 0 <= w < np.inf for w in numbers):
            raise ValueError(f"class_weight: expected finite weights of at least 0, got {numbers}")
        found = set(values.tolist())
        unknown = [each for each in setting if each not in {0, 1} | found]
        # As in scikit-learn: a fold may lack what is weighted, if nothing that it has lacks a weight.
        if unknown and not found <= setting.keys():
            known = sorted({0, 1} | found, key=str)
            raise ValueError(f"class_weight: expected classes among {known}, got {unknown}")
        return np.array([float(setting.get(value, 1.0)) for value in values.tolist()])
    if setting != "balanced":
        raise ValueError(f"class_weight: expected 'balanced', weights by class or None, got {setting!r}")
    return compute_sample_weight("balanced", values)
