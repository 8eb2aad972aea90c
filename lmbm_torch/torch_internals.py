"""Private functions of torch, each with a fallback for releases of torch without the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    # Import a private module: torch has no public way to recognise tensors inside of torch.func.
    from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]  # compiled
except ImportError:
    _functorch: Any = None

assert_async: Callable[[Tensor, str], None] | None = getattr(torch, "_assert_async", None)
"""Function that raises an error in compiled code if a bool on the device is False; None if torch has none."""


transform: Callable[[], Any] = getattr(_functorch, "peek_interpreter_stack", lambda: None)
"""Return the innermost running transform, such as ``torch.func.grad`` or ``vmap``; None if no transform runs.

If torch cannot tell, the result is None; torch itself then refuses to read a tensor inside of a transform.
"""


def is_mapped(tensor: Tensor) -> bool:
    """Return whether a tensor belongs to ``torch.func.vmap``; False if torch cannot tell."""
    try:
        while _functorch.is_functorch_wrapped_tensor(tensor):
            if _functorch.is_batchedtensor(tensor):
                return True
            tensor = _functorch.get_unwrapped(tensor)
    except AttributeError:
        pass
    return False


def register_leaves(
    kind: type, flat: Callable[[Any], tuple[list, Any]], unflat: Callable[[Any, Any], Any]
) -> None:
    """Register a class with ``torch.func``, to find the tensors inside of objects.

    ``torch.export.register_dataclass`` would call the constructor, whose checks refuse placeholders.

    Args:
        kind: the class.
        flat: returns an object's tensors and remaining fields.
        unflat: builds an object from the tensors (or placeholders) and the remaining fields.
    """
    try:
        from torch.utils._pytree import register_pytree_node
    except ImportError:
        return
    register_pytree_node(kind, flat, unflat)
