"""Training shared by forests and boosting of label vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import fit_call


@fit_call
def fit(self: Any, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Any:
    """Grow the trees.

    Args:
        X: (instances, features), dense or CSR; finite.
        y: labels (instances, labels) of two values, NaN for missing labels, which have no effect on splits
            and leaves; or a class for each instance.
        sample_weight: (instances,), weights of the instances in splits and leaves.

    Raises:
        ValueError: a parameter or input is invalid; the message names it.
    """
    X, labels, weights = self._validate_fit(X, y, sample_weight, allow_missing=True)
    known = ~np.isnan(labels)
    weights = np.ones(len(labels)) if weights is None else weights
    self.prior_ = (weights @ np.nan_to_num(labels) + 1) / (weights @ known + 2)
    self._grow(X, np.nan_to_num(labels), known, weights)
    return self
