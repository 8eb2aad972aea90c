"""Files of models, estimators and predictors, and run directories; reading executes no code of a file."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmbm_torch.persistence.files import load, save

__all__ = ["load", "save"]


def __getattr__(name: str) -> Any:
    # Import late: checking a saved configuration needs no torch, whose import takes long.
    if name in __all__:
        return getattr(import_module("lmbm_torch.persistence.files"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
