"""Probabilities of the estimators whose model is a Boltzmann machine."""

from __future__ import annotations

from typing import TypeVar, cast

from torch import Tensor

from lmbm_torch import inference
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from lmbm_torch.estimators.allowed_distribution import AllowedDistribution
from lmbm_torch.estimators.calibration import CalibratedMixin
from lmbm_torch.estimators.decoding import ModelClassifier, ProbabilisticClassifier
from lmbm_torch.estimators.targets import label_tensor
from lmbm_torch.inference.results import Marginals

AnEnergy = TypeVar("AnEnergy", bound=PairwiseEnergy | CliqueEnergy)


class UndirectedClassifier(CalibratedMixin, ModelClassifier[AnEnergy], ProbabilisticClassifier):
    """A decoding classifier with probabilities P(y | x) ∝ exp(score), of calibrated scores where they are."""

    def marginals(self, X) -> Marginals:
        """P(y_i = 1 | x): exact for up to 22 labels or a sparse graph, else those of the mean field.

        Under ``constraints`` those given that they are obeyed, exactly.

        Raises:
            ValueError: more than 22 labels, and cliques of three or more of them, or rules that leave no
                sparse graph.
        """
        if (allowed := self._allowed(X)) is not None:
            return allowed.marginals()
        return cast(Marginals, inference.marginals(*self._distributions(X)))

    def _distributions(self, X) -> list[PairwiseEnergy | CliqueEnergy]:
        return [self.calibrated(self.energy(X))]

    def log_prob(self, X, Y):
        """log P(Y | x) of whole label vectors, (instances,), exactly.

        Args:
            X: (instances, features), dense or CSR.
            Y: (instances, labels) in {0, 1}.

        Raises:
            ValueError: more than 22 labels, unless their graph is sparse.
        """
        (energy,), rules = self._distributions(X), self._rules()
        labels = label_tensor("Y", Y, energy)
        if rules is not None:
            return AllowedDistribution([energy], rules).log_prob(labels).cpu().numpy()
        return (energy.score(labels) - inference.log_partition(energy)).cpu().numpy()

    def _code_log_prob(self, X, codes: Tensor) -> Tensor:
        return self.calibrated(self.energy(X)).score(codes)
