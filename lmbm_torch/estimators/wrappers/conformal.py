"""Label sets that hold the truth with a stated probability, whatever the classifier."""

from __future__ import annotations

import warnings
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
from lmbm_torch.checks import check_labels, check_shape
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier, level_of_caller
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.settings import RULES, Constraints, Number, check_parameters, seeds_for
from lmbm_torch.estimators.common.targets import with_rows
from lmbm_torch.estimators.common.under_rules import Rules, rules_over
from lmbm_torch.estimators.explain.explanations import Explanation

# Of 1 − coverage.
ROUND_OFF = 1e-9


class LabelSets(NamedTuple):
    """What the labels of instances may be.

    Args:
        certain: (instances, labels) of bool: present in every labelling that is left.
        possible: (instances, labels) of bool: present in one or more of them.
    """

    certain: np.ndarray
    possible: np.ndarray


def _explains(classifier: ConformalClassifier) -> bool:
    return hasattr(getattr(classifier, "estimator_", classifier.estimator), "explain")


class ConformalClassifier(MetaEstimatorMixin, StructuredClassifier):
    """A classifier that says between which labels the truth lies, and is right about all of them so often.

    Split conformal prediction (Vovk et al. 2005): the estimator is fitted to one part of the instances, and
    the others tell how improbable the least probable of an instance's true labels is. New instances are given
    every label that is no less probable. For instances that come from where those of ``fit`` came from,
    P(certain ⊆ y ⊆ possible) is at least ``coverage``, however wrong the estimator's probabilities are: bad
    ones cost large sets, not coverage.

    Args:
        estimator: with ``predict`` and ``predict_proba`` for label matrices, of this library or another.
        coverage: how often all labels of an instance are to lie between the two sets, above 0 and below 1.
        calibration_size: the share of the instances that the estimator is not fitted to.
        random_state: of their choice, and of the estimator, where that is not seeded itself.
        constraints: rules that the truth obeys, as text or objects (:mod:`lmbm_torch.constraints`): what
            follows from the certain labels and from those that are ruled out is certain or ruled out, too. So
            sets are smaller at the same coverage, as long as the rules are true.

    Attributes:
        estimator_: fitted.
        threshold_: values of a label that are less probable are ruled out; −inf rules out none.
        classes_, label_names_: see :class:`StructuredClassifier`.
    """

    _accepted: ClassVar[Constraints] = {
        "coverage": [Number(Real, 0, 1, closed="neither")],
        "calibration_size": [Number(Real, 0, 1, closed="neither")],
        "random_state": ["random_state"],
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

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    @fit_call
    def fit(self, X: Rows, y: Rows) -> Self:
        """Fit the estimator to a part of the instances, and measure it on the others.

        Args:
            X: instances, as the estimator takes them.
            y: (instances, labels), complete.

        Raises:
            ValueError: a setting that is not as described, classes instead of label matrices, missing labels,
                too few instances to split, and what the estimator refuses.

        Warns:
            UserWarning: too few instances are held out for this coverage, so that nothing is ruled out.
        """
        check_parameters(self)
        if not hasattr(self.estimator, "predict_proba"):
            name = type(self.estimator).__name__
            raise ValueError(f"estimator: expected one with predict_proba, got {name}, which has none")
        labels = self._encode(y)
        if self.binarizer_ is not None:
            raise ValueError("y: expected a label matrix, got classes")
        rules_over(self.label_names_, self.constraints)
        check_shape("y", labels, num_instances(X), None)
        check_labels("y", labels)
        X = with_rows(X)
        if np.ceil(self.calibration_size * len(labels)) >= len(labels):
            raise ValueError(
                f"calibration_size={self.calibration_size}: expected it to leave an instance to learn from, "
                f"got {len(labels)} in all"
            )
        train, held_out = train_test_split(
            np.arange(len(labels)), test_size=self.calibration_size, random_state=self._seed()
        )
        estimator: Any = clone(self.estimator)
        estimator.set_params(**seeds_for(estimator, self.random_state))
        self.estimator_ = estimator.fit(some_instances(X, train), some_instances(y, train))
        present = self._probabilities(some_instances(X, held_out))
        truth = np.where(labels[held_out] == 1, present, 1 - present).min(1)
        self.threshold_ = _conformal_threshold(truth, self.coverage)
        return self

    @answer_call
    def predict(self, X: Rows) -> np.ndarray:
        """The estimator's labels (instances, labels)."""
        check_is_fitted(self)
        return self.estimator_.predict(with_rows(X))

    @answer_call
    def predict_proba(self, X: Rows) -> np.ndarray:
        """The estimator's P(y_k = 1 | x), (instances, labels)."""
        check_is_fitted(self)
        return self._probabilities(with_rows(X))

    def predict_set(self, X: Rows, constraints: Rules | None = None) -> LabelSets:
        """The labels that are certain and those that are possible, at the coverage asked for.

        Where rules allow no labelling between the two sets, the truth is not between them: they stay as they
        are.

        Args:
            X: instances, as the estimator takes them.
            constraints: further rules, for this call.

        Raises:
            ValueError: rules over other labels, or that contradict each other.
        """
        present = self.predict_proba(X)
        is_possible, may_be_absent = present >= self.threshold_, 1 - present >= self.threshold_
        # Where both values are improbable, so is everything at this coverage: the better one is kept.
        neither = ~is_possible & ~may_be_absent
        is_possible |= neither & (present >= 0.5)
        sets = LabelSets(is_possible & ~may_be_absent, is_possible)
        return _narrowed(sets, rules_over(self.label_names_, self.constraints, constraints))

    def predict_set_names(self, X: Rows) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The names of the certain and of the other possible labels of each instance."""
        certain, possible = self.predict_set(X)
        names = np.asarray(self.label_names_)
        return [
            (tuple(names[sure].tolist()), tuple(names[may & ~sure].tolist()))
            for sure, may in zip(certain, possible, strict=True)
        ]

    @available_if(_explains)
    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """``explain`` of the estimator."""
        check_is_fitted(self)
        return self.estimator_.explain(X, reference=reference, num_features=num_features)

    def _probabilities(self, X: Any) -> np.ndarray:
        came = self.estimator_.predict_proba(X)
        values = self.estimator_.classes_
        # Forests and MultiOutputClassifier have an array (instances, values) for each label, of a single one
        # that array alone.
        if isinstance(values, np.ndarray) and values.ndim == 1 and not isinstance(came, list):
            came, values = [came], [values]
        return _of_present(came, values, self.classes_) if isinstance(came, list) else came


def _narrowed(sets: LabelSets, rules: rules_of.Constraints) -> LabelSets:
    """The sets with what follows from them by the rules, where these allow a labelling at all."""
    certain, possible = sets
    known = np.where(certain, 1.0, np.where(possible, np.nan, 0.0))
    filled, consistent = rules.propagate(known)
    held = consistent[:, None]
    return LabelSets(np.where(held, filled == 1, certain), np.where(held, filled != 0, possible))


def _of_present(
    probabilities: Iterable[np.ndarray], values: Iterable[np.ndarray], classes: np.ndarray
) -> np.ndarray:
    """P(y_k = 1) from those of each label's values, (instances, labels); what training never saw has none."""
    columns = [
        each[:, own == present].sum(1)
        for each, own, (_, present) in zip(probabilities, values, classes, strict=True)
    ]
    return np.column_stack(columns)


def _conformal_threshold(truth: np.ndarray, coverage: float) -> float:
    """What the least probable true label of a new instance falls below at most so often.

    Args:
        truth: (instances,), the probability of the least probable true label of each that was held out.
    """
    rank = int(np.floor((len(truth) + 1) * (1 - coverage) + ROUND_OFF))
    if rank == 0:
        least = int(np.ceil(1 / (1 - coverage) - ROUND_OFF)) - 1
        warnings.warn(
            f"coverage={coverage}: expected {least} instances held out or more, got {len(truth)}: "
            "nothing is ruled out",
            stacklevel=level_of_caller(),
        )
        return -np.inf
    return float(np.sort(truth)[rank - 1])
