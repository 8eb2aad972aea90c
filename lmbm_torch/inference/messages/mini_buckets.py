"""Bounds of the log partition of any Boltzmann machine from both sides, as close as time and memory allow.

Labels are summed out one after another, as in :mod:`~lmbm_torch.inference.trees.junction_tree`. A label's
bucket holds all terms with the label: cliques, and messages of labels before. If a bucket joins more labels
than a table may have, the bucket is split into parts f_r, each with a copy of the label and an own message
(Dechter and Rish, Mini-buckets: a general scheme for bounded inference, 2003). For weights w_r that sum to 1,
Hölder's inequality says

    Σ_y Π_r f_r(y) ≤ Π_r (Σ_y f_r(y)^(1/w_r))^(w_r)    where all w_r > 0,

and ≥ if one weight is positive and all others are negative (Liu and Ihler, Bounding the partition function
using Hölder's inequality, 2011). Both hold for every choice of the weights, and for every field that one copy
of a label lends to another copy; steps along the bound's gradient improve weights and fields, and every
step's bound counts. For machines with pairs alone the better of these bounds and the bounds of
:mod:`~lmbm_torch.inference.messages.mean_field` and :mod:`~lmbm_torch.inference.messages.tree_reweighted` is
taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.messages import mean_field, tree_reweighted
from lmbm_torch.inference.results import LogPartitionBounds, Status
from lmbm_torch.inference.trees.log_tables import EXCLUDED, Machine, cliques_of, log_potentials
from lmbm_torch.inference.trees.triangulation import Cliques, axes_among, narrowest
from lmbm_torch.memory import limit_bytes
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import one_door

__all__ = ["bounds"]

# Structures whose buckets are cached.
NUM_STRUCTURES = 32


@dataclass(frozen=True)
class Part:
    """Table of a label and some later labels.

    Args:
        scope: the label, then the others in the order of elimination.
        cliques: the cliques in the table, by place among all cliques.
        messages: the places of earlier parts whose messages enter, each with the axes among the table's axes,
            of size 1 for other labels.
    """

    scope: tuple[int, ...]
    cliques: tuple[int, ...]
    messages: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Bucket:
    """Label, and the parts for the sum over the label; a part's place counts all parts of all buckets."""

    label: int
    parts: tuple[Part, ...]


@dataclass
class _Open:
    """Part under construction."""

    scope: set[int]
    cliques: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)


@lru_cache(NUM_STRUCTURES)
def buckets_of(num_labels: int, cliques: Cliques, width: int) -> tuple[Bucket, ...]:
    """Return the buckets in the order of elimination, the narrower of two orders.

    Args:
        num_labels: K.
        cliques: sets of labels, each of at most ``width`` + 1.
        width: the largest number of further labels in a part's table.
    """
    ordering = narrowest(num_labels, tuple(clique for clique in cliques if len(clique) > 1)).ordering
    place = {label: index for index, label in enumerate(ordering)}
    cliques_of: list[list[int]] = [[] for _ in ordering]
    for index, clique in enumerate(cliques):
        cliques_of[min(place[label] for label in clique)].append(index)
    messages_of: list[list[int]] = [[] for _ in ordering]
    scopes: list[tuple[int, ...]] = []
    buckets = []
    for index, label in enumerate(ordering):
        parts = []
        for found in _split(label, cliques, cliques_of[index], scopes, messages_of[index], width):
            scope = tuple(sorted(found.scope, key=place.__getitem__))
            messages = tuple((sender, axes_among(scopes[sender], scope)) for sender in found.messages)
            parts.append(Part(scope, tuple(found.cliques), messages))
            if len(scope) > 1:
                messages_of[place[scope[1]]].append(len(scopes))
            scopes.append(scope[1:])
        buckets.append(Bucket(label, tuple(parts)))
    return tuple(buckets)


def _split(
    label: int, cliques: Cliques, own: list[int], scopes: list[tuple[int, ...]], heard: list[int], width: int
) -> list[_Open]:
    """Return the parts: messages and cliques by decreasing size, each in the part with the least growth."""
    parts: list[_Open] = []

    def part_for(scope: tuple[int, ...]) -> _Open:
        fitting = [part for part in parts if len(part.scope.union(scope)) <= width + 1]
        if not fitting:
            parts.append(_Open(set()))
            fitting = parts[-1:]
        best = min(fitting, key=lambda part: len(part.scope.union(scope)) - len(part.scope))
        best.scope.update(scope)
        return best

    for sender in sorted(heard, key=lambda sender: -len(scopes[sender])):
        part_for(scopes[sender]).messages.append(sender)
    for clique in sorted(own, key=lambda clique: -len(cliques[clique])):
        part_for(cliques[clique]).cliques.append(clique)
    return parts or [_Open({label})]


