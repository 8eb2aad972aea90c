"""Lower and upper bounds of the log partition that get closer with more time and memory (mini-buckets).

Labels are summed out in turn, as in :mod:`~lmbm_torch.inference.graphs.elimination`. The bucket of a label
contains all terms with the label: cliques, and messages from labels that were summed out before. If a bucket
joins more labels than a table may have, it is split into parts f_r, each with its own copy of the label and
its own message (Dechter and Rish, Mini-buckets: a general scheme for bounded inference, 2003). For weights
w_r that sum to 1, Hölder's inequality says

    Σ_y Π_r f_r(y) ≤ Π_r (Σ_y f_r(y)^(1/w_r))^(w_r)    where all w_r > 0,

and ≥ if one weight is positive and all others are negative (Liu and Ihler, Bounding the partition function
using Hölder's inequality, 2011). Both hold for all weights, and for any field moved from one copy of a label
to another. Gradient steps improve weights and fields, and the best bound of all steps is returned. For
machines with couplings of pairs only, the result is the better of the bounds and those of
:mod:`~lmbm_torch.inference.messages.mean_field` and :mod:`~lmbm_torch.inference.graphs.tree_reweighted`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known
from lmbm_torch.energies import CliqueEnergy, FactorEnergy, PairwiseEnergy, to_factors
from lmbm_torch.inference.common.results import LogPartitionBounds, Status
from lmbm_torch.inference.graphs import belief_propagation, dual_ascent, tree_reweighted
from lmbm_torch.inference.graphs.parts import in_rows, parts_of
from lmbm_torch.inference.messages import mean_field
from lmbm_torch.inference.trees.triangulation import Cliques, narrowest
from lmbm_torch.memory import limit_bytes
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import one_door

__all__ = ["bounds"]

Bounded = PairwiseEnergy | CliqueEnergy | FactorEnergy

# Largest number of graph structures whose buckets are cached.
NUM_STRUCTURES = 32


@dataclass(frozen=True)
class Part:
    """Part of a bucket: a table over a label and some labels that are eliminated later.

    Args:
        scope: the label, then the others in the order of elimination.
        cliques: the indices of the cliques whose terms enter the table.
        messages: the indices of earlier parts whose messages enter the table, each with the message's shape
            along the table's axes, 1 for labels that the message lacks.
    """

    scope: tuple[int, ...]
    cliques: tuple[int, ...]
    messages: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Bucket:
    """Terms of a label at the label's elimination, split into parts, which are numbered over all buckets."""

    label: int
    parts: tuple[Part, ...]


@dataclass
class _Open:
    """Part of a bucket under construction."""

    scope: set[int]
    cliques: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)


@lru_cache(NUM_STRUCTURES)
def buckets_of(sizes: tuple[int, ...], scopes: Cliques, most: int) -> tuple[Bucket, ...]:
    """Return the buckets in the order of elimination, the narrower of two orders.

    Args:
        sizes: the number of states of each label.
        scopes: the sets of labels of the given tables, which have at most ``most`` entries.
        most: the largest number of entries of a part's table.
    """
    ordering = narrowest(len(sizes), tuple(scope for scope in scopes if len(scope) > 1)).ordering
    place = {label: index for index, label in enumerate(ordering)}
    own: list[list[int]] = [[] for _ in ordering]
    for index, scope in enumerate(scopes):
        own[min(place[label] for label in scope)].append(index)
    messages_of: list[list[int]] = [[] for _ in ordering]
    sent: list[tuple[int, ...]] = []
    buckets = []
    for index, label in enumerate(ordering):
        parts = []
        for found in _split(label, scopes, own[index], sent, messages_of[index], sizes, most):
            joined = tuple(sorted(found.scope, key=place.__getitem__))
            shapes = [
                tuple(sizes[each] if each in sent[sender] else 1 for each in joined)
                for sender in found.messages
            ]
            messages = tuple(zip(found.messages, shapes, strict=True))
            parts.append(Part(joined, tuple(found.cliques), messages))
            if len(joined) > 1:
                messages_of[place[joined[1]]].append(len(sent))
            sent.append(joined[1:])
        buckets.append(Bucket(label, tuple(parts)))
    return tuple(buckets)


