"""Paired tests of two methods over splits with overlapping training sets."""

from __future__ import annotations

import numpy as np
from scipy import stats

from lmbm_torch.checks import check_positive, check_shape


def standard_error(values: np.ndarray, test_per_train: float) -> float:
    """Return the standard error of the mean over splits: s √(1/k + n_test / n_train).

    The term n_test / n_train corrects for instances that splits share (Nadeau and Bengio, "Inference for the
    generalization error", 2003, section 3.3).

    Args:
        values: ``(splits,)``, at least two.
        test_per_train: n_test / n_train.

    Raises:
        ValueError: there are fewer than two values, or the ratio is not above 0.
    """
    check_positive("test_per_train", test_per_train)
    if len(values) < 2:
        raise ValueError(f"values: expected values of at least 2 splits, got {len(values)} values")
    return float(np.std(values, ddof=1) * np.sqrt(1 / len(values) + test_per_train))


def interval(values: np.ndarray, test_per_train: float, level: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of the mean over splits, by :func:`standard_error`."""
    reach = stats.t.ppf((1 + level) / 2, len(values) - 1) * standard_error(values, test_per_train)
    return float(np.mean(values) - reach), float(np.mean(values) + reach)


def corrected_t_test(first: np.ndarray, second: np.ndarray, test_per_train: float) -> float:
    """Return the two-sided p-value for equal means, by the corrected resampled t-test of Nadeau and Bengio.

    Args:
        first, second: ``(splits,)``, values of two methods on the same splits; if all are equal, p is 1.

    Raises:
        ValueError: see :func:`standard_error`; also if the numbers of splits differ.
    """
    check_shape("second", second, len(first))
    differences = np.subtract(first, second)
    error = standard_error(differences, test_per_train)
    if error == 0:
        return float(not differences.any())
    return float(2 * stats.t.sf(abs(differences.mean()) / error, len(differences) - 1))


def holm(p_values: np.ndarray) -> np.ndarray:
    """Adjust the p-values of several tests by Holm's step-down method (1979).

    Args:
        p_values: ``(tests,)``.
    """
    count = len(p_values)
    order = np.argsort(p_values)
    steps = np.asarray(p_values)[order] * np.arange(count, 0, -1)
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted
