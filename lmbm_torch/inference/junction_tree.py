"""Exact inference in sparse Boltzmann machines of any size whose graphs are close to trees.

Labels are summed (or maximised) out one after another in an order of small width
(:mod:`lmbm_torch.inference.parts.triangulation`), which passes messages along a junction tree towards its
roots (max_margin_markov_networks_survey_2003, section 7.3, for why triangulation makes this exact). Tables
have up to 2^(treewidth + 1) entries for each example, and a gradient keeps them all. The order and its layout
are found once for a structure; labels follow one another, examples go together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from lmbm_torch.checks import check_known
from lmbm_torch.inference.parts.clique_potentials import (
    EXCLUDED,
    Machine,
    cliques_of,
    log_potentials,
    parity,
)
from lmbm_torch.inference.parts.triangulation import (
    Cliques,
    Triangulation,
    axes_among,
    degeneracy,
    narrowest,
)
from lmbm_torch.inference.results import Decoding, Marginals, Status
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import one_door

__all__ = ["decode", "is_narrow", "log_partition", "marginals", "treewidth"]

# 2^17 entries to a table: 1 MiB for each example and label in float64.
MAX_TREEWIDTH = 16
# The most memory for tables, and how often each bucket's is counted: marginals of a grid of 16 x 16 took 1.8
# times all buckets' entries, for automatic differentiation keeps them, and its decoding 0.7 times.
MAX_BYTES = 2**32
COPIES = 2

# Structures whose layouts are kept.
NUM_LAYOUTS = 32


def treewidth(energy: Machine) -> int:
    """The width of the order in which labels are eliminated, at least the graph's treewidth.

    By minimum fill, or as they are numbered where that is narrower: to find the least width is NP-hard.

    Args:
        energy: of a pairwise one, couplings are edges where they are not 0 for every example; of one by
            cliques, each clique is complete whatever its weight.
    """
    return _layout(energy.num_labels, cliques_of(energy)).triangulation.treewidth


def is_narrow(energy: Machine, max_treewidth: int = MAX_TREEWIDTH) -> bool:
    """Whether :func:`treewidth` is at most this; of a dense graph that is seen before an order is sought."""
    cliques = cliques_of(energy)
    is_dense = degeneracy(energy.num_labels, cliques) > max_treewidth
    return not is_dense and _layout(energy.num_labels, cliques).triangulation.treewidth <= max_treewidth


@one_door
def log_partition(
    energy: Machine,
    *,
    known: Known | None = None,
    max_treewidth: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> Float[Tensor, " batch"]:
    """log Σ_y exp(score(y)), over the labellings that agree with ``known``; differentiable.

    Its gradient is E[s_i] for unaries and E[Π_{i∈c} s_i] for cliques. Couplings of a pairwise energy that are
    0 for every example are no part of the graph and get no gradient; a :class:`CliqueEnergy` names its pairs
    whatever their weights.

    Args:
        energy: a sparse Boltzmann machine, on any device.
        known: {0, 1, NaN}, NaN for a free label.
        max_treewidth: refuse what would take larger tables than 2^(max_treewidth + 1) entries; None for
            whatever fits into ``max_bytes``.
        max_bytes: refuse what would take about so much memory for the tables.

    Raises:
        ValueError: NaN or infinity in the energy, couplings that differ by direction; ``known`` of another
            shape or with other values; a treewidth beyond the limits.
    """
    problem = _Problem.of(energy, known, max_treewidth, max_bytes)
    return problem.constant + _eliminate(problem, torch.logaddexp)


@one_door
def marginals(
    energy: Machine,
    *,
    known: Known | None = None,
    max_treewidth: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> Marginals:
    """P(y_i = 1) for every label, given the ``known`` ones, and the log partition.

    Args:
        energy: see :func:`log_partition`, also for the limits.
        known: {0, 1, NaN}, NaN for a free label; a known label's marginal is its value.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    with torch.no_grad():
        problem = _Problem.of(energy, known, max_treewidth, max_bytes)
    with torch.inference_mode(False), torch.enable_grad():
        # By both values of a label, and not as E[s_i]: small probabilities keep their digits.
        unary = problem.unary.clone().requires_grad_()
        log_sum = _eliminate(problem._replace(unary=unary), torch.logaddexp)
        (probability,) = torch.autograd.grad(log_sum.sum(), unary)
    labels = probability[..., 1] / probability.sum(-1)
    return Marginals(labels, problem.constant + log_sum.detach(), Status.certain(energy, energy.num_labels))