def _split(
    label: int,
    scopes: Cliques,
    own: list[int],
    sent: list[tuple[int, ...]],
    heard: list[int],
    sizes: tuple[int, ...],
    most: int,
) -> list[_Open]:
    """Split a bucket: put messages and tables, largest first, into the part that grows least."""
    parts: list[_Open] = []

    def entries(labels: Iterable[int]) -> int:
        return math.prod(sizes[each] for each in labels)

    def part_for(scope: tuple[int, ...]) -> _Open:
        fitting = [part for part in parts if entries(part.scope.union(scope, {label})) <= most]
        if not fitting:
            parts.append(_Open({label}))
            fitting = parts[-1:]
        best = min(fitting, key=lambda part: entries(part.scope.union(scope)) / entries(part.scope))
        best.scope.update(scope)
        return best

    for sender in sorted(heard, key=lambda sender: -entries(sent[sender])):
        part_for(sent[sender]).messages.append(sender)
    for table in sorted(own, key=lambda table: -entries(scopes[table])):
        part_for(scopes[table]).cliques.append(table)
    return parts or [_Open({label})]


# Largest bytes of the tables of the examples that are computed together.
MAX_BYTES = 2**30
# Number of copies of each table in memory: the table, sums of tables, and copies for the gradient.
COPIES = 6
# Step size of Adam for the logarithms of weights, and for fields in units of :func:`_reach`
# (scripts/bench/log_partition_bounds.py).
LEARNING_RATE = 0.1
# Largest magnitude of a weight's logarithm: with larger ones, divisions by the weight lose too many digits.
MOST_LOGARITHM = 10.0


