"""Base classes of the estimators: checks of parameters and data, and reports of the training."""

from __future__ import annotations

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
from lmbm_torch.checks import check_finite, check_labels, check_shape, is_missing, level_of_caller
from lmbm_torch.data.features import numbered
from lmbm_torch.data.rows import checked_weights, num_instances, two_valued
from lmbm_torch.estimators.common import targets
from lmbm_torch.estimators.common.calls import answer_call, progress
from lmbm_torch.estimators.common.kernels import Kernel
from lmbm_torch.estimators.common.saving import StoredEstimator
from lmbm_torch.estimators.common.settings import SHARED, Constraints, check_parameters
from lmbm_torch.estimators.common.under_rules import Rules, by_place, rules_of_fit
from lmbm_torch.fitting import recipe
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks.problems import Features

AnEstimator = TypeVar("AnEstimator", bound=BaseEstimator)

# Instances (instances, features); data frames are array-like.
Rows = ArrayLike | sparse.sparray | sparse.spmatrix
# Accepted forms of X. With row-major order, training on data frames (column-major) gives exactly the same
# result as training on arrays.
ACCEPTED: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C"}


class TrainedEstimator(StoredEstimator):
    """An estimator that checks the parameters, and warns if training ended before reaching ``tol``."""

    _accepted: ClassVar[Constraints] = SHARED
    # Whether ``fit`` encodes data frames with texts or categories, and accepts sets of names as labels.
    encodes_frames: ClassVar[bool] = True

    # Parameters and fitted attributes that subclasses may have.
    base: Any = None
    C: Any
    kernel: Any
    gamma: Any
    kernel_degree: Any
    coef0: Any
    kernel_: Kernel
    coef_: np.ndarray
    dual_coef_: np.ndarray
    intercept_: np.ndarray
    X_fit_: Any
    classes_: np.ndarray
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
        # Cache the names: reading the signature takes a seventh of the time of a small fit in an ensemble.
        return super()._get_param_names()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        learner: BaseEstimator = self if self.base is None else self.base
        tags.input_tags.pairwise = learner.get_params(deep=False).get("kernel") == "precomputed"
        return tags

    def _features(self, X, **options) -> Features:
        """Return validated instances (instances, features); sparse instances become a CSR array."""
        return targets.with_rows(validate_data(self, X, **ACCEPTED, **options))

    def _validate_predict(self, X) -> Features:
        if not hasattr(self, "n_features_in_"):
            check_is_fitted(self)
        # For plain arrays this test replaces scikit-learn's checks, in a twentieth of the time.
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
        """Return features scaled for training; set the scaling and the weight ``C_`` of the losses."""
        units = recipe.units(self.C, X, sample_weight)
        self.C_, self.feature_shift_, self.feature_scale_ = units
        return units.scaled(X)

    @staticmethod
    def _array(parameter: Any) -> np.ndarray:
        """Copy a model's parameter to an array on the CPU."""
        return parameter.detach().cpu().numpy().copy()

    def _of_features(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Convert weights (classes, features) and intercepts for scaled features to those for unscaled X."""
        coef = coef / self.feature_scale_
        return coef, intercept - (coef * self.feature_shift_).sum(1)

    def _weights(self, sample_weight, X) -> np.ndarray | None:
        if sample_weight is None:
            return None
        return checked_weights(sample_weight, num_instances(X))

    def _on_device(self, model: Any) -> Any:
        # Call ``to`` only if needed: to compare devices takes a tenth of the time.
        is_there = next(model.parameters()).device == self._device
        return model if is_there else model.to(self._device)

    @property
    def _device(self) -> torch.device:
        return torch.device(self.device)

    def _seed(self) -> int:
        """Return a seed drawn from ``random_state``."""
        state = self.random_state
        return _drawn(int(state)) if isinstance(state, Integral) else _drawn.__wrapped__(state)

    def _progress(self) -> AbstractContextManager[Callable[[Any], None] | None]:
        """Show a progress bar if ``verbose``; yield a callback that takes a solver's states."""
        return progress(type(self).__name__, self.verbose, self.tol)

    def _run(self, solver: Any, problem: Any, **settings: Any) -> Any:
        """Run a solver to a gap of ``tol`` or for ``max_iter`` iterations, and return the last state."""
        with self._progress() as tell:
            return run(solver, problem, tol=self.tol, max_iter=self.max_iter, progress=tell, **settings)

    def _report(self, state: Any) -> None:
        """Set the attributes for objective, gap and iterations; warn if the gap is above ``tol``."""
        # A belief network has an objective for each label: report the sum.
        self.objective_ = float(np.sum(state.primal))
        self.duality_gap_, self.n_iter_ = state.gap, state.num_iters
        self._warn_unless_reached(state.gap)

    def _warn_unless_reached(self, reached: float, measure: str = "relative duality gap") -> None:
        """Warn if training reached a ``measure`` above ``tol``."""
        if not reached <= self.tol:
            warnings.warn(
                f"{type(self).__name__}: training ended with a {measure} of {reached:.2g}, above "
                f"tol={self.tol}; raise max_iter={self.max_iter} or tol, or scale X",
                ConvergenceWarning,
                stacklevel=level_of_caller(),
            )


def unfitted(estimator: AnEstimator) -> AnEstimator:
    """Return an unfitted copy of an estimator with the same parameters."""
    return cast(AnEstimator, clone(estimator))


# Cache the seeds drawn for integers, because to make a random generator is slow compared with a small fit.
@lru_cache
def _drawn(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(2**31))


class MultiClassClassifier(ClassifierMixin, TrainedEstimator):
    """A classifier that scores each class and predicts the class with the largest score."""

    @answer_call
    def decision_function(self, X):
        """Return scores (instances, classes); for two classes the difference of scores, (instances,)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    @answer_call
    def predict(self, X):
        """Return the class with the largest score for each instance, (instances,)."""
        # Compute scores before reading ``classes_``, because ``_scores`` checks that the estimator is fitted.
        best = self._scores(X).argmax(1)
        return self.classes_[best]

    @abstractmethod
    def _scores(self, X) -> np.ndarray:
        """Return the score of each class for each instance, (instances, classes)."""

    def _validate_fit(self, X, y, sample_weight) -> tuple[Features, np.ndarray, np.ndarray | None]:
        """Validate the data, and return features, class indices and sample weights; set ``classes_``."""
        check_parameters(self)
        validated: Any = validate_data(self, X, y, **ACCEPTED)
        X, y = targets.with_rows(validated[0]), validated[1]
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            (only,) = self.classes_.tolist()
            raise ValueError(f"y: expected at least two classes, got one class, {only!r}")
        return X, codes, self._weights(sample_weight, X)


class StructuredClassifier(ClassifierMixin, TrainedEstimator):
    """A multi-label classifier, for label matrices, sets of label names, or a class for each instance.

    Instances are a matrix, dense or CSR, or a data frame of pandas, polars or Arrow. A data frame with texts,
    categories or missing numbers is encoded by a :class:`~lmbm_torch.data.TableEncoder`, kept as
    ``encoder_``; attributes and explanations then refer to the features of the encoder.

    The targets ``y`` of ``fit`` are a label matrix (instances, labels) in {0, 1}, with NaN for unknown
    labels; or a data frame of labels, whose column names are kept; or sets of label names: lists, tuples or
    sets of texts, or texts such as ``"red;blue"`` or JSON arrays. In a frame of several columns, a column may
    hold sets of names, marks (``x`` or a missing value), or classes: then each class becomes a label such as
    ``colour=red``, and predictions of estimators with ``constraints`` have exactly one label of the column. A
    label matrix may also hold two integers except 0 and 1, such as −1 and 1, the same for all labels, or two
    texts for each label: the smaller value means 0, the larger value 1. Unused categories of a data frame are
    values, too. All methods take and return labels in the values of ``fit``. Only the tensors of decodings
    hold indices into ``classes_``, see :meth:`label_values`. In rules, a label is true if its value is the
    second value. With the option ``uncertain`` of ``fit``, −1 in a label matrix of 0, 1 and NaN means an
    uncertain label (Irvin et al. 2019). ``"zeros"`` and ``"ones"`` replace −1 by 0 and 1, ``"ignored"``
    replaces −1 by NaN. ``"self_trained"`` first fits with NaN and replaces −1 by predictions; if ``predict``
    takes ``known``, the predictions use the certain labels of the instance. After such a fit, all methods
    read −1 as unknown. One-dimensional targets of two classes become a single column; for more classes, each
    class becomes a column.

    Attributes:
        classes_: the classes; for label matrices (labels, 2), the two values of each label.
        label_names_: column names of a data frame, or label_0, label_1, …; None for targets of classes.
        label_form_: describes a data frame of targets with columns of names, marks or classes, otherwise
            absent; ``label_form_.written(labels)`` converts labels to such a frame.
        uncertain_: the option ``uncertain`` of ``fit``; absent without the option.
        encoder_: the encoder of data frames; absent for numbers.
        binarizer_: converts classes to label vectors; None for label matrices.
        feature_means_: (features,), means of the training instances, the default reference of explanations.
    """

    label_names_: tuple[str, ...] | None
    binarizer_: LabelBinarizer | None
    class_weight: Any
    feature_means_: np.ndarray
    # No rules, for estimators without a parameter ``constraints``.
    constraints: Rules | None = None
    # Whether each class in a column of classes of a data frame becomes a label.
    splits_classes: ClassVar[bool] = True
    # Names of the features for explanations, in copies that are given arrays (see ``without_names``).
    names_of_features_: tuple[str, ...] | None

    @abstractmethod
    def predict(self, X: Rows) -> Any:
        """Predict labels (instances, labels), or classes (instances,) if ``fit`` was given classes."""

    @property
    def rules(self) -> rules_of.Constraints | None:
        """Return the rules that all predictions obey; None without rules."""
        return self._rules()

    def with_rules(self, rules: rules_of.Constraints | None) -> Self:
        """Return a copy whose only rules are ``rules``; for None, a copy without rules.

        Raises:
            ValueError: the classifier has no parameter ``constraints``, and ``rules`` is not None.
        """
        if "constraints" not in self.get_params(deep=False):
            if rules is None:
                return self
            raise ValueError(
                f"constraints: expected no rules for a {type(self).__name__}, got {len(rules.rules)} rules; "
                "wrap a classifier of label sets in ConstrainedClassifier to give rules"
            )
        other = copy(self)
        other.constraints = rules
        vars(other).pop("label_form_", None)
        if self.base is not None:
            other.base = unfitted(self.base).set_params(constraints=None)
        return other

    @property
    def _given_rules(self) -> tuple[Rules | None, ...]:
        form, of_classes = vars(self).get("label_form_"), None
        if form is not None and "constraints" in self.get_params(deep=False):
            of_classes = [rule for names in form.classes for rule in rules_of.exactly(1, names)]
        return self.constraints, None if self.base is None else self.base.constraints, of_classes or None

    def _rules(self, more: Rules | None = None) -> rules_of.Constraints | None:
        """Combine the classifier's rules with the rules ``more``; return None if there are no rules."""
        given = [each for each in (*self._given_rules, more) if each is not None]
        return rules_of_fit(self.label_names_, *given) if given else None

    def _nameless_rules(self) -> list[rules_of.Rule] | None:
        """Return the rules with label indices instead of names, for a fit to arrays without names."""
        rules = self._rules()
        return None if rules is None else by_place(rules)

    @answer_call
    def predict_names(self, X) -> list[tuple[str, ...]]:
        """Return the names of the predicted labels of each instance.

        Raises:
            ValueError: ``fit`` was given classes; use :meth:`predict`.
        """
        check_is_fitted(self)
        names = self.label_names_
        if names is None:
            raise ValueError("label_names_: expected names of labels, but fit was given classes; use predict")
        off, on = np.asarray(self.classes_).T
        return [tuple(compress(names, row)) for row in (targets.dense(self.predict(X)) == on) & (off != on)]

    @answer_call
    def score(self, X: Rows, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the exact match: the share of instances for which all labels, or the class, are right."""
        if np.ndim(y) < 2:
            return float(super().score(X, y, sample_weight))
        return targets.exact_match(targets.dense(y), targets.dense(self.predict(X)), sample_weight)

    def label_values(self, labels: ArrayLike) -> np.ndarray:
        """Convert indices into ``classes_``, such as labels of :meth:`decode`, to the values of ``fit``.

        Args:
            labels: (…, labels) in {0, 1}, NaN for missing labels; unchanged if ``fit`` was given classes.
        """
        return targets.label_values(np.asarray(labels), self._label_classes)

    def _codes(self, name: str, labels: Any) -> np.ndarray:
        """Convert labels (instances, labels) in the values of ``fit`` to codes in {0, 1, NaN}."""
        return targets.label_codes(name, labels, self._label_classes, allow_missing=True)

    def _known_codes(self, known: Any) -> np.ndarray | None:
        """Convert known labels (instances, labels) in the values of ``fit`` to {0, 1, NaN}; keep None."""
        return None if known is None else self._codes("known", known)

    @property
    def _label_classes(self) -> Any:
        """Return the two values of each label, (labels, 2); None if ``fit`` was given classes."""
        return self.classes_ if self.binarizer_ is None else None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_label = True
        return tags

    def _validate_fit(
        self, X, y, sample_weight, *, allow_missing: bool = False
    ) -> tuple[Features, np.ndarray, np.ndarray | None]:
        """Validate parameters and data; return features, labels and sample weights; set ``classes_``."""
        check_parameters(self)
        X = self._features(X)
        targets.check_given(self, y)
        labels: Any = self._encode(y)
        check_shape("y", labels, num_instances(X), None)
        if not allow_missing:
            check_labels("y", labels)
        elif isinstance(labels, np.ndarray):
            labels = self._with_known_values(labels)
        self._rules()
        self.feature_means_ = np.asarray(cast(Any, X).mean(0, dtype=np.float64)).ravel()
        return X, labels, self._weights(sample_weight, X)

    def _with_known_values(self, labels: np.ndarray) -> np.ndarray:
        """Set labels without any known value to 0 for all instances, and warn of these labels."""
        unknown: Any = np.isnan(labels).all(0)
        if not unknown.any():
            return labels
        if unknown.all():
            raise ValueError("y: expected at least one known label, got only missing labels")
        warnings.warn(
            "y: expected a known value of each label, got only missing values of "
            f"{', '.join(compress(self.label_names_ or (), unknown))}; the value 0 is taken in all rows",
            stacklevel=level_of_caller(),
        )
        return np.where(unknown, 0.0, labels)

    def _label_weights(self, labels: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray | None:
        """Return weights of the losses by ``class_weight``, (instances, labels); else ``sample_weight``.

        If ``fit`` was given classes, an instance has the weight of its class in all columns.
        """
        if self.class_weight is None:
            return sample_weight
        if self.binarizer_ is None:
            labels = targets.dense(labels)
            return targets.label_weights(self.class_weight, labels, np.isnan(labels), sample_weight)
        weights = self._class_weights(labels, sample_weight)
        return None if weights is None else np.tile(weights, (labels.shape[1], 1)).T

    def _class_weights(self, labels: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray | None:
        """Return the weights of the instances: sample weight times weight of the class."""
        classes = np.asarray(cast(Any, self.binarizer_).inverse_transform(labels))[:, None]
        missing = np.zeros(classes.shape, np.bool_)
        weights = targets.label_weights(self.class_weight, classes, missing, sample_weight)
        return None if weights is None else weights[:, 0]

    def _keeps_sparse(self, y: Any) -> bool:
        """Return whether training takes a sparse label matrix without converting to a dense one."""
        return False

    def _encode(self, y: Any) -> Any:
        is_binary = sparse.issparse(y) and y.shape[1] > 1 and bool(np.isin(y.data, (0, 1)).all())
        if is_binary and self._keeps_sparse(y):
            self.classes_ = np.tile([0, 1], (y.shape[1], 1))
            self._note_labels(y.shape[1])
            return targets.sparse_label_matrix(y)
        names = [str(name) for name in y.columns] if hasattr(y, "columns") else None
        declared, y = targets.declared_values(y), targets.dense(y)
        if targets.is_label_matrix(y):
            coded, self.classes_ = two_valued(y, declared)
            labels = targets.label_matrix("y", coded, allow_missing=True)
            self._note_labels(labels.shape[1], names)
            return labels
        self.label_names_ = None
        y = column_or_1d(y)
        if np.issubdtype(y.dtype, np.floating):
            check_finite("y", y)
        elif absent := int(is_missing(y).sum()):
            raise ValueError(
                f"y: expected a class for each instance, got {absent} missing; to leave values of one label "
                "unknown, give a data frame with a column of 0, 1 and NaN"
            )
        check_classification_targets(y)
        self.binarizer_ = LabelBinarizer().fit(y)
        self.classes_ = self.binarizer_.classes_
        return self.binarizer_.transform(y).astype(np.float64)

    def _note_labels(self, count: int, names: Sequence[str] | None = None) -> None:
        """Set ``label_names_`` for a label matrix; without names use label_0, label_1 and so on."""
        self.label_names_ = numbered("label", count) if names is None else tuple(names)
        self.binarizer_ = None
