"""Labels of which some depend on others, to be told from those when they are missing."""

from __future__ import annotations

import numpy as np


def problem(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Five labels that depend on six features, and the last two on the first."""
    weight = np.random.default_rng(0).normal(size=(6, 5))
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, 6))
    Y = (X @ weight + 0.3 * random.normal(size=(rows, 5)) > 0).astype(float)
    Y[:, 3], Y[:, 4] = Y[:, 0], 1 - Y[:, 0]
    return X, Y
