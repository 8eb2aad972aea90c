"""What torch has no public name for, and what is done where a release of torch has it no longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    # The only place that tells which tensors are torch.func's.
    from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]  # compiled
except ImportError:
    _functorch: Any = None

assert_async: Callable[[Tensor, str], None] | None = getattr(torch, "_assert_async", None)
"""Let compiled code raise unless a bool on a device is true, without a wait; None where torch cannot."""


transform: Callable[[], Any] = getattr(_functorch, "peek_interpreter_stack", lambda: None)
"""Return the innermost of ``torch.func.grad``, ``vmap`` and other transforms that runs, or None.

Where torch does not tell, the answer is None, and torch itself refuses to read a tensor within a transform.
"""


def is_mapped(tensor: Tensor) -> bool:
    """Return whether a tensor is one of ``torch.func.vmap``; False where torch does not tell."""
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
    """Let ``torch.func`` go through the objects of a class to their tensors, where torch can be told to.

    ``torch.export.register_dataclass`` would call the constructor, whose checks no placeholder meets.

    Args:
        kind: the class.
        flat: an object's tensors, and what else makes it.
        unflat: the object of tensors, which may be anything meanwhile, and what else makes it.
    """
    try:
        from torch.utils._pytree import register_pytree_node
    except ImportError:
        return
    register_pytree_node(kind, flat, unflat)
