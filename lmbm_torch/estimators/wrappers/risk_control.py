"""Prediction of label sets with a limit on the expected share of false negatives or false positives."""

from __future__ import annotations

from numbers import Real
from typing import Any, ClassVar

import numpy as np

from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import answer_call
from lmbm_torch.estimators.common.settings import Constraints, Number, StrOptions
from lmbm_torch.estimators.wrappers.conformal import ROUND_OFF, SplitConformalClassifier

RISKS = ("false_negatives", "false_positives")


class RiskControlledClassifier(SplitConformalClassifier):
    """A classifier whose expected share of false negatives, or of false positives, is at most ``level``.

    This is conformal risk control (Angelopoulos et al. 2022): labels with a probability of at least
    ``threshold_`` are predicted. The threshold is chosen on instances that the estimator has not seen, such
    that the expected risk of a new instance from the same distribution is at most ``level``, for any
    estimator. Among all such thresholds, the threshold with the fewest errors of the other kind is chosen.

    Args:
        estimator: an estimator of any library with ``predict`` and ``predict_proba`` for label matrices.
        risk: ``"false_negatives"``, the share of an instance's true labels that are not predicted (0 for an
            instance without labels), or ``"false_positives"``, the share of the absent labels that are
            predicted (0 for an instance with all labels).
        level: the largest expected risk, above 0 and below 1.
        calibration_size: share of the instances that the estimator does not see, for the threshold.
        random_state: seed for the split, and for an estimator without a seed.

    Attributes:
        estimator_: the fitted estimator.
        threshold_: the smallest probability of a predicted label; −inf predicts all, inf none.
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
        # The held-out instances and a new instance, whose risk is at most 1, may together have this risk.
        allowed = self.level * (len(labels) + 1) - 1
        probability = self._probabilities(X)
        if misses:
            return _first_beyond(probability, shares, allowed)
        return float(np.nextafter(-_first_beyond(-probability, shares, allowed), np.inf))


def _first_beyond(values: np.ndarray, shares: np.ndarray, allowed: float) -> float:
    """Add shares in ascending order of values; return the value at which the sum exceeds ``allowed``.

    Return −inf if ``allowed`` is negative, and inf if the sum never exceeds ``allowed``.
    """
    if allowed < 0:
        return -np.inf
    order = np.argsort(values, axis=None)
    beyond = np.cumsum(shares.ravel()[order]) > allowed + ROUND_OFF
    return float(values.ravel()[order][beyond.argmax()]) if beyond.any() else np.inf
