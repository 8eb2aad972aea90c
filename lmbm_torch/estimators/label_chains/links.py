"""The links of a classifier chain: a classifier for each label, given the instance and earlier labels.

Label columns of any classes are converted to codes 0 … classes − 1 and back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from scipy import sparse
from sklearn.base import ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter

from lmbm_torch.checks import check_shape, is_missing
from lmbm_torch.data.features import numbered
from lmbm_torch.data.rows import own_values, some_instances
from lmbm_torch.estimators.common.calls import answer_call
from lmbm_torch.estimators.common.saving import StoredEstimator
from lmbm_torch.estimators.common.targets import declared_values, exact_match

MISSING = -1


@dataclass(frozen=True, eq=False)
class LabelColumns:
    """The classes of each label.

    Args:
        names: names of the columns.
        classes: classes of each column, ascending or in the order of declared categories; 0 and 1 for a
            column of zeros and ones. If no column has more than two classes, each column gets two: a column
            with a single class gets the classes of all columns, if there are two, else the class twice.
    """

    names: tuple[str, ...]
    classes: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, y: Any) -> tuple[LabelColumns, np.ndarray]:
        """Return the label columns of ``y``, (instances, labels), and each value as the code of a class.

        NaN and None have the code ``MISSING``.

        Raises:
            ValueError: ``y`` has a wrong shape; or a label has no known value, classes that cannot be sorted,
                or numbers that are not integers.
        """
        names, values, declared = _columns(y)
        known = [~is_missing(column) for column in values]
        found = [column[own] for column, own in zip(values, known, strict=True)]
        for name, own in zip(names, found, strict=True):
            if not len(own):
                raise ValueError(f"y: expected a known value of each label, got no known value of {name}")
            if own.dtype.kind == "f" and not (np.isfinite(own) & (own == np.round(own))).all():
                strange = own[~(np.isfinite(own) & (own == np.round(own)))]
                raise ValueError(f"y: expected integers as classes, got {strange[0]} in label {name}")
        classes = _classes(names, found, declared)
        columns = cls(names, classes)
        return columns, columns.encode("y", y, len(values[0]))

    @property
    def num_states(self) -> tuple[int, ...]:
        """Return the number of classes of each label."""
        return tuple(map(len, self.classes))

    @property
    def are_binary(self) -> bool:
        """Return whether every label has two values; the second value has the code 1."""
        return all(len(classes) == 2 for classes in self.classes)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Convert codes (…, labels) to values.

        The array has the type object if a value is missing, or if labels have different types.

        Args:
            codes: codes of classes; ``MISSING`` and NaN become None.
        """
        missing = (codes == MISSING) | (codes != codes)
        codes = np.where(missing, 0, codes).astype(np.int64)
        columns = [classes[codes[..., label]] for label, classes in enumerate(self.classes)]
        kinds = {column.dtype.kind for column in columns}
        if len(kinds) > 1 and not kinds <= set("biuf"):
            columns = [column.astype(object) for column in columns]
        values = np.stack(columns, -1)
        return np.where(missing, cast(Any, None), values.astype(object)) if missing.any() else values

    def encode(self, name: str, values: Any, instances: int) -> np.ndarray:
        """Convert values (instances, labels) to codes; NaN and None become ``MISSING``.

        Raises:
            ValueError: the values have a wrong shape, or a value did not occur in training.
        """
        _, columns, _ = _columns(values)
        check_shape(name, np.empty((len(columns[0]), len(columns))), instances, len(self.classes))
        codes = np.full((instances, len(columns)), MISSING)
        for label, (column, classes) in enumerate(zip(columns, self.classes, strict=True)):
            known = ~is_missing(column)
            is_class = column[known][:, None] == classes
            strange = ~is_class.any(1)
            if strange.any():
                raise ValueError(
                    f"{name}: expected classes {classes.tolist()} for label {self.names[label]}, "
                    f"got {column[known][strange][0]!r}"
                )
            codes[known, label] = is_class.argmax(1)
        return codes


