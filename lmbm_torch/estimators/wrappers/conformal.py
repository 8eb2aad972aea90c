"""Conformal predictors of label sets with a guaranteed coverage, for any classifier.

Further predictors give sets of label vectors, or limit the share of false negatives or false positives.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.model_selection import train_test_split
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lmbm_torch import constraints as rules_of
from lmbm_torch.checks import check_labels, check_shape, level_of_caller
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.settings import (
    RULES,
    Constraints,
    Number,
    StrOptions,
    check_parameters,
    seeds_for,
)
from lmbm_torch.estimators.common.targets import positive_probabilities, with_rows
from lmbm_torch.estimators.common.under_rules import Rules, rules_over
from lmbm_torch.estimators.explain.explanations import Explanation
from lmbm_torch.inference.search import mixture, most_probable

# Tolerance for rounding errors of 1 − coverage and of sums, so exact fractions are not rounded the wrong way.
ROUND_OFF = 1e-9


# Number of instances whose probable label vectors are listed at once; limits memory.
_ROWS = 64
RISKS = ("false_negatives", "false_positives")


class LabelSets(NamedTuple):
    """The certain and the possible labels of each instance.

    Args:
        certain: (instances, labels) of bool: labels that are in all label sets that were not excluded.
        possible: (instances, labels) of bool: labels that are in at least one label set not excluded.
    """

    certain: np.ndarray
    possible: np.ndarray


def _explains(classifier: SplitConformalClassifier) -> bool:
    return hasattr(getattr(classifier, "estimator_", classifier.estimator), "explain")


class SplitConformalClassifier(MetaEstimatorMixin, StructuredClassifier):
    """The base of conformal classifiers: an estimator, and a threshold computed from held-out instances.

    Args:
        estimator: an estimator of any library with ``predict`` and ``predict_proba`` for label matrices.
        calibration_size: share of the instances that is held out to compute the threshold.
        random_state: seed for the split, and for an estimator without a seed.
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
        """Fit the estimator to one part of the instances, and compute the threshold on the other part.

        Args:
            X: instances in the form that the estimator takes.
            y: (instances, labels), NaN for missing labels if the estimator takes NaN. Only instances without
                missing labels are held out, and the guarantee holds for such instances.

        Raises:
            ValueError: a parameter is invalid, ``y`` holds classes, there are too few instances without
                missing labels to hold some out, or the estimator refuses the inputs.

        Warns:
            UserWarning: too few instances are held out for the coverage, so no label is excluded.
        """
        check_parameters(self)
        if not hasattr(self.estimator, "predict_proba"):
            name = type(self.estimator).__name__
            raise ValueError(f"estimator: expected a classifier with predict_proba, got {name}")
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
                f"calibration_size={self.calibration_size}: expected to leave an instance to learn from, got "
                f"{len(complete)} instances without missing labels in total"
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

    @abstractmethod
    def _threshold(self, X: Any, labels: np.ndarray) -> float:
        """Compute the threshold from held-out instances with labels (instances, labels) in {0, 1}."""

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
        """Return the estimator's explanation of one instance, see the method ``explain``."""
        check_is_fitted(self)
        return self.estimator_.explain(X, reference=reference, num_features=num_features)

    def _probabilities(self, X: Any) -> np.ndarray:
        model, positive = self.estimator_, [each[1] for each in self.classes_]
        return positive_probabilities(model.predict_proba(X), model.classes_, positive)


