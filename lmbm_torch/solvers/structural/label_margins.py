"""Structural SVMs of few labels, with sums over all labellings, for :mod:`~.smoothing`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.inference.enumeration import half_products
from lmbm_torch.solvers.base import TINY
from lmbm_torch.solvers.networks.problems import Features
from lmbm_torch.solvers.structural.label_vectors import LabelVectorOracle, decode_with
from lmbm_torch.solvers.structural.linear import Curvature
from lmbm_torch.solvers.structural.problems import StructuralProblem
from lmbm_torch.solvers.structural.smoothing import MarginProblem


@dataclass(frozen=True, eq=False)
class LabelMargins(MarginProblem):
    """The problem of :func:`~.label_vectors.label_vector_problem`, with sums over all labellings.

    Args:
        features: (instances, features).
        upper: (instances,), C_l.
        coupling_penalty: η.
        oracle: the labels, pairs and costs, and a decoder without relaxation.
    """

    features: Features
    upper: np.ndarray
    coupling_penalty: float
    oracle: LabelVectorOracle

    @classmethod
    def of(cls, problem: StructuralProblem) -> LabelMargins:
        """Convert a structural problem of label vectors.

        Raises:
            TypeError: the outputs of the problem are no label vectors.
        """
        if not isinstance(problem.oracle, LabelVectorOracle):
            raise TypeError(
                f"problem: expected a problem of label vectors, got {type(problem.oracle).__name__}"
            )
        return cls(problem.features, problem.upper, problem.coupling_penalty, problem.oracle)

    @property
    def num_outputs(self) -> int:
        return self.oracle.labels.shape[1]

    @property
    def num_couplings(self) -> int:
        return len(self.oracle.first)

    def losses_at(self, flat: np.ndarray, temperature: float) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the smoothed losses and gradients, see :meth:`MarginProblem.losses_at`."""
        energy, labels = self._augmented(flat, 1 / temperature)
        found = half_products.moments(energy, torch.from_numpy(self.upper))
        losses = found.log_partition - energy.score(labels)
        errors = self.upper[:, None] * (found.spins.numpy() - self._truth)
        products = found.products.numpy()[self.oracle.first, self.oracle.second]
        return float(self.upper @ losses.numpy()), errors, products - self._true_products

    def hinges(self, flat: np.ndarray) -> float:
        """Return the hinges by the decoder's bounds, see :meth:`MarginProblem.hinges`."""
        energy, labels = self._augmented(flat, 1.0)
        found = decode_with(self.oracle.decoder, energy)
        return float(self.upper @ (found.bound - energy.score(labels)).clamp(min=0).numpy())

    def expected_loss(self, errors: np.ndarray) -> float:
        """Return the expected loss, see :meth:`MarginProblem.expected_loss`."""
        wrong = np.abs(errors) / 2
        return float((wrong if self.oracle.costs is None else wrong * self.oracle.costs).sum())

    def curvature_at(self, flat: np.ndarray, temperature: float) -> Curvature:
        """Estimate the Hessian, see :meth:`MarginProblem.curvature_at`."""
        _, errors, _ = self.losses_at(flat, temperature)
        means = np.square(self._truth + errors / np.maximum(self.upper, TINY)[:, None])
        products = means[:, self.oracle.first] * means[:, self.oracle.second]
        couplings = self.coupling_penalty + self.upper @ (1.0 - products)
        return self.curvature(self.upper[:, None] * (1.0 - means), couplings)

    def _augmented(self, flat: np.ndarray, slope: float) -> tuple[PairwiseEnergy, torch.Tensor]:
        every = np.arange(len(self.upper))
        return self.oracle.augmented(self.scores(flat), self.couplings(flat), every, slope)

    @cached_property
    def _truth(self) -> np.ndarray:
        """Return the true labels' spins."""
        return to_spins(self.oracle.labels, np.float64)

    @cached_property
    def _true_products(self) -> np.ndarray:
        """Return the weighted sum over instances of each pair's product of true spins."""
        return self.upper @ (self._truth[:, self.oracle.first] * self._truth[:, self.oracle.second])
