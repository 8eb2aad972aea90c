"""What one sigmoid belief network and an ensemble of them share: predictions from a list of energies."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.energies import DirectedEnergy, Energy
from lmbm_torch.estimators.base import StructuredClassifier, label_matrix
from lmbm_torch.inference import ancestral, exact, mixture
from lmbm_torch.inference.results import Decoding, Marginals

# Enumeration of 2^20 labellings takes about a second an instance; sampling has an error that it states.
MAX_EXACT_LABELS = 20
NUM_SAMPLES = 1000


class NetworkClassifier(StructuredClassifier):
    """Predictions of an equal mixture of sigmoid belief networks, which may be a single one."""

    random_state: int | np.random.RandomState | None

    @abstractmethod
    def decode(self, X, known=None) -> Decoding:
        """The labelling of least (mean) hinge loss for each instance, with its certificate."""

    @abstractmethod
    def energies(self, X) -> list[DirectedEnergy]:
        """The members' energies for instances (instances, features)."""

    @property
    @abstractmethod
    def _settings(self) -> tuple[float, torch.device]:
        """The margin γ and the device, which all members share."""

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
        margin, _ = self._settings
        margins = torch.stack([energy.local_margins(codes) for energy in self.energies(X)])
        loss = (margin - margins).clamp(min=0).sum(-1).mean(0)
        return self.classes_[loss.argmin(0).cpu().numpy()]

    def predict_proba(self, X):
        """P(y_i = 1 | x), (instances, labels); or P(class | x), (instances, classes).

        Exact for up to 20 labels, beyond that the mean over 1,000 ancestral samples, whose standard error
        :meth:`marginals` states.
        """
        codes = self._class_codes()
        if codes is not None:
            return mixture.log_prob(self.energies(X), codes).softmax(0).mT.cpu().numpy()
        probability = np.mean([member.labels.cpu().numpy() for member in self.marginals(X)], 0)
        if self.binarizer_ is None:
            return probability
        return np.hstack([1 - probability, probability])

    def marginals(self, X) -> list[Marginals]:
        """Each member's P(y_i = 1 | x), with its standard error where it was sampled."""
        energies = self.energies(X)
        if energies[0].num_labels <= MAX_EXACT_LABELS:
            return [exact.marginals(energy) for energy in energies]
        seed = int(check_random_state(self.random_state).randint(2**31))
        generator = torch.Generator(energies[0].device).manual_seed(seed)
        return [ancestral.marginals(energy, NUM_SAMPLES, generator=generator) for energy in energies]

    def log_prob(self, X, Y):
        """log P(Y | x) of whole label vectors, (instances,).

        Args:
            X: (instances, features), dense or CSR.
            Y: (instances, labels) in {0, 1}.
        """
        energies = self.energies(X)
        labels = label_tensor("Y", Y, energies[0], allow_missing=False)
        return mixture.log_prob(energies, labels).cpu().numpy()

    def _class_codes(self) -> Tensor | None:
        """The label vectors to choose among, (classes, 1, labels), where not every vector is a class."""
        check_is_fitted(self)
        if self.binarizer_ is None or len(self.classes_) == 2:
            return None
        return torch.from_numpy(self.binarizer_.transform(self.classes_)[:, None, :]).to(self._settings[1])


def label_tensor(name: str, labels, energy: Energy, *, allow_missing: bool) -> Tensor:
    """Labels as a tensor beside the energy; refuses another shape or other values."""
    labels = label_matrix(name, labels, allow_missing=allow_missing)
    check_shape(name, labels, energy.batch_size, energy.num_labels)
    return torch.from_numpy(labels).to(energy.device)