class ConformalClassifier(SplitConformalClassifier):
    """A conformal predictor of the certain and the possible labels, with a guaranteed coverage.

    This is split conformal prediction (Vovk et al. 2005). The estimator is fitted to one part of the
    instances. For each instance of the other part, the smallest probability that the estimator gives to the
    true value of a label is computed; the threshold is a quantile of these probabilities. For new instances,
    label values (0 or 1) with a probability below the threshold are excluded. If new instances come from the
    distribution of the training data, P(certain ⊆ y ⊆ possible) is at least ``coverage`` for any estimator:
    bad probabilities make more labels uncertain, but do not lower the coverage.

    Args:
        estimator: an estimator of any library with ``predict`` and ``predict_proba`` for label matrices.
        coverage: smallest probability, between 0 and 1, that the true label set holds all certain labels and
            only possible labels.
        calibration_size: share of the instances that is held out to compute the threshold.
        random_state: seed for the split, and for an estimator without a seed.
        constraints: rules that the true labels obey, as text or objects (:mod:`lmbm_torch.constraints`).
            Values that follow by the rules become certain or excluded, so fewer labels are uncertain.

    Attributes:
        estimator_: the fitted estimator.
        threshold_: label values with a smaller probability are excluded; −inf excludes nothing.
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
        """Return the certain and the possible labels of each instance.

        If an instance's certain and excluded labels contradict the rules, the rules are ignored there.

        Args:
            X: instances in the form that the estimator takes.
            constraints: further rules, only for this call.

        Raises:
            ValueError: the rules name unknown labels, or contradict each other.
        """
        present = self.predict_proba(X)
        is_possible, may_be_absent = present >= self.threshold_, 1 - present >= self.threshold_
        # If both values of a label are excluded, keep the more probable value.
        neither = ~is_possible & ~may_be_absent
        is_possible |= neither & (present >= 0.5)
        sets = LabelSets(is_possible & ~may_be_absent, is_possible)
        return _narrowed(sets, rules_over(self.label_names_, self.constraints, constraints))

    def predict_set_names(self, X: Rows) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return for each instance the names of certain labels, and of labels that are only possible."""
        certain, possible = self.predict_set(X)
        names = np.asarray(self.label_names_)
        return [
            (tuple(names[sure].tolist()), tuple(names[may & ~sure].tolist()))
            for sure, may in zip(certain, possible, strict=True)
        ]

    def _threshold(self, X: Any, labels: np.ndarray) -> float:
        present = self._probabilities(X)
        # Conformity of an instance: the smallest probability of a label's true value, over all labels.
        conformity = np.where(labels == 1, present, 1 - present).min(1)
        return conformal_threshold(conformity, self.coverage)


def _narrowed(sets: LabelSets, rules: rules_of.Constraints) -> LabelSets:
    """Make labels certain or excluded if that follows from the rules; keep instances that contradict them."""
    certain, possible = sets
    known = np.where(certain, 1.0, np.where(possible, np.nan, 0.0))
    filled, consistent = rules.propagate(known)
    held = consistent[:, None]
    return LabelSets(np.where(held, filled == 1, certain), np.where(held, filled != 0, possible))


def conformal_threshold(conformity: np.ndarray, coverage: float) -> float:
    """Return the threshold that a new instance's conformity reaches with a probability of ``coverage``.

    Args:
        conformity: (instances,), how well the true labels of each held-out instance agree with the estimator;
            larger is better.
    """
    rank = int(np.floor((len(conformity) + 1) * (1 - coverage) + ROUND_OFF))
    if rank == 0:
        least = int(np.ceil(1 / (1 - coverage) - ROUND_OFF)) - 1
        warnings.warn(
            f"coverage={coverage}: expected at least {least} held-out instances, got {len(conformity)}; "
            "nothing is excluded",
            stacklevel=level_of_caller(),
        )
        return -np.inf
    return float(np.sort(conformity)[rank - 1])


class LabellingSet(NamedTuple):
    """The set of probable labellings (label vectors) of one instance, listed completely or in part.

    Args:
        labellings: (found, labels) of bool, the listed labellings, the most probable first.
        log_prob: (found,), log-probabilities of the labellings.
        most: number of labellings in the whole set; an upper bound if the list is incomplete.
    """

    labellings: np.ndarray
    log_prob: np.ndarray
    most: float

    @property
    def is_complete(self) -> bool:
        """Return whether ``labellings`` lists the whole set."""
        return len(self.labellings) == self.most