@one_door
def bounds(
    energy: Bounded, *, known: Known | None = None, width: int = 10, num_iters: int = 30
) -> LogPartitionBounds:
    """Return lower ≤ log Σ_y exp(score(y)) ≤ upper, over the labellings that agree with ``known``, up to
    rounding.

    Both equal the log partition if the order of elimination is no wider than ``width``. With the smallest
    width, the upper bound approaches that of tree-reweighted belief propagation. For a graph of tables, mean
    field gives another lower bound, which is the only one if there are log-potentials of −∞.

    Args:
        energy: a Boltzmann machine or graphs of tables, on any device.
        known: {0, 1, NaN}, for a graph of tables a state or NaN; NaN for a free label.
        width: the limit of table sizes: at most 2^(width + 1) entries, or as many as the largest given table.
            A larger width gives closer bounds; time and memory grow as 2^width.
        num_iters: the number of gradient steps; the first has equal weights.

    Returns:
        The bounds, without a gradient; ``status.exact`` is true if no bucket was split.

    Raises:
        ValueError: NaN or infinity in the energy, couplings that differ by direction; ``known`` of another
            shape than (batch, labels), or with impossible values; a ``width`` or ``num_iters`` below 1; a
            width at which one example's tables exceed a GiB; a graph without an allowed labelling.
    """
    check_count("width", width)
    check_count("num_iters", num_iters)
    energy.check_values()
    if not isinstance(energy, FactorEnergy):
        check_known(known, energy.device, energy.batch_size, energy.num_labels)
    # In double precision, because single precision would round the tables once more.
    machine = energy.to(torch.float64)
    with torch.inference_mode(False):
        first = to_factors(machine.select(slice(0, 1))).examples()[0]
        step = max(limit_bytes(MAX_BYTES) // _Problem.of(first, width).bytes_each, 1)
        chunks = [slice(start, start + step) for start in range(0, energy.batch_size, step)]
        found = [
            _of_rows(machine.select(rows), None if known is None else known[rows], width, num_iters)
            for rows in ([slice(None)] if len(chunks) == 1 else chunks)
        ]
    lower, upper, splits = (torch.cat(each) for each in zip(*found, strict=True))
    is_split = bool(splits.any())
    if is_split and isinstance(energy, FactorEnergy):
        best = dual_ascent.decode(energy, known=known).labels
        product = belief_propagation.mean_field(energy, known=known, labels=best)
        lower = lower.maximum(product.log_partition.double()).where(splits, lower)
    elif is_split and isinstance(energy, PairwiseEnergy):
        below = mean_field.marginals(energy, known=known).log_partition
        above = tree_reweighted.marginals(to_factors(energy), known=known).log_partition
        lower = lower.maximum(below.detach().double())
        upper = upper.minimum(above.detach().double())
    lower = _rounded_towards(lower, -1, energy.dtype)
    upper = _rounded_towards(upper, 1, energy.dtype)
    exact, steps = ~splits, torch.where(splits, num_iters, 1)
    return LogPartitionBounds(lower, upper, Status(exact, exact.clone(), steps, upper - lower))


def _of_rows(energy: Bounded, known: Tensor | None, width: int, num_iters: int) -> list[Tensor]:
    """Return the lower and upper bounds of some examples, and whether buckets were split."""
    graphs = to_factors(energy)
    # If graphs are packed, a subset of the examples may have fewer labels than the batch.
    parts = parts_of(graphs, None if known is None else known[:, : graphs.num_labels])
    found = [_of_graph(part.energy, width, num_iters) for part in parts]
    return [in_rows(parts, each) for each in zip(*found, strict=True)]


def _of_graph(energy: FactorEnergy, width: int, num_iters: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lower and upper bounds of one graph's examples, and whether buckets were split."""
    problem = _Problem.of(energy, width)
    splits = torch.full((energy.batch_size,), problem.is_split, device=energy.device)
    upper = torch.cat([_tightened(each, 1, num_iters) for each in problem.pieces()])
    if not problem.is_split:
        return upper, upper, splits
    # No lower bound by elimination: the reversed inequality cannot divide −∞ by negative weights.
    if bool((problem.table == -torch.inf).any()):
        return torch.full_like(upper, -torch.inf), upper, splits
    return torch.cat([_tightened(each, -1, num_iters) for each in problem.pieces()]), upper, splits


def _rounded_towards(values: Tensor, side: int, dtype: torch.dtype) -> Tensor:
    """Convert values to another precision, rounding up for ``side`` 1 and down for ``side`` −1."""
    rounded = values.to(dtype)
    crossed = (values - rounded.double()) * side > 0
    return torch.where(crossed, rounded.nextafter(torch.full_like(rounded, side * math.inf)), rounded)


class _Problem(NamedTuple):
    """Graph of tables with the buckets, in double precision.

    Args:
        buckets: the buckets in the order of elimination.
        sizes: the number of states of each label, without removed states.
        scopes: the labels of each table, unaries first.
        first: the index of each table's first entry, and the number of all entries.
        table: (batch, entries), 0 for excluded states.
        excluded: for each label a mask (batch, states) of states with −∞ in the unary, or empty.
    """

    buckets: tuple[Bucket, ...]
    sizes: tuple[int, ...]
    scopes: Cliques
    first: tuple[int, ...]
    table: Tensor
    excluded: tuple[Tensor, ...]

    @classmethod
    def of(cls, energy: FactorEnergy, width: int) -> _Problem:
        """Set up the buckets of a graph; raise ValueError if the tables do not fit into memory."""
        # Keep impossible states, so that an example has the same buckets alone and in a batch.
        graph = energy.without_constants()
        structure = graph.structure
        sizes, scopes = structure.num_states, structure.every_scope
        most = max(2 ** (width + 1), *(math.prod(sizes[each] for each in scope) for scope in scopes))
        table, size = graph.table.detach().double(), structure.num_unary
        out = table[:, :size] == -torch.inf
        excluded = out.split(list(sizes), 1) if bool(out.any()) else ()
        table = torch.cat([table[:, :size].masked_fill(out, 0), table[:, size:]], 1)
        buckets = buckets_of(sizes, scopes, most)
        problem = cls(buckets, sizes, scopes, tuple(structure.first.tolist()), table, excluded)
        limit = limit_bytes(MAX_BYTES)
        if problem.bytes_each > limit:
            raise ValueError(
                f"width: expected tables of at most {limit / 2**30:.3g} GiB for an example, got about "
                f"{problem.bytes_each / 2**30:.3g} GiB with width {width}"
            )
        return problem

    @property
    def is_split(self) -> bool:
        return any(len(bucket.parts) > 1 for bucket in self.buckets)

    @property
    def bytes_each(self) -> int:
        parts = (part.scope for bucket in self.buckets for part in bucket.parts)
        return COPIES * self.table.itemsize * sum(math.prod(self.shape(scope)) for scope in parts)

    def shape(self, scope: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.sizes[label] for label in scope)

    def pieces(self) -> list[_Problem]:
        size = max(limit_bytes(MAX_BYTES) // self.bytes_each, 1)
        tables = self.table.split(size)
        excluded = zip(*(each.split(size) for each in self.excluded), strict=True)
        each = excluded if self.excluded else ((),) * len(tables)
        return [self._replace(table=t, excluded=out) for t, out in zip(tables, each, strict=True)]

    def tables(self) -> list[Tensor]:
        """Return the log-potentials of each part, (batch, states of the labels …)."""
        return [self._joined(part) for bucket in self.buckets for part in bucket.parts]

    def _joined(self, part: Part) -> Tensor:
        total = self.table.new_zeros(len(self.table), *self.shape(part.scope))
        for number in part.cliques:
            scope = self.scopes[number]
            table = self.table[:, self.first[number] : self.first[number + 1]].view(-1, *self.shape(scope))
            order = sorted(range(len(scope)), key=lambda axis: part.scope.index(scope[axis]))
            axes = [self.sizes[label] if label in scope else 1 for label in part.scope]
            total = total + table.permute(0, *(1 + axis for axis in order)).reshape(-1, *axes)
        return total


def _tightened(problem: _Problem, sign: int, num_iters: int) -> Float[Tensor, " batch"]:
    """Make ``num_iters`` gradient steps; return the best upper (``sign`` 1) or lower (−1) bound."""
    tables = problem.tables()
    if not problem.is_split:
        return _eliminate(problem, tables, {}, {})
    reach = _reach(problem)[:, None, None]
    split = {bucket.label: len(bucket.parts) for bucket in problem.buckets if len(bucket.parts) > 1}
    batch = len(reach)
    logarithms = {label: reach.new_zeros(batch, parts) for label, parts in split.items()}
    fields = {
        label: reach.new_zeros(batch, parts - 1, problem.sizes[label]) for label, parts in split.items()
    }
    learnt = [*logarithms.values(), *fields.values()]
    optimizer = torch.optim.Adam([each.requires_grad_() for each in learnt], LEARNING_RATE)
    weights_of = partial(_weights, sign=sign)
    best = torch.full_like(reach[:, 0, 0], sign * math.inf)
    for _ in range(num_iters):
        with torch.enable_grad():
            weights = {label: weights_of(each) for label, each in logarithms.items()}
            lent = {
                label: torch.cat([reach * each, -(reach * each).sum(1, keepdim=True)], 1)
                for label, each in fields.items()
            }
            bound = _eliminate(problem, tables, weights, lent)
            gradients = torch.autograd.grad(sign * bound.sum(), learnt)
        best = sign * torch.minimum(sign * best, sign * bound.detach())
        for each, gradient in zip(learnt, gradients, strict=True):
            each.grad = gradient
        optimizer.step()
    return best


def _reach(problem: _Problem) -> Float[Tensor, " batch"]:
    """Return half the sum of the tables' ranges, divided by the number of labels: a unit of fields."""
    total = torch.zeros_like(problem.table[:, 0])
    for first, last in pairwise(problem.first):
        table = problem.table[:, first:last]
        least = table.masked_fill(table == -torch.inf, torch.inf).amin(1)
        total = total + (table.amax(1) - least).nan_to_num(0, 0, 0) / 2
    return total / len(problem.sizes)


def _over(table: Tensor, share: Tensor) -> Tensor:
    """Return table / share, where −∞ stays −∞ for any share, without a gradient."""
    out = table == -torch.inf
    return (table.masked_fill(out, 0) / share).masked_fill(out, -torch.inf)


def _log_sum(table: Tensor) -> Tensor:
    """Return log Σ exp over axis 1; if all entries are −∞, the result is −∞ with gradients of 0."""
    largest = table.detach().amax(1, keepdim=True)
    largest = largest.masked_fill(largest == -torch.inf, 0)
    total = (table - largest).exp().sum(1)
    empty = total == 0
    return total.masked_fill(empty, 1).log().masked_fill(empty, -torch.inf) + largest.squeeze(1)


def _times(share: Tensor, message: Tensor) -> Tensor:
    out = message == -torch.inf
    return (share * message.masked_fill(out, 0)).masked_fill(out, -torch.inf)


def _weights(logarithms: Float[Tensor, "batch parts"], sign: int) -> Float[Tensor, "batch parts"]:
    """Return weights that sum to 1: all positive for an upper bound, only the first for a lower bound."""
    bounded = logarithms.clamp(-MOST_LOGARITHM, MOST_LOGARITHM)
    if sign > 0:
        return bounded.softmax(1)
    others = -bounded[:, 1:].exp()
    return torch.cat([1 - others.sum(1, keepdim=True), others], 1)


def _eliminate(
    problem: _Problem, tables: list[Tensor], weights: dict[int, Tensor], fields: dict[int, Tensor]
) -> Float[Tensor, " batch"]:
    """Return the bound by eliminating all labels, given the weights and the moved fields of the parts."""
    messages: list[Tensor] = []
    total = torch.zeros_like(problem.table[:, 0])
    for bucket in problem.buckets:
        is_split = len(bucket.parts) > 1
        shares = weights[bucket.label].unbind(1) if is_split else ()
        lent = fields[bucket.label].unbind(1) if is_split else ()
        for index, part in enumerate(bucket.parts):
            others = [1] * (len(part.scope) - 1)
            table = tables[len(messages)]
            for sender, shape in part.messages:
                table = table + messages[sender].view(-1, *shape)
            if is_split:
                share = shares[index].view(-1, *others)
                table = _over(table + lent[index].view(len(table), -1, *others), share[:, None])
            if problem.excluded:
                table = table.masked_fill(
                    problem.excluded[bucket.label].unflatten(1, (-1, *others)), -torch.inf
                )
            messages.append(_times(share, _log_sum(table)) if is_split else _log_sum(table))
            if not others:
                total = total + messages[-1]
    return total