# Bytes of the tables of the examples that are computed together.
MAX_BYTES = 2**30
# Copies of each table's entries: the table, sums, and the copies for the gradient.
COPIES = 6
# Step size of Adam: of the weights' logarithms, and of fields in units of the couplings' largest field
# (scripts/bench/log_partition_bounds.py).
LEARNING_RATE = 0.1
# Largest magnitude of a weight's logarithm: beyond, quotients by the weight lose their digits.
MOST_LOGARITHM = 10.0


@one_door
def bounds(
    energy: Machine, *, known: Known | None = None, width: int = 10, num_iters: int = 30
) -> LogPartitionBounds:
    """Return lower ≤ log Σ_y exp(score(y)) ≤ upper, over the labellings that agree with ``known``, up to
    rounding.

    Both are the log partition if the order of elimination is at most as wide as ``width``.

    Args:
        energy: a Boltzmann machine, on any device.
        known: {0, 1, NaN}, NaN for a free label.
        width: the largest number of labels that a table joins with the eliminated label, or of the largest
            clique,
            if larger. Time and memory grow by 2^width, and the gap falls.
        num_iters: gradient steps; the first is at equal weights.

    Returns:
        The bounds, without a gradient; ``status.exact``: no bucket was split.

    Raises:
        ValueError: NaN or infinity in the energy, couplings that differ by direction; ``known`` of another
            shape or
            with other values; a ``width`` or ``num_iters`` below 1; a width at which one example's tables
            exceed a GiB.
    """
    check_count("width", width)
    check_count("num_iters", num_iters)
    energy.check_values()
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    with torch.inference_mode(False):
        problem = _Problem.of(energy, known, width)
        # Without a split, both bounds are one number.
        both = [
            torch.cat([_tightened(each, sign, num_iters) for each in problem.pieces()]) + problem.constant
            for sign in ((-1, 1) if problem.is_split else (1,))
        ]
    if isinstance(energy, PairwiseEnergy) and problem.is_split:
        below, above = (module.marginals(energy, known=known) for module in (mean_field, tree_reweighted))
        both[0] = both[0].maximum(below.log_partition.detach().double())
        both[1] = both[1].minimum(above.log_partition.detach().double())
    lower = _rounded_towards(both[0], -1, energy.dtype)
    upper = _rounded_towards(both[-1], 1, energy.dtype)
    exact = torch.full_like(lower, not problem.is_split, dtype=torch.bool)
    steps = torch.full_like(exact, num_iters if problem.is_split else 1, dtype=torch.int64)
    return LogPartitionBounds(lower, upper, Status(exact, exact.clone(), steps, upper - lower))


def _rounded_towards(values: Tensor, side: int, dtype: torch.dtype) -> Tensor:
    """Return values in another precision, rounded to the safe side."""
    rounded = values.to(dtype)
    crossed = (values - rounded.double()) * side > 0
    return torch.where(crossed, rounded.nextafter(torch.full_like(rounded, side * math.inf)), rounded)


