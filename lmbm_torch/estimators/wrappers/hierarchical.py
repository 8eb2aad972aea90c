"""Hierarchical multi-label classification by any classifier; all answers obey the hierarchy."""

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
    """A hierarchical multi-label classifier: a label needs the parent, and is at most as probable.

    With ``scope="all"`` the estimator is fitted once, to all labels, and the probability of each label is
    raised to that of the most probable descendant (Giunchiglia and Lukasiewicz 2020); decision trees, whose
    leaves average label vectors, need no correction (Vens et al. 2008). With ``scope="parent"`` an estimator
    for the children of each label is fitted to the instances with the label (Silla and Freitas 2011, local
    classifiers per parent node), and probabilities are multiplied along the path. In both cases labels are
    independent given the ancestors, P(y) = Π_k P(y_k | y_parent(k)), and decoding uses the distribution.
    Means of the probabilities of several such classifiers obey the hierarchy, too.

    Args:
        estimator: a classifier of label matrices with ``predict_proba``, such as a forest of scikit-learn, or
            ``MultiOutputClassifier`` of any classifier.
        hierarchy: a dictionary from labels to parents, by name or index; or the separator of names that are
            paths, such as ``"/"`` for 01/01/03. Labels without a parent are roots.
        scope: ``"all"`` or ``"parent"``.
        decoder: the measure whose expected value :meth:`predict` maximises: ``"hamming"`` (labels with a
            probability above one half), or ``"exact_match"`` (the most probable label vector).

    Attributes:
        forest_: the hierarchy; ``forest_.parents`` holds indices.
        classes_: (labels, 2), the two values of each label.
        label_names_: column names of a data frame, or label_0, label_1, …
        members_: the fitted estimators.
        feature_means_: (features,), means of the training instances, the default reference of explanations;
            None if the instances are not numeric.
        n_features_in_: number of features; absent if X has no columns.

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
        """Fit the estimators to instances and labels.

        Args:
            X: instances in the estimator's form.
            y: (instances, labels) in {0, 1}; a label is present only if the parent is. NaN for missing labels
                if the estimator takes NaN. The column names of a data frame are kept.

        Raises:
            TypeError: the estimator is not a classifier, or has no ``predict_proba``.
            ValueError: a label is present without the parent, the hierarchy has unknown labels, or a
                parameter or input is invalid.
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
        """Return P(y_i = 1 | x), (instances, labels); no label is more probable than the parent."""
        check_is_fitted(self)
        found = self.uncorrected(self._validated(X, reset=False))
        return self.forest_.raised(found) if self.scope == "all" else self.forest_.multiplied(found)

    def uncorrected(self, X: Any) -> np.ndarray:
        """Return the probabilities of the estimators for validated instances, (instances, labels).

        With ``scope="all"`` these are P(y_i = 1 | x), which may violate the hierarchy; with
        ``scope="parent"`` P(y_i = 1 | x, y_parent(i) = 1).
        """
        found = np.zeros((num_instances(X), len(self.label_names_)))
        for member in self.members_:
            found[:, member.labels] = member.probability(X)
        return found

    @answer_call
    def predict(self, X) -> np.ndarray:
        """Return the labels (instances, labels) in {0, 1} that ``decoder`` chooses, each with the parent."""
        check_parameters(self)
        probability = self.predict_proba(X)
        if self.decoder == "hamming":
            return (probability > 0.5).astype(np.int64)
        return self.forest_.most_probable(self.forest_.conditionals(probability))

    @answer_call
    def log_prob(self, X, Y) -> np.ndarray:
        """Return log P(Y | x) of whole label vectors, (instances,); −∞ if a label is without the parent.

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
        """Explain the labels of one instance.

        Args:
            X: one instance in the estimator's form.
            reference: (features,), values of features that are left out, and the baseline for contributions
                to linear classifiers; by default the training means.
            num_features: number of features to set to the reference, one at a time, to see which labels
                change: the features that change a probability most; 0 if instances are not numeric.

        Returns:
            An :class:`~lmbm_torch.estimators.explain.explanations.Explanation`: the probability of each
            label, and the labels that change with the label under the hierarchy. For decision trees and
            linear classifiers, also one for each label (``MultiOutputClassifier``) or in a pipeline, the
            probability is a sum of contributions, see
            :class:`~lmbm_torch.estimators.explain.hierarchies.HierarchyFields`.

        Raises:
            ModuleNotFoundError: the estimator has trees, and ``shap`` is not installed.
            ValueError: X has several instances, or the reference has another shape than (features,).
        """
        check_parameters(self)
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        fields = HierarchyFields(self, reference)
        return explanation(fields, self._answer, X, num_features, fields.binding(X))

    def _answer(self, X: Any, known: np.ndarray | None) -> Answer | None:
        """Return the answer for an instance; None if the known value of a label has probability 0."""
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
        """Check the number and the names of features; the estimator checks the values."""
        X = targets.with_rows(X)
        validate_data(self, X, skip_check_array=True, reset=reset)
        return X

    def _families(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each parent with the labels that are trained on the instances of the parent."""
        if self.scope == "parent":
            return self.forest_.families()
        return iter([(ROOT, np.arange(len(self.label_names_)))])


@dataclass(frozen=True, eq=False)
class _Member:
    """A fitted estimator of some labels; labels with only one value in training are constant.

    Args:
        estimator: the fitted estimator; None if all labels are constant.
        labels: (labels,), indices of the labels.
        is_varying: (labels,), whether the estimator predicts the label.
        constant: (labels,), the values of constant labels.
    """

    estimator: Any
    labels: np.ndarray
    is_varying: np.ndarray
    constant: np.ndarray

    @classmethod
    def fit(cls, estimator: Any, X: Any, labels: np.ndarray, parent: int, children: np.ndarray) -> _Member:
        """Fit a copy of the estimator to the children of a label, on the instances with the label."""
        rows = np.arange(len(labels)) if parent == ROOT else np.flatnonzero(labels[:, parent] == 1)
        rows = rows[~np.isnan(labels[np.ix_(rows, children)]).all(1)]
        own = labels[np.ix_(rows, children)]
        # A label is constant if the smallest and the largest known value are equal.
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
        """Return P(label = 1) for the labels of the estimator, (instances, labels)."""
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
