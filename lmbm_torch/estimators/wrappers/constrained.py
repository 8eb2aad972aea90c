"""Any classifier of label vectors, decoded under hard constraints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.utils import gen_batches, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lmbm_torch import constraints as rules_of
from lmbm_torch.checks import check_count
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import all_or_nothing, of_label_columns, watched
from lmbm_torch.estimators.common.settings import RULES, Constraints, Number
from lmbm_torch.estimators.common.targets import (
    dense,
    is_sparse_and_binary,
    label_tensor,
    predicted_sparse,
    rows_at_once,
    sparse_label_matrix,
)
from lmbm_torch.estimators.common.under_rules import (
    Rules,
    decode_around,
    rules_over,
    where_allowed,
)
from lmbm_torch.estimators.decoders.distributions import AllowedDistribution
from lmbm_torch.estimators.explain.explanations import (
    Explanation,
    check_one_instance,
    explanation,
    without_names,
)
from lmbm_torch.estimators.label_chains.probabilistic import ProbabilisticClassifierChain
from lmbm_torch.inference.limits import LIMITS
from lmbm_torch.inference.results import Decoding, Marginals
from lmbm_torch.solvers.networks.problems import canonical

# Classifiers that take rules of their own.
OWN = StructuredClassifier | ProbabilisticClassifierChain


def _has_probabilities(classifier: ConstrainedClassifier) -> bool:
    """Whether the estimator, fitted or not, has probabilities, of a distribution that rules can restrict."""
    estimator = getattr(classifier, "estimator_", classifier.estimator)
    can = getattr(estimator, "capabilities", None)
    return can is not None and can.restricts_probabilities


class ConstrainedClassifier(MetaEstimatorMixin, StructuredClassifier):
    """A classifier whose answers obey rules, each the best of all answers that do.

    Training is the estimator's own, and so is decoding where its search takes rules. That of any other holds
    labels of rules that an answer breaks at either value and decodes again
    (:mod:`lmbm_torch.inference.under_rules.constrained`). Rules cost nothing where they are obeyed. An
    estimator that predicts by another ``decoder`` than that of its ``decode`` answers as with these rules
    among its own ``constraints``. Probabilities and samples, of networks and Boltzmann machines that have
    probabilities, are those of their distribution given that the rules are obeyed.

    Args:
        estimator: of this library, with ``decode(X, known=...)`` for label matrices.
        constraints: rules as text, such as ``"urban -> not beach"`` or ``"at_most_one(dawn, noon, dusk)"``
            (:mod:`lmbm_torch.constraints.text`), as :class:`~lmbm_torch.constraints.Rule`, or several.
        hierarchy: label → its parent, or parents, without which it is never present; or the sign that
            separates the parts of labels whose names are paths, such as ``"/"`` for 01/01/03.
        part_limit: parts of an instance that are decoded at most; see
            :func:`inference.under_rules.constrained.decode`. An estimator whose own search takes the rules
            ends it by its own limit.

    Attributes:
        estimator_: fitted.
        num_violations_: rule → how many of the training instances without missing labels break it.
        classes_, label_names_: see :class:`StructuredClassifier`.
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

    @watched
    @all_or_nothing
    def fit(self, X: Rows, y: Rows, **fit_params: Any) -> Self:
        """Fit the estimator, and note which rules the training labels break.

        Args:
            X, y, fit_params: what the estimator takes; rules name the columns of ``y``, label_0, label_1, …
                where it has no names.

        Raises:
            TypeError: an estimator that does not decode label matrices.
            ValueError: a stranger's estimator whose predictions are not those of its ``decode``; classes
                instead of label matrices; rules over other labels, or that contradict each other; what the
                estimator refuses.
        """
        # Chains over positions decode, too, but say nothing of what they minimise.
        if not (hasattr(self.estimator, "decode") and hasattr(self.estimator, "capabilities")):
            raise TypeError(
                "estimator: expected one that decodes label matrices, with decode and capabilities, got "
                f"{type(self.estimator).__name__}"
            )
        if not (self.estimator.capabilities.predicts_by_decode or isinstance(self.estimator, OWN)):
            raise ValueError(
                "estimator: expected a decoder whose labels are those of decode, which rules hold, got "
                f"{self.estimator!r}"
            )
        self._check_settings()
        labels = self._encode(y)
        if self.binarizer_ is not None:
            raise ValueError("y: expected a label matrix, over whose columns rules can be, got classes")
        rules = self._rules()
        estimator: Any = clone(self.estimator)
        self.estimator_ = estimator.fit(X, y, **fit_params)
        self.num_violations_ = _violations(rules, labels)
        return self

    @watched
    @of_label_columns
    def decode(
        self,
        X: Rows,
        known: ArrayLike | None = None,
        top_k: int = 1,
        constraints: Rules | None = None,
    ) -> Decoding:
        """The best labelling that obeys the rules, by the estimator's objective, with its certificate.

        Args:
            X: instances, as the estimator takes them.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
            top_k: how many labellings, best first.
            constraints: further rules, for this call.

        Raises:
            ValueError: what is known contradicts the rules; see
                :func:`inference.under_rules.constrained.decode`.
        """
        check_is_fitted(self)
        rules = self._rules(constraints)
        if self.estimator_.capabilities.searches_under_rules:
            return self.estimator_.decode(X, known=known, top_k=top_k, constraints=rules)
        return decode_around(self._freely(), X, rules, known, top_k, self.part_limit)

    @watched
    @of_label_columns
    def predict(self, X: Rows, known: ArrayLike | None = None) -> Any:
        """Labels (instances, labels) that obey all rules; ``known`` as in :meth:`decode`.

        CSR where the estimator has ``sparse_output``.
        """
        check_is_fitted(self)
        if (ruled := self._ruled()) is not None:
            return ruled.predict(X, known)
        if getattr(self.estimator_, "sparse_output", False):
            return predicted_sparse(self._predict, X, known, self.classes_)
        return self._predict(X, known)

    def _predict(self, X: Rows, known: ArrayLike | None) -> np.ndarray:
        return self._values(self.decode(X, known).labels.cpu().numpy())

    @available_if(_has_probabilities)
    def predict_proba(self, X: Rows) -> np.ndarray:
        """P(y_i = 1 | x, y obeys all rules), (instances, labels), exactly.

        Raises:
            ValueError: see :meth:`marginals`.
        """
        return self.marginals(X).labels.cpu().numpy()

    @available_if(_has_probabilities)
    def marginals(self, X: Rows) -> Marginals:
        """The estimator's distribution, given that all rules are obeyed: each label's probability, exactly.

        By enumeration of at most 22 labels, beyond that by a junction tree, of networks with few parents and
        of sparse Boltzmann machines (:func:`lmbm_torch.inference.log_partition`). Of networks
        ``log_partition`` is the log of the probability of all that is allowed.

        Raises:
            ValueError: more labels than are enumerated, of a model that has no narrow junction tree.
        """
        return self._distribution(X).marginals()

    @available_if(_has_probabilities)
    @of_label_columns
    def log_prob(self, X: Rows, Y: Rows) -> np.ndarray:
        """log P(Y | x, Y obeys all rules), (instances,); −∞ where it does not.

        Args:
            X: instances, as the estimator takes them.
            Y: (instances, labels) in {0, 1}.

        Raises:
            ValueError: see :meth:`marginals`.
        """
        distribution = self._distribution(X)
        labels = label_tensor("Y", Y, distribution.energies[0])
        return distribution.log_prob(labels).cpu().numpy()

    @available_if(_has_probabilities)
    def sample(self, X: Rows, num_samples: int = 1) -> np.ndarray:
        """Label vectors drawn from P(y | x, y obeys all rules), (num_samples, instances, labels).

        Raises:
            ValueError: see :meth:`marginals`; fewer than 1 sample.
        """
        check_count("num_samples", num_samples)
        distribution = self._distribution(X)
        generator = torch.Generator(distribution.energies[0].device).manual_seed(self.estimator_._seed())
        return self._values(distribution.sample(num_samples, generator).cpu().numpy())

    def binding_rules(self, X: Rows) -> list[list[str]]:
        """The rules, as text, that each instance's answer would break without them."""
        check_is_fitted(self)
        if (ruled := self._ruled()) is not None:
            return ruled.binding_rules(X)
        return self._rules().broken(self._freely().decode(X).labels.cpu().numpy())

    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Why one instance has its labels, with the rules that it would break without them.

        Args:
            X, reference, num_features: see :meth:`LMSBNClassifier.explain`, of which this is the explanation
                of other labels: where a label cannot be otherwise, ``otherwise`` is None.
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

        decode = where_allowed(nameless.decode, nameless._rules())
        rules = tuple(dict.fromkeys(nameless.binding_rules(X)[0]))
        return explanation(fields, decode, X, num_features, rules)

    def _encode(self, y: Any) -> Any:
        """Sparse label matrices in {0, 1} stay sparse."""
        if not is_sparse_and_binary(y):
            return super()._encode(y)
        self.classes_ = np.tile([0, 1], (y.shape[1], 1))
        self._note_labels(y.shape[1])
        return sparse_label_matrix(y)

    def _distribution(self, X: Rows) -> AllowedDistribution:
        check_is_fitted(self)
        X = canonical(X) if sparse.issparse(X) else X
        energies = self.estimator_.calibrated(self.estimator_.energies(X))
        return AllowedDistribution(energies, self._rules())

    def _rules(self, more: Rules | None = None) -> rules_of.Constraints:
        """The rules over the labels of ``fit``, the estimator's own among them, and ``more``."""
        names = self.label_names_
        assert names is not None
        own = self.estimator._given_rules if isinstance(self.estimator, OWN) else ()
        return rules_over(names, *own, self.constraints, _hierarchy(self.hierarchy, names), more)

    def _ruled(self) -> Any:
        """The fitted estimator with all rules for its own; None where its predictions are those of decode."""
        predicts_by_decode = self.estimator_.capabilities.predicts_by_decode
        return None if predicts_by_decode else self.estimator_.with_rules(self._rules())

    def _freely(self) -> Any:
        """The fitted estimator without rules of its own."""
        return self.estimator_.with_rules(None) if isinstance(self.estimator_, OWN) else self.estimator_


def _violations(rules: rules_of.Constraints, labels: Any) -> dict[str, int]:
    """Rule → how many of the complete label vectors (instances, labels), dense or sparse, break it."""
    found: Counter[str] = Counter()
    for rows in gen_batches(labels.shape[0], rows_at_once(labels.shape[1])):
        batch = dense(labels[rows])
        for texts in rules.broken(batch[~np.isnan(batch).any(1)]):
            found.update(set(texts))
    return dict(found)


def _hierarchy(given: str | Mapping[Any, Any] | None, names: Iterable[str]) -> tuple[rules_of.Rule, ...]:
    if given is None:
        return ()
    return rules_of.hierarchy(rules_of.parents_by_path(names, given) if isinstance(given, str) else given)
