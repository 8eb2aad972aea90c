"""Label matrices by one classifier for each label, whatever the other labels are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmbm_torch import constraints as rules_of
from lmbm_torch import inference
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import all_or_nothing, watched
from lmbm_torch.estimators.common.settings import RULES, Constraints, HasMethods
from lmbm_torch.estimators.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.decoders.distributions import NetworkMixture
from lmbm_torch.estimators.networks.sigmoid_belief import decode_expected
from lmbm_torch.inference.results import Decoding
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.networks.problems import Features


class IndependentLabelsClassifier(DecodingClassifier[DirectedEnergy]):
    """P(y | x) = Π_i P(y_i | x), each label by a classifier of its own: the labels decide nothing together.

    It makes a label table's classifier of one of classes, such as
    :class:`~lmbm_torch.estimators.KernelLogisticRegression`. A label that has one value in all instances has
    no classifier, but the probability (instances with it + 1) / (instances + 2).

    Args:
        estimator: a classifier with ``predict_log_proba``; those of lmbm_torch can be saved along.
        constraints: rules that all answers obey, as text or objects (:mod:`lmbm_torch.constraints`), over the
            columns of ``y``; training looks at none.

    Attributes:
        classifiers_: (labels,), the fitted ones, None where a label has one value.
        log_odds_: (labels,), where there is no classifier; else 0.
        classes_: the classes; of label matrices (labels, 2), the two values of each label.
    """

    _accepted: ClassVar[Constraints] = {
        "estimator": [HasMethods(["fit", "predict_log_proba"])],
        "constraints": RULES,
    }

    # Where probabilities are computed; nothing is drawn.
    device = "cpu"
    random_state = 0

    def __init__(self, estimator: BaseEstimator, *, constraints=None):
        self.estimator = estimator
        self.constraints = constraints

    @property
    def capabilities(self) -> Capabilities:
        """See :class:`~lmbm_torch.protocol.Capabilities`."""
        # ``predict`` and ``decode`` both take the most probable labels.
        return Capabilities(
            objective="exact_match",
            minimises=False,
            searches_under_rules=True,
            has_probabilities=True,
            restricts_probabilities=True,
        )

    @watched
    @all_or_nothing
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from features (instances, features), dense or CSR, and labels (instances, labels).

        Args:
            y: {0, 1} and NaN (missing: that label's classifier does without the instance); or one class per
                instance.
            sample_weight: (instances,), for the classifiers.

        Raises:
            ValueError: a setting or an input that is not as described; the message names it.
        """
        X, labels, weight = self._validate_fit(X, y, sample_weight, allow_missing=True)
        self.classifiers_: list[Any] = []
        self.log_odds_ = np.zeros(labels.shape[1])
        for column in range(labels.shape[1]):
            known = np.flatnonzero(~np.isnan(labels[:, column]))
            own, on = labels[known, column], float(labels[known, column].sum())
            if 0 < on < len(known):
                weights = {} if weight is None else {"sample_weight": weight[known]}
                classifier: Any = clone(self.estimator)  # pyright: ignore[reportArgumentType]
                self.classifiers_.append(classifier.fit(X[known], own.astype(int), **weights))
            else:
                self.classifiers_.append(None)
                self.log_odds_[column] = np.log((on + 1) / (len(known) - on + 1))
        return self

    def predict_decoding(self, X: Rows, known: ArrayLike | None = None) -> Decoding:
        """The labels of :meth:`predict`, with their probability."""
        return decode_expected(self, "exact_match", X, known)

    def _decode_energy(
        self,
        energy: DirectedEnergy,
        known: Tensor | None = None,
        top_k: int = 1,
        rules: rules_of.Constraints | None = None,
    ) -> Decoding:
        return inference.decode(energy, known=known, top_k=top_k, constraints=rules)

    def _distribution(self, energies: Sequence[DirectedEnergy]) -> NetworkMixture:
        return NetworkMixture(energies, self._seed)

    def _energy(self, X: Features) -> DirectedEnergy:
        check_is_fitted(self)
        rows: Any = X
        odds = np.empty((rows.shape[0], len(self.log_odds_)))
        for column, classifier in enumerate(self.classifiers_):
            if classifier is None:
                odds[:, column] = self.log_odds_[column]
            else:
                odds[:, column] = np.diff(classifier.predict_log_proba(X), axis=1)[:, 0]
        size = odds.shape[1]
        # A field is half of the log-odds.
        return DirectedEnergy(
            torch.from_numpy(odds / 2), torch.zeros(size, size).double(), torch.arange(size)
        )

    def _code_losses(self, X: Any, codes: Tensor) -> Tensor:
        return -self._distribution(self.energies(X)).log_weights(codes)
