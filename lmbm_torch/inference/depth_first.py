"""Depth-first search for the most probable labellings of directed models: the least memory, more prefixes.

Every round follows each example's deepest open prefix greedily to a labelling; prefixes no more probable than
the best labelling found are given up. An example holds a few open prefixes for each label, however long its
search lasts, where best-first search holds all; but prefixes are expanded that best-first search never meets.
Models that know their own bounds are searched by ``branch_and_bound``.
"""

from __future__ import annotations

from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.inference.parts.on_host import searched_on_host
from lmbm_torch.inference.parts.open_nodes import dive, search
from lmbm_torch.inference.results import Decoding
from lmbm_torch.shapes import Known

__all__ = ["decode"]


@searched_on_host
def decode(
    energy: DirectedEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: int | None = None,
    tolerance: float = 0.0,
) -> Decoding:
    """argmax_y log P(y); see :func:`lmbm_torch.inference.best_first.decode`."""
    return search(energy, known, top_k, node_limit, tolerance, dive)
