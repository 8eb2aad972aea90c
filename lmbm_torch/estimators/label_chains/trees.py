"""Targets and priors of forests and boosting of label vectors."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import fit_call
from lmbm_torch.estimators.networks.independent_labels import LabelsByLogOdds
from lmbm_torch.solvers.networks.problems import Features


class LabelTrees(LabelsByLogOdds):
    """A classifier of label vectors by another library's trees, each tree for all labels together.

    Attributes:
        prior_: (labels,), (weight of positive instances + 1) / (weight of known instances + 2).
    """

    holds_others: ClassVar[bool] = True

    prior_: np.ndarray

    @fit_call
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Grow the trees.

        Args:
            X: (instances, features), dense or CSR; finite.
            y: labels (instances, labels) of two values, NaN for missing labels, without effect on splits
                and leaves; or one class per instance.
            sample_weight: (instances,), weights of the instances in splits and leaves.

        Raises:
            ValueError: an invalid parameter or input, named in the message.
        """
        X, labels, weights = self._validate_fit(X, y, sample_weight, allow_missing=True)
        known = ~np.isnan(labels)
        weights = np.ones(len(labels)) if weights is None else weights
        self.prior_ = (weights @ np.nan_to_num(labels) + 1) / (weights @ known + 2)
        self._grow(X, np.nan_to_num(labels), known, weights)
        return self

    @abstractmethod
    def _grow(self, X: Features, labels: np.ndarray, known: np.ndarray, weights: np.ndarray) -> None:
        """Set the trees from labels (instances, labels) in {0, 1}, 0 if not ``known``, and weights."""
