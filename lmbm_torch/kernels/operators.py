"""Kernels as custom operators of PyTorch, ``torch.ops.lmbm``, in compiled and exported programs.

In programs of ``torch.compile``, a kernel is one operator. ``torch.export`` uses the built-in operators of
PyTorch instead: exported programs run without this library. Within :func:`in_exports`, exported programs have
operators ``lmbm::…``, and run after an import of the routine's module, such as
``lmbm_torch.inference.messages.matrix_bp``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

__all__ = ["in_exports"]

_exports = {"kept": False}


@contextmanager
def in_exports() -> Iterator[None]:
    """Keep custom operators in programs that ``torch.export`` makes within the block.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import BipartiteEnergy
        >>> from lmbm_torch.inference.messages import matrix_bp
        >>> from lmbm_torch.kernels.operators import in_exports
        >>> class Beliefs(torch.nn.Module):
        ...     def forward(self, *tensors):
        ...         return matrix_bp.marginals(BipartiteEnergy(*tensors), num_iters=3).visible
        >>> tensors = torch.zeros(1, 3), torch.zeros(1, 2), torch.ones(3, 2)
        >>> with in_exports():
        ...     program = torch.export.export(Beliefs(), tensors)
        >>> any("lmbm.matrix_bp" in str(node.target) for node in program.graph.nodes)
        True
    """
    before, _exports["kept"] = _exports["kept"], True
    try:
        yield
    finally:
        _exports["kept"] = before


def is_kept(device: torch.device) -> bool:
    """Return whether traced code uses the custom operator although built-in operators would suffice.

    Compiled code for a GPU uses the built-in operators, because CUDA graphs cannot wait for the CPU.
    """
    return device.type == "cpu" and (_exports["kept"] or not torch.compiler.is_exporting())


def operator(
    name: str, schema: str, fake: Callable[..., Any], fixed: Mapping[str, int] | None = None, summed: str = ""
) -> Callable[[Callable[..., Any]], Any]:
    """Register a kernel of batches as ``lmbm::name``; with ``fixed``, ``torch.vmap`` joins all batches.

    Args:
        schema: arguments and results in the form of ``torch.library.custom_op``. The first argument has a row
            for each instance; other tensors have such rows, or a single row for all instances.
        fake: function that returns tensors with the shapes and dtypes of the results.
        fixed: for names of tensors, the number of axes with which the tensor has no rows. If ``torch.vmap``
            maps such a tensor, the kernel is called for each value. None: no rule for ``torch.vmap``.
        summed: name of an argument that requests a sum over rows; then each mapped batch has a call.
    """
    names = [part.split()[-1] for part in schema.partition("->")[0].strip(" ()").split(",")]

    def register(function: Callable[..., Any]) -> Any:
        made = torch.library.custom_op(f"lmbm::{name}", function, mutates_args=(), schema=schema)
        made.register_fake(fake)

        if fixed is not None:
            made.register_vmap(partial(_as_one_batch, made, names, fixed, summed))
        return made

    return register


def _as_one_batch(
    made: Any,
    names: Sequence[str],
    fixed: Mapping[str, int],
    summed: str,
    info: Any,
    in_dims: tuple[int | None, ...],
    *arguments: Any,
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    """Return the results of an operator for mapped arguments, and the mapped axes of the results."""
    size, given = info.batch_size, dict(zip(names, arguments, strict=True))
    axes = dict(zip(names, in_dims, strict=True))
    no_rows = {key for key, ndim in fixed.items() if given[key].ndim - (axes[key] is not None) == ndim}
    if given.get(summed) or any(axes[key] is not None for key in no_rows):
        calls = [made(*_at(place, arguments, in_dims)) for place in range(size)]
        return tuple(map(torch.stack, zip(*calls, strict=True))), (0,) * len(calls[0])
    rows = len(arguments[0] if in_dims[0] is None else arguments[0].select(in_dims[0], 0))
    wide = [
        joined(value, axes[key], size, rows) if isinstance(value, Tensor) and key not in no_rows else value
        for key, value in given.items()
    ]
    # A result whose length is not the number of rows is empty, because it was not requested.
    found = [(each, len(each) == size * rows) for each in made(*wide)]
    split = tuple(each.unflatten(0, (size, rows)) if has else each for each, has in found)
    return split, tuple(0 if has else None for _, has in found)


def joined(tensor: Tensor, axis: int | None, size: int, rows: int) -> Tensor:
    """Join ``size`` mapped tensors of ``rows`` rows to one tensor; a row for all instances stays one row."""
    if axis is None and tensor.shape[0] == 1 != rows:
        return tensor
    first = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return first.expand(-1, rows, *first.shape[2:]).flatten(0, 1)


def _at(place: int, arguments: tuple[Any, ...], in_dims: tuple[int | None, ...]) -> list[Any]:
    return [
        value if axis is None else value.select(axis, place)
        for value, axis in zip(arguments, in_dims, strict=True)
    ]
