"""Files of fitted estimators and pipelines, without pickle: parameters and fitted attributes, but no code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.sparse import csr_array, csr_matrix
from sklearn import pipeline
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import LabelBinarizer, MaxAbsScaler, MinMaxScaler, StandardScaler
from sklearn.utils.validation import check_is_fitted

from lmbm_torch.data.tables.encoder import TableEncoder
from lmbm_torch.data.tables.single import ImageEncoder, TextEncoder
from lmbm_torch.persistence.files import save
from lmbm_torch.persistence.stored import Given, Stored, adapt


class AnsweringPipeline(pipeline.Pipeline):
    """A scikit-learn pipeline with all methods and fitted attributes of the last step.

    Scikit-learn's own pipeline only has ``predict``, ``predict_proba``, ``decision_function`` and ``score``;
    here ``predict_names``, ``decode``, ``explain``, ``log_prob`` and further methods of the last step can be
    called, too. The methods take instances in the form of the first step. See :func:`make_pipeline`.
    """

    def save(self, path: Any, mode: Literal["x", "w"] = "x") -> None:
        """Write the fitted pipeline to a file; see :func:`lmbm_torch.save`."""
        save(self, path, mode)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not vars(self).get("steps"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        last: Any = self.steps[-1][1]
        found = getattr(last, name)
        if name.endswith("_"):
            return found
        if not callable(found) or [*signature(found).parameters][:1] != ["X"] or "fit" in name:
            raise AttributeError(f"{name}: expected a method of the last step for instances; see its own")
        return wraps(found)(partial(self._answer, name))

    def _answer(self, name: str, X: Any, *arguments: Any, **named: Any) -> Any:
        model: Any = self.steps[-1][1]
        if len(self.steps) > 1:
            before = self[:-1]
            X = before.transform(X)
            if name == "explain" and hasattr(before, "get_feature_names_out"):
                model = model.with_feature_names(before.get_feature_names_out())
        method: Callable[..., Any] = getattr(model, name)
        return method(X, *arguments, **named)


def make_pipeline(*steps: BaseEstimator, memory: Any = None, verbose: bool = False) -> AnsweringPipeline:
    """Make a pipeline of the steps, with all methods of the last step.

    For the arguments and the names of steps see :func:`sklearn.pipeline.make_pipeline`.

    Examples:
        >>> import pandas as pd
        >>> from lmbm_torch.data import TableEncoder
        >>> from lmbm_torch.estimators import LMSBNClassifier, make_pipeline
        >>> shop = pd.DataFrame({"note": ["oak", "fruit", "oak", "fruit"], "price": [9.0, 7, 12, 8]})
        >>> model = make_pipeline(TableEncoder(), LMSBNClassifier(random_state=0))
        >>> model = model.fit(shop, ["red;dry", "white", "red;dry", "white"])
        >>> model.predict_names(shop[:2])
        [('dry', 'red'), ('white',)]
        >>> model.decode(shop[:1], top_k=2).labels.shape
        torch.Size([1, 2, 3])
    """
    made = pipeline.make_pipeline(*steps, memory=memory, verbose=verbose)
    return AnsweringPipeline(made.steps, memory=memory, verbose=verbose)


class StoredEstimator(Stored, BaseEstimator):
    """An estimator that can be saved to a file of the class name, parameters and fitted attributes.

    Attributes:
        holds_others: whether the estimator contains classifiers of other libraries; then saving is refused.
    """

    holds_others: ClassVar[bool] = False

    def save(self, path: Any, mode: Literal["x", "w"] = "x") -> None:
        """Write the fitted estimator to a file; see :func:`lmbm_torch.save`."""
        save(self, path, mode)

    def check_stored(self) -> None:
        """Raise NotFittedError before ``fit``; raise TypeError if other libraries' classifiers are inside."""
        if self.holds_others:
            raise TypeError(
                f"estimator: expected no classifiers of other libraries inside, got {type(self).__name__} "
                "with such classifiers. Files of lmbm_torch hold arrays and no code, and cannot rebuild "
                "classes of other libraries: fit the estimator again, or use the tools of these libraries"
            )
        check_is_fitted(self)

    def stored_parts(self) -> dict[str, Any]:
        """Return the settings and the fitted attributes by name."""
        return _parts(self)

    @classmethod
    def from_parts(cls, given: Given, *, settings: dict[str, Any], fitted: dict[str, Any]) -> StoredEstimator:
        """Build the estimator from :meth:`stored_parts`, for the device that was given at reading."""
        return _estimator(cls, given, settings=settings, fitted=fitted)


def _parts(estimator: BaseEstimator) -> dict[str, Any]:
    settings = estimator.get_params(deep=False)
    fitted = {name: value for name, value in vars(estimator).items() if name not in settings}
    return {"settings": settings, "fitted": fitted}


def _estimator(kind: type, given: Given, *, settings: dict[str, Any], fitted: dict[str, Any]) -> Any:
    if "device" in settings:
        settings = {**settings, "device": given.device}
    estimator = kind(**settings)
    for name, value in fitted.items():
        setattr(estimator, name, value.to(given.device) if name == "model_" else value)
    return estimator


def _csr_parts(matrix: Any) -> dict[str, Any]:
    parts = {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
    return {**parts, "shape": matrix.shape}


def _csr(
    kind: type,
    given: Given,
    *,
    data: np.ndarray,
    indices: np.ndarray,
    indptr: np.ndarray,
    shape: tuple[int, int],
) -> Any:
    matrix = kind((data, indices, indptr), shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def _fitted_parts(transformer: BaseEstimator) -> dict[str, Any]:
    check_is_fitted(transformer)
    return _parts(transformer)


def _steps(pipeline: Pipeline) -> dict[str, Any]:
    for _, step in pipeline.steps:
        if isinstance(step, Stored):
            step.check_stored()
    return {"steps": [[name, step] for name, step in pipeline.steps]}


def _pipeline(given: Given, *, steps: list[list[Any]]) -> AnsweringPipeline:
    return AnsweringPipeline([(name, step) for name, step in steps])


for _each in (Pipeline, AnsweringPipeline):
    adapt(_each, _steps, _pipeline)
for _each in (
    *(ImageEncoder, TableEncoder, TextEncoder),
    *(LabelBinarizer, MaxAbsScaler, MinMaxScaler, StandardScaler),
):
    adapt(_each, _fitted_parts, partial(_estimator, _each))
for _each in (csr_array, csr_matrix):
    adapt(_each, _csr_parts, partial(_csr, _each))
