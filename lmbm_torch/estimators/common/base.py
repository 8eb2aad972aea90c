"""Base classes of the estimators: declared settings, validated data, a report of the training."""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import cache, lru_cache
from itertools import compress
from numbers import Integral
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from lmbm_torch import constraints as rules_of
from lmbm_torch.checks import check_finite, check_labels, check_shape
from lmbm_torch.data.coding import two_valued
from lmbm_torch.data.features import numbered
from lmbm_torch.data.rows import checked_weights, num_instances
from lmbm_torch.estimators.common import targets
from lmbm_torch.estimators.common.calls import of_label_columns, progress, watched
from lmbm_torch.estimators.common.class_weights import label_weights
from lmbm_torch.estimators.common.saving import StoredEstimator
from lmbm_torch.estimators.common.settings import SHARED, Constraints, check_available, check_parameters
from lmbm_torch.estimators.common.under_rules import Rules, by_place, rules_of_fit
from lmbm_torch.fitting import recipe
from lmbm_torch.solvers.networks.problems import Features, canonical

AnEstimator = TypeVar("AnEstimator", bound=BaseEstimator)

# Instances (instances, features); data frames are array-like.
Rows = ArrayLike | sparse.sparray | sparse.spmatrix
# The forms of X that all estimators take.
# Row by row, so that frames, which keep columns together, are learned from to the last bit as arrays are.
ACCEPTED: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C"}