def _columns(y: Any) -> tuple[tuple[str, ...], list[np.ndarray], list[Any]]:
    """Return the name, the values, and the declared categories (or None) of each column."""
    if hasattr(y, "columns"):
        check_shape("y", y, None, None)
        declared = declared_values(y) or [None] * y.shape[1]
        return tuple(map(str, y.columns)), [y[name].to_numpy() for name in y.columns], declared
    table = y.toarray() if sparse.issparse(y) else np.asarray(y)
    check_shape("y", table, None, None)
    return numbered("label", table.shape[1]), list(table.T), [None] * table.shape[1]


def _classes(
    names: Sequence[str], columns: Sequence[np.ndarray], declared: Sequence[Any]
) -> tuple[np.ndarray, ...]:
    """Return the classes of each label, see :func:`~lmbm_torch.data.rows.own_values`."""
    classes: list[Any] = [None] * len(names)
    for name, column in zip(names, columns, strict=True):
        try:
            sorted({*column.tolist()})
        except TypeError as mixed:
            raise ValueError(f"y: expected classes of one type, got several types in label {name}") from mixed
    are_texts = np.array([isinstance(column[0], str) for column in columns])
    for places in (np.flatnonzero(are_texts).tolist(), np.flatnonzero(~are_texts).tolist()):
        found = own_values([columns[at].tolist() for at in places], [declared[at] for at in places])
        for at, own in zip(places, found, strict=True):
            is_bit = all(isinstance(value, int | float) and value in (0, 1) for value in own)
            classes[at] = np.array([0, 1]) if is_bit else np.array(own, columns[at].dtype)
    if all(len(each) <= 2 for each in classes):
        classes = [each[[0, -1]] for each in classes]
    return tuple(classes)


