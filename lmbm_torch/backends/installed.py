"""Which compiled modules can be used here."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def compiled(name: str, task: str) -> ModuleType | None:
    """The module ``name`` of this package; None, said once, where what it needs is not installed.

    Args:
        name: such as ``numba_smo``.
        task: what then runs on its plain reference, for the message.
    """
    try:
        return import_module(f"lmbm_torch.backends.{name}")
    except ImportError as missing:
        warnings.warn(
            f"{task} runs on its plain reference, which is far slower: {missing}",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