class JointConformalClassifier(SplitConformalClassifier):
    """A conformal predictor of sets of label vectors that hold the true one with a chosen probability.

    This is split conformal prediction as in :class:`ConformalClassifier`, but with joint probabilities of
    whole labellings (label vectors): the set of an instance holds all labellings with a log-probability of
    at least ``threshold_``. As labels depend on each other, such a set is smaller than the set of all
    labellings between certain and possible labels. If instances come from the distribution of the training
    data, the true labelling is in the set with a probability of at least ``coverage``, for any estimator.

    Args:
        estimator: a classifier with the joint distribution of a directed model: a belief network
            (:class:`LMSBNClassifier` and ensembles) or a :class:`ProbabilisticClassifierChain`.
        coverage: smallest probability, between 0 and 1, that the set holds the true labelling.
        calibration_size: share of the instances that is held out to compute the threshold.
        random_state: seed for the split, and for an estimator without a seed.
        constraints: rules that the true labels obey, as text or objects (:mod:`lmbm_torch.constraints`);
            labellings that break a rule are left out.
        max_labellings: the largest number of labellings to list for an instance; a larger set is listed in
            part, with an upper bound on the size.

    Attributes:
        estimator_: the fitted estimator.
        threshold_: labellings with a smaller log-probability are excluded; −inf excludes nothing.
        classes_, label_names_: see :class:`StructuredClassifier`.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.estimators import JointConformalClassifier, LMSBNClassifier
        >>> X, y = [[i % 4.0] for i in range(40)], [[i % 4 > 1, i % 4 > 0] for i in range(40)]
        >>> model = JointConformalClassifier(LMSBNClassifier(), coverage=0.8, random_state=0)
        >>> (found,) = model.fit(X, np.array(y, int)).predict_labellings([[3.0]])
        >>> found.labellings, found.is_complete
        (array([[ True,  True]]), True)
    """

    _accepted: ClassVar[Constraints] = {
        **SplitConformalClassifier._accepted,
        "coverage": [Number(Real, 0, 1, closed="neither")],
        "constraints": RULES,
        "max_labellings": [Number(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        estimator,
        *,
        coverage=0.9,
        calibration_size=0.25,
        random_state=None,
        constraints=None,
        max_labellings=1000,
    ):
        self.estimator = estimator
        self.coverage = coverage
        self.calibration_size = calibration_size
        self.random_state = random_state
        self.constraints = constraints
        self.max_labellings = max_labellings

    @answer_call
    def predict_labellings(self, X: Rows, constraints: Rules | None = None) -> list[LabellingSet]:
        """Return the set of probable labellings of each instance.

        If no labelling reaches the threshold, the set holds only the most probable labelling that was found.

        Args:
            X: instances in the form that the estimator takes.
            constraints: further rules, only for this call.

        Raises:
            ValueError: the rules name unknown labels, or contradict each other.
        """
        check_is_fitted(self)
        rules = rules_over(self.label_names_, self.constraints, constraints)
        X = with_rows(X)
        rows = np.arange(num_instances(X))
        parts = np.split(rows, range(_ROWS, len(rows), _ROWS))
        return [each for part in parts for each in self._listed(some_instances(X, part), rules)]

    def predict_set(self, X: Rows, constraints: Rules | None = None) -> LabelSets:
        """Return the labels that are present in all probable labellings, and in at least one of them.

        If an instance's set is listed only in part, no label is certain and all labels are possible.

        Args:
            X: instances in the form that the estimator takes.
            constraints: further rules, only for this call.

        Raises:
            ValueError: the rules name unknown labels, or contradict each other.
        """
        found = self.predict_labellings(X, constraints)
        certain = [each.labellings.all(0) & each.is_complete for each in found]
        possible = [each.labellings.any(0) | (not each.is_complete) for each in found]
        return LabelSets(np.stack(certain), np.stack(possible))

    def _threshold(self, X: Any, labels: np.ndarray) -> float:
        log_prob = mixture.log_prob(self._energies(X), torch.from_numpy(labels.astype(np.int64)))
        return conformal_threshold(log_prob.double().numpy(), self.coverage)

    def _energies(self, X: Any) -> list[Any]:
        estimator = self.estimator_
        energies = estimator.energies(X) if hasattr(estimator, "energies") else []
        if not energies or not isinstance(energies[0], DirectedEnergy | SequentialEnergy):
            raise ValueError(
                "estimator: expected belief networks or label chains, whose labellings can be listed, got "
                f"{type(estimator).__name__}; ConformalClassifier takes any classifier with predict_proba"
            )
        return estimator.calibrated(energies) if hasattr(estimator, "calibrated") else energies

    def _listed(self, X: Any, rules: Any) -> Iterator[LabellingSet]:
        energies = self._energies(X)
        least = torch.full((energies[0].batch_size,), self.threshold_, dtype=torch.float64, device="cpu")
        # List each member's probable labellings: where the mean probability is large, a member's is, too.
        members = [
            most_probable.above(energy, least, max_labellings=self.max_labellings) for energy in energies
        ]
        for row in range(len(least)):
            found = torch.cat([each.labels[row][each.probability[row] > 0] for each in members]).unique(dim=0)
            some = [energy.select(torch.full((len(found),), row, device="cpu")) for energy in energies]
            log_prob = mixture.log_prob(some, found).double()
            order = log_prob.argsort(descending=True, stable=True)
            left = sum(float(each.mass_left[row]) for each in members) / len(members)
            complete = all(bool(each.status.converged[row]) for each in members)
            more = 0.0 if complete else np.floor(left * np.exp(-self.threshold_))
            yield self._set_of(found[order].numpy() == 1, log_prob[order].numpy(), more, rules)

    def _set_of(self, labellings: np.ndarray, log_prob: np.ndarray, more: float, rules: Any) -> LabellingSet:
        obeys = ~rules.violated(labellings.astype(np.int64)).any(1)
        is_in = obeys & (log_prob >= self.threshold_)
        if not is_in.any():
            # Keep the most probable labelling that obeys the rules; if none obeys, the most probable of all.
            is_in[obeys.argmax()] = True
        kept = labellings[is_in]
        return LabellingSet(kept, log_prob[is_in], len(kept) + more)


class RiskControlledClassifier(SplitConformalClassifier):
    """A classifier whose expected share of false negatives, or of false positives, is at most ``level``.

    This is conformal risk control (Angelopoulos et al. 2022): labels with a probability of at least
    ``threshold_`` are predicted. The threshold is chosen on instances that the estimator has not seen, such
    that the expected risk of a new instance from the same distribution is at most ``level``, for any
    estimator. Among these thresholds, the one with the fewest errors of the other kind is chosen.

    Args:
        estimator: an estimator of any library with ``predict`` and ``predict_proba`` for label matrices.
        risk: ``"false_negatives"``, the share of an instance's true labels that are not predicted (0 for an
            instance without labels), or ``"false_positives"``, the share of the absent labels that are
            predicted (0 for an instance with all labels).
        level: the largest expected risk, above 0 and below 1.
        calibration_size: share of the instances that is held out to compute the threshold.
        random_state: seed for the split, and for an estimator without a seed.

    Attributes:
        estimator_: the fitted estimator.
        threshold_: labels with at least this probability are predicted; with −inf all labels, with inf none.
        classes_, label_names_: see :class:`StructuredClassifier`.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.estimators import LMSBNClassifier, RiskControlledClassifier
        >>> X, y = [[i % 4.0] for i in range(80)], [[i % 4 > 1, i % 4 > 0] for i in range(80)]
        >>> model = RiskControlledClassifier(LMSBNClassifier(), level=0.2, random_state=0)
        >>> model.fit(X, np.array(y, int)).predict([[0.0], [3.0]])
        array([[0, 0],
               [1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        **SplitConformalClassifier._accepted,
        "risk": [StrOptions(RISKS)],
        "level": [Number(Real, 0, 1, closed="neither")],
    }

    def __init__(
        self, estimator, *, risk="false_negatives", level=0.1, calibration_size=0.25, random_state=None
    ):
        self.estimator = estimator
        self.risk = risk
        self.level = level
        self.calibration_size = calibration_size
        self.random_state = random_state

    @answer_call
    def predict(self, X: Rows) -> np.ndarray:
        """Return the labels with a probability of at least ``threshold_``, (instances, labels)."""
        return self.label_values((self.predict_proba(X) >= self.threshold_).astype(int))

    def _threshold(self, X: Any, labels: np.ndarray) -> float:
        misses = self.risk == "false_negatives"
        counted = labels == 1 if misses else labels != 1
        shares = counted / np.maximum(counted.sum(1, keepdims=True), 1)
        # Largest sum of the held-out instances' risks, if a new instance with a risk of 1 is to be allowed.
        allowed = self.level * (len(labels) + 1) - 1
        probability = self._probabilities(X)
        if misses:
            return _first_beyond(probability, shares, allowed)
        return float(np.nextafter(-_first_beyond(-probability, shares, allowed), np.inf))


def _first_beyond(values: np.ndarray, shares: np.ndarray, allowed: float) -> float:
    """Add up ``shares`` in ascending order of ``values``; return the value where the sum exceeds ``allowed``.

    Return −inf if ``allowed`` is negative, and inf if the sum never exceeds ``allowed``.
    """
    if allowed < 0:
        return -np.inf
    order = np.argsort(values, axis=None)
    beyond = np.cumsum(shares.ravel()[order]) > allowed + ROUND_OFF
    return float(values.ravel()[order][beyond.argmax()]) if beyond.any() else np.inf
