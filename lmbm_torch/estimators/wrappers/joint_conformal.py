"""Conformal prediction of whole labellings: the set of all labellings above a threshold of probability."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import answer_call
from lmbm_torch.estimators.common.settings import RULES, Constraints, Number
from lmbm_torch.estimators.common.targets import with_rows
from lmbm_torch.estimators.common.under_rules import Rules, rules_over
from lmbm_torch.estimators.wrappers.conformal import LabelSets, SplitConformalClassifier, conformal_threshold
from lmbm_torch.inference.search import mixture, most_probable

# Number of rows whose labellings are listed, and held in memory, at the same time.
_ROWS = 64


class LabellingSet(NamedTuple):
    """The set of probable labellings of one instance, listed completely or in part.

    Args:
        labellings: (found, labels) of bool, the most probable labelling first.
        log_prob: (found,), log-probabilities of the labellings.
        most: the size of the whole set, or an upper bound on the size; ``found`` if the list is complete.
    """

    labellings: np.ndarray
    log_prob: np.ndarray
    most: float

    @property
    def is_complete(self) -> bool:
        """Return whether the list holds the whole set."""
        return len(self.labellings) == self.most


class JointConformalClassifier(SplitConformalClassifier):
    """A conformal predictor of whole labellings: the true labelling is in the set with a chosen probability.

    This is split conformal prediction as in :class:`ConformalClassifier`, but conformity is the joint
    probability of the whole labelling: the set of an instance holds all labellings with a log-probability of
    at least ``threshold_``. As labels depend on each other, these sets hold fewer labellings than the sets
    between certain and possible labels. If instances come from the distribution of the training data, the
    true labelling is in the set with a probability of at least ``coverage``, for any estimator.

    Args:
        estimator: a classifier with the joint distribution of a directed model: a belief network
            (:class:`LMSBNClassifier` and ensembles) or a :class:`ProbabilisticClassifierChain`.
        coverage: probability that the set holds the true labelling, above 0 and below 1.
        calibration_size: share of the instances that the estimator does not see, for the threshold.
        random_state: seed for the split, and for an estimator without a seed.
        constraints: rules that the truth obeys, as text or objects (:mod:`lmbm_torch.constraints`);
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

        If no labelling is above the threshold, the set holds the most probable labelling found.

        Args:
            X: instances in the estimator's form.
            constraints: further rules for the call.

        Raises:
            ValueError: the rules have other labels, or contradict each other.
        """
        check_is_fitted(self)
        rules = rules_over(self.label_names_, self.constraints, constraints)
        X = with_rows(X)
        rows = np.arange(num_instances(X))
        parts = np.split(rows, range(_ROWS, len(rows), _ROWS))
        return [each for part in parts for each in self._listed(some_instances(X, part), rules)]

    def predict_set(self, X: Rows, constraints: Rules | None = None) -> LabelSets:
        """Return the labels that are in all probable labellings, and the labels that are in any of them.

        If the set is listed only in part, no label is certain and every label is possible.

        Args:
            X: instances in the estimator's form.
            constraints: further rules for the call.

        Raises:
            ValueError: the rules have other labels, or contradict each other.
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
        # If the mean probability of a labelling is above the threshold, the probability of some member is.
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
            # Take the first labelling that obeys the rules, or the first labelling if none obeys.
            is_in[obeys.argmax()] = True
        kept = labellings[is_in]
        return LabellingSet(kept, log_prob[is_in], len(kept) + more)
