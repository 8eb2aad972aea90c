"""What one sigmoid belief network and an ensemble of them share: predictions from a list of energies."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmbm_torch import inference
from lmbm_torch.checks import check_shape
from lmbm_torch.energies import DirectedEnergy, Energy
from lmbm_torch.estimators.base import label_matrix
from lmbm_torch.estimators.decoded import DecodedClassifier
from lmbm_torch.inference import bayes, mixture
from lmbm_torch.inference.results import Decoding, Marginals

NUM_SAMPLES = 1000
# The labelling of largest expected measure, by the measure's name.
DECODERS = {"hamming": bayes.decode_hamming, "f1": bayes.decode_f1, "jaccard": bayes.decode_jaccard}


class NetworkClassifier(DecodedClassifier):
    """Predictions of an equal mixture of sigmoid belief networks, which may be a single one."""

    random_state: int | np.random.RandomState | None
    decoder: str = "hinge"

    @abstractmethod
    def energies(self, X) -> list[DirectedEnergy]:
        """The members' energies for instances (instances, features)."""

    @property
    @abstractmethod
    def _settings(self) -> tuple[float, torch.device]:
        """The margin γ and the device, which all members share."""

    @property
    @abstractmethod
    def _limits(self) -> dict[str, Any]:
        """The settings that may end a search before its proof, as :func:`mixture.decode` takes them."""

    def predict(self, X, known=None):
        """Labels (instances, labels) in {0, 1}, or classes where ``fit`` was given classes.

        Warns of searches that were ended before their proof; :meth:`predict_decoding` says which.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already; label matrices only.
        """
        self._check_decoder()
        check_is_fitted(self)
        if self.binarizer_ is not None:
            return super().predict(X, known)
        decoding = self.predict_decoding(X, known)
        if ended := int((~decoding.status.converged).sum()):
            limits = " or ".join(f"{name}={value}" for name, value in self._limits.items())
            warnings.warn(
                f"{ended} of {len(decoding.labels)} searches were ended by {limits}; their labels are the "
                "best found, not proven optimal",
                ConvergenceWarning,
                stacklevel=2,
            )
        return decoding.labels.cpu().numpy()

    def predict_decoding(self, X, known=None) -> Decoding:
        """What :meth:`predict` gives for label matrices, with what ``decoder`` optimises as its objective."""
        self._check_decoder()
        if self.decoder == "hinge":
            return self.decode(X, known=known)
        energies = self.energies(X)
        if known is not None:
            known = label_tensor("known", known, energies[0], allow_missing=True)
        if self.decoder == "exact_match":
            return mixture.decode(energies, known=known, **self._limits)
        decode, generator = DECODERS[self.decoder], self._generator(energies[0])
        return decode(energies, known=known, num_samples=NUM_SAMPLES, generator=generator)

    def marginals(self, X) -> list[Marginals]:
        """Each member's P(y_i = 1 | x), exact for up to 20 labels, with its standard error where sampled.

        Beyond 20 labels it is the mean over 1,000 ancestral samples.
        """
        energies = self.energies(X)
        generator = self._generator(energies[0])
        return [inference.marginals(energy, generator=generator) for energy in energies]

    def log_prob(self, X, Y):
        """log P(Y | x) of whole label vectors, (instances,).

        Args:
            X: (instances, features), dense or CSR.
            Y: (instances, labels) in {0, 1}.
        """
        energies = self.energies(X)
        labels = label_tensor("Y", Y, energies[0], allow_missing=False)
        return mixture.log_prob(energies, labels).cpu().numpy()

    def _check_decoder(self) -> None:
        if self.decoder not in ("hinge", "exact_match", *DECODERS):
            expected = ["hinge", "exact_match", *DECODERS]
            raise ValueError(f"decoder: expected one of {expected}, got {self.decoder!r}")

    def _generator(self, energy: DirectedEnergy) -> torch.Generator:
        seed = int(check_random_state(self.random_state).randint(2**31))
        return torch.Generator(energy.device).manual_seed(seed)

    def _code_losses(self, X, codes: Tensor) -> Tensor:
        margin, _ = self._settings
        margins = torch.stack([energy.local_margins(codes) for energy in self.energies(X)])
        return (margin - margins).clamp(min=0).sum(-1).mean(0)

    def _code_log_prob(self, X, codes: Tensor) -> Tensor:
        return mixture.log_prob(self.energies(X), codes)

    def _label_probability(self, X) -> np.ndarray:
        return np.mean([member.labels.cpu().numpy() for member in self.marginals(X)], 0)

    @property
    def _device(self) -> torch.device:
        return self._settings[1]


def label_tensor(name: str, labels, energy: Energy, *, allow_missing: bool) -> Tensor:
    """Labels as a tensor beside the energy; refuses another shape or other values."""
    labels = label_matrix(name, labels, allow_missing=allow_missing)
    check_shape(name, labels, energy.batch_size, energy.num_labels)
    return torch.from_numpy(labels).to(energy.device)
