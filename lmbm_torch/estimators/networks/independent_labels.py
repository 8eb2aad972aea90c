"""Multi-label classifiers with independent labels, such as a separate classifier for each label."""

from __future__ import annotations

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
from lmbm_torch.estimators.common.calls import fit_call
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.common.settings import RULES, Constraints, HasMethods
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.networks.problems import Features


# The functions up to the next class become methods of classifiers with a method ``_log_odds``, which returns
# log P(y_i = 1 | x) − log P(y_i = 0 | x), (instances, labels), as float64.
@property
def capabilities(self: Any) -> Capabilities:
    """Return the capabilities of a classifier that predicts and decodes the most probable labels."""
    return Capabilities(
        objective="exact_match",
        minimises=False,
        searches_under_rules=True,
        has_probabilities=True,
        restricts_probabilities=True,
    )


def predict_decoding(self: Any, X: Rows, known: ArrayLike | None = None) -> Decoding:
    """Return the labels of ``predict`` together with their joint probability."""
    return self._decode_expected("exact_match", X, known)


def decode_energy(
    self: Any,
    energy: DirectedEnergy,
    known: Tensor | None = None,
    top_k: int = 1,
    rules: rules_of.Constraints | None = None,
) -> Decoding:
    """Return the ``top_k`` most probable label sets of an energy with independent labels."""
    return inference.decode(energy, known=known, top_k=top_k, constraints=rules)


def energy_of_log_odds(self: Any, X: Features) -> DirectedEnergy:
    """Convert the log-odds of independent labels to an energy, whose fields are half the log-odds."""
    check_is_fitted(self)
    odds = self._log_odds(X)
    size = odds.shape[1]
    return DirectedEnergy(
        torch.from_numpy(odds / 2),
        torch.zeros(size, size, device="cpu").double(),
        torch.arange(size, device="cpu"),
    )


def code_losses(self: Any, X: Any, codes: Tensor) -> Tensor:
    """Return the negative log-probabilities of label sets, given as ``codes`` (label values 0 and 1)."""
    return -self._distribution(self.energies(X)).log_weights(codes)


class IndependentLabelsClassifier(DecodingClassifier[DirectedEnergy]):
    """A multi-label classifier with independent labels, P(y | x) = Π_i P(y_i | x).

    Any classifier of classes, such as :class:`~lmbm_torch.estimators.KernelLogisticRegression`, is fitted to
    each label. A label with a single value in training has the probability (positive instances + 1) /
    (instances + 2).

    Args:
        estimator: a classifier with ``predict_log_proba``. Only classifiers of lmbm_torch can be saved.
        constraints: rules that all predictions obey, as text or objects (:mod:`lmbm_torch.constraints`);
            training ignores rules.

    Attributes:
        classifiers_: (labels,), the fitted classifiers; None for labels with a single value in training.
        log_odds_: (labels,), the log-odds of labels without a classifier; 0 for labels with a classifier.
        classes_: the classes; for label matrices (labels, 2), the two values of each label.

    Examples:
        >>> from lmbm_torch.estimators import IndependentLabelsClassifier
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> IndependentLabelsClassifier(LogisticRegression()).fit(X, y).predict([[2.5]])
        array([[1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        "estimator": [HasMethods(["fit", "predict_log_proba"])],
        "constraints": RULES,
    }

    # Probabilities are computed on the CPU.
    device = "cpu"
    random_state = 0
    capabilities = capabilities
    predict_decoding = predict_decoding
    _energy, _decode_energy, _code_losses = energy_of_log_odds, decode_energy, code_losses

    def __init__(self, estimator: BaseEstimator, *, constraints=None):
        self.estimator = estimator
        self.constraints = constraints

    @fit_call
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Train on features (instances, features), dense or CSR, and labels (instances, labels).

        Args:
            y: labels in {0, 1} and NaN (missing: the label's classifier ignores the instance), or a class for
                each instance.
            sample_weight: (instances,), passed to each classifier's ``fit``.

        Raises:
            ValueError: a parameter or input is invalid; the message names it.
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

    def _log_odds(self, X: Features) -> np.ndarray:
        rows: Any = X
        odds = np.empty((rows.shape[0], len(self.log_odds_)))
        for column, classifier in enumerate(self.classifiers_):
            if classifier is None:
                odds[:, column] = self.log_odds_[column]
            else:
                odds[:, column] = np.diff(classifier.predict_log_proba(X), axis=1)[:, 0]
        return odds
