"""Decorators for methods of estimators, and progress bars for long fits."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, signature
from itertools import zip_longest
from math import inf, isfinite, log
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from lmbm_torch.data.rows import num_instances
from lmbm_torch.data.tables.encoder import TableEncoder
from lmbm_torch.data.tables.frames import as_frame, is_frame, is_plain, open_frame
from lmbm_torch.estimators.common.targets import (
    LabelFrame,
    certain_labels,
    check_columns,
    dense,
    form_of_labels,
    formed_labels,
    known_by_name,
    named_labels,
)
from lmbm_torch.extras import naming_extras

# Number of seconds after which a warning is logged that a call is still at work.
PATIENCE = 10.0
# Calls with fewer rows are not watched, because watching takes as much CPU time as predicting a few rows.
WATCHED_ROWS = 16

# Names of arguments that hold labels.
LABELS = ("known", "y", "Y", "arguments")

_log = logging.getLogger("lmbm_torch")
_calls = threading.local()


def fit_call(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``fit``: log a slow call, and leave the estimator unchanged after an exception.

    A data frame with texts, categories or missing numbers is encoded first, by a
    :class:`~lmbm_torch.data.TableEncoder`, kept as ``encoder_``. Labels may be sets of names, see
    :func:`named_labels`, or a data frame with columns of names, marks or classes, described by
    ``label_form_``, see :func:`form_of_labels`. The keyword ``uncertain`` tells how −1 in label matrices is
    treated, see :func:`certain_labels`.
    """
    parameters = [*signature(fit).parameters.values()]
    target = parameters[2].name

    @wraps(fit)
    def fitting(self: Any, X: Any, *arguments: Any, uncertain: str | None = None, **named: Any) -> Any:
        before = dict(vars(self))
        y, *others = arguments or (named.pop(target, None),)
        X, y = (each if isinstance(each, np.ndarray) else as_frame(each) for each in (X, y))
        is_new = fit.__name__ == "fit" or not hasattr(self, "n_features_in_")
        if is_new:
            for name in ("encoder_", "label_form_", "uncertain_"):
                vars(self).pop(name, None)
        try:
            encodes, mask = getattr(self, "encodes_frames", True), np.zeros(0, np.bool_)
            certain: Any = None
            if encodes and (type(y) is not np.ndarray or y.dtype.kind in "OU"):
                y = _labels_of_fit(self, y, uncertain, is_new)
            if uncertain is not None:
                if uncertain == "self_trained" and fit.__name__ != "fit":
                    raise ValueError(f"uncertain: expected no 'self_trained' in {fit.__name__}, see fit")
                certain, mask = certain_labels(y, uncertain)
                y = certain
            if encodes and type(X) is not np.ndarray:
                X = _encoded(self, X, y, is_new)
            found = _watched(fit, self, X, (y, *others), named)
            if uncertain == "self_trained" and mask.any():
                own = np.where(mask, _own_labels(self, X, certain), certain.values)
                own = LabelFrame(certain.columns, own)
                found = _watched(fit, self, X, (own, *others), named)
            if uncertain is not None:
                self.uncertain_ = uncertain
            if "encoder_" in vars(self) and hasattr(getattr(self, "estimator_", None), "with_feature_names"):
                # Pass the encoder's feature names to the inner estimator for its explanations.
                self.estimator_ = self.estimator_.with_feature_names(self.encoder_.get_feature_names_out())
            return found
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    option = Parameter("uncertain", Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
    place = len(parameters) - (parameters[-1].kind is Parameter.VAR_KEYWORD)
    shown: Any = fitting
    shown.__signature__ = signature(fit).replace(
        parameters=[*parameters[:place], option, *parameters[place:]]
    )
    return shown


def _labels_of_fit(estimator: Any, y: Any, uncertain: str | None, is_new: bool) -> Any:
    """Convert sets of names and data frames to a frame of labels; store a data frame's ``label_form_``."""
    if is_new and getattr(estimator, "splits_classes", False):
        form = form_of_labels(y, uncertain)
        if form is not None:
            estimator.label_form_ = form
    form = vars(estimator).get("label_form_")
    return named_labels(y) if form is None else formed_labels(y, form)


def _own_labels(estimator: Any, X: Any, y: LabelFrame) -> np.ndarray:
    """Predict labels, given each instance's known labels ``y`` if ``predict`` takes known labels."""
    is_given = "known" in signature(estimator.predict).parameters
    return dense(estimator.predict(X, known=y.values) if is_given else estimator.predict(X))


def answer_call(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that takes instances: log a slow call, convert labels, and encode instances.

    Instances are encoded as in ``fit``. Labels may be sets of names, and known labels a dictionary from names
    to values; data frames of labels must have the columns of ``fit``, see :func:`check_columns`. After a
    ``fit`` with ``uncertain``, labels of −1 are unknown.
    """
    are_labels = [name in LABELS for name in [*signature(method).parameters][2:]]

    @wraps(method)
    def answering(self: Any, X: Any, *arguments: Any, **named: Any) -> Any:
        if arguments or named:
            arguments = tuple(
                _labels(self, X, each) if is_label else each
                for each, is_label in zip_longest(arguments, are_labels[: len(arguments)], fillvalue=False)
            )
            named = {name: _labels(self, X, each) if name in LABELS else each for name, each in named.items()}
        X = as_frame(X)
        if "encoder_" in vars(self) and is_frame(X):
            X = self.encoder_.transform(X)
        return _watched(method, self, X, arguments, named)

    return answering


def _labels(estimator: Any, X: Any, given: Any) -> Any:
    """Convert labels given by name to a matrix or a frame with the columns of ``fit``, and check columns."""
    names, form = getattr(estimator, "label_names_", None), vars(estimator).get("label_form_")
    given = as_frame(given)
    if form is not None:
        given = formed_labels(given, form)
    if names is not None and isinstance(given, Mapping):
        given = known_by_name(given, names, num_instances(X), form)
    elif names is not None and getattr(estimator, "encodes_frames", True):
        given = named_labels(given, names)
    if "uncertain_" in vars(estimator) and given is not None:
        columns = getattr(given, "columns", None)
        given = certain_labels(given, "ignored")[0]
        given = given.values if columns is None else given
    check_columns(given, names)
    return given


def _encoded(estimator: Any, X: Any, y: Any, is_new: bool) -> Any:
    """Encode a data frame's features, by a new encoder in ``fit``; keep X if there is nothing to encode."""
    if is_new:
        if not is_frame(X) or reads_frames(estimator) or is_plain(X):
            return X
        X = open_frame(given := X)
        if X.is_numeric:
            return given
        vars(estimator).pop("feature_names_in_", None)
        estimator.encoder_ = TableEncoder().fit(X, y)
    elif "encoder_" not in vars(estimator) or not is_frame(X):
        return X
    return estimator.encoder_.transform(X)


def reads_frames(estimator: Any) -> bool:
    """Return whether a wrapper's inner model reads data frames, so frames must not be encoded.

    Estimators of this library and of scikit-learn are given encoded features, except for pipelines and for
    estimators with a parameter for categories. Models of other libraries are given the data frame.
    """
    inner = getattr(estimator, "estimator", getattr(estimator, "base", None))
    if inner is None:
        return False
    if isinstance(inner, Pipeline) or hasattr(inner, "categorical_features"):
        return True
    library = type(inner).__module__.partition(".")[0]
    return library not in ("sklearn", "lmbm_torch") or reads_frames(inner)


def _watched(
    method: Callable[..., Any], self: Any, X: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Call a method; log a warning after :data:`PATIENCE` seconds, only for the outermost of nested calls.

    The warning is a log entry, not a Python warning, because a second thread writes the message.
    """
    rows = X.shape[0] if hasattr(X, "shape") and X.shape else len(X) if isinstance(X, list) else 0
    if rows < WATCHED_ROWS or getattr(_calls, "is_watched", False):
        return method(self, X, *arguments, **named)
    call = f"{type(self).__name__}.{method.__name__} of {rows} instances"
    watch = threading.Timer(PATIENCE, _log.warning, ("%s: still at work after %g s", call, PATIENCE))
    watch.daemon = True
    _calls.is_watched = True
    watch.start()
    try:
        return method(self, X, *arguments, **named)
    finally:
        watch.cancel()
        _calls.is_watched = False


@contextmanager
def bar(name: str, verbose: int) -> Iterator[Callable[[float, str], None] | None]:
    """Show a progress bar; yield a function that takes the finished share and a text.

    Args:
        name: text before the bar.
        verbose: 0 for no bar; then None is yielded.

    Raises:
        ModuleNotFoundError: rich is not installed.
    """
    if not verbose:
        yield None
        return
    with naming_extras():
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[reached]}"),
        TimeElapsedColumn(),
    )
    # Refresh the bar only when ``tell`` is called, rather than by a thread.
    with Progress(*columns, auto_refresh=False) as shown:
        task = shown.add_task(name, total=1.0, reached="")

        def tell(share: float, reached: str) -> None:
            shown.update(task, completed=share, reached=reached, refresh=True)

        yield tell


@contextmanager
def progress(name: str, verbose: int, tol: float) -> Iterator[Callable[[Any], None] | None]:
    """Show a progress bar for a solver's duality gap; yield a callback that takes the solver's states.

    The bar is full at a gap of ``tol`` and grows with the logarithm of the gap, because most solvers shrink
    the gap by about the same factor in every iteration.

    Args:
        name, verbose: see :func:`bar`; without a bar None is yielded.

    Raises:
        ModuleNotFoundError: rich is not installed.
    """
    if not verbose:
        yield None
        return
    with bar(name, verbose) as tell:
        assert tell is not None
        largest, tiny = -inf, sys.float_info.min

        def show(state: Any) -> None:
            nonlocal largest
            gap = max(float(state.gap), tiny)
            if not isfinite(gap):
                return
            largest = max(largest, gap)
            share = 1.0 if gap <= tol else log(largest / gap) / log(largest / tol)
            tell(share, f"gap {gap:.1e} of {tol:.1e}, {state.num_iters} iterations")

        yield show
