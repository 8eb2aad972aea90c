"""What classifiers that decode label vectors share: predictions of labels, or of classes by their codes."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmbm_torch.estimators.base import StructuredClassifier
from lmbm_torch.inference.results import Decoding


class LabelVectorClassifier(StructuredClassifier):
    """A classifier whose prediction is the best of all label vectors, or of those that stand for a class."""

    @abstractmethod
    def decode(self, X, known=None) -> Decoding:
        """The best labelling for each instance, with its certificate."""

    def predict_decoding(self, X, known=None) -> Decoding:
        """What :meth:`predict` gives where ``fit`` was given label matrices, and what it is worth."""
        return self.decode(X, known=known)

    @abstractmethod
    def _code_losses(self, X, codes: Tensor) -> Tensor:
        """What prediction minimises, (classes, instances), for label vectors (classes, 1, labels)."""

    @property
    @abstractmethod
    def _device(self) -> torch.device:
        """Where predictions are computed."""

    def predict(self, X, known=None):
        """Labels (instances, labels) in {0, 1}, or classes where ``fit`` was given classes.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already; label matrices only.
        """
        codes = self._class_codes()
        if known is not None and self.binarizer_ is not None:
            raise ValueError("known: expected None, because fit was given classes, not label matrices")
        if codes is None:
            labels = self.decode(X, known=known).labels.cpu().numpy()
            return labels if self.binarizer_ is None else self.classes_[labels[:, 0]]
        return self.classes_[self._code_losses(X, codes).argmin(0).cpu().numpy()]

    def _class_codes(self) -> Tensor | None:
        """The label vectors to choose among, (classes, 1, labels), where not every vector is a class."""
        check_is_fitted(self)
        if self.binarizer_ is None or len(self.classes_) == 2:
            return None
        return torch.from_numpy(self.binarizer_.transform(self.classes_)[:, None, :]).to(self._device)


class DecodedClassifier(LabelVectorClassifier):
    """A classifier of label vectors that has their probabilities too."""

    @abstractmethod
    def _code_log_prob(self, X, codes: Tensor) -> Tensor:
        """log P(code | x), (classes, instances), but for a constant."""

    @abstractmethod
    def _label_probability(self, X) -> np.ndarray:
        """P(y_i = 1 | x), (instances, labels)."""

    def predict_proba(self, X):
        """P(y_i = 1 | x), (instances, labels), as :meth:`marginals` has it; or P(class | x), exactly."""
        codes = self._class_codes()
        if codes is not None:
            return self._code_log_prob(X, codes).softmax(0).mT.cpu().numpy()
        probability = self._label_probability(X)
        if self.binarizer_ is None:
            return probability
        return np.hstack([1 - probability, probability])
