"""One pass through the labels that keeps some prefixes of each length, and what it drops."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lmbm_torch.inference.parts.sequential import Prefixes, Sequential, largest_by_row, ranks, sum_by_row
from lmbm_torch.shapes import Float, Int

__all__ = ["Sweep", "sweep"]


class Sweep(NamedTuple):
    """The result of a pass.

    Args:
        leaves: labellings, each example's most probable one first.
        mass_left: the probability of all that was dropped; only of what agrees with the known labels.
        largest_left: the log-probability of the most probable prefix that was dropped; −∞ where none was.
        nodes: prefixes that were expanded.
    """

    leaves: Prefixes
    mass_left: Float[Tensor, " batch"]
    largest_left: Float[Tensor, " batch"]
    nodes: Int[Tensor, " batch"]


def sweep(model: Sequential, least: Float[Tensor, " batch"], width: int) -> Sweep:
    """Keep prefixes of log-probability ``least`` and more, the ``width`` best of a length, at least one."""
    batch = model.batch_size
    kept = model.roots()
    mass = torch.zeros(batch, dtype=torch.float64, device=model.device)
    largest = torch.full_like(mass, -torch.inf)
    nodes = torch.zeros(batch, dtype=torch.int64, device=model.device)
    for position in range(model.num_labels):
        nodes += torch.bincount(kept.rows, minlength=batch)
        children = model.children(kept, position)
        is_kept = _kept(children, least, width)
        rows, log_prob = children.rows[~is_kept], children.log_prob[~is_kept]
        mass += sum_by_row(rows, log_prob.exp(), batch)
        largest = largest.maximum(largest_by_row(rows, log_prob, batch))
        kept = children.where(is_kept)
    order = torch.argsort(kept.log_prob, descending=True, stable=True)
    order = order[torch.argsort(kept.rows[order], stable=True)]
    return Sweep(kept.where(order), mass, largest, nodes)


def _kept(children: Prefixes, least: Tensor, width: int) -> Tensor:
    """Whether each prefix is kept, (nodes,)."""
    is_likely = children.log_prob >= least[children.rows]
    counts = torch.bincount(children.rows[is_likely], minlength=len(least))
    # To rank all prefixes takes a third of a pass, and most passes have room for all that are likely.
    if int(counts.min()) >= 1 and int(counts.max()) <= width:
        return is_likely
    place = ranks(children.rows, children.log_prob)
    return (is_likely & (place < width)) | (place == 0)
