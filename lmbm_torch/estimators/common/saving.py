"""Fitted estimators as files, without pickle: settings and learned attributes, nothing that is executed."""

from __future__ import annotations

from functools import partial
from os import PathLike
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import BaseEstimator
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.validation import check_is_fitted

from lmbm_torch.calibration.scales import Calibration
from lmbm_torch.constraints import Constraints, Rule
from lmbm_torch.estimators.common.kernels import Kernel
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.models import archives, saving
from lmbm_torch.models.archives import Kind, Stored

HOLDS = "an estimator"


class StoredEstimator(Stored, BaseEstimator):
    """An estimator that :func:`save` can write: its class, its parameters and its fitted attributes.

    Attributes:
        holds_others: whether it is made of classifiers of other libraries, which no file of this one holds.
    """

    holds_others: ClassVar[bool] = False

    def save(self, path: str | PathLike, mode: Literal["x", "w"] = "x") -> None:
        """Write the fitted estimator to a file; see :func:`lmbm_torch.estimators.save`."""
        save(self, path, mode)


def save(estimator: BaseEstimator, path: str | PathLike, mode: Literal["x", "w"] = "x") -> None:
    """Write a fitted estimator to one file, such as ``model.safetensors``, for :func:`load`.

    Args:
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        NotFittedError: the estimator is not fitted.
        OSError: the file cannot be written.
        TypeError: an estimator of another library, or one with a parameter or a fitted attribute that is no
            plain value, such as a kernel or a random state that is a Python object.
    """
    if not isinstance(estimator, StoredEstimator) or estimator.holds_others:
        raise TypeError(
            f"estimator: expected one of lmbm_torch.estimators, got {type(estimator).__name__} of "
            f"{type(estimator).__module__}; what holds classifiers of other libraries is left to their tools"
        )
    check_is_fitted(estimator)
    archives.write(path, HOLDS, estimator, kinds(), mode)


def load(path: str | PathLike, device: str = "cpu") -> BaseEstimator:
    """The estimator of a file; its predictions are those of the saved one, on whatever device that was.

    Args:
        device: where the estimator computes; its parameter ``device``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file that is truncated, corrupted, of another kind or of a newer version. The message
            names the file.
    """
    return archives.read(path, HOLDS, kinds(device))


def kinds(device: str = "cpu") -> tuple[Kind, ...]:
    """The classes that estimators are made of.

    Args:
        device: for objects that are built.
    """
    return (
        *(
            Kind(each.stored_name(), each, _estimator_parts, partial(_estimator, each, device))
            for each in StoredEstimator.stored_classes()
        ),
        *saving.kinds(),
        Kind("Rule", Rule, _rule_parts, _rule),
        Kind("Constraints", Constraints, archives.fields_of, Constraints),
        Kind("Kernel", Kernel, archives.fields_of, lambda **parts: Kernel(**{**parts, "device": device})),
        Kind("Calibration", Calibration, Calibration.state, lambda **state: Calibration(**state)),
        Kind("MatchedInference", MatchedInference, MatchedInference.record, _inference),
        Kind("LabelBinarizer", LabelBinarizer, _estimator_parts, partial(_estimator, LabelBinarizer, device)),
        *(Kind(each.__name__, each, _csr_parts, partial(_csr, each)) for each in (csr_array, csr_matrix)),
    )


def _estimator_parts(estimator: BaseEstimator) -> dict[str, Any]:
    settings = estimator.get_params(deep=False)
    fitted = {name: value for name, value in vars(estimator).items() if name not in settings}
    return {"settings": settings, "fitted": fitted}


def _estimator(
    kind: type[BaseEstimator], device: str, *, settings: dict[str, Any], fitted: dict[str, Any]
) -> BaseEstimator:
    if "device" in settings:
        settings = {**settings, "device": device}
    estimator = kind(**settings)
    for name, value in fitted.items():
        setattr(estimator, name, value.to(device) if name == "model_" else value)
    return estimator


def _rule_parts(rule: Rule) -> dict[str, Any]:
    # Labels may be numbers, which are no keys in files.
    weights = {"labels": [*rule.weights], "weights": [*rule.weights.values()]}
    return {**weights, "bound": rule.bound, "text": rule.text}


def _rule(*, labels: list[str | int], weights: list[float], bound: float, text: str) -> Rule:
    return Rule(dict(zip(labels, weights, strict=True)), bound, text)


def _inference(**record: Any) -> MatchedInference:
    return MatchedInference.from_record(record)


def _csr_parts(matrix: Any) -> dict[str, Any]:
    parts = {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
    return {**parts, "shape": matrix.shape}


def _csr(
    kind: type, *, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> Any:
    matrix = kind((data, indices, indptr), shape=shape)
    matrix.check_format(full_check=True)
    return matrix
