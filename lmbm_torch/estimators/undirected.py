"""Probabilities of the estimators whose model is a Boltzmann machine."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from lmbm_torch import inference
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from lmbm_torch.estimators.allowed_distribution import AllowedDistribution
from lmbm_torch.estimators.calibration import CalibratedMixin
from lmbm_torch.estimators.calls import of_label_columns, watched
from lmbm_torch.estimators.decoding import ModelClassifier, ProbabilisticClassifier
from lmbm_torch.estimators.targets import label_tensor
from lmbm_torch.inference.results import Decoding, Marginals

AnEnergy = TypeVar("AnEnergy", bound=PairwiseEnergy | CliqueEnergy)


class UndirectedClassifier(CalibratedMixin, ModelClassifier[AnEnergy], ProbabilisticClassifier):
    """A decoding classifier with probabilities P(y | x) ∝ exp(score), of calibrated scores where they are."""

    @watched
    @of_label_columns
    def marginals(self, X) -> Marginals:
        """P(y_i = 1 | x): exact for up to 22 labels or a sparse graph, else those of the mean field.

        Under ``constraints`` those given that they are obeyed, exactly.

        Raises:
            ValueError: more than 22 labels, and cliques of three or more of them, or rules that leave no
                sparse graph.
        """
        if (allowed := self._allowed(X)) is not None:
            return allowed.marginals()
        members = [cast(Marginals, inference.marginals(each)) for each in self._distributions(X)]
        return replace(members[0], labels=torch.stack([each.labels for each in members]).mean(0))

    def _decode_energy(self, energy: PairwiseEnergy | CliqueEnergy) -> Decoding:
        """:meth:`decode` of an energy of this fitted model, whatever its rules."""
        return self._decode(energy, None)

    @abstractmethod
    def _decode(self, energy: Any, known: Tensor | None) -> Decoding: ...

    @watched
    @of_label_columns
    def log_prob(self, X, Y):
        """log P(Y | x) of whole label vectors, (instances,), exactly.

        Args:
            X: (instances, features), dense or CSR.
            Y: (instances, labels) in {0, 1}.

        Raises:
            ValueError: more than 22 labels, unless their graph is sparse.
        """
        energies, rules = self._distributions(X), self._rules()
        labels = label_tensor("Y", Y, energies[0])
        if rules is not None:
            return AllowedDistribution(energies, rules).log_prob(labels).cpu().numpy()
        members = [energy.score(labels) - inference.log_partition(energy) for energy in energies]
        return (torch.stack(members).logsumexp(0) - math.log(len(members))).cpu().numpy()

    def _code_log_prob(self, X, codes: Tensor) -> Tensor:
        return torch.stack([energy.score(codes) for energy in self._distributions(X)]).logsumexp(0)
