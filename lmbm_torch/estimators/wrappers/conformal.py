"""Conformal prediction of label sets, with a guaranteed coverage for any classifier."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable
from numbers import Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.model_selection import train_test_split
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lmbm_torch import constraints as rules_of
from lmbm_torch.checks import check_labels, check_shape, level_of_caller
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.settings import RULES, Constraints, Number, check_parameters, seeds_for
from lmbm_torch.estimators.common.targets import with_rows
from lmbm_torch.estimators.common.under_rules import Rules, rules_over
from lmbm_torch.estimators.explain.explanations import Explanation

# Rounding error of 1 − coverage.
ROUND_OFF = 1e-9


class LabelSets(NamedTuple):
    """The labels that an instance has for certain, or may have.

    Args:
        certain: (instances, labels) of bool: present in every remaining label set.
        possible: (instances, labels) of bool: present in at least one remaining label set.
    """

    certain: np.ndarray
    possible: np.ndarray


def _explains(classifier: SplitConformalClassifier) -> bool:
    return hasattr(getattr(classifier, "estimator_", classifier.estimator), "explain")


class SplitConformalClassifier(MetaEstimatorMixin, StructuredClassifier):
    """A classifier whose estimator is fitted to one part of the instances, and a threshold on the others.

    Args:
        estimator: with ``predict`` and ``predict_proba`` for label matrices, of any library.
        calibration_size: share of the instances held out from the estimator.
        random_state: seed of the split, and of an estimator without a seed.
    """

    _accepted: ClassVar[Constraints] = {
        "calibration_size": [Number(Real, 0, 1, closed="neither")],
        "random_state": ["random_state"],
    }
    estimator: Any
    calibration_size: float
    random_state: Any
    constraints: Any = None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    @fit_call
    def fit(self, X: Rows, y: Rows) -> Self:
        """Fit the estimator to a part of the instances, and compute the threshold on the others.

        Args:
            X: instances in the estimator's form.
            y: (instances, labels), NaN for missing labels if the estimator takes NaN; instances are held
                out from those without missing labels, for which alone the guarantee holds.

        Raises:
            ValueError: an invalid parameter, classes instead of label matrices, too few instances
                without missing labels to split, or inputs that the estimator refuses.

        Warns:
            UserWarning: too few instances are held out for the coverage, so that no label is excluded.
        """
        check_parameters(self)
        self._check_estimator()
        labels = self._encode(y)
        if self.binarizer_ is not None:
            raise ValueError("y: expected a label matrix, got classes")
        rules_over(self.label_names_, self.constraints)
        check_shape("y", labels, num_instances(X), None)
        check_labels("y", labels, allow_missing=True)
        labels = self._with_known_values(labels)
        complete = np.flatnonzero(~np.isnan(labels).any(1))
        X = with_rows(X)
        if np.ceil(self.calibration_size * len(complete)) >= len(complete):
            raise ValueError(
                f"calibration_size={self.calibration_size}: expected it to leave an instance to learn from, "
                f"got {len(complete)} in all without missing labels"
            )
        train, held_out = train_test_split(
            complete, test_size=self.calibration_size, random_state=self._seed()
        )
        train = np.concatenate([train, np.setdiff1d(np.arange(len(labels)), complete)])
        estimator: Any = clone(self.estimator)
        estimator.set_params(**seeds_for(estimator, self.random_state))
        self.estimator_ = estimator.fit(some_instances(X, train), some_instances(y, train))
        self.threshold_ = self._threshold(some_instances(X, held_out), labels[held_out])
        return self

    def _check_estimator(self) -> None:
        if not hasattr(self.estimator, "predict_proba"):
            name = type(self.estimator).__name__
            raise ValueError(f"estimator: expected a classifier with predict_proba, got {name}")

    @abstractmethod
    def _threshold(self, X: Any, labels: np.ndarray) -> float:
        """Return the threshold by the held-out instances, with labels (instances, labels) in {0, 1}."""

    @answer_call
    def predict(self, X: Rows) -> np.ndarray:
        """Return the estimator's labels (instances, labels)."""
        check_is_fitted(self)
        return self.estimator_.predict(with_rows(X))

    @answer_call
    def predict_proba(self, X: Rows) -> np.ndarray:
        """Return the estimator's P(y_k = 1 | x), (instances, labels)."""
        check_is_fitted(self)
        return self._probabilities(with_rows(X))

    @available_if(_explains)
    @answer_call
    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Return ``explain`` of the estimator."""
        check_is_fitted(self)
        return self.estimator_.explain(X, reference=reference, num_features=num_features)

    def _probabilities(self, X: Any) -> np.ndarray:
        came = self.estimator_.predict_proba(X)
        values = self.estimator_.classes_
        # Forests and MultiOutputClassifier return a list of arrays (instances, values), for a single label a
        # bare array.
        if isinstance(values, np.ndarray) and values.ndim == 1 and not isinstance(came, list):
            came, values = [came], [values]
        return _of_present(came, values, self.classes_) if isinstance(came, list) else came


class ConformalClassifier(SplitConformalClassifier):
    """A conformal predictor: all true labels lie between two label sets with a chosen probability.

    Split conformal prediction (Vovk et al. 2005): the estimator is fitted to one part of the instances; the
    probability of the least probable true label is measured on the other part. New instances may have every
    label of at least the resulting threshold. For instances from the distribution of the training data,
    P(certain ⊆ y ⊆ possible) is at least ``coverage`` for any estimator: bad probabilities cause large label
    sets, not a lower coverage.

    Args:
        estimator: with ``predict`` and ``predict_proba`` for label matrices, of any library.
        coverage: probability that all labels of an instance lie between the two sets, above 0 and below 1.
        calibration_size: share of the instances held out from the estimator.
        random_state: seed of the split, and of an estimator without a seed.
        constraints: rules that the truth obeys, as text or objects (:mod:`lmbm_torch.constraints`).
            Consequences of the certain labels and of the excluded labels are certain or excluded, too: label
            sets are smaller at the same coverage, if the rules are true.

    Attributes:
        estimator_: fitted.
        threshold_: less probable values of a label are excluded; −inf excludes none.
        classes_, label_names_: see :class:`StructuredClassifier`.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.estimators import ConformalClassifier, LMSBNClassifier
        >>> X, y = [[i % 4.0] for i in range(40)], [[i % 4 > 1, i % 4 > 0] for i in range(40)]
        >>> model = ConformalClassifier(LMSBNClassifier(), coverage=0.8, random_state=0)
        >>> model.fit(X, np.array(y, int)).predict_set_names([[3.0]])
        [(('label_0', 'label_1'), ())]
    """

    _accepted: ClassVar[Constraints] = {
        **SplitConformalClassifier._accepted,
        "coverage": [Number(Real, 0, 1, closed="neither")],
        "constraints": RULES,
    }

    def __init__(
        self, estimator, *, coverage=0.9, calibration_size=0.25, random_state=None, constraints=None
    ):
        self.estimator = estimator
        self.coverage = coverage
        self.calibration_size = calibration_size
        self.random_state = random_state
        self.constraints = constraints

    def predict_set(self, X: Rows, constraints: Rules | None = None) -> LabelSets:
        """Return the certain and the possible labels at the given coverage.

        If rules allow no label set between the two sets, the truth is not between them, and the sets are
        unchanged.

        Args:
            X: instances in the estimator's form.
            constraints: further rules for the call.

        Raises:
            ValueError: rules over other labels, or contradictions.
        """
        present = self.predict_proba(X)
        is_possible, may_be_absent = present >= self.threshold_, 1 - present >= self.threshold_
        # If both values are excluded, the more probable value is kept.
        neither = ~is_possible & ~may_be_absent
        is_possible |= neither & (present >= 0.5)
        sets = LabelSets(is_possible & ~may_be_absent, is_possible)
        return _narrowed(sets, rules_over(self.label_names_, self.constraints, constraints))

    def predict_set_names(self, X: Rows) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return the names of the certain and of the other possible labels of each instance."""
        certain, possible = self.predict_set(X)
        names = np.asarray(self.label_names_)
        return [
            (tuple(names[sure].tolist()), tuple(names[may & ~sure].tolist()))
            for sure, may in zip(certain, possible, strict=True)
        ]

    def _threshold(self, X: Any, labels: np.ndarray) -> float:
        present = self._probabilities(X)
        # The smallest probability that the model gives to the true value of any label of an instance.
        conformity = np.where(labels == 1, present, 1 - present).min(1)
        return conformal_threshold(conformity, self.coverage)


