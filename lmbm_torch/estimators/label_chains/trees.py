"""The base class of forests and boosting of label vectors."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import fit_call
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.networks import independent_labels
from lmbm_torch.solvers.networks.problems import Features


class LabelTrees(DecodingClassifier[DirectedEnergy]):
    """A classifier by trees for all labels together; given the features, labels are independent."""

    device = "cpu"
    holds_others: ClassVar[bool] = True
    capabilities, predict_decoding = independent_labels.capabilities, independent_labels.predict_decoding
    _energy = independent_labels.energy_of_log_odds
    _decode_energy, _code_losses = independent_labels.decode_energy, independent_labels.code_losses

    prior_: np.ndarray

    @fit_call
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Grow the trees.

        Args:
            X: finite features (instances, features), dense or CSR.
            y: labels (instances, labels) of two values, with NaN for missing labels, which have no effect on
                splits and leaves; or one class per instance.
            sample_weight: (instances,), weights of the instances in splits and leaves.

        Raises:
            ValueError: a parameter or input is invalid.
        """
        X, labels, weights = self._validate_fit(X, y, sample_weight, allow_missing=True)
        known = ~np.isnan(labels)
        weights = np.ones(len(labels)) if weights is None else weights
        self.prior_ = (weights @ np.nan_to_num(labels) + 1) / (weights @ known + 2)
        self._grow(X, np.nan_to_num(labels), known, weights)
        return self

    @abstractmethod
    def _grow(self, X: Features, labels: np.ndarray, known: np.ndarray, weights: np.ndarray) -> None:
        """Grow the trees for labels (instances, labels), in which unknown labels are 0."""

    @abstractmethod
    def _log_odds(self, X: Features) -> np.ndarray:
        """Return the log-odds of the labels, (instances, labels)."""