class TrainedEstimator(StoredEstimator):
    """An estimator that checks its settings by name, and warns if its training ended before ``tol``."""

    _accepted: ClassVar[Constraints] = SHARED

    # Parameters, of estimators that have them.
    C: Any
    C_: float
    feature_shift_: np.ndarray | float
    feature_scale_: np.ndarray | float
    objective_: Any
    duality_gap_: float
    n_iter_: int
    tol: float
    max_iter: int
    device: Any
    verbose: int
    n_features_in_: int
    random_state: Any

    @classmethod
    @cache
    def _get_param_names(cls):
        # Read off a signature anew, they are a seventh of the time of small fits in an ensemble.
        return super()._get_param_names()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.get_params(deep=False).get("kernel") == "precomputed"
        return tags

    def _check_settings(self) -> None:
        check_parameters(self)
        if hasattr(self, "device"):
            check_available(self.device)

    def _features(self, X, **options) -> Features:
        """Validated instances (instances, features), sparse ones as a CSR array."""
        return _rows(validate_data(self, X, **ACCEPTED, **options))

    def _validate_predict(self, X) -> Features:
        if not hasattr(self, "n_features_in_"):
            check_is_fitted(self)
        # All that scikit-learn's checks would find, in a twentieth of their time.
        is_plain = (
            type(X) is np.ndarray
            and X.dtype in ACCEPTED["dtype"]
            and X.ndim == 2
            and X.shape[1] == self.n_features_in_
            and len(X) > 0
            and not hasattr(self, "feature_names_in_")
            and bool(np.isfinite(X).all())
        )
        return X if is_plain else self._features(X, reset=False)

    def _scaled(self, X: Features, sample_weight: np.ndarray | None) -> Features:
        """Features to train on; notes how they came from X, and the weight ``C_`` of the losses."""
        units = recipe.units(self.C, X, sample_weight)
        self.C_, self.feature_shift_, self.feature_scale_ = units
        return units.scaled(X)

    @staticmethod
    def _array(parameter: Any) -> np.ndarray:
        """A model's parameter as the caller may keep and change it: a copy on the host."""
        return parameter.detach().cpu().numpy().copy()

    def _undo_scaling(self, model: Any) -> None:
        """Make a model of :meth:`_scaled` features one of X."""
        model.undo_scaling(self.feature_scale_, self.feature_shift_)

    def _of_features(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights (classes, features) and intercepts of :meth:`_scaled` features, as those of X."""
        coef = coef / self.feature_scale_
        return coef, intercept - (coef * self.feature_shift_).sum(1)

    def _weights(self, sample_weight, X) -> np.ndarray | None:
        if sample_weight is None:
            return None
        return checked_weights(sample_weight, num_instances(X))

    def _on_device(self, model: Any) -> Any:
        """The model on ``device``."""
        # To ask whether it is there takes a tenth of the time of a move.
        is_there = next(model.parameters()).device == self._device
        return model if is_there else model.to(self._device)

    @property
    def _device(self) -> torch.device:
        """Where predictions are computed."""
        return torch.device(self.device)

    def _seed(self) -> int:
        """A seed drawn from ``random_state``."""
        state = self.random_state
        return _first_of(int(state)) if isinstance(state, Integral) else _drawn(state)

    def _progress(self) -> AbstractContextManager[Callable[[Any], None] | None]:
        """The callback for a solver's states: a bar, where ``verbose`` asks for one."""
        return progress(type(self).__name__, self.verbose, self.tol)

    def _report(self, state: Any) -> None:
        """Note a solver's last objective, gap and iterations; warn if the gap is above ``tol``."""
        # A network's labels have an objective each.
        self.objective_ = float(np.sum(state.primal))
        self.duality_gap_, self.n_iter_ = state.gap, state.num_iters
        self._warn_unless_reached(state.gap)

    def _warn_unless_reached(self, reached: float, measure: str = "relative duality gap") -> None:
        """Warn if the ``measure`` that training ``reached`` is above the setting ``tol``."""
        if not reached <= self.tol:
            warnings.warn(
                f"{type(self).__name__}: training ended with a {measure} of {reached:.2g}, above "
                f"tol={self.tol}; raise max_iter={self.max_iter} or tol, or scale X",
                ConvergenceWarning,
                stacklevel=level_of_caller(),
            )


def unfitted(estimator: AnEstimator) -> AnEstimator:
    """Return a copy of an estimator with the same parameters, to fit."""
    return cast(AnEstimator, clone(estimator))


def _drawn(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(2**31))


# Of a number it is always the same, and to make a generator takes a while.
_first_of = lru_cache(_drawn)


def level_of_caller() -> int:
    """The ``stacklevel`` at which whoever calls the library is warned."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("lmbm_torch."):
        frame, level = frame.f_back, level + 1
    return level


class MultiClassClassifier(ClassifierMixin, TrainedEstimator):
    """A classifier by one score per class, of which the largest wins."""

    classes_: np.ndarray

    @watched
    @of_label_columns
    def decision_function(self, X):
        """Scores (instances, classes); their difference, (instances,), for two classes."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    @watched
    @of_label_columns
    def predict(self, X):
        """The class of largest score for each instance, (instances,)."""
        # The scores first: they refuse an estimator that is not fitted.
        best = self._scores(X).argmax(1)
        return self.classes_[best]

    @abstractmethod
    def _scores(self, X) -> np.ndarray:
        """(instances, classes)."""

    def _validate_fit(self, X, y, sample_weight) -> tuple[Features, np.ndarray, np.ndarray | None]:
        """Features, every instance's index into the classes, which are noted, and the sample weights."""
        self._check_settings()
        validated: Any = validate_data(self, X, y, **ACCEPTED)
        X, y = _rows(validated[0]), validated[1]
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            (only,) = self.classes_.tolist()
            raise ValueError(f"y: expected at least two classes, got one class, {only!r}")
        return X, codes, self._weights(sample_weight, X)


class StructuredClassifier(ClassifierMixin, TrainedEstimator):
    """A classifier of label vectors, which also takes one label or one class per instance.

    The targets ``y`` of ``fit`` are a matrix in {0, 1} with NaN for unknown labels, or a data frame of such
    columns, whose names are kept. Two other whole numbers that all labels share, such as −1 and 1, and two
    texts of each label, stand for 0 and 1 in ascending order: ``predict`` returns them, all else speaks of 0
    and 1. One-dimensional targets become one column for two classes (or one), and one column per class for
    more.

    Attributes:
        classes_: the classes; of label matrices (labels, 2), the two values of each label.
        label_names_: of label matrices: the columns of a data frame, else label_0, label_1, …; None where
            ``fit`` was given classes.
        binarizer_: maps classes to label vectors; None where ``fit`` was given label matrices.
        feature_means_: (features,), of all training instances, where explanations leave features out.
    """

    label_names_: tuple[str, ...] | None
    classes_: np.ndarray
    binarizer_: LabelBinarizer | None
    feature_means_: np.ndarray
    # Rules that all answers obey, where the constructor takes them.
    constraints: Rules | None = None
    # Of copies that explain arrays, by the names of a data frame.
    names_of_features_: tuple[str, ...] | None

    @abstractmethod
    def predict(self, X: Rows) -> Any:
        """Labels (instances, labels), or classes where ``fit`` was given classes."""

    @property
    def rules(self) -> rules_of.Constraints | None:
        """The rules over the labels of ``fit`` that all answers obey; None where there are none."""
        return self._rules()

    def with_rules(self, rules: rules_of.Constraints | None) -> Self:
        """The same classifier, whose answers obey these rules alone; None for no rules.

        Raises:
            ValueError: rules for a classifier that takes none.
        """
        if "constraints" not in self.get_params(deep=False):
            if rules is None:
                return self
            raise ValueError(
                f"constraints: expected none for a {type(self).__name__}, got {len(rules.rules)}"
            )
        other = copy(self)
        other.constraints = rules
        return other

    @property
    def _given_rules(self) -> tuple[Rules | None, ...]:
        return (self.constraints,)

    def _rules(self, more: Rules | None = None) -> rules_of.Constraints | None:
        """The rules over the labels of ``fit``, and ``more``; see :func:`rules_of_fit`."""
        given = [each for each in (*self._given_rules, more) if each is not None]
        return rules_of_fit(self.label_names_, *given) if given else None

    def _nameless_rules(self) -> list[rules_of.Rule] | None:
        """The rules for one more fit, to labels that come without their names."""
        rules = self._rules()
        return None if rules is None else by_place(rules)

    def predict_names(self, X) -> list[tuple[str, ...]]:
        """The names of the labels that each instance is predicted to have.

        Behind the steps of a pipeline: ``pipe[-1].predict_names(pipe[:-1].transform(X))``.

        Raises:
            ValueError: ``fit`` was given classes, which :meth:`predict` names.
        """
        check_is_fitted(self)
        names = self.label_names_
        if names is None:
            raise ValueError("label_names_: expected names of labels, but fit was given classes; see predict")
        return [
            tuple(compress(names, row))
            for row in targets.dense(self.predict(X)) == np.asarray(self.classes_)[:, 1]
        ]

    @of_label_columns
    def score(self, X: Rows, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The share of instances with all labels, or the class, predicted right."""
        if np.ndim(y) < 2:
            return float(super().score(X, y, sample_weight))
        right = (np.asarray(targets.dense(y)) == targets.dense(self.predict(X))).all(1)
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        return float(np.average(right, weights=weights))

    def _values(self, labels: np.ndarray) -> np.ndarray:
        """The values that stand for labels (instances, labels) in {0, 1}, those of ``classes_``."""
        # Files of earlier versions hold a list.
        classes = np.asarray(self.classes_)
        if classes.dtype.kind == "i" and (classes == (0, 1)).all():
            return labels
        return np.where(labels == 1, classes[:, 1], classes[:, 0])

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_label = True
        return tags

    def _validate_fit(
        self, X, y, sample_weight, *, allow_missing: bool = False
    ) -> tuple[Features, np.ndarray, np.ndarray | None]:
        """Features, the label matrix and the sample weights; checks the settings and notes the classes."""
        self._check_settings()
        X = self._features(X)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        labels: Any = self._encode(y)
        check_shape("y", labels, num_instances(X), None)
        check_labels("y", labels.data if sparse.issparse(labels) else labels, allow_missing=allow_missing)
        self._rules()
        self.feature_means_ = np.asarray(cast(Any, X).mean(0, dtype=np.float64)).ravel()
        return X, labels, self._weights(sample_weight, X)

    def _label_weights(self, labels: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray | None:
        """Weights of the losses (instances, labels) by ``class_weight``; without it ``sample_weight``.

        Where ``fit`` was given classes, an instance of a class has its weight in all columns.
        """
        setting: Any = getattr(self, "class_weight", None)
        if setting is None:
            return sample_weight
        if self.binarizer_ is None:
            return label_weights(setting, labels, np.isnan(labels), sample_weight)
        weights = self._class_weights(labels, sample_weight)
        return None if weights is None else np.tile(weights, (labels.shape[1], 1)).T

    def _class_weights(self, labels: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray | None:
        """Weights of the instances by their classes, which ``fit`` was given, and ``class_weight``."""
        setting: Any = getattr(self, "class_weight", None)
        classes = np.asarray(cast(Any, self.binarizer_).inverse_transform(labels))[:, None]
        weights = label_weights(setting, classes, np.zeros(classes.shape, np.bool_), sample_weight)
        return None if weights is None else weights[:, 0]

    def _encode(self, y) -> np.ndarray:
        names = [str(name) for name in y.columns] if hasattr(y, "columns") else None
        y = targets.dense(y)
        if targets.is_label_matrix(y):
            coded, self.classes_ = two_valued(y)
            labels = targets.label_matrix("y", coded, allow_missing=True)
            self._note_labels(labels.shape[1], names)
            return labels
        self.label_names_ = None
        y = column_or_1d(y)
        if np.issubdtype(y.dtype, np.floating):
            check_finite("y", y)
        check_classification_targets(y)
        self.binarizer_ = LabelBinarizer().fit(y)
        self.classes_ = self.binarizer_.classes_
        return self.binarizer_.transform(y).astype(np.float64)

    def _note_labels(self, count: int, names: Sequence[str] | None = None) -> None:
        """Note that the targets are a label matrix, and its columns."""
        self.label_names_ = numbered("label", count) if names is None else tuple(names)
        self.binarizer_ = None


def _rows(X: Any) -> Features:
    return canonical(X) if sparse.issparse(X) else X
