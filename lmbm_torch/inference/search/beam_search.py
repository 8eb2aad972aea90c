"""Beam search for directed models in topological order; with a width of 1, greedy decoding.

Each prefix of a labelling is continued first with the value that the local field prefers (1 for a field of
0); at ties the earlier prefixes are kept. No label's loss is negative: no labelling left out costs less
than the cheapest dropped prefix. If the answer costs no more, the answer is proven optimal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known, check_positive
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.energies.bipartite import softplus
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.sampling.ancestral import next_field
from lmbm_torch.inference.search.sequential import Sequential, sweep
from lmbm_torch.shapes import Known
from lmbm_torch.verdicts import one_door

__all__ = ["decode", "decode_hinge"]


@one_door
def decode(
    energy: DirectedEnergy | SequentialEnergy, width: int = 1, *, known: Known | None = None
) -> Decoding:
    """Return a labelling of high probability; ``objective`` and ``bound`` are log-probabilities.

    Args:
        energy: a directed model, on any device; the labels may have more than two values.
        width: the number of prefixes kept at each label; with one for each labelling, the search is exact.
        known: the known labels' values, NaN for a free label; every labelling built has the known values.

    Raises:
        ValueError: NaN, infinity or a misplaced parent in the energy; ``width`` below 1; ``known`` of another
            shape than (batch, labels), or with impossible values.
    """
    if isinstance(energy, SequentialEnergy):
        return _sweep(energy, width, known)
    found = _search(energy, width, known, lambda margins: softplus(-2 * margins))
    return replace(found, objective=-found.objective, bound=-found.bound)


@one_door
def decode_hinge(
    energy: DirectedEnergy, margin: float = 1.0, width: int = 1, *, known: Known | None = None
) -> Decoding:
    """Return a labelling of low hinge loss Σ_i [margin − m_i]_+ (lmbm_and_lmsbn_2010, Equation 5).

    Args:
        energy: a directed model, on any device.
        margin: γ > 0, in units of the local fields.
        width: the number of prefixes kept at each label; with 2^labels the search is exact.
        known: {0, 1, NaN}, NaN for a free label; hinge losses of known labels are part of the sum.

    Raises:
        ValueError: see :func:`decode`; the margin is not a finite number above 0.
    """
    check_positive("margin", margin)
    return _search(energy, width, known, lambda margins: (margin - margins).clamp_min(0))


@torch.no_grad()
def _search(
    energy: DirectedEnergy, width: int, known: Tensor | None, loss: Callable[[Tensor], Tensor]
) -> Decoding:
    energy.check_values()
    check_count("width", width)
    batch, labels = energy.unary.shape
    check_known(known, energy.device, batch, labels)
    if known is not None:
        known = to_spins(known, energy.dtype)[:, energy.ordering]
    ordered = energy.in_order()
    spins = energy.unary.new_empty(1, batch, labels)
    cost = energy.unary.new_zeros(1, batch)
    dropped = torch.full_like(cost[0], torch.inf)
    nodes = torch.zeros(batch, dtype=torch.int64, device=energy.device)
    for position in range(labels):
        nodes = nodes + cost.isfinite().sum(0)
        field = next_field(ordered, spins[..., :position])
        preferred = torch.where(field >= 0, 1.0, -1.0).to(field.dtype)
        branches = cost[:, None] + torch.stack([loss(field.abs()), loss(-field.abs())], 1)
        if known is not None:
            agreement = preferred * known[:, position]
            branches = branches.masked_fill(torch.stack([agreement < 0, agreement > 0], 1), torch.inf)
        cost, branch = branches.flatten(0, 1).sort(stable=True, dim=0)
        if len(cost) > width:
            dropped = torch.minimum(dropped, cost[width])
        cost, branch = cost[:width], branch[:width]
        prefix = branch // 2
        spins = spins.gather(0, prefix[..., None].expand(-1, -1, labels))
        spins[..., position] = preferred.gather(0, prefix) * (1 - 2 * (branch % 2))
    best, bound = cost[0], torch.minimum(cost[0], dropped)
    status = Status(best <= dropped, torch.ones_like(nodes, dtype=torch.bool), nodes, best - bound)
    return Decoding((spins[0] > 0).long()[:, energy.positions], best, bound, status, nodes)


@torch.no_grad()
def _sweep(energy: SequentialEnergy, width: int, known: Tensor | None) -> Decoding:
    check_count("width", width)
    model = Sequential.of(energy, known)
    everything = torch.full((model.batch_size,), -torch.inf, dtype=torch.float64, device="cpu")
    leaves, _, dropped, nodes = sweep(model, everything, width)
    first = torch.searchsorted(leaves.rows, torch.arange(model.batch_size, device="cpu"))
    best = leaves.log_prob[first]
    bound = best.maximum(dropped)
    residual = torch.where(bound > best, bound - best, 0)
    ended = torch.ones_like(nodes, dtype=torch.bool)
    status = Status(dropped <= best, ended, nodes, residual.to(model.dtype))
    labels = leaves.values[first].long()[:, model.positions]
    return Decoding(labels, best.to(model.dtype), bound.to(model.dtype), status, nodes)
