"""Hierarchical multi-label classification by any classifier; all predictions obey the hierarchy."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from lmbm_torch.checks import check_shape
from lmbm_torch.constraints.rules import parents_by_path
from lmbm_torch.data.features import numbered
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.estimators.common import targets
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.settings import Constraints, HasMethods, StrOptions, check_parameters
from lmbm_torch.estimators.explain.explanations import Answer, Explanation, explanation
from lmbm_torch.estimators.explain.parts import HierarchyFields, means_of
from lmbm_torch.estimators.label_chains.links import ClassifierOfLabels, check_classifier

ROOT = -1


@dataclass(frozen=True, eq=False)
class LabelForest:
    """A hierarchy of labels, in which a label is present only if the label's parent is present.

    Args:
        names: names of the labels.
        parents: (labels,), the index of each label's parent; ``ROOT`` for labels without a parent.

    Raises:
        ValueError: the parents form a circle.
    """

    names: tuple[str, ...]
    parents: np.ndarray

    def __post_init__(self) -> None:
        _ = self.order

    @classmethod
    def of(cls, hierarchy: str | Mapping[Any, Any], names: Sequence[str]) -> LabelForest:
        """Build the forest of a hierarchy.

        Args:
            hierarchy: a dictionary from labels to parents, by name or index; or the separator of names that
                are paths, such as ``"/"`` for 01/01/03.
            names: names of all labels.

        Raises:
            ValueError: a label is not among ``names``, or the parents form a circle.
        """
        given = parents_by_path(names, hierarchy) if isinstance(hierarchy, str) else hierarchy
        places: dict[Any, int] = {name: place for place, name in enumerate(names)}
        places |= {place: place for place in range(len(names))}
        parents = np.full(len(names), ROOT)
        for pair in given.items():
            unknown = [label for label in pair if not isinstance(label, Hashable) or label not in places]
            if unknown:
                raise ValueError(f"hierarchy: expected names or indices of labels, got {unknown[0]!r}")
            child, parent = pair
            parents[places[child]] = places[parent]
        return cls(tuple(names), parents)

    @cached_property
    def order(self) -> np.ndarray:
        """Return the indices of the labels, ordered so that parents come before their children, (labels,)."""
        depth = np.zeros(len(self.parents), int)
        above = self.parents.copy()
        while (above != ROOT).any():
            depth += above != ROOT
            if depth.max() >= len(depth):
                circle = [self.names[label] for label in np.flatnonzero(above != ROOT)]
                raise ValueError(f"hierarchy: expected no circle, got a circle above {circle[0]!r}")
            above = np.where(above == ROOT, ROOT, self.parents[above])
        return np.argsort(depth, kind="stable")

    def families(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each parent and its children, parents first; the parent of labels without one is ``ROOT``."""
        for parent in (ROOT, *self.order.tolist()):
            children = np.flatnonzero(self.parents == parent)
            if len(children):
                yield parent, children

    def check_closed(self, labels: np.ndarray) -> None:
        """Raise ValueError if a row of labels (instances, labels) has a label without the label's parent."""
        check_shape("y", labels, None, len(self.parents))
        rows, places = (labels[:, self._children] > labels[:, self._parents]).nonzero()
        if len(rows):
            child = self._children[places[0]]
            raise ValueError(
                f"y: expected labels together with their parents, got {self.names[child]!r} without "
                f"{self.names[self.parents[child]]!r} in row {rows[0]}"
            )

    def raised(self, probability: np.ndarray) -> np.ndarray:
        """Raise each label's probability to the largest probability of its descendants, (instances, labels).

        This is the max constraint module of Giunchiglia and Lukasiewicz (2020), eq. 1. Probabilities that
        obey the hierarchy stay unchanged.
        """
        probability = probability.copy()
        for label in self.order[::-1]:
            parent = self.parents[label]
            if parent != ROOT:
                np.maximum(probability[:, parent], probability[:, label], out=probability[:, parent])
        return probability

    def raised_from(self, probability: np.ndarray) -> np.ndarray:
        """Return for each label of an instance the label from which :meth:`raised` takes the probability."""
        source = np.arange(len(probability))
        for label in self.order[::-1]:
            parent = self.parents[label]
            if parent != ROOT and probability[source[label]] > probability[source[parent]]:
                source[parent] = source[label]
        return source

    def multiplied(self, conditional: np.ndarray) -> np.ndarray:
        """Compute P(label), (instances, labels), from P(label | parent) by products along each path."""
        probability = conditional.copy()
        for label in self.order:
            if self.parents[label] != ROOT:
                probability[:, label] *= probability[:, self.parents[label]]
        return probability

    def conditionals(self, probability: np.ndarray) -> np.ndarray:
        """Compute P(label | parent) from P(label); 0 if the parent has probability 0."""
        conditional = probability.copy()
        above = probability[:, self._parents]
        below = probability[:, self._children]
        conditional[:, self._children] = np.divide(below, above, where=above > 0, out=np.zeros_like(below))
        return conditional

    def given(self, conditional: np.ndarray, label: int, *, is_present: bool) -> np.ndarray:
        """Return the conditional probabilities given the value of one label, (instances, labels).

        Args:
            conditional: conditional probabilities before the value is known.
            label: index of the label, whose value must have a positive probability.
            is_present: the value of the label.
        """
        path = [label]
        while self.parents[path[-1]] != ROOT:
            path.append(self.parents[path[-1]])
        updated = conditional.copy()
        if is_present:
            updated[:, path] = 1
            return updated
        # For each label on the path: P(present, but ``label`` absent) is a difference, as ``label`` needs it.
        probability = self.multiplied(conditional)
        alone = probability[:, path] - probability[:, [label]]
        above = np.hstack([alone[:, 1:], 1 - probability[:, [label]]])
        updated[:, path] = np.divide(alone, above, where=above > 0, out=np.zeros_like(alone))
        return updated

    def log_prob(self, conditional: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return log P(labels) of each instance, (instances,); −∞ if a label is present without its parent.

        P(y) is the product of P(y_k | y_parent(k)).
        """
        present = np.ones(labels.shape, bool)
        present[:, self._children] = labels[:, self._parents] == 1
        chance = np.where(labels == 1, conditional, 1 - conditional)
        # If the parent is absent, the label is certainly absent.
        chance = np.where(present, chance, labels == 0)
        with np.errstate(divide="ignore"):
            return np.log(chance).sum(1)

    def most_probable(self, conditional: np.ndarray) -> np.ndarray:
        """Return the most probable label vectors (instances, labels), by dynamic programming."""
        with np.errstate(divide="ignore"):
            present, absent = np.log(conditional), np.log1p(-conditional)
        # From the leaves to the roots, compute the largest log-probability of each label's subtree given a
        # present parent, once with the label present and once absent.
        for label in self.order[::-1]:
            if self.parents[label] != ROOT:
                present[:, self.parents[label]] += np.maximum(present[:, label], absent[:, label])
        labels = (present > absent).astype(np.int64)
        for label in self.order:
            if self.parents[label] != ROOT:
                labels[:, label] &= labels[:, self.parents[label]]
        return labels

    @cached_property
    def _children(self) -> np.ndarray:
        return np.flatnonzero(self.parents != ROOT)

    @cached_property
    def _parents(self) -> np.ndarray:
        return self.parents[self._children]


class HierarchicalClassifier(ClassifierOfLabels):
    """A multi-label classifier whose labels and probabilities obey a hierarchy of the labels.

    A label is present only if its parent is, and is at most as probable as the parent. With ``scope="all"``
    the estimator is fitted once, to all labels, and the probability of each label is raised to that of the
    most probable descendant (Giunchiglia and Lukasiewicz 2020); decision trees, whose leaves average label
    vectors, need no correction (Vens et al. 2008). With ``scope="parent"`` an estimator for the children of
    each label is fitted to the instances with the label (Silla and Freitas 2011, local classifiers per parent
    node), and probabilities are multiplied along the path. In both cases each label only depends on its
    parent: P(y) = Π_k P(y_k | y_parent(k)). Means of several classifiers' probabilities are valid, too.

    Args:
        estimator: a classifier of label matrices with ``predict_proba``, such as a forest of scikit-learn, or
            ``MultiOutputClassifier`` of any classifier.
        hierarchy: a dictionary from labels to parents, by name or index; or the separator of names that are
            paths, such as ``"/"`` for 01/01/03. Labels without a parent are roots.
        scope: ``"all"`` or ``"parent"``.
        decoder: the metric whose expected value :meth:`predict` maximises: ``"hamming"`` (labels with a
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
            X: instances in the form that the estimator takes.
            y: (instances, labels) in {0, 1}; a label is present only if the parent is. NaN for missing labels
                if the estimator takes NaN. The column names of a data frame are kept.

        Raises:
            TypeError: the estimator is not a classifier, or has no ``predict_proba``.
            ValueError: a label is present without its parent, the hierarchy has unknown labels, or a
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
        """Return P(y_i = 1 | x), (instances, labels); no label is more probable than its parent."""
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
        """Predict labels (instances, labels) in {0, 1}; each present label's parent is present, too."""
        check_parameters(self)
        probability = self.predict_proba(X)
        if self.decoder == "hamming":
            return (probability > 0.5).astype(np.int64)
        return self.forest_.most_probable(self.forest_.conditionals(probability))

    @answer_call
    def log_prob(self, X, Y) -> np.ndarray:
        """Return log P(Y | x) of whole label vectors, (instances,); −∞ if a label is without its parent.

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
            X: one instance in the form that the estimator takes.
            reference: (features,), values of features that are left out, and the baseline for contributions
                to linear classifiers; by default the training means.
            num_features: number of features to set to the reference, one at a time, to see which labels
                change: the features that change a probability most; 0 if instances are not numeric.

        Returns:
            An :class:`~lmbm_torch.estimators.explain.explanations.Explanation`: the probability of each
            label, and which other labels change if the label is changed. For decision trees and linear
            classifiers, also inside of ``MultiOutputClassifier`` or a pipeline, the probability is a sum of
            contributions of the features, see
            :class:`~lmbm_torch.estimators.explain.parts.HierarchyFields`.

        Raises:
            ModuleNotFoundError: the estimator has trees, and ``shap`` is not installed.
            ValueError: X has several instances, or the reference has not the shape (features,).
        """
        check_parameters(self)
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        fields = HierarchyFields(self, reference)
        return explanation(fields, self._answer, X, num_features, fields.binding(X))

    def _answer(self, X: Any, known: np.ndarray | None) -> Answer | None:
        """Predict an instance given the known value of a label; return None if the value is impossible."""
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
        """Check only the number and the names of features, because the estimator checks the values."""
        X = targets.with_rows(X)
        validate_data(self, X, skip_check_array=True, reset=reset)
        return X

    def _families(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each parent with the labels to train on the instances in which the parent is present."""
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
        # A label needs no estimator if its smallest and its largest known value are equal.
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
            came, classes = self.estimator.predict_proba(X), getattr(self.estimator, "classes_", None)
            found[:, self.is_varying] = targets.positive_probabilities(
                came, classes, [1] * int(self.is_varying.sum())
            )
        return found
