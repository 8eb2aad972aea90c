"""The probability of each label in weighted labellings of each size, compiled for the CPU."""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import fast


def size_masses(labels: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ_y P(y) [|y| = s] y_i, (batch, sizes 0 …, labels), and P(|y| = s), (batch, sizes 0 …).

    Args:
        labels: (batch, labellings, labels) of {0, 1}, int64.
        probability: (batch, labellings), float64.
    """
    batch, _, width = labels.shape
    of_labels, of_sizes = np.zeros((batch, width + 1, width)), np.zeros((batch, width + 1))
    _add(labels, probability, of_labels, of_sizes)
    return of_labels, of_sizes


@fast
def _add(labels, probability, of_labels, of_sizes):
    for row in range(len(labels)):
        for one in range(labels.shape[1]):
            own, share = labels[row, one], probability[row, one]
            size = own.sum()
            of_sizes[row, size] += share
            if share != 0:
                total = of_labels[row, size]
                for label in range(len(own)):
                    total[label] += share * own[label]