def _narrowed(sets: LabelSets, rules: rules_of.Constraints) -> LabelSets:
    """Return the label sets with the consequences of the rules, if the rules allow a label set."""
    certain, possible = sets
    known = np.where(certain, 1.0, np.where(possible, np.nan, 0.0))
    filled, consistent = rules.propagate(known)
    held = consistent[:, None]
    return LabelSets(np.where(held, filled == 1, certain), np.where(held, filled != 0, possible))


def _of_present(
    probabilities: Iterable[np.ndarray], values: Iterable[np.ndarray], classes: np.ndarray
) -> np.ndarray:
    """Return P(y_k = 1), (instances, labels), from probabilities of each label's values; 0 if unseen."""
    columns = [
        each[:, own == present].sum(1)
        for each, own, (_, present) in zip(probabilities, values, classes, strict=True)
    ]
    return np.column_stack(columns)


def conformal_threshold(conformity: np.ndarray, coverage: float) -> float:
    """Return a value that exceeds the conformity of new instances at most with rate 1 − coverage.

    Args:
        conformity: (instances,), of the true labels of the held-out instances; larger is more probable.
    """
    rank = int(np.floor((len(conformity) + 1) * (1 - coverage) + ROUND_OFF))
    if rank == 0:
        least = int(np.ceil(1 / (1 - coverage) - ROUND_OFF)) - 1
        warnings.warn(
            f"coverage={coverage}: expected {least} instances held out or more, got {len(conformity)}: "
            "nothing is ruled out",
            stacklevel=level_of_caller(),
        )
        return -np.inf
    return float(np.sort(conformity)[rank - 1])