@one_door
@torch.no_grad()
def decode(
    energy: Machine,
    *,
    known: Known | None = None,
    max_treewidth: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> Decoding:
    """The labelling with the largest score (MAP); of several such, any.

    Args:
        energy: see :func:`log_partition`, also for the limits.
        known: {0, 1, NaN}, NaN for a free label; only labellings that agree with it compete.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    problem = _Problem.of(energy, known, max_treewidth, max_bytes)
    is_one = []

    def maximum(zero: Tensor, one: Tensor) -> Tensor:
        is_one.append((one > zero).reshape(len(one), -1))
        return torch.maximum(zero, one)

    _eliminate(problem, maximum)
    labels = torch.zeros(energy.batch_size, energy.num_labels, dtype=torch.int64, device=energy.device)
    for (label, *others), choice in reversed(list(zip(problem.layout.buckets, is_one, strict=True))):
        place = torch.zeros_like(labels[:, 0])
        for other in others:
            place = 2 * place + labels[:, other]
        labels[:, label] = choice.gather(1, place[:, None])[:, 0]
    objective = energy.score(labels)
    return Decoding(labels, objective, objective.clone(), Status.certain(energy, energy.num_labels))


class _Incoming(NamedTuple):
    """A table that a bucket takes in.

    Args:
        index: of the clique, or of the bucket that the message is from.
        shape: its axes among the bucket's, of size 1 where it says nothing, behind the batch.
    """

    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Layout:
    """The tables that meet as labels are eliminated.

    Args:
        triangulation: the order.
        cliques: for each bucket the cliques whose first label it eliminates.
        messages: for each bucket the earlier buckets that report to it.
    """

    triangulation: Triangulation
    cliques: tuple[tuple[_Incoming, ...], ...]
    messages: tuple[tuple[_Incoming, ...], ...]

    @property
    def buckets(self) -> Cliques:
        return self.triangulation.buckets


@lru_cache(NUM_LAYOUTS)
def _layout(num_labels: int, cliques: Cliques) -> _Layout:
    """The layout of a structure."""
    triangulation = narrowest(num_labels, cliques)
    buckets = triangulation.buckets
    place = {label: index for index, label in enumerate(triangulation.ordering)}
    own: list[list[_Incoming]] = [[] for _ in buckets]
    reported: list[list[_Incoming]] = [[] for _ in buckets]
    for index, clique in enumerate(cliques):
        home = min(place[label] for label in clique)
        own[home].append(_Incoming(index, axes_among(clique, buckets[home])))
    for index, (_, *others) in enumerate(buckets):
        if others:
            home = place[others[0]]
            reported[home].append(_Incoming(index, axes_among(others, buckets[home])))
    return _Layout(triangulation, tuple(map(tuple, own)), tuple(map(tuple, reported)))


class _Problem(NamedTuple):
    """A Boltzmann machine as it is eliminated.

    Args:
        layout: of the cliques of two or more labels.
        unary: log-potentials of each label's two values, (batch, labels, 2).
        cliques: those of two or more labels.
        weight: theirs, (batch, cliques) or (1, cliques).
        constant: added to the log partition.
    """

    layout: _Layout
    unary: Tensor
    cliques: Cliques
    weight: Tensor
    constant: Tensor

    @classmethod
    def of(cls, energy: Machine, known: Tensor | None, max_treewidth: int | None, max_bytes: int) -> _Problem:
        """Check what came."""
        energy.check_values()
        check_known(known, energy.device, energy.batch_size, energy.num_labels)
        cliques = cliques_of(energy)
        entry = COPIES * energy.batch_size * energy.dtype.itemsize
        # A bucket of w labels and one more has 2^(w + 1) entries.
        fitting = max(max_bytes // entry, 1).bit_length() - 2
        width = fitting if max_treewidth is None else min(max_treewidth, fitting)
        layout = _narrow_layout(energy.num_labels, cliques, width)
        needed = entry * sum(2 ** len(bucket) for bucket in layout.buckets)
        if needed > max_bytes:
            raise ValueError(
                f"energy: expected tables of at most {max_bytes / 2**30:.3g} GiB, got some "
                f"{needed / 2**30:.3g} GiB for a treewidth of {layout.triangulation.treewidth}; see max_bytes"
            )
        unary, weight = log_potentials(energy, cliques)
        by_value = torch.stack([-unary, unary], -1).expand(energy.batch_size, -1, -1)
        if known is not None:
            excluded = torch.stack([known == 1, known == 0], -1)
            by_value = by_value.masked_fill(excluded, EXCLUDED)
        return cls(layout, by_value, cliques, weight if weight.ndim == 2 else weight[None], energy.constant)


def _narrow_layout(num_labels: int, cliques: Cliques, max_treewidth: int) -> _Layout:
    """The layout, unless it is too wide; of dense graphs that is seen before an order is sought."""
    at_least = degeneracy(num_labels, cliques)
    if at_least > max_treewidth:
        raise ValueError(f"energy: expected a treewidth of at most {max_treewidth}, got at least {at_least}")
    layout = _layout(num_labels, cliques)
    width = layout.triangulation.treewidth
    if width > max_treewidth:
        raise ValueError(f"energy: expected a treewidth of at most {max_treewidth}, got {width}")
    return layout


def _eliminate(problem: _Problem, combine: Callable[[Tensor, Tensor], Tensor]) -> Float[Tensor, " batch"]:
    """Take each label's bucket together and ``combine`` it over the label's values; the sum of what is left.

    Messages are lowered so that their largest entry is 0: they would else grow with the labels behind them.
    """
    layout, unary, weight = problem.layout, problem.unary.unbind(1), problem.weight.unbind(1)
    parities = {order: parity(order, problem.unary) for order in {len(clique) for clique in problem.cliques}}
    messages: list[Tensor] = []
    total = torch.zeros_like(problem.constant)
    for index, (label, *others) in enumerate(layout.buckets):
        tables = [unary[label].view(-1, 2, *[1] * len(others))]
        for clique, shape in layout.cliques[index]:
            table = weight[clique][:, None] * parities[len(problem.cliques[clique])]
            tables.append(table.view(-1, *shape))
        tables += [messages[sender].view(-1, *shape) for sender, shape in layout.messages[index]]
        # Small tables first, so that few sums are as large as the bucket.
        tables.sort(key=lambda table: table[0].numel())
        message = combine(*reduce(add, tables).unbind(1))
        largest = message.detach().reshape(len(message), -1).amax(1)
        messages.append(message - largest.view(-1, *[1] * len(others)))
        total = total + largest
        if not others:
            total = total + messages[-1]
    return total
