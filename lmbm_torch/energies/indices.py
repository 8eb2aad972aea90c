"""Orderings and cliques as index tensors, sent to a device once. This module is internal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from lmbm_torch.checks import check_permutation
from lmbm_torch.shapes import Int
from lmbm_torch.verdicts import is_traced, refuse_unless

__all__ = []

Cliques = tuple[tuple[int, ...], ...]
# Values of orderings read before, with the tensors' versions: reading from a GPU at every step would be slow.
_seen: WeakIdKeyDictionary = WeakIdKeyDictionary()


def check_ordering(ordering: Int[Tensor, " labels"], size: int) -> None:
    """Raise ValueError unless ``ordering`` is a permutation of 0 … size − 1; each tensor is read once."""
    if is_traced():
        refuse_unless(
            "ordering: expected a permutation",
            (ordering,),
            lambda: (ordering.sort().values == torch.arange(size, device=ordering.device)).all(),
            lambda: None,
        )
    else:
        check_permutation("ordering", _on_host(ordering), size)


def positions_of(ordering: Int[Tensor, " labels"]) -> list[int]:
    """Return the position of each label in an ordering."""
    order = _on_host(ordering)
    return sorted(range(len(order)), key=order.__getitem__)


def index_order(size: int, device: torch.device) -> Int[Tensor, " labels"]:
    """Return the tensor 0, 1, … on a device; remember the values, to avoid reading from the device later."""
    order = torch.arange(size, device=device)
    if not is_traced() and not order.is_inference():
        _seen[order] = order._version, [*range(size)]
    return order


def constant(values: tuple[int | float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers as a tensor on a device; later calls with the same numbers return the same tensor."""
    if is_traced():
        return torch.tensor(values, dtype=dtype, device=device)
    return _constant(values, dtype, device)


def padded_cliques(cliques: Cliques, num_labels: int, device: torch.device) -> Int[Tensor, "cliques members"]:
    """Return the labels of each clique, padded with ``num_labels`` to the size of the largest clique."""
    if is_traced():
        return _padded(cliques, num_labels, device)
    return _kept(cliques, num_labels, device)


def _padded(cliques: Iterable[Sequence[int]], num_labels: int, device: torch.device) -> Tensor:
    most = max([0, *map(len, cliques)])
    rows = [[*clique] + [num_labels] * (most - len(clique)) for clique in cliques]
    return torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(rows), most)


@lru_cache(maxsize=64)
def _constant(values: tuple[int | float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


@lru_cache(maxsize=64)
def _kept(cliques: Cliques, num_labels: int, device: torch.device) -> Tensor:
    # Leave inference mode: a tensor created in inference mode could not be used in training later.
    with torch.inference_mode(False):
        return _padded(cliques, num_labels, device)


def _on_host(ordering: Tensor) -> list[int]:
    if ordering.device.type == "cpu" or ordering.is_inference():
        return ordering.tolist()
    version, order = _seen.get(ordering) or (-1, [])
    if version != ordering._version:
        order = ordering.tolist()
        _seen[ordering] = ordering._version, order
    return order
