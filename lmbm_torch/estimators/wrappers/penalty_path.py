"""Classifiers that choose C by cross-validation along a path: each fit starts from the previous solution.

As in scikit-learn's ``LogisticRegressionCV``, this is faster than ``GridSearchCV``: from each C to the next
larger C, dual variables are scaled to the new limits, and a belief network keeps the order of the labels,
which a grid search would compute again for every C.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.metrics import check_scoring
from sklearn.utils import column_or_1d, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lmbm_torch import constraints as rules_of
from lmbm_torch.checks import check_positive, level_of_caller
from lmbm_torch.estimators.automatic.search import folds_of
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import answer_call, bar, fit_call
from lmbm_torch.estimators.common.settings import RULES, SHARED, Constraints, Number, seeds_for
from lmbm_torch.estimators.common.spreading import keep, spread
from lmbm_torch.estimators.common.under_rules import Rules
from lmbm_torch.estimators.explain.contributions import Fields
from lmbm_torch.estimators.explain.explanations import Explanation, without_names
from lmbm_torch.estimators.machines.boltzmann import LMBMClassifier
from lmbm_torch.estimators.machines.structural_svm import StructuralSVMClassifier
from lmbm_torch.estimators.networks.sigmoid_belief import LMSBNClassifier
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.dual import Path
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.kernels.threads import single_threaded
from lmbm_torch.protocol import Capabilities


def _of_estimator(name: str) -> Any:
    """Return a method that calls the method ``name`` of ``estimator_``."""

    def has(self: PenaltyPathClassifier) -> bool:
        getattr(self._latest, name)
        return True

    @answer_call
    def method(self: PenaltyPathClassifier, X: Rows, *arguments: Any) -> Any:
        check_is_fitted(self)
        return getattr(self.estimator_, name)(self._validate_predict(X), *arguments)

    method.__name__, method.__doc__ = name, f"``{name}`` of ``estimator_``."
    return available_if(has)(method)


def _has_log_prob(classifier: PenaltyPathClassifier) -> bool:
    return hasattr(classifier._latest, "log_prob")


class PenaltyPathClassifier(StructuredClassifier):
    """A classifier that chooses C by cross-validation: the smallest C with the best mean score.

    Workers of joblib's active backend train the folds.

    Args:
        base: the unfitted classifier; its C is ignored. None for a classifier with default parameters.
        Cs: the number of values to try, which are multiples of ``"scale"`` from 0.1 to 30 with equal ratios;
            or the values: numbers, for features as they are, or multiples such as ``"0.3*scale"``.
        cv: number of folds, stratified by label sets, or a splitter of scikit-learn.
        scoring: a score as in scikit-learn; by default the exact match.
        verbose: 1 for a progress bar over all fits (needs rich); 0 for no bar.
        random_state: seed for the folds, and for a base without a seed.
        constraints: rules that all predictions obey, as text or objects (:mod:`lmbm_torch.constraints`),
            added to the rules of ``base``.

    Attributes:
        Cs_: (values,), ascending: numbers, or multiples of ``"scale"``.
        scores_: (folds, values), scores on held-out instances.
        C_: the chosen value.
        C_edge_: "smallest" or "largest" if the chosen value is the first or last of several (a better value
            may lie outside); otherwise None. ``estimator_`` has the attribute, too, for the report.
        estimator_: the base with the chosen C, fitted to all instances from scratch.
        n_iters_: (folds, values), iterations of the solver.
        classes_, label_names_: see :class:`StructuredClassifier`.
    """

    _accepted: ClassVar[Constraints] = {
        "Cs": [Number(Integral, 1, None, closed="left"), "array-like"],
        "cv": ["cv_object"],
        "verbose": SHARED["verbose"],
        "random_state": SHARED["random_state"],
        "constraints": RULES,
    }
    BASE: ClassVar[type]

    def __init__(
        self, base=None, *, Cs=6, cv=5, scoring=None, verbose=0, random_state=None, constraints=None
    ):
        self.base = base
        self.Cs = Cs
        self.cv = cv
        self.scoring = scoring
        self.verbose = verbose
        self.random_state = random_state
        self.constraints = constraints

    @fit_call
    def fit(
        self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Choose C, and train on all instances with the chosen C.

        Args:
            X, y, sample_weight: see ``fit`` of the base.
            groups: (instances,); all instances of a group are in the same fold.

        Raises:
            TypeError: the base is not a classifier of the expected class.
            ValueError: a parameter or input is invalid, or there are fewer instances than folds.

        Warns:
            UserWarning: the chosen C is the smallest or the largest of three values or more.
        """
        if not isinstance(self._unfitted(), self.BASE):
            raise TypeError(f"base: expected {self.BASE.__name__}, got {type(self.base).__name__}")
        X, labels, weight = self._validate_fit(X, y, sample_weight, allow_missing=True)
        self.Cs_ = self._values_of_C()
        targets = labels if self.binarizer_ is None else column_or_1d(y)
        folds = folds_of(self.cv, X, labels, groups, self._seed())
        self.scores_, self.n_iters_ = np.empty((2, len(folds), len(self.Cs_)))
        with bar(type(self).__name__, self.verbose) as tell:
            kept = keep((X, targets, weight))
            seeds = seeds_for(self._unfitted(), self.random_state)
            scored = spread(partial(self._score_path, seeds), kept, folds)
            for fold, found in enumerate(scored):
                self.scores_[fold], self.n_iters_[fold] = found
                if tell is not None:
                    done, every = (fold + 1) * len(self.Cs_), len(folds) * len(self.Cs_)
                    tell(done / every, f"{done} of {every} fits")
        self.C_ = float(self.Cs_[self.scores_.mean(0).argmax()])
        (self.estimator_,) = spread(_fitted, kept, [self._to_fit(self.C_, seeds)])
        self.estimator_.label_names_ = self.label_names_
        ends = {} if self.Cs_[0] == self.Cs_[-1] else {self.Cs_[0]: "smallest", self.Cs_[-1]: "largest"}
        self.C_edge_ = self.estimator_.C_edge_ = ends.get(self.C_)
        # Do not warn for one or two values of C, where the chosen one is always the smallest or largest.
        if self.C_edge_ is not None and len(self.Cs_) > 2:
            further = {"smallest": "smaller", "largest": "larger"}[self.C_edge_]
            warnings.warn(
                f"{type(self).__name__}: C = {self.C_:g} is the {self.C_edge_} of {len(self.Cs_)} values; "
                f"{further} values may be better: add such values to Cs (in the shell: estimator.Cs=[…])",
                stacklevel=level_of_caller(),
            )
        return self

    @answer_call
    def predict(self, X: Rows, known: ArrayLike | None = None) -> np.ndarray:
        """Predict labels (instances, labels), or classes (instances,), by ``predict`` of ``estimator_``."""
        check_is_fitted(self)
        labels = self.estimator_.predict(self._validate_predict(X), self._known_codes(known))
        return self.label_values(labels) if self.binarizer_ is None else labels

    @property
    def _latest(self) -> Any:
        """Return the fitted estimator, or an unfitted base before ``fit``."""
        return self.estimator_ if hasattr(self, "estimator_") else self._unfitted()

    @property
    def capabilities(self) -> Capabilities:
        """Return what the base can do, such as decoding under rules; see :class:`Capabilities`."""
        return self._latest.capabilities

    @answer_call
    def decode(
        self, X: Rows, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """Return the best label sets, as found by ``decode`` of ``estimator_``."""
        check_is_fitted(self)
        return self.estimator_.decode(self._validate_predict(X), self._known_codes(known), top_k, constraints)

    @available_if(_has_log_prob)
    @answer_call
    def log_prob(self, X: Rows, Y: ArrayLike) -> np.ndarray:
        """Return log P(Y | x), (instances,), by ``estimator_``, for labels Y in the values of ``fit``."""
        check_is_fitted(self)
        return self.estimator_.log_prob(self._validate_predict(X), self._codes("Y", Y))

    predict_proba: Any = _of_estimator("predict_proba")
    marginals: Any = _of_estimator("marginals")
    decision_function: Any = _of_estimator("decision_function")
    binding_rules: Any = _of_estimator("binding_rules")
    energies: Any = _of_estimator("energies")

    @answer_call
    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Explain the labels of one instance, as by ``explain`` of ``estimator_``."""
        check_is_fitted(self)
        X = self._validate_predict(X)
        model: Any = without_names(self)
        found = model.estimator_._explanation(model._fields(X, reference), X, num_features)
        return found.in_values(self.classes_)

    def _fields(self, X: Any, reference: ArrayLike | None = None) -> Fields:
        """Return the fields of ``estimator_``, from which predictions are explained, with feature names."""
        estimator = copy(self.estimator_)
        estimator.names_of_features_ = getattr(self, "names_of_features_", None)
        return estimator._fields(X, reference)

    @single_threaded()
    def _score_path(
        self,
        seeds: dict[str, int],
        known: tuple[Any, Any, Any],
        fold: tuple[np.ndarray, np.ndarray],
    ) -> tuple[list[float], list[int]]:
        """Train on one fold with each C in ascending order; return the scores and the solver's iterations."""
        (X, targets, weight), (train, held_out) = known, fold
        of_kernel = get_tags(self).input_tags.pairwise
        inputs, others = (X[np.ix_(rows, train)] if of_kernel else X[rows] for rows in (train, held_out))
        path = Path()
        scores, iterations = [], []
        for C in self.Cs_.tolist():
            estimator = self._to_fit(C, seeds)
            if self.verbose:
                # The path shows a progress bar; a second one for each fit would overwrite it.
                estimator.set_params(verbose=0)
            if hasattr(estimator, "calibrate") and self.scoring is None:
                # Do not calibrate: the score is exact match, and calibration does not change predictions.
                estimator.set_params(calibrate=False)
            estimator._fit_along(path, inputs, targets[train], None if weight is None else weight[train])
            score: Any = check_scoring(estimator, self.scoring)
            scores.append(score(estimator, others, targets[held_out]))
            iterations.append(estimator.n_iter_)
        return scores, iterations

    def _values_of_C(self) -> np.ndarray:
        if isinstance(self.Cs, Integral):
            return np.geomspace(min(recipe.SEARCHED_C), max(recipe.SEARCHED_C), int(self.Cs))
        values: Any = self.Cs
        if self._has_multiples:
            values = [recipe.multiple(value) for value in values]
            if None in values:
                raise ValueError(f"Cs: expected all numbers or all multiples of 'scale', got {self.Cs!r}")
        values = np.sort(np.asarray(values, np.float64).reshape(-1))
        for value in values.tolist():
            check_positive("Cs", value)
        return values

    @property
    def _has_multiples(self) -> bool:
        """Return whether the values of C are multiples of ``"scale"`` rather than numbers."""
        return isinstance(self.Cs, Integral) or any(
            isinstance(value, str) for value in np.ravel(self.Cs).tolist()
        )

    def _unfitted(self, C: float | None = None) -> Any:
        base: Any = self.BASE() if self.base is None else clone(self.base)
        if C is None:
            return base
        return base.set_params(C=recipe.times_scale(C) if self._has_multiples else C)

    def _to_fit(self, C: float, seeds: dict[str, int]) -> Any:
        """Return an unfitted base with this C and all rules, with label indices in place of label names."""
        return self._unfitted(C).set_params(constraints=self._nameless_rules(), **seeds)

    def with_rules(self, rules: rules_of.Constraints | None) -> Self:
        """Return a copy whose only rules are ``rules``; for None, a copy without rules."""
        other = super().with_rules(rules)
        other.estimator_ = self.estimator_.with_rules(rules)
        return other

    def calibrated(self, energies: Sequence[Any]) -> list[Any]:
        """Calibrate energies for probabilities, as ``estimator_`` does."""
        return self.estimator_.calibrated(energies)


def _fitted(known: tuple[Any, Any, Any], classifier: Any) -> Any:
    """Fit the classifier to ``known``, the features, labels and weights that a worker already holds."""
    return classifier.fit(*known)


class LMSBNClassifierCV(PenaltyPathClassifier):
    """An :class:`LMSBNClassifier` whose C is chosen by cross-validation; see :class:`PenaltyPathClassifier`.

    Examples:
        >>> from lmbm_torch.estimators import LMSBNClassifierCV
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> LMSBNClassifierCV(Cs=["scale"], cv=2, random_state=0).fit(X, y).predict([[2.5]])
        array([[1, 1]])
    """

    BASE = LMSBNClassifier


class LMBMClassifierCV(PenaltyPathClassifier):
    """An :class:`LMBMClassifier` whose C is chosen by cross-validation; see :class:`PenaltyPathClassifier`.

    Examples:
        >>> from lmbm_torch.estimators import LMBMClassifierCV
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> LMBMClassifierCV(Cs=["scale"], cv=2, random_state=0).fit(X, y).predict([[2.5]])
        array([[1, 1]])
    """

    BASE = LMBMClassifier


class StructuralSVMClassifierCV(PenaltyPathClassifier):
    """A :class:`StructuralSVMClassifier` with C chosen by cross-validation: :class:`PenaltyPathClassifier`.

    Examples:
        >>> from lmbm_torch.estimators import StructuralSVMClassifierCV
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> StructuralSVMClassifierCV(Cs=["scale"], cv=2, random_state=0).fit(X, y).predict([[2.5]])
        array([[1, 1]])
    """

    BASE = StructuralSVMClassifier
