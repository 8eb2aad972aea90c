"""The extras of the package: an error about a missing library names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
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
"""Module → the smallest extra with the module."""


@contextmanager
def naming_extras() -> Iterator[None]:
    """Name the extra to install if an import inside the block fails.

    Raises:
        ModuleNotFoundError: the error of the import, with the extra in the message.
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
