"""Paired tests over resampled splits with overlapping training sets, and over data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from lmbm_torch.checks import check_positive, check_shape


def standard_error(values: np.ndarray, test_per_train: float) -> float:
    """Return the standard error of the mean over splits: s √(1/k + n_test / n_train).

    The second term is due to Nadeau and Bengio, "Inference for the generalization error" (2003), section
    3.3, since the splits share instances.

    Args:
        values: ``(splits,)``, two or more.
        test_per_train: n_test / n_train.

    Raises:
        ValueError: fewer than two values, or a ratio not above 0.
    """
    check_positive("test_per_train", test_per_train)
    if len(values) < 2:
        raise ValueError(f"values: expected values of at least 2 splits, got {len(values)}")
    return float(np.std(values, ddof=1) * np.sqrt(1 / len(values) + test_per_train))


def interval(values: np.ndarray, test_per_train: float, level: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of the mean over splits, by :func:`standard_error`."""
    reach = stats.t.ppf((1 + level) / 2, len(values) - 1) * standard_error(values, test_per_train)
    return float(np.mean(values) - reach), float(np.mean(values) + reach)


def corrected_t_test(first: np.ndarray, second: np.ndarray, test_per_train: float) -> float:
    """Return the two-sided p-value of equal means, by the corrected resampled t-test of the same paper.

    Args:
        first, second: ``(splits,)``, of two methods on the same splits; p is 1 for equal values.

    Raises:
        ValueError: the errors of :func:`standard_error`, or different numbers of splits.
    """
    check_shape("second", second, len(first))
    differences = np.subtract(first, second)
    error = standard_error(differences, test_per_train)
    if error == 0:
        return float(not differences.any())
    return float(2 * stats.t.sf(abs(differences.mean()) / error, len(differences) - 1))


def signed_ranks(first: np.ndarray, second: np.ndarray) -> float:
    """Return the two-sided p-value of equal medians over data sets, by Wilcoxon's signed-rank test.

    The comparison of two methods over several data sets of Demšar (2006), section 3.1.3.

    Args:
        first, second: ``(sets,)``, of two methods on the same sets; p is 1 for equal values.
    """
    check_shape("second", second, len(first))
    differences = np.subtract(first, second)
    if not differences.any():
        return 1.0
    found: Any = stats.wilcoxon(differences)
    return float(found.pvalue)


def critical_difference(num_methods: int, num_sets: int, level: float = 0.05) -> float:
    """Return the least significant difference of average ranks, by Nemenyi's test.

    q √(k (k + 1) / (6 N)) of Demšar (2006), section 3.2.2, with q the quantile of the studentized range
    divided by √2.
    """
    quantile = stats.studentized_range.ppf(1 - level, num_methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(num_methods * (num_methods + 1) / (6 * num_sets)))


def holm(p_values: np.ndarray) -> np.ndarray:
    """Return p-values adjusted by Holm's step-down method (1979) for all tests at once.

    Args:
        p_values: ``(tests,)``.
    """
    count = len(p_values)
    order = np.argsort(p_values)
    steps = np.asarray(p_values)[order] * np.arange(count, 0, -1)
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted
