"""A network of labels, as its samples are drawn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Network(NamedTuple):
    """A network of labels in their own ordering, in log-odds: P(y_k = 1 | y_<k) = σ(log-odds of k).

    In a sample label k is 1 where its log-odds are above its logistic noise.

    Args:
        log_odds: (batch, labels), of each label while all before it are 0.
        start: (labels + 1,), the children of label j are entries ``start[j]`` up to ``start[j + 1]`` …
        child: (edges,), … of these, each after its parent, …
        step: (edges,), … whose log-odds grow by so much where the parent is 1.
    """

    log_odds: np.ndarray
    start: np.ndarray
    child: np.ndarray
    step: np.ndarray