class _Problem(NamedTuple):
    """Boltzmann machine for the elimination, in double precision.

    Args:
        buckets: in the order of elimination.
        cliques: single labels first.
        weight: of the cliques, (batch, cliques).
        excluded: ``EXCLUDED`` for each value that contradicts a known label, else 0, (batch, labels, 2); None
            without known labels.
        constant: a term of the log partition.
    """

    buckets: tuple[Bucket, ...]
    cliques: tuple[tuple[int, ...], ...]
    weight: Tensor
    excluded: Tensor | None
    constant: Tensor

    @classmethod
    def of(cls, energy: Machine, known: Tensor | None, width: int) -> _Problem:
        """Return the problem, or refuse tables that do not fit into memory."""
        joint = cliques_of(energy)
        cliques = (*((label,) for label in range(energy.num_labels)), *joint)
        width = max(min(width, energy.num_labels), max(map(len, cliques)) - 1)
        batch = energy.batch_size
        weight = torch.cat(
            [each.detach().double().expand(batch, -1) for each in log_potentials(energy, joint)], 1
        )
        excluded = None if known is None else EXCLUDED * torch.stack([known == 1, known == 0], -1).double()
        buckets = buckets_of(energy.num_labels, cliques, width)
        problem = cls(buckets, cliques, weight, excluded, energy.constant.detach().double())
        most = limit_bytes(MAX_BYTES)
        if problem.bytes_each > most:
            raise ValueError(
                f"width: expected tables of at most {most / 2**30:.3g} GiB for an example, got some "
                f"{problem.bytes_each / 2**30:.3g} GiB for {width}"
            )
        return problem

    @property
    def is_split(self) -> bool:
        return any(len(bucket.parts) > 1 for bucket in self.buckets)

    @property
    def bytes_each(self) -> int:
        entries = sum(2 ** len(part.scope) for bucket in self.buckets for part in bucket.parts)
        return COPIES * self.weight.itemsize * entries

    def pieces(self) -> list[_Problem]:
        size = max(limit_bytes(MAX_BYTES) // self.bytes_each, 1)
        weights = self.weight.split(size)
        excluded = [None] * len(weights) if self.excluded is None else self.excluded.split(size)
        return [
            self._replace(weight=weight, excluded=each)
            for weight, each in zip(weights, excluded, strict=True)
        ]

    def tables(self) -> list[Tensor]:
        """Return the log-potentials of the cliques of each part, (batch, 2, …, 2)."""
        return [
            self._table(part.scope, part.cliques).view(-1, *[2] * len(part.scope))
            for bucket in self.buckets
            for part in bucket.parts
        ]

    def _table(self, scope: tuple[int, ...], cliques: tuple[int, ...]) -> Tensor:
        values = self.weight.new_tensor([-1, 1])
        # The first label is the most significant bit of a labelling's number.
        spins = torch.cartesian_prod(*[values] * len(scope)).view(-1, len(scope)).unbind(1)
        place = dict(zip(scope, spins, strict=True))
        products = [reduce(mul, (place[label] for label in self.cliques[each])) for each in cliques]
        if not products:
            return self.weight.new_zeros(len(self.weight), 2 ** len(scope))
        return self.weight[:, list(cliques)] @ torch.stack(products)


def _tightened(problem: _Problem, sign: int, num_iters: int) -> Float[Tensor, " batch"]:
    """Return the least upper bound of the steps for ``sign`` 1, the largest lower bound for −1."""
    tables = problem.tables()
    if not problem.is_split:
        return _eliminate(problem, tables, {}, {})
    reach = problem.weight.abs().sum(1, keepdim=True) / len(problem.buckets)
    split = {bucket.label: len(bucket.parts) for bucket in problem.buckets if len(bucket.parts) > 1}
    logarithms = {label: reach.new_zeros(len(reach), parts) for label, parts in split.items()}
    fields = {label: reach.new_zeros(len(reach), parts - 1) for label, parts in split.items()}
    learnt = [*logarithms.values(), *fields.values()]
    optimizer = torch.optim.Adam([each.requires_grad_() for each in learnt], LEARNING_RATE)
    weights_of = partial(_weights, sign=sign)
    best = torch.full_like(reach[:, 0], sign * math.inf)
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


def _weights(logarithms: Float[Tensor, "batch parts"], sign: int) -> Float[Tensor, "batch parts"]:
    """Return weights that sum to 1: all positive, or for a lower bound the first alone."""
    bounded = logarithms.clamp(-MOST_LOGARITHM, MOST_LOGARITHM)
    if sign > 0:
        return bounded.softmax(1)
    others = -bounded[:, 1:].exp()
    return torch.cat([1 - others.sum(1, keepdim=True), others], 1)


def _eliminate(
    problem: _Problem, tables: list[Tensor], weights: dict[int, Tensor], fields: dict[int, Tensor]
) -> Float[Tensor, " batch"]:
    """Return the sum over all labels, each part with a weight and a lent field."""
    messages: list[Tensor] = []
    total = torch.zeros_like(problem.weight[:, 0])
    for bucket in problem.buckets:
        is_split = len(bucket.parts) > 1
        shares = weights[bucket.label].unbind(1) if is_split else ()
        lent = fields[bucket.label].unbind(1) if is_split else ()
        for index, part in enumerate(bucket.parts):
            others = [1] * (len(part.scope) - 1)
            table = tables[len(messages)]
            for sender, shape in part.messages:
                table = table + messages[sender].view(-1, *shape)
            zero, one = table.unbind(1)
            if is_split:
                field, share = lent[index].view(-1, *others), shares[index].view(-1, *others)
                zero, one = (zero - field) / share, (one + field) / share
            if problem.excluded is not None:
                off, on = problem.excluded[:, bucket.label].view(-1, 2, *others).unbind(1)
                zero, one = zero + off, one + on
            message = torch.logaddexp(zero, one)
            messages.append(share * message if is_split else message)
            if not others:
                total = total + messages[-1]
    return total
