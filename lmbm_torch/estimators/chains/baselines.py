"""Baselines for sequences: any classifier of single positions, and the maximum-entropy Markov model."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone

from lmbm_torch.energies import ChainEnergy
from lmbm_torch.estimators.chains.base import (
    ProbabilisticSequenceClassifier,
    Rows,
    SequenceClassifier,
    by_position,
    train_likelihood,
)
from lmbm_torch.estimators.common.calls import fit_call
from lmbm_torch.estimators.common.settings import RELATIVE_PENALTY, SHARED, Constraints
from lmbm_torch.fitting.recipe import merged
from lmbm_torch.solvers.chains.linear import LikelihoodProblem


class IndependentPositions(SequenceClassifier):
    """A classifier applied to each position separately, without transitions.

    Args:
        classifier: classifier whose ``decision_function`` returns a score for each class, such as
            :class:`~lmbm_torch.estimators.MultiClassSVM`, or
            :func:`~lmbm_torch.estimators.common.baselines.independent_svm` for each class against the rest
            (survey, section 6; Equation 31 divides the weights of a class by the norm).

    Attributes:
        classifier_: the fitted classifier; classes_: the classes.
    """

    # Energies are built on the CPU, because the classifier's device is unknown.
    device = "cpu"

    def __init__(self, classifier: BaseEstimator):
        self.classifier = classifier

    @fit_call
    def fit(self, X, y):
        """Train the classifier on all positions of sequences (length, features) with classes (length,)."""
        rows, codes = self._validate_fit(X, y)
        self.classifier_ = clone(self.classifier).fit(rows.features, codes)  # pyright: ignore
        return self

    def _energy(self, rows: Rows) -> ChainEnergy:
        scores = self.classifier_.decision_function(rows.features)
        if scores.ndim == 1:
            scores = np.column_stack([-scores, scores])
        return self._chains(scores, np.zeros((len(self.classes_),) * 2), rows)


class MaximumEntropyMarkovClassifier(ProbabilisticSequenceClassifier):
    """A maximum-entropy Markov model: logistic regression given the previous class, decoded jointly.

    McCallum, Freitag and Pereira (ICML 2000). Training minimises ½‖w‖² − C Σ log p(class | x, previous class)
    by L-BFGS; the intercept is the weight of a constant feature, regularised like other weights.

    Args:
        C: weight of the losses, a number or a multiple of ``"scale"`` such as ``"0.3*scale"``, see
            :func:`~lmbm_torch.fitting.recipe.units`.
        tol: training ends at this norm of the gradient, relative to the norm at zero weights, and this
            relative gain of an iteration.
        max_iter: iterations after which training ends even above ``tol``, with a ConvergenceWarning.
        device: device of predictions except linear scores, such as ``"cpu"`` or ``"cuda"``.
        verbose: 1 for a progress bar with the gap (needs rich), 0 for none.

    Attributes:
        classes_: the classes; n_features_in_: the number of features of a position.
        C_: the weight of the losses; feature_shift_, feature_scale_: (features,), training is on (X − shift)
            / scale; 0 and 1 if C is a number.
        coef_: (classes, features), weights; intercept_: (classes,).
        transition_: (classes, classes), scores from the row's class to the column's class, not normalised.
        objective_, relative_gradient_, duality_gap_, n_iter_: as in :class:`~.classifiers.ChainCRF`.

    Examples:
        >>> from lmbm_torch.estimators import MaximumEntropyMarkovClassifier
        >>> import numpy as np
        >>> X, y = [np.array([[0.0], [1.0]]), np.array([[2.0], [3.0]])], [[0, 0], [1, 1]]
        >>> MaximumEntropyMarkovClassifier().fit(X, y).predict(X)
        [array([0, 0]), array([1, 1])]
    """

    _accepted: ClassVar[Constraints] = {**SHARED, "C": RELATIVE_PENALTY}

    def __init__(self, C: float | str = 1.0, *, tol=1e-3, max_iter=1000, device="cpu", verbose=0):
        self.C = C
        self.tol = tol
        self.max_iter = max_iter
        self.device = device
        self.verbose = verbose

    @fit_call
    def fit(self, X, y, sample_weight=None):
        """Train on sequences (length, features) with a class for each position, (length,).

        Args:
            sample_weight: (sequences,), factors of C.

        Raises:
            ValueError: a parameter or input is invalid; the message names it.
        """
        rows, codes = self._validate_fit(X, y)
        weights = by_position(self._weights(sample_weight, rows.start[1:]), rows.start)
        inputs: Any
        inputs, back = merged(self._scaled(rows.features, weights))
        rows_before = np.delete(np.arange(len(codes)), rows.start[1:] - 1)
        entries = np.ones(len(rows_before), inputs.dtype), (rows_before + 1, codes[rows_before])
        count = len(self.classes_)
        before = sparse.csr_array(entries, shape=(len(codes), count))
        if sparse.issparse(inputs):
            inputs = sparse.csr_array(sparse.hstack([inputs, before]))
        else:
            inputs = np.hstack([inputs, before.toarray()])
        # Halve C for two classes, so the penalty is that of binary logistic regression, on one weight vector.
        C = self.C_ / 2 if count == 2 else self.C_
        start = np.arange(len(codes) + 1)
        coef, _ = train_likelihood(self, LikelihoodProblem(inputs, codes, start, count, C, weights))
        self.coef_, self.intercept_ = self._of_features(coef[:, : -count - 1] @ back, coef[:, -1])
        self.transition_ = coef[:, -count - 1 : -1].T.copy()
        return self

    def _energy(self, rows: Rows) -> ChainEnergy:
        scores = rows.features @ self.coef_.T + self.intercept_
        return self._chains(scores, self.transition_, rows).locally_normalised()
