"""Directed models of any number of labels, decoded by a search, by parts and by junction trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.parts import part_by_part
from lmbm_torch.inference.parts.cutoffs import CUTOFFS
from lmbm_torch.inference.results import Decoding, replaced

__all__ = ["Ways", "decode_network"]


class Ways(NamedTuple):
    """To decode a directed model: by a search, or by a junction tree where that is narrow.

    Args:
        routine: what a part of it is decoded by, and by what its parts are again.
        objective: what they maximise or minimise.
    """

    search: Callable[..., Decoding]
    tree: Callable[..., Decoding]
    is_narrow: Callable[..., bool]
    routine: Callable[..., Decoding]
    objective: Callable[[Any, Tensor], Tensor]


def decode_network(
    energy: DirectedEnergy,
    ways: Ways,
    known: Tensor | None,
    top_k: int,
    node_limit: int | None,
    constraints: Constraints | None = None,
) -> Decoding:
    """A search's answers; of many labels those that it did not prove by their parts or a junction tree."""
    search = partial(ways.search, top_k=top_k, node_limit=node_limit)
    if top_k > 1 or energy.num_labels <= CUTOFFS.narrow:
        return search(energy, known=known, constraints=constraints)
    return part_by_part.decode(
        energy,
        partial(ways.routine, node_limit=node_limit),
        ways.objective,
        partial(_decode_connected, ways, search),
        soon=partial(ways.search, node_limit=part_by_part.soon(node_limit)),
        known=known,
        constraints=constraints,
    )


def _decode_connected(
    ways: Ways,
    search: Callable[..., Decoding],
    energy: DirectedEnergy,
    *,
    known: Tensor | None,
    constraints: Constraints | None,
) -> Decoding:
    """A search's answers, those that it did not prove by a junction tree."""
    found = search(energy, known=known, constraints=constraints)
    (rows,) = (~found.status.exact).nonzero(as_tuple=True)
    limits = {"constraints": constraints, "max_treewidth": CUTOFFS.treewidth}
    if not len(rows) or not ways.is_narrow(energy, **limits):
        return found
    part = None if known is None else known[rows]
    proven = ways.tree(energy.select(rows), known=part, **limits)
    assert found.nodes is not None
    return replaced(found, rows, replace(proven, nodes=found.nodes[rows]))
