"""Probabilities of the estimators whose model is a Boltzmann machine."""

from __future__ import annotations

from typing import TypeVar, cast

from torch import Tensor

from lmbm_torch import inference
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from lmbm_torch.estimators.calibration import CalibratedMixin
from lmbm_torch.estimators.decoding import ModelClassifier, ProbabilisticClassifier
from lmbm_torch.estimators.targets import label_tensor
from lmbm_torch.inference.results import Marginals

AnEnergy = TypeVar("AnEnergy", bound=PairwiseEnergy | CliqueEnergy)


class UndirectedClassifier(CalibratedMixin, ModelClassifier[AnEnergy], ProbabilisticClassifier):
    """A decoding classifier with probabilities P(y | x) ∝ exp(score), of calibrated scores where they are."""

    def marginals(self, X) -> Marginals:
        """P(y_i = 1 | x): exact for up to 20 labels or a sparse graph, else those of the mean field.

        Raises:
            ValueError: more than 22 labels, and cliques of three or more of them.
        """
        return cast(Marginals, inference.marginals(self.calibrated(self.energy(X))))

    def log_prob(self, X, Y):
        """log P(Y | x) of whole label vectors, (instances,), exactly.

        Args:
            X: (instances, features), dense or CSR.
            Y: (instances, labels) in {0, 1}.

        Raises:
            ValueError: more than 22 labels, unless their graph is sparse.
        """
        energy = self.calibrated(self.energy(X))
        labels = label_tensor("Y", Y, energy)
        return (energy.score(labels) - inference.log_partition(energy)).cpu().numpy()

    def _code_log_prob(self, X, codes: Tensor) -> Tensor:
        return self.calibrated(self.energy(X)).score(codes)
