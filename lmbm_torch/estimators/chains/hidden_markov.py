"""Hidden Markov models as estimators of sequences."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.estimators.chains.base import ProbabilisticSequenceClassifier, Rows
from lmbm_torch.estimators.common.calls import all_or_nothing, watched
from lmbm_torch.estimators.common.settings import POSITIVE, SHARED, Constraints, StrOptions
from lmbm_torch.models import Bernoulli, Gaussian, HiddenMarkov, Multinomial
from lmbm_torch.models.sequences import spread

EMISSIONS = {"bernoulli": Bernoulli, "gaussian": Gaussian, "multinomial": Multinomial}


class HiddenMarkovClassifier(ProbabilisticSequenceClassifier):
    """A hidden Markov model whose states are the classes, by counting (survey, Equation 5).

    It generates the features, and reads a sequence by the classes that are most probable given it. Training
    looks at each position once.

    Args:
        emission: of a position's features given its class: ``"gaussian"`` for numbers, best standardised,
            ``"bernoulli"`` for bits, ``"multinomial"`` for counts, such as of words.
        smoothing: pseudo-observations > 0 of each start, transition and emission.
        device: where predictions are computed, such as ``"cpu"`` or ``"cuda"``.

    Attributes:
        classes_: the classes; n_features_in_: of a position.
        model_: the :class:`~lmbm_torch.models.HiddenMarkov`, on ``device``.
        transition_: (classes, classes), log P(class of the column | class of the row before it).
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "emission": [StrOptions({*EMISSIONS})],
        "smoothing": [POSITIVE],
    }

    def __init__(self, emission="gaussian", *, smoothing=1.0, device="cpu"):
        self.emission = emission
        self.smoothing = smoothing
        self.device = device

    @watched
    @all_or_nothing
    def fit(self, X, y, sample_weight=None):
        """Learn from sequences (length, features) and their positions' classes (length,).

        Args:
            sample_weight: (sequences,), how often each counts.

        Raises:
            ValueError: a setting or an input that is not as described; features that the emission does not
                have, such as other numbers than bits. The message names it.
        """
        rows, codes = self._validate_fit(X, y)
        emission = EMISSIONS[self.emission](len(self.classes_), self.n_features_in_)
        model, lengths = HiddenMarkov(emission).double(), _lengths(rows)
        inside = torch.arange(int(lengths.max())) < lengths[:, None]
        labels = spread(torch.from_numpy(codes), inside)
        weights = self._weights(sample_weight, rows.start[1:])
        weight = None if weights is None else torch.from_numpy(weights)
        model.count(self._observed(rows), labels, lengths, smoothing=self.smoothing, weight=weight)
        self.model_ = model.to(self._device)
        self.transition_ = self._array(model.log_transition)
        return self

    def _energy(self, rows: Rows) -> ChainEnergy:
        return self.model_(self._observed(rows).to(self._device), _lengths(rows).to(self._device))

    def _observed(self, rows: Rows) -> Tensor:
        return to_tensor(rows.features).double()


def _lengths(rows: Rows) -> Tensor:
    return torch.from_numpy(np.diff(rows.start))
