"""A wrapper that makes all predictions of a multi-label classifier obey rules."""

from __future__ import annotations

from collections import Counter
from copy import copy
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.utils import gen_batches, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lmbm_torch import constraints as rules_of
from lmbm_torch.checks import check_count
from lmbm_torch.constraints.rules import parents_by_path
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.decoders.distributions import AllowedDistribution
from lmbm_torch.estimators.common.settings import RULES, Constraints, Number, check_parameters
from lmbm_torch.estimators.common.targets import (
    dense,
    label_tensor,
    predicted_sparse,
    rows_at_once,
    with_rows,
)
from lmbm_torch.estimators.common.under_rules import Rules, by_codes, decode_around, rules_over, where_allowed
from lmbm_torch.estimators.explain.explanations import (
    Explanation,
    check_one_instance,
    explanation,
    without_names,
)
from lmbm_torch.estimators.label_chains.probabilistic import ProbabilisticClassifierChain
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, Marginals

# Classifiers with their own parameter ``constraints``.
OWN = StructuredClassifier | ProbabilisticClassifierChain


def _has_probabilities(classifier: ConstrainedClassifier) -> bool:
    """Return whether the estimator's probabilities can be computed given that all rules hold."""
    estimator = getattr(classifier, "estimator_", classifier.estimator)
    can = getattr(estimator, "capabilities", None)
    return can is not None and can.restricts_probabilities


