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
        nodes += sum_by_row(kept.rows, torch.ones_like(kept.rows), batch)
        children = model.children(kept, position)
        place = ranks(children.rows, children.log_prob)
        is_likely = (children.log_prob >= least[children.rows]) & (place < width)
        is_kept = is_likely | (place == 0)
        dropped = children.where(~is_kept)
        mass += sum_by_row(dropped.rows, dropped.log_prob.exp(), batch)
        largest = largest.maximum(largest_by_row(dropped.rows, dropped.log_prob, batch))
        kept = children.where(is_kept)
    order = torch.argsort(kept.log_prob, descending=True, stable=True)
    order = order[torch.argsort(kept.rows[order], stable=True)]
    return Sweep(kept.where(order), mass, largest, nodes)
