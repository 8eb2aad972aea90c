"""Models as ONNX files: x → the energy's log-potentials; inference stays outside."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor, nn

from lmbm_torch.extras import naming_extras
from lmbm_torch.models.base import Model

__all__ = ["export_onnx"]


def export_onnx(model: Model, path: str | PathLike, example: Tensor) -> tuple[str, ...]:
    """Write what a model makes of its input, for a runtime without torch: one output a tensor of its energy.

    The input is called ``x``, the outputs as the fields of ``model(x)``: those of a belief network
    ``unary``, ``parents``, ``ordering``. The batch is of any size; fields that all examples share have no
    batch axis. Given the outputs, the energy's constructor makes the same energy again.

    Args:
        model: with its encoder, in the precision that the file is to have.
        path: of the file to write; one that is there is replaced.
        example: an input of two examples or more, dense, of the model's dtype and on its device.

    Returns:
        The names of the outputs, in their order.

    Raises:
        ModuleNotFoundError: onnx or onnxscript is not installed.
        ValueError: an example of fewer than two inputs, from which the batch axis could not be told.
    """
    if example.ndim < 1 or len(example) < 2:
        raise ValueError(f"example: expected two inputs or more, got shape {tuple(example.shape)}")
    with naming_extras():
        import onnx
        import onnxscript  # noqa: F401
    written = copy.deepcopy(model).eval().requires_grad_(False)
    names = tuple(name for name, _ in _tensors(written(example)))
    program: Any = torch.onnx.export(
        _Fields(written).eval(),
        (example,),
        input_names=["x"],
        output_names=list(names),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )
    onnx.save(program.model_proto, fspath(path))
    return names


class _Fields(nn.Module):
    """x → the tensors of the energy."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor for _, tensor in _tensors(self.model(x)))


def _tensors(energy: Any) -> Iterator[tuple[str, Tensor]]:
    for field in fields(energy):
        value = getattr(energy, field.name)
        if isinstance(value, Tensor):
            yield field.name, value