class ConstrainedClassifier(MetaEstimatorMixin, StructuredClassifier):
    """A classifier that predicts the best label sets among all label sets that obey given rules.

    Training ignores the rules. If the estimator's search supports rules, the search decodes under the rules.
    Other searches are repeated with labels of broken rules fixed at 0 and at 1
    (:mod:`lmbm_torch.inference.under_rules.constrained`), which takes no extra time if all predictions obey
    the rules. If the estimator's ``predict`` differs from ``decode``, predictions are the same as with the
    rules in the estimator's own parameter ``constraints``. Probabilities and samples of belief networks and
    Boltzmann machines obey the rules, too.

    Args:
        estimator: an estimator of the library with ``decode(X, known=...)`` for label matrices.
        constraints: one or several rules, as text, such as ``"urban -> not beach"`` or
            ``"at_most_one(dawn, noon, dusk)"`` (:mod:`lmbm_torch.constraints.text`), or as
            :class:`~lmbm_torch.constraints.Rule`.
        hierarchy: dictionary from a label to the parent or parents, which must be present if the label is; or
            the separator of label names that are paths, such as ``"/"`` for 01/01/03.
        part_limit: largest number of searches for an instance, see
            :func:`inference.under_rules.constrained.decode`; not used if the estimator's search supports
            rules.

    Attributes:
        estimator_: the fitted estimator.
        num_violations_: dictionary from each broken rule to the number of training instances that break the
            rule, without instances with missing labels.
        classes_, label_names_: see :class:`StructuredClassifier`.

    Examples:
        >>> from lmbm_torch.estimators import ConstrainedClassifier, LMSBNClassifier
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> model = ConstrainedClassifier(LMSBNClassifier(random_state=0), "label_1 -> label_0")
        >>> model.fit(X, y).predict([[1.0]])
        array([[0, 0]])
    """

    _accepted: ClassVar[Constraints] = {
        "constraints": RULES,
        "hierarchy": [str, dict, None],
        "part_limit": [Number(Integral, 1, None, closed="left"), None],
    }

    def __init__(self, estimator, constraints=None, *, hierarchy=None, part_limit=LIMITS.parts):
        self.estimator = estimator
        self.constraints = constraints
        self.hierarchy = hierarchy
        self.part_limit = part_limit

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    @fit_call
    def fit(self, X: Rows, y: Rows, **fit_params: Any) -> Self:
        """Fit the estimator, and count the training instances that break each rule.

        Args:
            X, y, fit_params: arguments of the estimator's ``fit``; rules name columns of ``y``, or label_0, …

        Raises:
            TypeError: the estimator does not decode label matrices.
            ValueError: the estimator's ``predict`` differs from ``decode`` and takes no rules; ``y`` holds
                classes; rules name unknown labels or contradict each other; or the estimator refuses inputs.
        """
        decodes = hasattr(self.estimator, "decode") and hasattr(self.estimator, "capabilities")
        if not decodes or self.estimator.capabilities.of_sequences:
            raise TypeError(
                "estimator: expected a classifier of label matrices with decode and capabilities, got "
                f"{type(self.estimator).__name__}"
            )
        if not (self.estimator.capabilities.predicts_by_decode or isinstance(self.estimator, OWN)):
            raise ValueError(
                "estimator: expected an estimator whose predict returns the labels of decode, got "
                f"{self.estimator!r}"
            )
        check_parameters(self)
        labels = self._encode(y)
        if self.binarizer_ is not None:
            raise ValueError("y: expected a label matrix, got classes; rules are about labels")
        rules = self._rules()
        estimator: Any = clone(self.estimator)
        self.estimator_ = estimator.fit(X, y, **fit_params)
        self.num_violations_ = _violations(rules, labels)
        return self

    @answer_call
    def decode(
        self, X: Rows, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """Return the label sets with the best value of the estimator's objective that obey the rules.

        Args:
            X: instances in the form that the estimator takes.
            known: (instances, labels), known labels in the values of ``fit``; NaN for labels to decode.
            top_k: number of label sets for each instance, best first.
            constraints: further rules, only for this call.

        Raises:
            ValueError: known labels contradict the rules; see
                :func:`inference.under_rules.constrained.decode`.
        """
        check_is_fitted(self)
        rules = self._rules(constraints)
        if self.estimator_.capabilities.searches_under_rules:
            return self.estimator_.decode(X, known=known, top_k=top_k, constraints=rules)
        given = self._known_codes(known)
        return decode_around(
            self._freely(), X, rules, given, top_k, self.part_limit, values=self.label_values
        )

    @answer_call
    def predict(self, X: Rows, known: ArrayLike | None = None) -> Any:
        """Return the best labels (instances, labels) that obey the rules; see :meth:`decode` for ``known``.

        If the estimator's ``sparse_output`` is true, the result is a sparse CSR matrix.
        """
        check_is_fitted(self)
        if (ruled := self._ruled()) is not None:
            return ruled.predict(X, known)
        if getattr(self.estimator_, "sparse_output", False):
            return predicted_sparse(self._predict, X, known, self.classes_)
        return self._predict(X, known)

    def _predict(self, X: Rows, known: ArrayLike | None) -> np.ndarray:
        return self.label_values(self.decode(X, known).labels.cpu().numpy())

    @available_if(_has_probabilities)
    def predict_proba(self, X: Rows) -> np.ndarray:
        """Return P(y_i = 1 | x, y obeys all rules), (instances, labels), exactly.

        Raises:
            ValueError: see :meth:`marginals`.
        """
        return self.marginals(X).labels.cpu().numpy()

    @available_if(_has_probabilities)
    @answer_call
    def marginals(self, X: Rows) -> Marginals:
        """Return the exact marginals of the estimator's distribution, given that all rules are obeyed.

        Up to 22 labels are enumerated. For more labels a junction tree is used, which suits belief networks
        with few parents and sparse Boltzmann machines (:func:`lmbm_torch.inference.log_partition`). For
        belief networks, the result's ``log_partition`` is the log-probability that all rules are obeyed.

        Raises:
            ValueError: there are more than 22 labels, and the junction tree is too wide.
        """
        return self._distribution(X).marginals()

    @available_if(_has_probabilities)
    @answer_call
    def log_prob(self, X: Rows, Y: Rows) -> np.ndarray:
        """Return log P(Y | x, Y obeys all rules), (instances,); −∞ if Y breaks a rule.

        Args:
            X: instances in the form that the estimator takes.
            Y: (instances, labels), label vectors in the values of ``fit``.

        Raises:
            ValueError: see :meth:`marginals`.
        """
        distribution = self._distribution(X)
        labels = label_tensor("Y", Y, distribution.energies[0], self._label_classes)
        return distribution.log_prob(labels).cpu().numpy()

    @available_if(_has_probabilities)
    @answer_call
    def sample(self, X: Rows, num_samples: int = 1) -> np.ndarray:
        """Sample label vectors from P(y | x, y obeys all rules), (num_samples, instances, labels).

        Raises:
            ValueError: see :meth:`marginals`; ``num_samples`` is below 1.
        """
        check_count("num_samples", num_samples)
        distribution = self._distribution(X)
        generator = torch.Generator(distribution.energies[0].device).manual_seed(self.estimator_._seed())
        return self.label_values(distribution.sample(num_samples, generator).cpu().numpy())

    @answer_call
    def binding_rules(self, X: Rows) -> list[list[str]]:
        """Return for each instance the rules, as text, that a prediction without rules would break."""
        check_is_fitted(self)
        if (ruled := self._ruled()) is not None:
            return ruled.binding_rules(X)
        return self._rules().broken(self._freely().decode(X).labels.cpu().numpy())

    @answer_call
    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Explain the labels of one instance, with the rules that a prediction without rules would break.

        Args:
            X, reference, num_features: see :meth:`LMSBNClassifier.explain`. In the explanation, ``otherwise``
                is None for labels that the rules fix.
        """
        check_is_fitted(self)
        if (ruled := self._ruled()) is not None:
            return ruled.explain(X, reference=reference, num_features=num_features)
        nameless, estimator = copy(self), self.estimator_
        if isinstance(estimator, ProbabilisticClassifierChain):
            X = estimator._validated(X, reset=False)
        else:
            X, estimator = estimator._validate_predict(X), without_names(estimator)
        nameless.estimator_ = estimator
        check_one_instance(X)
        fields = estimator._fields(X, reference)

        decode = where_allowed(by_codes(nameless.decode, self.label_values), nameless._rules())
        rules = tuple(dict.fromkeys(nameless.binding_rules(X)[0]))
        return explanation(fields, decode, X, num_features, rules).in_values(self.classes_)

    def _keeps_sparse(self, y: Any) -> bool:
        return True

    def _distribution(self, X: Rows) -> AllowedDistribution:
        check_is_fitted(self)
        energies = self.estimator_.calibrated(self.estimator_.energies(with_rows(X)))
        return AllowedDistribution(energies, self._rules())

    def _rules(self, more: Rules | None = None) -> rules_of.Constraints:
        """Combine the rules of this classifier, of the estimator, of the hierarchy, and of ``more``."""
        names = self.label_names_
        assert names is not None
        own = self.estimator._given_rules if isinstance(self.estimator, OWN) else ()
        parents: Any = self.hierarchy
        parents = parents_by_path(names, parents) if isinstance(parents, str) else parents
        return rules_over(names, *own, self.constraints, parents and rules_of.hierarchy(parents), more)

    def _ruled(self) -> Any:
        """Return the fitted estimator with all rules; None if ``predict`` is the same as ``decode``."""
        predicts_by_decode = self.estimator_.capabilities.predicts_by_decode
        return None if predicts_by_decode else self.estimator_.with_rules(self._rules())

    def _freely(self) -> Any:
        """Return the fitted estimator without any rules of its own."""
        return self.estimator_.with_rules(None) if isinstance(self.estimator_, OWN) else self.estimator_


def _violations(rules: rules_of.Constraints, labels: Any) -> dict[str, int]:
    """Count the label vectors without missing labels that break a rule, for each broken rule."""
    found: Counter[str] = Counter()
    for rows in gen_batches(labels.shape[0], rows_at_once(labels.shape[1])):
        batch = dense(labels[rows])
        for texts in rules.broken(batch[~np.isnan(batch).any(1)]):
            found.update(set(texts))
    return dict(found)
