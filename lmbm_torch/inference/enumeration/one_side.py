"""Restricted Boltzmann machines with one side enumerated, and the other side summed out in closed form.

A unit of the other side has a field f that is the sum of a number for the example and a number for the
labelling: its odds e^f are a product of two exponentials, which examples and labellings share. For a pair
of units with fields f and g, the factor (1 + e^f)(1 + e^g) is a matrix product over the four states of the
pair. If the product over all units fits into double precision, no exponential or logarithm of single
labellings is needed; otherwise one for each group of units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import zip_longest
from math import ceil, log
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lmbm_torch.checks import check_known
from lmbm_torch.energies.base import BaseEnergy
from lmbm_torch.energies.bipartite import BipartiteEnergy, softplus
from lmbm_torch.inference.common.given import clamp
from lmbm_torch.kernels.installed import compiled
from lmbm_torch.kernels.search.records import suits as kernel_suits
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float, Int, Known, Labels, Scores, Shaped
from lmbm_torch.verdicts import is_traced, number

MOST_FREE = "most free labels"


def _most_free(known: Tensor) -> int:
    if is_traced():
        return known.shape[1]
    return int(number(MOST_FREE, (known,), lambda: known.isnan().sum(1).max()))


@dataclass(frozen=True)
class OneSide(BaseEnergy):
    """Energy of one side's units: score(y) = log Σ_z exp(score(y, z)), where z are the other side's units.

    Let f = hidden + yᵀ coupling be the fields of the other side. A free unit z_j adds softplus(f_j) to the
    score if summed out, or max(f_j, 0) if maximised out; a known unit adds z_j f_j.

    Args:
        machine: the machine, swapped if necessary; the visible side is enumerated.
        known: {0, 1, NaN} for the enumerated side, or None.
        known_other: {0, 1, NaN} for the side that is summed out, or None.
        is_hidden: whether the enumerated side is the original machine's hidden side.
    """

    machine: BipartiteEnergy
    known: Known | None = None
    known_other: Shaped[Tensor, "batch others"] | None = None
    is_hidden: bool = False

    @classmethod
    def visible(cls, energy: BipartiteEnergy, known: Tensor | None) -> OneSide:
        """Return the energy of the visible side, some of whose units may be ``known``."""
        check_known(known, energy.device, energy.batch_size, energy.num_visible)
        return cls(energy, known=known)

    @classmethod
    def smaller(cls, energy: BipartiteEnergy, known: Tensor | None) -> OneSide:
        """Return the energy of the side with fewer free units; visible units may be ``known``."""
        side = cls.visible(energy, known)
        num_free = energy.num_visible if known is None else _most_free(known)
        if num_free <= energy.num_hidden:
            return side
        return cls(energy.swap(), known_other=known, is_hidden=True)

    @property
    def given(self) -> Labels | None:
        """Return the known units if no unit is free, else None."""
        if is_traced() or self.known is None:
            return None
        return self.known if _most_free(self.known) == 0 else None

    @property
    def _first(self) -> Tensor:
        return self.machine.visible

    @property
    def num_others(self) -> int:
        return self.machine.num_hidden

    @property
    def width(self) -> int:
        """Return the number of floats in memory for each labelling: the units of the larger side, or of this
        side only, if the kernel is used.
        """
        return self.num_labels if self._compiled() else max(self.num_labels, self.num_others)

    def check_values(self) -> None:
        """Raise ValueError for NaN or infinite log-potentials; the message names the caller's tensors."""
        came = self.machine.swap() if self.is_hidden else self.machine
        came.check_values()

    def visible_first(self, own: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two tensors in the order visible side, hidden side."""
        return (others, own) if self.is_hidden else (own, others)

    def score(self, labels: Labels) -> Scores:
        """Return log Σ_z exp(score(y, z))."""
        kernel = self._compiled()
        if kernel is not None and labels.ndim == 3:
            others = kernel.log_sums(labels, self.machine.hidden, self.machine.coupling)
            return (labels.to(self.dtype) * self.machine.visible).sum(-1) + others
        fields = self.machine.hidden_fields(labels)
        return self._score(labels, fields, softplus(fields))

    def best_score(self, labels: Labels) -> Scores:
        """Return max_z score(y, z)."""
        fields = self.machine.hidden_fields(labels)
        return self._score(labels, fields, fields.clamp(min=0))

    def _score(self, labels: Tensor, fields: Tensor, others: Tensor) -> Tensor:
        """Return the score if each free unit of the other side adds its entry of ``others``."""
        if self.known_other is not None:
            known = self.known_other.nan_to_num().to(self.dtype)
            others = torch.where(self.known_other.isnan(), others, known * fields)
        return (labels.to(self.dtype) * self.machine.visible).sum(-1) + others.sum(-1)

    def best_others(self, labels: Shaped[Tensor, "batch labels"]) -> Int[Tensor, "batch others"]:
        """Return argmax_z score(y, z); 0 at ties."""
        return clamp((self.machine.hidden_fields(labels) > 0).long(), self.known_other)

    def expected_others(self, labels: Labels) -> Float[Tensor, "*samples _batch others"]:
        """Return P(z_j = 1 | y)."""
        return clamp(self.machine.hidden_given_visible(labels), self.known_other)

    def expected_units(
        self, labels: Labels, weights: Float[Tensor, "samples batch"]
    ) -> Float[Tensor, "batch units"]:
        """Return the weighted sums over samples of y, then of P(z_j = 1 | y)."""
        own = torch.einsum("sb,sbi->bi", weights, labels.to(self.dtype))
        kernel = self._compiled()
        if kernel is not None:
            others = kernel.expected_sum(labels, weights, self.machine.hidden, self.machine.coupling)
        else:
            others = torch.einsum("sb,sbi->bi", weights, self.expected_others(labels))
        return torch.cat([own, others], -1)

    def expected_products(
        self, labels: Labels, weights: Float[Tensor, "samples batch"]
    ) -> Float[Tensor, "batch pairs"]:
        """Return the weighted sums over samples of y_i P(z_j = 1 | y), ordered by i, then by j."""
        others = weights[..., None] * self.expected_others(labels)
        return torch.einsum(
            "sbi,sbj->bij", labels.to(self.dtype).expand(-1, len(others[0]), -1), others
        ).flatten(1)

    def _compiled(self) -> ModuleType | None:
        """Return the kernel if it is installed and applies (no gradients, no known labels), else None."""
        tensors = self.machine.visible, self.machine.hidden, self.machine.coupling
        wants_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        return None if wants_gradient else self._kernel

    @cached_property
    def _kernel(self) -> ModuleType | None:
        if self.known_other is not None or self.device.type != "cpu":
            return None
        if not kernel_suits(self.machine.hidden, self.machine.coupling):
            return None
        return compiled("search.one_side")


# Largest logarithm of a product of factors without overflow in double precision, with room for sums.
MOST_LOG = 680.0
# Largest bytes of the odds of all labellings; together with PART_BYTES they fit into the CPU's cache.
MOST_BYTES = 16 * 2**20
# Largest bytes of the factors of the examples that are computed together.
PART_BYTES = 4 * 2**20
# Smallest number of examples that are computed together, even beyond PART_BYTES: a matrix product of one row
# takes as long as a product of four rows.
FEWEST_ROWS = 8


def suits(machine: BipartiteEnergy) -> bool:
    """Return whether the fast sums apply: on the CPU, in float64, with few labellings, without overflow."""
    hidden, coupling, labels = machine.hidden, machine.coupling, machine.num_visible
    if is_traced() or hidden.dtype != torch.float64 or hidden.device.type != "cpu":
        return False
    # Each labelling needs a number for each label, and four for each pair of hidden units.
    if hidden.itemsize * (labels + 2 * machine.num_hidden) << labels > part_bytes(MOST_BYTES):
        return False
    return max(_most(hidden, coupling)) <= MOST_LOG


@torch.no_grad()
def _most(hidden: Tensor, coupling: Tensor) -> list[float]:
    """Return an upper bound of the logarithm of each pair's factor, since 1 + e^f is at most 2 e^|f|."""
    units = (hidden.abs().amax(0) + coupling.abs().sum(0) + log(2)).tolist()
    return [first + second for first, second in zip_longest(units[::2], units[1::2], fillvalue=0.0)]


def _num_groups(most: list[float]) -> int:
    """Return the smallest number of groups of pairs, dealt out in turn, in which no product overflows."""
    count = max(ceil(sum(most) / MOST_LOG), 1)
    while max(sum(most[group::count]) for group in range(count)) > MOST_LOG:
        count += 1
    return count


def log_partition(
    machine: BipartiteEnergy, by_definition: Callable[[BipartiteEnergy], Tensor]
) -> Float[Tensor, " batch"]:
    """Return log Σ exp(score(v, h)) by enumeration of all visible labellings.

    Args:
        machine: a checked machine for which :func:`suits` is true.
        by_definition: the same function in differentiable operations, for second derivatives.
    """
    tensors = machine.visible, machine.hidden, machine.coupling
    return cast(Tensor, _LogPartition.apply(*tensors, by_definition))


@cache
def _labellings(count: int) -> Float[Tensor, "labellings visible"]:
    """Return all labellings of ``count`` units, read-only."""
    numbers = torch.arange(2**count, device="cpu")[:, None]
    return (numbers >> torch.arange(count - 1, -1, -1, device="cpu") & 1).double()


class _LogPartition(torch.autograd.Function):
    """Log partition as a function of a machine's three tensors, with its own derivative."""

    @staticmethod
    def forward(
        ctx: Any, visible: Tensor, hidden: Tensor, coupling: Tensor, by_definition: Callable
    ) -> Tensor:
        ctx.save_for_backward(visible, hidden, coupling)
        ctx.by_definition = by_definition
        sums = []
        for part in _parts(visible, hidden, coupling):
            sums.append(part.log_sums)
            # Keep a single part for the backward pass; several parts are recomputed, to save memory.
            ctx.only_part = part if len(part.log_sums) == len(hidden) else None
        return torch.cat(sums)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Second derivatives may be needed: differentiate the slower definition.
            value, needed = ctx.by_definition(BipartiteEnergy(*tensors)), ctx.needs_input_grad[:3]
            learnt = [tensor for tensor, is_needed in zip(tensors, needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(value, learnt, gradient, create_graph=True))
            return *(next(found) if is_needed else None for is_needed in needed), None
        labels = _labellings(tensors[0].shape[1])
        own, others = torch.empty_like(tensors[0]), torch.empty_like(tensors[1])
        together = torch.zeros(others.shape[1], len(labels), dtype=others.dtype, device="cpu")
        # The kept part is overwritten below, so a second backward pass must recompute it.
        only, ctx.only_part = ctx.only_part, None
        for part in _parts(*tensors) if only is None else [only]:
            weights = part.posterior.mul_(gradient[part.rows, None])
            own[part.rows] = weights @ labels
            rest = torch.div(weights, part.factors, out=part.factors)
            others[part.rows] = _of_units(part.single * (part.shared @ rest.mT), others.shape[1]).T
            together += _of_units(part.shared * (part.single @ rest), len(together))
        return own, others, (together @ labels).T, None


class _Part(NamedTuple):
    """Sums for the examples that are computed together.

    Args:
        rows: the indices of the examples.
        log_sums: (rows,), the log partitions.
        posterior: (rows, labellings), the probability of each labelling.
        single: (pairs, states, rows), the odds of each pair's states by the fields of the examples.
        shared: (pairs, states, labellings), the odds of each pair's states by the fields of the labellings.
        factors: (pairs, rows, labellings), the sums over states of products of both odds.
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
    """Return exp(f·y) for all labellings y and fields f, divided by the best labelling's value."""
    # Compute exponentials only for the labellings of each half, and multiply these.
    halves = fields.split([fields.shape[1] // 2, -(-fields.shape[1] // 2)], 1)
    first, second = (
        (half @ _labellings(half.shape[1]).T).sub_(half.clamp(min=0).sum(1, keepdim=True)).exp_()
        for half in halves
    )
    return (first[:, :, None] * second[:, None]).flatten(1)


def _of_pairs(odds: Float[Tensor, "units many"]) -> Float[Tensor, "pairs states many"]:
    """Return the odds of the four states of each pair of units: none is on, the first, the second, both.

    A unit without a partner is paired with a unit that is never on.
    """
    if len(odds) % 2:
        odds = torch.cat([odds, torch.zeros_like(odds[:1])])
    first, second = odds[::2], odds[1::2]
    return torch.stack([torch.ones_like(first), first, second, first * second], 1)


def _of_units(states: Float[Tensor, "pairs states many"], num_units: int) -> Float[Tensor, "units many"]:
    """Return for each unit the sum over the two states of the pair in which the unit is on."""
    sums = states[:, 1:3] + states[:, 3:]
    return sums.flatten(0, 1)[:num_units]
