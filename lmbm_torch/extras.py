"""The extras of the package: a missing library is named together with the extra that brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    "arff": "data",
    "clarabel": "convex",
    "cvxpy": "convex",
    "cvxpylayers": "convex",
    "distributed": "cluster",
    "fastapi": "serve",
    "highspy": "convex",
    "hydra": "train",
    "jinja2": "io",
    "joblib": "sklearn",
    "lightning": "train",
    "matplotlib": "viz",
    "mlflow": "tracking",
    "mlrl": "boomer",
    "omegaconf": "train",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "pyarrow": "parquet",
    "pytoulbar2": "wcsp",
    "rich": "train",
    "safetensors": "io",
    "scipy": "sklearn",
    "shap": "explain",
    "sklearn": "sklearn",
    "torchmetrics": "sklearn",
    "uvicorn": "serve",
    "yaml": "train",
}
"""Module → the smallest extra that brings it."""


@contextmanager
def naming_extras() -> Iterator[None]:
    """Say how to install what an import inside lacks.

    Raises:
        ModuleNotFoundError: as the import does; the message names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None or "lmbm-torch[" in str(error):
            raise
        raise ModuleNotFoundError(
            f'{error}; pip install "lmbm-torch[{extra}]" brings it', name=error.name, path=error.path
        ) from error
