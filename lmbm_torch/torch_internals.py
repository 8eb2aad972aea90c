"""Private parts of torch, with a fallback for releases of torch without the parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    # The only way to recognise tensors of torch.func.
    from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]  # compiled
except ImportError:
    _functorch: Any = None

assert_async: Callable[[Tensor, str], None] | None = getattr(torch, "_assert_async", None)
"""Let compiled code raise unless a bool on a GPU is true, without a wait; None if torch cannot."""


transform: Callable[[], Any] = getattr(_functorch, "peek_interpreter_stack", lambda: None)
"""Return the innermost of ``torch.func.grad``, ``vmap`` and other transforms that runs, or None.

If torch does not say, the answer is None, and torch refuses to read a tensor within a transform.
"""


def is_mapped(tensor: Tensor) -> bool:
    """Return whether a tensor belongs to ``torch.func.vmap``; False if torch does not say."""
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
    """Register a class for ``torch.func``, with access to the tensors of objects.

    ``torch.export.register_dataclass`` would call the constructor, and its checks refuse placeholders.

    Args:
        kind: the class.
        flat: returns an object's tensors and remaining fields.
        unflat: builds an object from tensors or placeholders and the remaining fields.
    """
    try:
        from torch.utils._pytree import register_pytree_node
    except ImportError:
        return
    register_pytree_node(kind, flat, unflat)