class ClassifierOfLabels(MetaEstimatorMixin, ClassifierMixin, StoredEstimator):
    """A base class of classifiers of label matrices that wrap a scikit-learn ``estimator``."""

    holds_others: ClassVar[bool] = True

    estimator: Any

    @answer_call
    def score(self, X, y, sample_weight=None) -> float:
        """Return the exact match: the share of instances whose known labels are all right."""
        truth = y.toarray() if sparse.issparse(y) else np.asarray(y)
        return exact_match(truth, self.predict(X), sample_weight)

    @abstractmethod
    def predict(self, X) -> Any:
        """Return labels (instances, labels)."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.classifier_tags.multi_label = True
        # Ignore errors here, because ``fit`` refuses estimators that are not classifiers.
        with suppress(AttributeError, TypeError):
            tags.input_tags = get_tags(self.estimator).input_tags
        return tags


@dataclass(frozen=True, eq=False)
class Link:
    """A fitted classifier of a single label, given the instance and the earlier labels of a chain.

    In a pipeline, earlier labels are appended to the inputs of the last step. Instances may therefore have
    any form for the first step, such as texts.

    Args:
        steps: the fitted steps of a pipeline before the last step; None without such steps.
        classifier: the classifier, fitted to codes of the label.
        states: number of classes of the label.
        earlier_states: number of classes of each earlier label.
    """

    steps: Pipeline | None
    classifier: Any
    states: int
    earlier_states: tuple[int, ...]

    @classmethod
    def fit(
        cls,
        estimator: Any,
        X: Any,
        codes: np.ndarray,
        earlier: np.ndarray,
        states: int,
        earlier_states: tuple[int, ...],
        weight: np.ndarray | None,
    ) -> Link:
        """Train on the instances with a known label; a label with a single class is constant.

        Args:
            estimator: an unfitted classifier.
            codes: codes of the label (instances,), ``MISSING`` if unknown.
            earlier: codes of earlier labels (instances, earlier labels).
            weight: (instances,), sample weights.
        """
        known = np.flatnonzero(codes != MISSING)
        X, codes, earlier = some_instances(X, known), codes[known], earlier[known]
        is_constant = (codes == codes[0]).all()
        steps = None
        classifier: Any = DummyClassifier(strategy="prior") if is_constant else clone(estimator)
        if isinstance(classifier, Pipeline):
            steps, classifier = classifier[:-1], classifier.steps[-1][1]
            if not steps.steps:
                steps = None
            else:
                X = steps.fit_transform(X, codes)
        given = {} if weight is None else {"sample_weight": weight[known]}
        if is_constant:
            classifier.fit(np.zeros((len(codes), 1)), codes)
        else:
            classifier.fit(with_labels(X, earlier, earlier_states), codes, **given)
        return cls(steps, classifier, states, earlier_states)

    def inputs(self, X: Any) -> Any:
        """Convert instances to the classifier's inputs, for :meth:`log_proba`."""
        return X if self.steps is None else self.steps.transform(X)

    def log_proba(self, inputs: Any, rows: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Return log P(label | instance, earlier labels), (nodes, states); −∞ for classes never seen.

        A node is a search node: an instance with some values of the earlier labels.

        Args:
            inputs: see :meth:`inputs`.
            rows: (nodes,), the index of each node's instance in ``inputs``.
            earlier: codes of earlier labels (nodes, earlier labels).
        """
        if isinstance(self.classifier, DummyClassifier) and len(self.classifier.classes_) == 1:
            came = np.ones((len(rows), 1))
        else:
            chosen = some_instances(inputs, rows)
            came = self.classifier.predict_proba(with_labels(chosen, earlier, self.earlier_states))
        table = np.zeros((len(rows), self.states))
        table[:, self.classifier.classes_] = came
        with np.errstate(divide="ignore"):
            return np.log(table)

    def most_probable(self, X: Any, earlier: np.ndarray) -> np.ndarray:
        """Return for each instance the code of the label's most probable class, (instances,)."""
        return self.log_proba(self.inputs(X), np.arange(len(earlier)), earlier).argmax(1)


def check_classifier(estimator: Any, *, is_weighted: bool) -> None:
    """Check that an estimator can be a link of a chain, and raise an error otherwise.

    Raises:
        TypeError: the estimator is not a scikit-learn classifier, or has no ``predict_proba``.
        ValueError: there are weights, but the estimator's ``fit`` takes no ``sample_weight``.
    """
    name = type(estimator).__name__
    if isinstance(estimator, type) or not hasattr(estimator, "fit") or not hasattr(estimator, "get_params"):
        raise TypeError(f"estimator: expected a classifier like those of scikit-learn, got {estimator!r}")
    if not hasattr(estimator, "predict_proba"):
        raise TypeError(
            f"estimator: expected a classifier with predict_proba, got {name}, which has none; "
            "wrap it in CalibratedClassifierCV"
        )
    last = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    if is_weighted and not has_fit_parameter(last, "sample_weight"):
        raise ValueError(
            "estimator: expected a classifier with sample_weight in fit, for class_weight or sample_weight, "
            f"got {type(last).__name__}"
        )


def with_labels(X: Any, codes: np.ndarray, states: tuple[int, ...]) -> Any:
    """Append labels to features: one column for a label of two classes, else a column for each class.

    Args:
        X: features: an array, a sparse matrix or a data frame; the result has the same form.
        codes: (instances, labels).
        states: number of classes of each label.
    """
    if not states:
        return X
    columns = np.hstack(
        [
            codes[:, [label]] if count <= 2 else codes[:, [label]] == np.arange(count)
            for label, count in enumerate(states)
        ]
    )
    # Convert a pandas data frame whose columns are all sparse to a sparse matrix.
    X = X.sparse.to_coo().tocsr() if hasattr(X, "columns") and hasattr(X, "sparse") else X
    if sparse.issparse(X):
        return sparse.hstack([X, sparse.csr_array(columns.astype(X.dtype))], format="csr")
    if hasattr(X, "columns"):
        names = [f"label before: {column}" for column in range(columns.shape[1])]
        values = columns.astype(np.float64).T
        if hasattr(X, "assign"):
            if not all(isinstance(name, str) for name in X.columns):
                # Convert column names to texts, because scikit-learn refuses names of different types.
                X = X.rename(columns=str)
            return X.assign(**dict(zip(names, values, strict=True)))
        # Build the new columns as polars series, because X is a polars data frame.
        series = type(X.to_series())
        return X.hstack([series(name, column) for name, column in zip(names, values, strict=True)])
    X = np.asarray(X)
    if X.ndim != 2 or X.dtype.kind not in "biufO":
        raise ValueError(
            f"X: expected numeric features (instances, features), got {X.dtype} of shape {X.shape}; for "
            "texts use a pipeline whose first step makes features"
        )
    return np.hstack([X, columns.astype(X.dtype if X.dtype.kind == "f" else np.float64)])
