"""The log partition of restricted Boltzmann machines by the odds that labellings and examples share.

A unit's field is the example's number plus one of the labelling of the other side, which all examples share:
its odds e^f are a product of two exponentials. Of two units together, (1 + e^f)(1 + e^g) is one product of
matrices over the four states that they have. Where the product over all units is a number of double
precision, no labelling of an example takes an exponential or a logarithm; else every group of units takes
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import zip_longest
from math import ceil, log
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float
from lmbm_torch.verdicts import is_traced

# A product of factors up to its exponential is a number of double precision, with room for their sums.
MOST_LOG = 680.0
# Bytes of the labellings' odds at most, and of the factors of the examples that are computed together: two
# tables of that size share the processor's cache.
MOST_BYTES = 16 * 2**20
PART_BYTES = 4 * 2**20
# Examples that are computed together even where their factors then take more: a product of matrices of one
# row takes as long as one of four.
FEWEST_ROWS = 8


def suits(machine: BipartiteEnergy) -> bool:
    """Whether it is of double precision on the CPU, its labellings are few, and no factor can overflow."""
    hidden, coupling, labels = machine.hidden, machine.coupling, machine.num_visible
    if is_traced() or hidden.dtype != torch.float64 or hidden.device.type != "cpu":
        return False
    # Of half as many pairs as units, each with four states.
    if hidden.itemsize * (labels + 2 * machine.num_hidden) << labels > part_bytes(MOST_BYTES):
        return False
    return max(_most(hidden, coupling)) <= MOST_LOG


@torch.no_grad()
def _most(hidden: Tensor, coupling: Tensor) -> list[float]:
    """The logarithm of the largest factor of each pair of units, or more: 1 + e^f is at most 2 e^|f|."""
    units = (hidden.abs().amax(0) + coupling.abs().sum(0) + log(2)).tolist()
    return [first + second for first, second in zip_longest(units[::2], units[1::2], fillvalue=0.0)]


def _num_groups(most: list[float]) -> int:
    """So many that no product over one overflows, where every so many-th pair is in the same."""
    count = max(ceil(sum(most) / MOST_LOG), 1)
    while max(sum(most[group::count]) for group in range(count)) > MOST_LOG:
        count += 1
    return count


def log_partition(
    machine: BipartiteEnergy, by_definition: Callable[[BipartiteEnergy], Tensor]
) -> Float[Tensor, " batch"]:
    """log Σ exp(score(v, h)), all visible labellings enumerated.

    Args:
        machine: one that :func:`suits`, its values checked.
        by_definition: the same in differentiable operations, for derivatives of the gradient.
    """
    tensors = machine.visible, machine.hidden, machine.coupling
    return cast(Tensor, _LogPartition.apply(*tensors, by_definition))


@cache
def _labellings(count: int) -> Float[Tensor, "labellings visible"]:
    """All labellings of so many units, not to be changed."""
    numbers = torch.arange(2**count)[:, None]
    return (numbers >> torch.arange(count - 1, -1, -1) & 1).double()


class _LogPartition(torch.autograd.Function):
    """Of (batch, visible), (batch, hidden) and (visible, hidden), see :func:`log_partition`."""

    @staticmethod
    def forward(
        ctx: Any, visible: Tensor, hidden: Tensor, coupling: Tensor, by_definition: Callable
    ) -> Tensor:
        ctx.save_for_backward(visible, hidden, coupling)
        ctx.by_definition = by_definition
        sums = []
        for part in _parts(visible, hidden, coupling):
            sums.append(part.log_sums)
            # A single one fills no more than a cache; of several, the gradient computes each anew.
            ctx.only_part = part if len(part.log_sums) == len(hidden) else None
        return torch.cat(sums)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled():
            # A derivative of the gradient may be asked for.
            value, needed = ctx.by_definition(BipartiteEnergy(*tensors)), ctx.needs_input_grad[:3]
            learnt = [tensor for tensor, is_needed in zip(tensors, needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(value, learnt, gradient, create_graph=True))
            return *(next(found) if is_needed else None for is_needed in needed), None
        labels = _labellings(tensors[0].shape[1])
        own, others = torch.empty_like(tensors[0]), torch.empty_like(tensors[1])
        together = torch.zeros(others.shape[1], len(labels), dtype=others.dtype)
        # Its memory is used again here, so that another gradient computes it anew.
        only, ctx.only_part = ctx.only_part, None
        for part in _parts(*tensors) if only is None else [only]:
            weights = part.posterior.mul_(gradient[part.rows, None])
            own[part.rows] = weights @ labels
            rest = torch.div(weights, part.factors, out=part.factors)
            others[part.rows] = _of_units(part.single * (part.shared @ rest.mT), others.shape[1]).T
            together += _of_units(part.shared * (part.single @ rest), len(together))
        return own, others, (together @ labels).T, None


class _Part(NamedTuple):
    """Some examples.

    Args:
        rows: which.
        log_sums: (rows,) their log partition.
        posterior: (rows, labellings) probabilities.
        single: (pairs, states, rows) the odds of a pair's states by the examples' fields.
        shared: (pairs, states, labellings) those by the labellings'.
        factors: (pairs, rows, labellings) their products' sums over the states.
    """

    rows: slice
    log_sums: Tensor
    posterior: Tensor
    single: Tensor
    shared: Tensor
    factors: Tensor


def _parts(visible: Tensor, hidden: Tensor, coupling: Tensor) -> Iterator[_Part]:
    labels = _labellings(visible.shape[1])
    shared = _of_pairs((labels @ coupling).exp_().T)
    row_bytes = shared.itemsize * len(shared) * len(labels)
    num_groups = _num_groups(_most(hidden, coupling))
    size = max(part_bytes(max(PART_BYTES, FEWEST_ROWS * row_bytes)) // row_bytes, 1)
    for start in range(0, len(hidden), size):
        rows = slice(start, start + size)
        single = _of_pairs(hidden[rows].exp().T)
        factors = single.mT @ shared
        products = [factors[group::num_groups].prod(0) for group in range(num_groups)]
        if num_groups == 1:
            log_scale, posterior = visible[rows].clamp(min=0).sum(1), _odds(visible[rows])
            posterior *= products[0]
        else:
            posterior = visible[rows] @ labels.T
            for product in products:
                posterior += product.log_()
            log_scale = posterior.amax(1)
            posterior.sub_(log_scale[:, None]).exp_()
        sums = posterior.sum(1)
        posterior /= sums[:, None]
        yield _Part(rows, log_scale.add_(sums.log_()), posterior, single, shared, factors)


def _odds(fields: Float[Tensor, "rows units"]) -> Float[Tensor, "rows labellings"]:
    """exp(f·y) of all labellings y, relative to the best one's."""
    # The exponentials of the labellings of one half, times those of the other.
    halves = fields.split([fields.shape[1] // 2, -(-fields.shape[1] // 2)], 1)
    first, second = (
        (half @ _labellings(half.shape[1]).T).sub_(half.clamp(min=0).sum(1, keepdim=True)).exp_()
        for half in halves
    )
    return (first[:, :, None] * second[:, None]).flatten(1)


def _of_pairs(odds: Float[Tensor, "units many"]) -> Float[Tensor, "pairs states many"]:
    """The odds of a pair's four states: neither unit is on, the first, the second, both.

    A unit without a companion has one that is never on.
    """
    if len(odds) % 2:
        odds = torch.cat([odds, torch.zeros_like(odds[:1])])
    first, second = odds[::2], odds[1::2]
    return torch.stack([torch.ones_like(first), first, second, first * second], 1)


def _of_units(states: Float[Tensor, "pairs states many"], num_units: int) -> Float[Tensor, "units many"]:
    """The sum over the states of each pair in which a unit is on."""
    sums = states[:, 1:3] + states[:, 3:]
    return sums.flatten(0, 1)[:num_units]
