"""Classifiers that choose C by cross-validation, where the solution for one C is the start for the next.

The same as scikit-learn's ``LogisticRegressionCV`` beside ``GridSearchCV``: along rising values of C dual
variables are scaled to their new box, and a network keeps the ordering of its labels, which a grid search
seeks anew for every C.
"""

from __future__ import annotations

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
from lmbm_torch.checks import check_positive
from lmbm_torch.estimators.automatic.search import stratified_folds
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import all_or_nothing, bar, of_label_columns, watched
from lmbm_torch.estimators.common.seeding import seeds_for
from lmbm_torch.estimators.common.settings import RULES, SHARED, Constraints, Number
from lmbm_torch.estimators.common.spreading import keep, spread
from lmbm_torch.estimators.common.under_rules import Rules
from lmbm_torch.estimators.explain.contributions import Fields
from lmbm_torch.estimators.explain.explanations import Explanation, without_names
from lmbm_torch.estimators.machines.boltzmann import LMBMClassifier
from lmbm_torch.estimators.machines.structural_svm import StructuralSVMClassifier
from lmbm_torch.estimators.networks.sigmoid_belief import LMSBNClassifier
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.dual import Path
from lmbm_torch.inference.results import Decoding
from lmbm_torch.kernels.blas import single_threaded
from lmbm_torch.protocol import Capabilities

# The logarithms of the smallest and the largest C where only their number is given.
LEAST, MOST = -3, 2


def _of_estimator(name: str) -> Any:
    """The method ``name`` of the estimator that was fitted last, or is to be fitted."""

    def has(self: PenaltyPathClassifier) -> bool:
        getattr(self._latest, name)
        return True

    def method(self: PenaltyPathClassifier, X: Rows, *arguments: Any) -> Any:
        check_is_fitted(self)
        return getattr(self.estimator_, name)(self._validate_predict(X), *arguments)

    method.__name__, method.__doc__ = name, f"``{name}`` of ``estimator_``."
    return available_if(has)(method)


