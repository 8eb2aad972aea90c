"""Tools for imports: imports at first use, and errors naming the optional dependencies to install."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

EXTRAS = {
    "PIL": "images",
    "clarabel": "convex",
    "cvxpy": "convex",
    "cvxpylayers": "convex",
    "distributed": "cluster",
    "fastapi": "serve",
    "highspy": "convex",
    "huggingface_hub": "text",
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
    "platformdirs": "text",
    "pyarrow": "parquet",
    "pytoulbar2": "wcsp",
    "rich": "train",
    "safetensors": "io",
    "scipy": "sklearn",
    "sentence_transformers": "text",
    "shap": "explain",
    "sklearn": "sklearn",
    "timm": "images",
    "torchmetrics": "sklearn",
    "transformers": "text",
    "uvicorn": "serve",
    "xgboost": "boosting",
    "yaml": "train",
}
"""For each module of an optional dependency, the smallest extra of this package that installs the module."""


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
            f'{error}; pip install "lmbm-torch[{extra}]" installs it', name=error.name, path=error.path
        ) from error


@contextmanager
def uncollected() -> Iterator[None]:
    """Run a block without garbage collection: imports and compilations take a fifth to a third less time.

    Each collection would scan all objects of torch's modules. If garbage collection is already off, such as
    in a nested block, nothing changes.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Move all objects to the oldest generation by freezing and unfreezing: objects created in the block
        # live long, and a collection of younger generations would cost the time just saved.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def late(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names are imported at first use.

    Args:
        package: name of the package.
        file: path of the package's ``__init__.py`` with imports for type checkers, which list the names.
    """
    tops = [top for top in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(top, ast.If)]
    imports = [node for top in tops for node in top.body if isinstance(node, ast.ImportFrom)]
    where = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with naming_extras(), uncollected():
            return getattr(import_module(where[name]), name)

    return find, lambda: sorted(where)
