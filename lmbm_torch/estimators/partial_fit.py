"""Belief networks that learn from a stream of instances, by Pegasos."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.estimators import orderings, targets
from lmbm_torch.estimators.rows import num_instances
from lmbm_torch.fitting.dual import dual_problem
from lmbm_torch.fitting.recipe import Units
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.networks import pegasos


def _is_linear(estimator: Any) -> bool:
    """Raise AttributeError, as scikit-learn's estimators that cannot learn so do, unless it is."""
    if estimator.kernel != "linear":
        raise AttributeError(f"partial_fit: expected kernel='linear', got {estimator.kernel!r}")
    return True


class PartialFitMixin:
    """Adds ``partial_fit`` to a linear network."""

    stream_sums_: np.ndarray | None = None
    stream_visits_: int = 0
    stream_epoch_: int = 0

    @available_if(_is_linear)
    def partial_fit(
        self: Any,
        X: Any,
        y: Any,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        epoch_size: int | None = None,
    ) -> Any:
        """One pass of Pegasos over these instances, behind those of all calls since the first or ``fit``.

        Thirty passes over the same instances come within 1 to 4 % of the objective that ``fit`` minimises
        (measured on 600 digits); ``solver``, ``tol`` and ``max_iter`` play no part. The first call
        decides on the ordering (``"auto"`` is ``"index"`` here) and on the units that ``C`` counts in. Every
        label has all labels before it as parents.
        ``mean_loss_`` and ``error_bound_`` speak of the last call's instances.

        Args:
            X: (instances, features), dense or CSR, as many features as at the first call.
            y: (instances, labels) in {0, 1}, or one class per instance.
            classes: at the first call all classes, by default those of an earlier ``fit``, or the names of
                the labels of a matrix (optional).
            sample_weight: (instances,), multiplies C.
            epoch_size: at the first call the instances of an epoch, whose losses C weighs; by default those
                of the first call. Mini-batches need it: C would otherwise count one of them alone.

        Raises:
            AttributeError: another kernel than the linear one.
            ValueError: missing labels, ``max_parents``, ``class_weight`` or ``calibrate``, other classes or
                widths than at the first call.
        """
        self._check_settings()
        self._check_streams()
        before = dict(vars(self))
        try:
            return self._learn(X, y, classes, sample_weight, epoch_size)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _learn(self: Any, X, y, classes, sample_weight, epoch_size) -> Any:
        is_first = self.stream_sums_ is None
        X = self._features(X, reset=is_first)
        labels = self._stream_labels(y, classes, is_first)
        check_shape("y", labels, num_instances(X), None)
        weights = self._weights(sample_weight, X)
        if is_first:
            inputs = self._begin_stream(X, labels, weights, epoch_size)
        else:
            inputs = Units(self.C_, self.feature_shift_, self.feature_scale_).scaled(X)
        model = SigmoidBeliefNetwork(
            self.n_features_in_, labels.shape[1], self.ordering_.tolist(), self.degree
        ).double()
        settings = {"C": self.C_, "margin": self.margin, "sample_weight": weights, "solver": "pegasos"}
        dual = dual_problem(model, inputs, labels, **settings)
        problems: Any = dual.problem
        sums = np.zeros((problems.num_columns, labels.shape[1])) if is_first else self.stream_sums_.copy()
        random = np.random.default_rng((self.stream_seed_, self.stream_visits_))
        order = random.permutation(len(labels))
        pegasos.step_along(problems, sums, self.stream_visits_, order, self.stream_epoch_)
        self.stream_sums_, self.stream_visits_ = sums, self.stream_visits_ + len(labels)
        self._take_stream(X, labels, weights, model, dual)
        return self

    def _begin_stream(self: Any, X, labels, weights, epoch_size) -> Any:
        """Decide on what all calls share; the features in the units of C."""
        self.max_parents_ = None
        self.feature_means_ = np.asarray(X.mean(0, dtype=np.float64)).ravel()
        self.stream_epoch_ = len(labels) if epoch_size is None else epoch_size
        check_count("epoch_size", self.stream_epoch_)
        inputs = self._scaled(X, weights)
        is_auto = isinstance(self.ordering, str) and self.ordering == "auto"
        ordering = "index" if is_auto else self.ordering
        self.stream_seed_ = 0 if self.random_state is None else self._seed()
        common: Any = {"C": self.C_, "seed": self.stream_seed_, "sample_weight": weights}
        self.ordering_ = orderings.chosen(ordering, inputs, labels, **common)
        return inputs

    def _take_stream(self: Any, X, labels, weights, model, dual) -> None:
        """Make the sums of the steps the fitted network."""
        learned = self.stream_sums_ / self.stream_visits_
        dual.assign(learned)
        self._undo_scaling(model)
        self.model_ = model.to(self._device)
        self.coef_, self.intercept_ = self._array(model.feature_weight), self._array(model.bias)
        self.parent_coef_ = dual.problem.network(learned).parents
        self.n_iter_ = max(1, round(self.stream_visits_ / self.stream_epoch_))
        self._finish(X, labels, weights, float(dual.problem.hinge(learned).sum(1).mean()))

    def _stream_labels(self: Any, y, classes, is_first: bool) -> np.ndarray:
        """The label matrix of a call; the first one notes the classes."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        dense = targets.dense(y)
        if targets.is_label_matrix(dense):
            labels = targets.label_matrix("y", dense, allow_missing=False)
            if is_first:
                names = getattr(y, "columns", None) if classes is None else classes
                if names is not None and len(names) != labels.shape[1]:
                    raise ValueError(f"classes: expected {labels.shape[1]} names of labels, got {len(names)}")
                self._note_labels(labels.shape[1], None if names is None else [str(name) for name in names])
                self.classes_ = np.tile([0, 1], (labels.shape[1], 1))
            elif self.binarizer_ is not None or labels.shape[1] != len(self.classes_):
                raise ValueError(f"y: expected what the first call was given, got {labels.shape[1]} labels")
            else:
                targets.check_columns(y, self.label_names_)
            return labels
        y = column_or_1d(dense)
        check_classification_targets(y)
        if is_first:
            if classes is None and getattr(self, "binarizer_", None) is not None:
                classes = self.classes_
            if classes is None:
                raise ValueError("classes: expected all classes at the first call of partial_fit, got None")
            self.label_names_ = None
            self.binarizer_ = LabelBinarizer().fit(np.asarray(classes))
            self.classes_ = self.binarizer_.classes_
        elif self.binarizer_ is None:
            raise ValueError("y: expected a label matrix, as the first call was given, got classes")
        if len(others := np.setdiff1d(y, self.classes_)):
            raise ValueError(f"y: expected the classes of the first call, got {others[0]!r}")
        labels: Any = self.binarizer_.transform(y)
        return np.asarray(labels.todense() if sparse.issparse(labels) else labels, np.float64)

    def _check_streams(self: Any) -> None:
        if self.max_parents not in ("auto", None):
            raise ValueError(f"max_parents: expected 'auto' or None for partial_fit, got {self.max_parents}")
        if self.class_weight is not None or self.calibrate:
            raise ValueError(
                "class_weight, calibrate: expected none for partial_fit, which sees no whole data"
            )
