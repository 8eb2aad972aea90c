"""Exact inference in sparse models of any size with graphs close to trees, with or without rules.

Labels are summed (or maximised) out one after another in an order of small width
(:mod:`lmbm_torch.inference.trees.triangulation`), which passes messages along a junction tree towards the
roots (max_margin_markov_networks_survey_2003, section 7.3, shows that triangulation makes the result exact).
Tables have up to 2^(treewidth + 1) entries for each example, and a gradient keeps all tables. The order and
the layout are computed once for a structure; examples are computed together. The graph of a directed model
couples each label with the parents, and the parents with each other.

Rules (:mod:`lmbm_torch.constraints`) are tables as well; further variables count a rule over many labels
(:mod:`lmbm_torch.inference.trees.rule_tables`). The width then includes rules and counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known, check_positive
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference.common.given import check_rules
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, Marginals, Status
from lmbm_torch.inference.trees.elimination import Layout, Tables, eliminate, layout_of, traced
from lmbm_torch.inference.trees.log_tables import (
    EXCLUDED,
    Potentials,
    families,
    log_tables,
    margin_tables,
    most_others,
    scopes_of,
)
from lmbm_torch.inference.trees.rule_tables import ManySumsError, RuleTables, rule_tables
from lmbm_torch.inference.trees.triangulation import Cliques, degeneracy
from lmbm_torch.memory import limit_bytes
from lmbm_torch.shapes import Float, Int, Known
from lmbm_torch.verdicts import one_door

__all__ = [
    "decode",
    "decode_hinge",
    "log_partition",
    "marginals",
    "sample",
]

# Copies of each bucket's entries in memory: marginals of a grid of 16 × 16 took 1.8 times the entries of all
# buckets, which automatic differentiation keeps, and decoding once the entries.
COPIES = 2

SparseEnergy = PairwiseEnergy | CliqueEnergy | DirectedEnergy


def treewidth(energy: SparseEnergy, *, constraints: Constraints | None = None) -> int:
    """Return the width of the order of elimination, at least the graph's treewidth.

    The order is by minimum fill, or by the numbering of the labels if narrower: the least width is NP-hard.
    Counters of rules may have more than two values: tables have at most 2^(width + 1) entries.

    Args:
        energy: couplings that are not 0 for every example are edges, of a directed model the weights of
            parents; each clique of a clique energy is complete whatever the weight.
        constraints: rules that the labellings obey.

    Raises:
        ValueError: a rule over many labels whose sums take too many values.
    """
    return _layout(energy.num_labels, scopes_of(energy), constraints)[0].width


def is_narrow(
    energy: SparseEnergy,
    max_treewidth: int = LIMITS.treewidth,
    *,
    constraints: Constraints | None = None,
    of_margins: bool = False,
) -> bool:
    """Return whether :func:`treewidth` is at most ``max_treewidth``; dense graphs need no elimination order.

    Args:
        energy, constraints: see :func:`treewidth`.
        of_margins: for the graph of :func:`decode_hinge`, always that of a directed model.
    """
    of_margins = of_margins or isinstance(energy, DirectedEnergy)
    # To list the families of a thousand labels takes thirty times as long.
    if of_margins and most_others(energy) > max_treewidth:
        return False
    scopes = families(energy) if of_margins else scopes_of(energy)
    if degeneracy(energy.num_labels, scopes) > max_treewidth:
        return False
    try:
        return _layout(energy.num_labels, scopes, constraints)[0].width <= max_treewidth
    except ManySumsError:
        return False


@one_door
def log_partition(
    energy: SparseEnergy,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    max_treewidth: int | None = None,
    max_bytes: int | None = None,
) -> Float[Tensor, " batch"]:
    """Return log Σ_y exp(score(y)), over the labellings that agree with ``known``; differentiable.

    The gradient is E[s_i] for unaries and E[Π_{i∈c} s_i] for cliques. Couplings of a pairwise energy that are
    0 for every example are no edges of the graph and get no gradient; a :class:`CliqueEnergy` names pairs of
    any weight.

    Args:
        energy: a sparse Boltzmann machine or a directed model with few parents, on any device. For a directed
            model the result is log P(known), under rules the log-probability of the known labels and the
            rules.
        known: {0, 1, NaN}, NaN for a free label.
        constraints: rules that the labellings obey.
        max_treewidth: the largest width w, for tables of at most 2^(w + 1) entries; None for any width that
            fits into ``max_bytes``.
        max_bytes: memory for the tables, which sets the number of examples at a time. None: the
            :func:`lmbm_torch.memory_budget`, or 4 GiB.

    Raises:
        TypeError: ``constraints`` of another class.
        ValueError: NaN or infinity in the energy, couplings that differ by direction; ``known`` of another
            shape or with other values; a treewidth beyond the limits; constraints of another number of
            labels, that contradict the known labels, or over many labels whose sums take too many values.
    """
    found = []
    for part in _parts(energy, known, constraints, max_treewidth, max_bytes):
        log_sum = eliminate(part.problem, _log_sum)
        part.refuse_impossible(log_sum, constraints)
        found.append(part.constant + log_sum)
    return torch.cat(found)


@one_door
@torch.no_grad()
def marginals(
    energy: SparseEnergy,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    max_treewidth: int | None = None,
    max_bytes: int | None = None,
) -> Marginals:
    """Return P(y_i = 1) for every label, given the ``known`` labels, and the log partition.

    Args:
        energy: see :func:`log_partition`, also for the limits.
        known: {0, 1, NaN}, NaN for a free label; a known label's marginal is its value.
        constraints: rules that the labellings obey.

    Raises:
        TypeError, ValueError: see :func:`log_partition`.
    """
    labels, log_partition = [], []
    for part in _parts(energy, known, constraints, max_treewidth, max_bytes):
        with torch.inference_mode(False), torch.enable_grad():
            # By both values of a label, and not as E[s_i]: small probabilities keep their digits.
            unary = part.problem.unary.clone().requires_grad_()
            log_sum = eliminate(part.problem._replace(unary=unary), _log_sum)
            (probability,) = torch.autograd.grad(log_sum.sum(), unary)
        part.refuse_impossible(log_sum, constraints)
        labels.append(probability[..., 1] / probability.sum(-1))
        log_partition.append(part.constant + log_sum.detach())
    status = Status.certain(energy, energy.num_labels)
    return Marginals(torch.cat(labels), torch.cat(log_partition), status)


@one_door
@torch.no_grad()
def decode(
    energy: SparseEnergy,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    max_treewidth: int | None = None,
    max_bytes: int | None = None,
) -> Decoding:
    """Return the labelling with the largest score (MAP); ties are broken arbitrarily.

    Args:
        energy: see :func:`log_partition`, also for the limits.
        known: {0, 1, NaN}, NaN for a free label; only labellings that agree with it compete.
        constraints: rules that the labelling obeys.

    Raises:
        TypeError, ValueError: see :func:`log_partition`.
    """
    labels = _best(_parts(energy, known, constraints, max_treewidth, max_bytes), constraints)
    labels = labels[:, : energy.num_labels].contiguous()
    objective = energy.score(labels)
    return Decoding(labels, objective, objective.clone(), Status.certain(energy, energy.num_labels))


@one_door
@torch.no_grad()
def decode_hinge(
    energy: SparseEnergy,
    margin: float = 1.0,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    max_treewidth: int | None = None,
    max_bytes: int | None = None,
) -> Decoding:
    """Return the labelling of least hinge loss Σ_i [margin − m_i]_+; ties are broken arbitrarily.

    A label's margin depends on the parents or, in a Boltzmann machine, on all neighbours. The graph couples
    these labels with each other, and is wider than the graph of the score.

    Args:
        energy: a directed model with few parents, or a Boltzmann machine with few neighbours for each label.
        margin: γ > 0, in units of the local fields.
        known: {0, 1, NaN}, NaN for a free label; known labels still pay their own hinge loss.
        constraints, max_treewidth, max_bytes: see :func:`log_partition`.

    Raises:
        TypeError: see :func:`log_partition`.
        ValueError: see :func:`log_partition`; a margin that is not a finite number above 0.
    """
    check_positive("margin", margin)
    limits = (max_treewidth, max_bytes)
    tables = partial(margin_tables, value=lambda margins: -(margin - margins).clamp(min=0))
    labels = _best(_parts(energy, known, constraints, *limits, families, tables), constraints)
    labels = labels[:, : energy.num_labels].contiguous()
    loss = (margin - energy.local_margins(labels)).clamp(min=0).sum(-1)
    return Decoding(labels, loss, loss.clone(), Status.certain(energy, energy.num_labels))


@one_door
@torch.no_grad()
def sample(
    energy: SparseEnergy,
    num_samples: int,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    generator: torch.Generator | None = None,
    max_treewidth: int | None = None,
    max_bytes: int | None = None,
) -> Int[Tensor, "num_samples batch labels"]:
    """Draw independent labellings from P(y), given the ``known`` labels, the last eliminated label first.

    Args:
        energy: see :func:`log_partition`, also for the limits.
        num_samples: draws for each example.
        known: {0, 1, NaN}, NaN for a free label.
        constraints: rules that the labellings obey.
        generator: the source of randomness, on the energy's device; by default torch's own.

    Raises:
        TypeError: see :func:`log_partition`.
        ValueError: see :func:`log_partition`; fewer than 1 sample.
    """
    check_count("num_samples", num_samples)

    def draw(log_potentials: Tensor) -> Tensor:
        probability = log_potentials.softmax(-1).flatten(0, 1)
        drawn = torch.multinomial(probability, 1, generator=generator)
        return drawn.view(log_potentials.shape[:-1])

    found = []
    for part in _parts(energy, known, constraints, max_treewidth, max_bytes):
        combined: list[Tensor] = []
        log_sum = eliminate(part.problem, partial(_kept, combined, _log_sum))
        part.refuse_impossible(log_sum, constraints)
        found.append(traced(part.problem, combined, num_samples, draw)[..., : energy.num_labels])
    return torch.cat(found, 1)


def _best(parts: Iterable[_Part], constraints: Constraints | None) -> Int[Tensor, "batch variables"]:
    """Return the values of all labels and counters with the largest sum of tables."""
    found = []
    for part in parts:
        combined: list[Tensor] = []
        most = eliminate(part.problem, partial(_kept, combined, _largest))
        part.refuse_impossible(most, constraints)
        found.append(traced(part.problem, combined, 1, lambda values: values.argmax(-1))[0])
    return torch.cat(found)


def _log_sum(table: Tensor) -> Tensor:
    # Not by logaddexp, whose second derivative is NaN for values as far apart as excluded values.
    return table.logsumexp(1)


def _largest(table: Tensor) -> Tensor:
    return table.amax(1)


def _kept(tables: list[Tensor], combine: Callable[[Tensor], Tensor], table: Tensor) -> Tensor:
    """Keep a table, and return the table combined."""
    tables.append(table)
    return combine(table)


class _Part(NamedTuple):
    """Examples that fit into memory together.

    Args:
        problem: the tables.
        constant: a term of the log partitions.
        known: the known labels of the examples.
        start: the first example.
    """

    problem: Tables
    constant: Float[Tensor, " batch"]
    known: Known | None
    start: int

    def refuse_impossible(self, log_sum: Tensor, constraints: Constraints | None) -> None:
        """Refuse known labels without an allowed labelling, and name the rules."""
        if constraints is None or self.known is None:
            return
        for row in (log_sum.detach() < EXCLUDED / 2).nonzero()[:, 0].tolist():
            constraints.check(self.known[row].cpu().numpy(), f"known[{self.start + row}]")


def _parts(
    energy: SparseEnergy,
    known: Tensor | None,
    constraints: Constraints | None,
    max_treewidth: int | None,
    max_bytes: int | None,
    scopes_of: Callable[[Any], Cliques] = scopes_of,
    tables_of: Callable[[Any, Cliques], Potentials] = log_tables,
) -> Iterator[_Part]:
    """Check the input, and yield the examples in parts.

    Args:
        scopes_of, tables_of: the terms of the sum or maximum.
    """
    energy.check_values()
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    if constraints is not None:
        check_rules(energy, constraints, known)
    scopes = scopes_of(energy)
    max_bytes = limit_bytes(LIMITS.table_bytes) if max_bytes is None else max_bytes
    entry = COPIES * energy.dtype.itemsize
    # A bucket of w + 1 labels has 2^(w + 1) entries.
    fitting = max(max_bytes // entry, 1).bit_length() - 2
    width = fitting if max_treewidth is None else min(max_treewidth, fitting)
    layout, rules = _narrow_layout(energy.num_labels, scopes, constraints, width)
    needed = entry * sum(layout.entries)
    if needed > max_bytes:
        raise ValueError(
            f"energy: expected tables of at most {max_bytes / 2**30:.3g} GiB, got some "
            f"{needed / 2**30:.3g} GiB for a treewidth of {layout.width}; see max_bytes"
        )
    step = max_bytes // needed
    for start in range(0, max(energy.batch_size, 1), step):
        rows = slice(start, start + step)
        some = energy.select(rows) if step < energy.batch_size else energy
        given = None if known is None else known[rows]
        yield _Part(*_tables(tables_of(some, scopes), given, layout, rules), given, start)


def _tables(
    potentials: Potentials, known: Tensor | None, layout: Layout, rules: RuleTables
) -> tuple[Tables, Float[Tensor, " batch"]]:
    """Return the tables, and a term of the log partition."""
    unary, tables, constant = potentials
    for allowed in rules.tables:
        is_out = torch.from_numpy(~allowed).to(unary.device).view(1, -1)
        tables.append(unary.new_zeros(is_out.shape).masked_fill(is_out, EXCLUDED))
    if known is not None:
        unary = unary.masked_fill(torch.stack([known == 1, known == 0], -1), EXCLUDED)
    return Tables(layout, unary, layout.in_order(tables)), constant


def _narrow_layout(
    num_labels: int, scopes: Cliques, constraints: Constraints | None, max_treewidth: int
) -> tuple[Layout, RuleTables]:
    """Return the layout, or raise ValueError for a layout that is too wide."""
    at_least = degeneracy(num_labels, scopes)
    if at_least > max_treewidth:
        raise ValueError(f"energy: expected a treewidth of at most {max_treewidth}, got at least {at_least}")
    layout, rules = _layout(num_labels, scopes, constraints)
    if layout.width > max_treewidth:
        with_rules = "" if constraints is None else " under these constraints"
        raise ValueError(
            f"energy: expected a treewidth of at most {max_treewidth}, got {layout.width}{with_rules}"
        )
    return layout, rules


def _layout(num_labels: int, scopes: Cliques, constraints: Constraints | None) -> tuple[Layout, RuleTables]:
    rules = RuleTables((), (), ()) if constraints is None else rule_tables(constraints, scopes)
    return layout_of((2,) * num_labels + rules.sizes, scopes + rules.scopes), rules
