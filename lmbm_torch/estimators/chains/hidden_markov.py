"""Hidden Markov models as classifiers of sequences."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.estimators.chains.base import ProbabilisticSequenceClassifier, Rows
from lmbm_torch.estimators.common.calls import fit_call
from lmbm_torch.estimators.common.settings import POSITIVE, SHARED, Constraints, StrOptions
from lmbm_torch.models import HiddenMarkov
from lmbm_torch.models.hidden_markov import Bernoulli, Gaussian, Multinomial, spread

EMISSIONS = {"bernoulli": Bernoulli, "gaussian": Gaussian, "multinomial": Multinomial}


class HiddenMarkovClassifier(ProbabilisticSequenceClassifier):
    """A hidden Markov model whose states are the classes, trained by counting (survey, Equation 5).

    The model has a distribution of the features given the class. Predicted are the most probable classes
    given the sequence. Training is a single pass over the positions.

    Args:
        emission: distribution of a position's features given the class: ``"gaussian"`` for numbers, best
            standardised, ``"bernoulli"`` for bits, ``"multinomial"`` for counts, such as of words.
        smoothing: positive number that is added to the count of each start, transition and emission.
        device: device of predictions, such as ``"cpu"`` or ``"cuda"``.

    Attributes:
        classes_: the classes; n_features_in_: the number of features of a position.
        model_: the :class:`~lmbm_torch.models.HiddenMarkov`, on ``device``.

    Examples:
        >>> from lmbm_torch.estimators import HiddenMarkovClassifier
        >>> import numpy as np
        >>> X, y = [np.array([[0.0], [1.0]]), np.array([[2.0], [3.0]])], [[0, 0], [1, 1]]
        >>> HiddenMarkovClassifier().fit(X, y).predict(X)
        [array([0, 0]), array([1, 1])]
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

    @fit_call
    def fit(self, X, y, sample_weight=None):
        """Train on sequences (length, features) with a class for each position, (length,).

        Args:
            sample_weight: (sequences,), how often each sequence is counted.

        Raises:
            ValueError: a parameter or input is invalid, for example features are not 0 and 1 with
                ``"bernoulli"``; the message names the parameter or input.
        """
        rows, codes = self._validate_fit(X, y)
        emission = EMISSIONS[self.emission](len(self.classes_), self.n_features_in_)
        model, lengths = HiddenMarkov(emission).double(), _lengths(rows)
        inside = torch.arange(int(lengths.max()), device="cpu") < lengths[:, None]
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
        features: Any = rows.features
        if self.emission == "gaussian" and self.token_features_ is not None:
            # Convert to dense features, because for a normal distribution zeros are observations, too.
            features = features.toarray()
        return to_tensor(features).double()


def _lengths(rows: Rows) -> Tensor:
    return torch.from_numpy(np.diff(rows.start))
