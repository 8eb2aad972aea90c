"""Chains on a GPU: all positions are computed together, in about log2(length) rounds.

Messages along a chain are products of one matrix for each step, which may be multiplied in any order of
pairs. Round k joins the product of 2^k steps up to each position with the product that ends before (Hillis
and Steele 1986). A loop over positions launches some ten kernels for each position; a round launches some ten
for all positions, but needs a table over three states. On the CPU the loop is 4 to 190 times as fast,
measured by ``scripts/bench/chain_dp.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Bool, Float, Int

# Largest bytes of one (batch, steps, states, states, states) tensor; a round reads and writes some five of
# them. For larger tensors a loop over positions should be faster (estimated with 4 µs for a launch and 3
# TB/s).
MOST_BYTES = 64 * 2**20

Semiring = Callable[[Tensor, int], Tensor]


def fits(batch: int, steps: int, states: int, dtype: torch.dtype) -> bool:
    """Return whether the tensors of a round have at most ``MOST_BYTES``."""
    return steps > 1 and batch * steps * states**3 * dtype.itemsize <= part_bytes(MOST_BYTES)


def steps_of(
    unary: Float[Tensor, "batch length states"],
    transition: Float[Tensor, "states states"] | Float[Tensor, "batch steps states states"],
    inside: Bool[Tensor, "batch length"],
    forbidden: float,
) -> Float[Tensor, "batch steps states states"]:
    """Return each step's log-potentials, with the next state's unary; beyond a chain's end the identity."""
    tables = transition + unary[:, 1:, None]
    stay = torch.eye(unary.shape[-1], dtype=torch.bool, device=unary.device)
    same = torch.zeros_like(stay, dtype=unary.dtype).masked_fill(~stay, forbidden)
    return tables.where(inside[:, 1:, None, None], same)


def forward(
    first: Float[Tensor, "batch states"], steps: Float[Tensor, "batch steps states states"], total: Semiring
) -> tuple[Float[Tensor, "batch length states"], Float[Tensor, " batch"]]:
    """Return the log-messages to all positions, at most 0, and the total subtracted from the last message.

    Args:
        total: a sum over an axis: ``torch.logsumexp``, or ``torch.amax`` for the best paths.
    """
    prefixes, lowered = _scan(steps, total)
    messages = total(first[:, None, :, None] + prefixes, -2)
    largest = messages.detach().amax(-1)
    messages = torch.cat([first[:, None], messages - largest[..., None]], 1)
    return messages, lowered[:, -1] + largest[:, -1]


def backward(steps: Float[Tensor, "batch steps states states"]) -> Float[Tensor, "batch steps states"]:
    """Return the log-messages from later positions to all positions but the first, up to a constant."""
    # Reverse the steps and transpose the matrices, so that products of suffixes become products of prefixes.
    suffixes, _ = _scan(steps.flip(1).mT, torch.logsumexp)
    ahead = suffixes.logsumexp(-2).flip(1)[:, 1:]
    return torch.cat([ahead, torch.zeros_like(steps[:, :1, 0])], 1)


def trace(
    last: Int[Tensor, " batch"], pointers: Int[Tensor, "batch steps states"]
) -> Int[Tensor, "batch length"]:
    """Trace each chain back from its last state, by pointers to the previous state; return the states."""
    steps = pointers.shape[1]
    # ``back`` maps the last state to the state before step t; each round doubles the number of steps joined.
    back, reach = pointers, 1
    while reach < steps:
        joined = back[:, :-reach].gather(-1, back[:, reach:])
        back = torch.cat([joined, back[:, -reach:]], 1)
        reach *= 2
    before = back.gather(-1, last[:, None, None].expand(-1, steps, 1)).squeeze(-1)
    return torch.cat([before, last[:, None]], 1)


def _scan(tables: Tensor, total: Semiring) -> tuple[Tensor, Tensor]:
    """Return the products of all prefixes of matrices, with largest entry 0, and the totals subtracted."""
    steps, reach = tables.shape[1], 1
    lowered = torch.zeros_like(tables[..., 0, 0]).detach()
    while reach < steps:
        products = total(tables[:, :-reach, :, :, None] + tables[:, reach:, None], -2)
        largest = products.detach().amax((-2, -1))
        tables = torch.cat([tables[:, :reach], products - largest[..., None, None]], 1)
        later = lowered[:, :-reach] + lowered[:, reach:] + largest
        lowered = torch.cat([lowered[:, :reach], later], 1)
        reach *= 2
    return tables, lowered
