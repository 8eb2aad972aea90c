"""Results of inference as named tensors, each of which says what it holds and along which axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import NamedTuple

import torch
from torch import Tensor

STATUS = {
    "status.exact": "bool batch",
    "status.converged": "bool batch",
    "status.num_iters": "count batch",
    "status.residual": "real batch",
}
# By type of result: each tensor's content (labels and probabilities change when 0 and 1 are exchanged, real
# numbers do not) and its axes. Tensors may be absent where their default is None.
SCHEMAS: dict[str, dict[str, str]] = {
    "Decoding": {
        "labels": "label batch labels",
        "objective": "real batch",
        "bound": "real batch",
        "nodes": "count batch",
        "hidden": "label batch hidden",
        "relaxed": "probability batch labels",
        "regret": "real batch",
        "mass_left": "real batch",
        **STATUS,
    },
    "LikelyLabellings": {
        "labels": "label batch support labels",
        "probability": "real batch support",
        "mass_left": "real batch",
        "log_known": "real batch",
        **STATUS,
    },
    "StateMarginals": {
        "states": "real batch labels values",
        "log_partition": "real batch",
        "mass_left": "real batch",
        **STATUS,
    },
    "Marginals": {
        "labels": "probability batch labels",
        "log_partition": "real batch",
        "standard_error": "real batch labels",
        **STATUS,
    },
    "BipartiteMarginals": {
        "visible": "probability batch labels",
        "hidden": "probability batch hidden",
        "log_partition": "real batch",
        **STATUS,
    },
    "ChainMarginals": {
        "states": "probability batch labels states",
        "edges": "probability batch steps states states",
        "log_partition": "real batch",
        **STATUS,
    },
    "TreeMarginals": {
        "states": "probability batch labels states",
        "edges": "probability batch labels states states",
        "log_partition": "real batch",
        **STATUS,
    },
    "FactorMarginals": {
        "states": "probability batch labels states",
        "log_partition": "real batch",
        **STATUS,
    },
    "SparseMarginals": {
        "states": "probability batch labels states",
        "labellings": "label batch support labels",
        "probabilities": "real batch support",
        "objective": "real batch",
        "bound": "real batch",
        **STATUS,
    },
    "BipartiteSamples": {"visible": "label batch labels", "hidden": "label batch hidden"},
    "LogPartitionBounds": {"lower": "real batch", "upper": "real batch", **STATUS},
    "Estimate": {
        "value": "real batch",
        "standard_error": "real batch",
        "effective_size": "real batch",
    },
}


class Field(NamedTuple):
    """What a tensor holds (label, probability, real, count or bool), and its axes."""

    content: str
    axes: tuple[str, ...]

    def dtype(self, real: torch.dtype) -> torch.dtype:
        """Of the tensor, for an energy of dtype ``real``."""
        return {"label": torch.int64, "count": torch.int64, "bool": torch.bool}.get(self.content, real)


def schema(returns: str) -> dict[str, Field]:
    """The fields of a type of result by name; of a bare tensor, which is described itself, ``result``."""
    described = SCHEMAS.get(returns, {"result": returns})
    return {name: Field(text.split()[0], tuple(text.split()[1:])) for name, text in described.items()}


def tensors_of(result: object, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a result or an energy, by name."""
    if isinstance(result, Tensor):
        return {prefix or "result": result}
    if not is_dataclass(result):
        return {}
    named: dict[str, Tensor] = {}
    for part in fields(result):
        named |= tensors_of(getattr(result, part.name), f"{prefix}{'.' * bool(prefix)}{part.name}")
    return named


def assert_same(
    came: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    *,
    apart: frozenset[str] = frozenset(),
    **limits,
) -> None:
    """Equal names and, up to rounding, values; fields ``apart`` are not compared."""
    assert came.keys() == expected.keys()
    for name in came.keys() - apart:
        torch.testing.assert_close(
            came[name], expected[name], msg=lambda text, name=name: f"{name}: {text}", **limits
        )


def along(field: Field, tensor: Tensor, axis: str, change: Callable[[Tensor, int], Tensor]) -> Tensor:
    """``change(tensor, dimension)`` for every dimension that is this axis."""
    for dimension, name in enumerate(field.axes):
        if name == axis:
            tensor = change(tensor, dimension)
    return tensor