class PenaltyPathClassifier(StructuredClassifier):
    """A classifier whose C has the best mean score over stratified folds; the smallest such C.

    The folds are learned wherever joblib's active backend says.

    Args:
        base: the classifier, with all settings but C; by default one of default settings.
        Cs: how many multiples of ``"scale"``, spaced evenly in logarithm from 1e-3 to 100; or the values
            themselves, all numbers, for features as they are, or all multiples such as ``"0.3*scale"``.
        cv: folds.
        scoring: as in scikit-learn; by default the share of instances that are predicted right.
        verbose: 1 for a bar of the folds' fits (needs rich), in place of their own; 0 for none.
        random_state: of the folds, and of the base, where that is not seeded itself.
        constraints: rules that all answers obey, as text or objects (:mod:`lmbm_torch.constraints`), over the
            columns of ``y``, beside those of the base.

    Attributes:
        Cs_: (values,), ascending: numbers, or what ``"scale"`` is multiplied by.
        scores_: (folds, values), of the instances held out.
        C_: the value chosen.
        C_edge_: "smallest" or "largest" where that is the first or the last of several, so that another one
            outside may be better; else None. So has ``estimator_``, whose report says it.
        estimator_: the base with that C, fitted to all instances from scratch.
        n_iters_: (folds, values), of the solver.
        classes_, label_names_: see :class:`StructuredClassifier`.
    """

    _accepted: ClassVar[Constraints] = {
        "Cs": [Number(Integral, 1, None, closed="left"), "array-like"],
        "cv": [Number(Integral, 2, None, closed="left")],
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

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = get_tags(self._unfitted()).input_tags.pairwise
        return tags

    @watched
    @all_or_nothing
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Choose C, and fit to all instances with it.

        Args:
            X, y, sample_weight: what the base takes.

        Raises:
            TypeError: a base of another class.
            ValueError: a setting or an input that is not as described; fewer instances than folds.
        """
        if not isinstance(self._unfitted(), self.BASE):
            raise TypeError(f"base: expected {self.BASE.__name__}, got {type(self.base).__name__}")
        X, labels, weight = self._validate_fit(X, y, sample_weight, allow_missing=True)
        if self.cv > len(labels):
            raise ValueError(f"cv: expected at most {len(labels)} folds, the instances, got {self.cv}")
        self.Cs_ = self._values_of_C()
        folds = stratified_folds(labels, self.cv, self._seed())
        targets = labels if self.binarizer_ is None else column_or_1d(y)
        self.scores_, self.n_iters_ = np.empty((2, len(folds), len(self.Cs_)))
        with bar(type(self).__name__, self.verbose) as tell:
            kept = keep((X, targets, weight))
            seeds = seeds_for(self._unfitted(), self.random_state)
            scored = spread(partial(_scores, self, seeds), kept, folds)
            for fold, found in enumerate(scored):
                self.scores_[fold], self.n_iters_[fold] = found
                if tell is not None:
                    done, every = (fold + 1) * len(self.Cs_), len(folds) * len(self.Cs_)
                    tell(done / every, f"{done} of {every} fits")
        self.C_ = float(self.Cs_[self.scores_.mean(0).argmax()])
        (self.estimator_,) = spread(_fitted, kept, [self._to_fit(self.C_, seeds)])
        self.estimator_.label_names_ = self.label_names_
        self.C_edge_ = self.estimator_.C_edge_ = _edge(self.C_, self.Cs_)
        return self

    @watched
    @of_label_columns
    def predict(self, X: Rows, known: ArrayLike | None = None) -> np.ndarray:
        """Labels (instances, labels), or classes; ``known`` as in the base."""
        check_is_fitted(self)
        labels = self.estimator_.predict(self._validate_predict(X), known)
        return self._values(labels) if self.binarizer_ is None else labels

    @property
    def _latest(self) -> Any:
        """The estimator that was fitted last, or is to be fitted."""
        return self.estimator_ if hasattr(self, "estimator_") else self._unfitted()

    @property
    def capabilities(self) -> Capabilities:
        """Those of the estimator that was fitted last, or is to be fitted."""
        return self._latest.capabilities

    def binding_rules(self, X: Rows) -> list[list[str]]:
        """``binding_rules`` of ``estimator_``."""
        check_is_fitted(self)
        return self.estimator_.binding_rules(self._validate_predict(X))

    @watched
    @of_label_columns
    def decode(
        self, X: Rows, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """``decode`` of ``estimator_``."""
        check_is_fitted(self)
        return self.estimator_.decode(self._validate_predict(X), known, top_k, constraints)

    predict_proba: Any = _of_estimator("predict_proba")
    marginals: Any = _of_estimator("marginals")
    log_prob: Any = _of_estimator("log_prob")
    decision_function: Any = _of_estimator("decision_function")

    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """``explain`` of ``estimator_``."""
        check_is_fitted(self)
        X = self._validate_predict(X)
        model: Any = without_names(self)
        return model.estimator_._explanation(model._fields(X, reference), X, num_features)

    def _fields(self, X: Any, reference: ArrayLike | None = None) -> Fields:
        """``fields`` of ``estimator_``, with the names of the features."""
        estimator = copy(self.estimator_)
        estimator.names_of_features_ = getattr(self, "names_of_features_", None)
        return estimator._fields(X, reference)

    def _score_path(
        self,
        seeds: dict[str, int],
        X: Any,
        targets: Any,
        weight: Any,
        train: np.ndarray,
        held_out: np.ndarray,
    ) -> tuple[list[float], list[int]]:
        """Scores and iterations of one fold, from the smallest C to the largest."""
        of_kernel = get_tags(self).input_tags.pairwise
        known, others = (X[np.ix_(rows, train)] if of_kernel else X[rows] for rows in (train, held_out))
        path = Path()
        scores, iterations = [], []
        for C in self.Cs_.tolist():
            estimator = self._to_fit(C, seeds)
            if self.verbose:
                # Two bars at once would be drawn over each other.
                estimator.set_params(verbose=0)
            if hasattr(estimator, "calibrate") and self.scoring is None:
                # Labels do not depend on it.
                estimator.set_params(calibrate=False)
            estimator._fit_along(path, known, targets[train], None if weight is None else weight[train])
            score: Any = check_scoring(estimator, self.scoring)
            scores.append(score(estimator, others, targets[held_out]))
            iterations.append(estimator.n_iter_)
        return scores, iterations

    def _values_of_C(self) -> np.ndarray:
        if isinstance(self.Cs, Integral):
            return np.logspace(LEAST, MOST, int(self.Cs))
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
        """Whether values of C are multiples of ``"scale"``."""
        return isinstance(self.Cs, Integral) or any(
            isinstance(value, str) for value in np.ravel(self.Cs).tolist()
        )

    def _unfitted(self, C: float | None = None) -> Any:
        base: Any = self.BASE() if self.base is None else clone(self.base)
        if C is None:
            return base
        return base.set_params(C=recipe.times_scale(C) if self._has_multiples else C)

    def _to_fit(self, C: float, seeds: dict[str, int]) -> Any:
        """The base for a C, with all rules, over labels that come without their names."""
        return self._unfitted(C).set_params(constraints=self._nameless_rules(), **seeds)

    @property
    def _given_rules(self) -> tuple[Rules | None, ...]:
        return (self.constraints, None if self.base is None else self.base.constraints)

    def with_rules(self, rules: rules_of.Constraints | None) -> Self:
        """The same classifier, whose answers obey these rules alone; None for no rules."""
        other = super().with_rules(rules)
        other.estimator_ = self.estimator_.with_rules(rules)
        return other

    def energies(self, X: Rows) -> list[Any]:
        """``energies`` of ``estimator_``."""
        check_is_fitted(self)
        return self.estimator_.energies(self._validate_predict(X))

    def calibrated(self, energies: Sequence[Any]) -> list[Any]:
        """``calibrated`` of ``estimator_``."""
        return self.estimator_.calibrated(energies)


@single_threaded()
def _scores(
    classifier: PenaltyPathClassifier,
    seeds: dict[str, int],
    known: tuple[Any, Any, Any],
    fold: tuple[np.ndarray, np.ndarray],
) -> tuple[list[float], list[int]]:
    """:meth:`PenaltyPathClassifier._score_path`, of which workers are sent what it is to learn from once."""
    return classifier._score_path(seeds, *known, *fold)


def _edge(C: float, values: np.ndarray) -> str | None:
    """Which end of the ascending values C is, of several."""
    if values[0] == values[-1]:
        return None
    return {values[0]: "smallest", values[-1]: "largest"}.get(C)


def _fitted(known: tuple[Any, Any, Any], classifier: Any) -> Any:
    """The classifier, learned from all instances where these are."""
    return classifier.fit(*known)


class LMSBNClassifierCV(PenaltyPathClassifier):
    """An :class:`LMSBNClassifier` with a C chosen along a path; see :class:`PenaltyPathClassifier`."""

    BASE = LMSBNClassifier


class LMBMClassifierCV(PenaltyPathClassifier):
    """An :class:`LMBMClassifier` with a C chosen along a path; see :class:`PenaltyPathClassifier`."""

    BASE = LMBMClassifier


class StructuralSVMClassifierCV(PenaltyPathClassifier):
    """A :class:`StructuralSVMClassifier` with a C chosen along a path; see :class:`PenaltyPathClassifier`."""

    BASE = StructuralSVMClassifier
