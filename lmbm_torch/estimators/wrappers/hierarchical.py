"""Hierarchical multi-label classification with any classifier; all answers obey the hierarchy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from lmbm_torch.checks import check_shape
from lmbm_torch.data.features import numbered
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.estimators.common import targets
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.settings import Constraints, HasMethods, StrOptions, check_parameters
from lmbm_torch.estimators.explain.explanations import Answer, Explanation, explanation
from lmbm_torch.estimators.explain.hierarchies import HierarchyFields, means_of
from lmbm_torch.estimators.label_chains.links import ClassifierOfLabels, check_classifier
from lmbm_torch.estimators.wrappers.label_forest import ROOT, LabelForest


class HierarchicalClassifier(ClassifierOfLabels):
    """A hierarchical multi-label classifier: a label needs its parent, and is at most as probable.

    With ``scope="all"`` the estimator is fitted once, to all labels, and each label becomes as probable as
    its most probable descendant (Giunchiglia and Lukasiewicz 2020); trees, whose leaves average label
    vectors, need no correction (Vens et al. 2008). With ``scope="parent"`` the children of each label have
    their own estimator, fitted to the instances with the label (Silla and Freitas 2011, local classifiers per
    parent node), and probabilities are multiplied along the path. In both cases labels are independent given
    their ancestors, P(y) = Π_k P(y_k | y_parent(k)), and decoding uses this distribution. Means of the
    probabilities of several classifiers obey the hierarchy, too.

    Args:
        estimator: a classifier of label matrices with ``predict_proba``, such as a forest of scikit-learn, or
            ``MultiOutputClassifier`` of any classifier.
        hierarchy: label → its parent, by name or index; or the separator of names that are paths, such as
            ``"/"`` for 01/01/03. Labels without a parent are roots.
        scope: ``"all"`` or ``"parent"``.
        decoder: optimised measure of :meth:`predict`: the expectation of ``"hamming"`` (labels of a
            probability above one half), or ``"exact_match"`` (the most probable label vector).

    Attributes:
        forest_: the hierarchy, whose ``parents`` are indices.
        classes_: (labels, 2), the two values of each label.
        label_names_: columns of a data frame, or label_0, label_1, …
        members_: the fitted estimators.
        feature_means_: (features,), means of the training instances, the default reference of explanations;
            None for instances that are not numeric.
        n_features_in_: number of features, if X has one.

    Examples:
        >>> import numpy as np
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> from lmbm_torch.estimators import HierarchicalClassifier
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> model = HierarchicalClassifier(DecisionTreeClassifier(random_state=0), {0: 1})
        >>> model.fit(X, np.array(y)).predict([[2.5]])
        array([[1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        "estimator": [HasMethods(["fit"])],
        "hierarchy": [str, dict],
        "scope": [StrOptions({"all", "parent"})],
        "decoder": [StrOptions({"hamming", "exact_match"})],
    }

    def __init__(self, estimator, hierarchy: str | dict = "/", *, scope="all", decoder="hamming"):
        self.estimator = estimator
        self.hierarchy = hierarchy
        self.scope = scope
        self.decoder = decoder

    @fit_call
    def fit(self, X, y) -> Self:
        """Train on instances, in the estimator's form, and labels (instances, labels).

        Args:
            X: features.
            y: {0, 1}, each label with its parent, and NaN for missing labels if the estimator takes NaN; the
                column names of a data frame are kept.

        Raises:
            TypeError: an estimator that is not a classifier, or without ``predict_proba``.
            ValueError: labels without their parents, a hierarchy of other labels, or another invalid
                parameter or input, named in the message.
        """
        check_parameters(self)
        check_classifier(self.estimator, is_weighted=False)
        X = self._validated(X, reset=True)
        targets.check_given(self, y)
        labels = targets.label_matrix("y", y, allow_missing=True)
        labels = labels if np.isnan(labels).any() else labels.astype(np.int64)
        check_shape("y", labels, num_instances(X), None)
        names = tuple(map(str, y.columns)) if hasattr(y, "columns") else numbered("label", labels.shape[1])
        self.label_names_ = names
        self.classes_ = np.tile([0, 1], (len(names), 1))
        self.forest_ = LabelForest.of(self.hierarchy, names)
        self.forest_.check_closed(labels)
        self.feature_means_ = means_of(X)
        self.members_ = [
            _Member.fit(self.estimator, X, labels, parent, children) for parent, children in self._families()
        ]
        return self

    @answer_call
    def predict_proba(self, X) -> np.ndarray:
        """Return P(y_i = 1 | x), (instances, labels), at most the parent's probability."""
        check_is_fitted(self)
        found = self.uncorrected(self._validated(X, reset=False))
        return self.forest_.raised(found) if self.scope == "all" else self.forest_.multiplied(found)

    def uncorrected(self, X: Any) -> np.ndarray:
        """Return the estimators' probabilities for validated instances, (instances, labels).

        P(y_i = 1 | x), which may violate the hierarchy; or, with the scope ``"parent"``, P(y_i = 1 | x,
        parent).
        """
        found = np.zeros((num_instances(X), len(self.label_names_)))
        for member in self.members_:
            found[:, member.labels] = member.probability(X)
        return found

    @answer_call
    def predict(self, X) -> np.ndarray:
        """Return labels (instances, labels) in {0, 1}, each with its parent, by ``decoder``."""
        check_parameters(self)
        probability = self.predict_proba(X)
        if self.decoder == "hamming":
            return (probability > 0.5).astype(np.int64)
        return self.forest_.most_probable(self.forest_.conditionals(probability))

    @answer_call
    def log_prob(self, X, Y) -> np.ndarray:
        """Return log P(Y | x) of whole label vectors, (instances,); −∞ for a label without its parent.

        Args:
            X: see :meth:`fit`.
            Y: (instances, labels) in {0, 1}.
        """
        probability = self.predict_proba(X)
        labels = targets.label_matrix("Y", Y, allow_missing=False)
        check_shape("Y", labels, *probability.shape)
        return self.forest_.log_prob(self.forest_.conditionals(probability), labels)

    @answer_call
    def predict_names(self, X) -> list[tuple[str, ...]]:
        """Return the names of the predicted labels of each instance."""
        names = np.asarray(self.label_names_)
        return [tuple(names[row == 1]) for row in self.predict(X)]

    @answer_call
    def explain(self, X: Any, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Return an explanation of the labels of one instance.

        Args:
            X: one instance in the estimator's form.
            reference: (features,), baseline of the contributions to linear classifiers, and value of a
                left-out feature; by default the training means.
            num_features: number of the features that change a probability most, set to the reference one at a
                time, to see which labels change; 0 for instances that are not numeric.

        Returns:
            Each label's probability: for trees and linear classifiers, one for each label
            (``MultiOutputClassifier``), alone or in a pipeline, a sum of contributions, see
            :class:`~lmbm_torch.estimators.explain.hierarchies.HierarchyFields`. And the labels affected by a
            change
            of the label under the hierarchy. See
            :class:`~lmbm_torch.estimators.explain.explanations.Explanation`.

        Raises:
            ModuleNotFoundError: trees, without ``shap``.
            ValueError: several instances, a reference of another shape.
        """
        check_parameters(self)
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        fields = HierarchyFields(self, reference)
        return explanation(fields, self._answer, X, num_features, fields.binding(X))

    def _answer(self, X: Any, known: np.ndarray | None) -> Answer | None:
        """Return the answer for an instance; None if the known value has probability 0."""
        forest, probability = self.forest_, self.predict_proba(X)
        conditional = forest.conditionals(probability)
        updated = conditional
        if known is not None:
            (label,) = np.flatnonzero(~np.isnan(known[0])).tolist()
            if probability[0, label] == 1 - known[0, label]:
                return None
            updated = forest.given(conditional, label, is_present=bool(known[0, label]))
            probability = forest.multiplied(updated)
        if self.decoder == "hamming":
            return Answer.of((probability > 0.5).astype(np.int64))
        labels = forest.most_probable(updated)
        return Answer(torch.from_numpy(labels), torch.from_numpy(forest.log_prob(conditional, labels)))

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Check the instances; the estimator checks their values."""
        X = targets.with_rows(X)
        validate_data(self, X, skip_check_array=True, reset=reset)
        return X

    def _families(self) -> Iterator[tuple[int, np.ndarray]]:
        """Return parents, and the labels trained on the instances of each parent."""
        if self.scope == "parent":
            return self.forest_.families()
        return iter([(ROOT, np.arange(len(self.label_names_)))])


@dataclass(frozen=True, eq=False)
class _Member:
    """A fitted estimator of some labels; labels without variation in training are constant.

    Args:
        estimator: None if no label varies.
        labels: (labels,), indices.
        is_varying: (labels,), which labels the estimator predicts.
        constant: (labels,), the values of constant labels.
    """

    estimator: Any
    labels: np.ndarray
    is_varying: np.ndarray
    constant: np.ndarray

    @classmethod
    def fit(cls, estimator: Any, X: Any, labels: np.ndarray, parent: int, children: np.ndarray) -> _Member:
        """Train the children of a label on the instances with the label."""
        rows = np.arange(len(labels)) if parent == ROOT else np.flatnonzero(labels[:, parent] == 1)
        rows = rows[~np.isnan(labels[np.ix_(rows, children)]).all(1)]
        own = labels[np.ix_(rows, children)]
        # Least and largest known values.
        constant = np.fmax.reduce(own, 0, initial=0)
        is_varying = np.fmin.reduce(own, 0, initial=1) < constant
        fitted = None
        if is_varying.any():
            target = own[:, is_varying]
            last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
            if target.shape[1] == 1 and get_tags(last).target_tags.single_output:
                target = target[:, 0]
            unfitted: Any = clone(estimator)
            fitted = unfitted.fit(some_instances(X, rows), target)
        return cls(fitted, children, is_varying, constant)

    def probability(self, X: Any) -> np.ndarray:
        """Return P(label = 1) of the labels, (instances, labels)."""
        found = np.tile(self.constant.astype(np.float64), (num_instances(X), 1))
        if self.estimator is not None:
            found[:, self.is_varying] = _of_ones(self.estimator.predict_proba(X), int(self.is_varying.sum()))
        return found


def _of_ones(given: Any, num_labels: int) -> np.ndarray:
    """Return P(label = 1), (instances, labels), from any form of scikit-learn's ``predict_proba``."""
    if isinstance(given, list):
        return np.stack([np.asarray(table)[:, 1] for table in given], 1)
    table = np.asarray(given)
    return table[:, [-1]] if num_labels == 1 else table
