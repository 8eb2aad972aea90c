"""Export of models to ONNX files, which compute the log-potentials of the energy, but no inference."""

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
    """Write a model to an ONNX file, with each tensor of the energy as an output.

    The input is called ``x``; the outputs are called like the fields of ``model(x)``, such as ``unary``,
    ``parents``, ``ordering`` of a belief network. The batch has any size; fields shared by all examples have
    no batch axis. The energy's constructor builds the energy from the outputs.

    Args:
        model: the model with the encoder; the file has the model's precision.
        path: the path of the file to write; an existing file is replaced.
        example: a dense input with two or more examples, in the model's dtype and on the model's device.

    Returns:
        The names of the outputs, in order.

    Raises:
        ModuleNotFoundError: onnx or onnxscript is not installed.
        ValueError: there are fewer than two examples, so the batch axis is unknown.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import BoltzmannMachine, export_onnx
        >>> model = BoltzmannMachine(num_features=4, num_labels=3)
        >>> export_onnx(model, "model.onnx", torch.zeros(2, 4))  # doctest: +SKIP
        ['unary', 'pairwise', 'constant']
    """
    if example.ndim < 1 or len(example) < 2:
        raise ValueError(f"example: expected two or more inputs, got shape {tuple(example.shape)}")
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
    """A module that maps x to the tensors of the model's energy."""

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
