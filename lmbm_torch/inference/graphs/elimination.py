"""Exact inference in graphs of many states, by elimination of variables along a junction tree.

Variables are summed (or maximised) out in an order of minimum fill
(:mod:`lmbm_torch.inference.trees.elimination`); section 7.3 of max_margin_markov_networks_survey_2003 shows
that triangulation makes the result exact. States that −∞ rules out, such as the other states of known labels,
are removed before, and narrow the graph. Examples with one graph are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import log2
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_positive
from lmbm_torch.energies import FactorEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, StateMarginals, Status
from lmbm_torch.inference.graphs.hinges import hinge_energy
from lmbm_torch.inference.graphs.parts import Reduced, in_rows, labels_in_rows, parts_of, reduced
from lmbm_torch.inference.trees.elimination import Layout, Tables, eliminate, layout_of, traced
from lmbm_torch.memory import limit_bytes
from lmbm_torch.shapes import Float, Int, Known
from lmbm_torch.verdicts import one_door

__all__ = ["decode", "decode_hinge", "fits", "log_partition", "marginals", "sample", "width"]

# Copies of the largest table at a time: the sum of its tables, exponentials, and the message
# (scripts/bench/uai2014.py).
COPIES = 3
# Tables of every bucket that a gradient holds: the sum of tables and the exponentials, and as many of their
# gradients at the end (scripts/bench/uai2014.py).
GRADIENT_COPIES = 4


def width(energy: FactorEnergy, *, known: Known | None = None) -> float:
    """Return log₂ of the entries of the largest table, of the widest graph of a batch.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    return max(log2(max(_Problem.of(part.energy).entries)) for part in parts_of(energy, known))


def fits(energy: FactorEnergy, quantity: str, max_bytes: int, *, known: Known | None = None) -> bool:
    """Return whether the tables of every example fit into ``max_bytes``, for a quantity by name."""
    need = {"decode": "maximum", "log_partition": "sum"}.get(quantity, "gradient")
    return all(_Problem.of(part.energy).bytes(need) <= max_bytes for part in parts_of(energy, known))


@one_door
def log_partition(
    energy: FactorEnergy, *, known: Known | None = None, max_bytes: int | None = None
) -> Float[Tensor, " batch"]:
    """Return log Σ_y exp(score(y)), over the labellings that agree with ``known``; differentiable.

    The gradient by an entry of a table is the probability of the entry. The result is −∞ if no labelling is
    allowed.

    Args:
        energy: graphs in float32 or float64, on any device.
        known: (batch, labels), a state, or NaN for a free label.
        max_bytes: memory for the tables, which sets the number of examples at a time. None: the
            :func:`lmbm_torch.memory_budget`, or 4 GiB.

    Raises:
        ValueError: NaN or +∞ in the energy; ``known`` of another shape or with other values; tables beyond
            ``max_bytes`` for one example, with the width of the order found.
    """
    parts = parts_of(energy, known)
    is_learnt = energy.table.requires_grad and torch.is_grad_enabled()
    need = "gradient" if is_learnt else "sum"
    sums = [
        torch.cat([eliminate(each.tables(), log_sum) + each.constant() for each in problems])
        for problems in (_chunks(part.energy, max_bytes, need) for part in parts)
    ]
    return in_rows(parts, sums)


@one_door
@torch.no_grad()
def marginals(
    energy: FactorEnergy, *, known: Known | None = None, max_bytes: int | None = None
) -> StateMarginals:
    """Return P(y_i = s) of every label, given the ``known`` labels, and the log partition.

    Args:
        energy, known, max_bytes: see :func:`log_partition`.

    Raises:
        ValueError: see :func:`log_partition`; an example without an allowed labelling.
    """
    energy.check_values()
    with torch.inference_mode(False), torch.enable_grad():
        table = energy.table.detach().clone().requires_grad_()
        log_sum = log_partition(FactorEnergy(table, energy.structure), known=known, max_bytes=max_bytes)
        refuse_impossible(log_sum)
        (entries,) = torch.autograd.grad(log_sum.sum(), table)
    states = energy.padded(entries[..., : energy.structure.num_unary])
    # Round-off grows with the number of tables.
    states = states / states.sum(-1, keepdim=True).where(energy.inside[..., None], 1)
    return StateMarginals(states, Status.certain(energy, energy.num_labels), log_sum.detach())


@one_door
@torch.no_grad()
def decode(
    energy: FactorEnergy, *, known: Known | None = None, top_k: int = 1, max_bytes: int | None = None
) -> Decoding:
    """Return the labelling with the largest score (MAP), or the ``top_k``; ties are broken arbitrarily.

    Further labellings come from the parts of the label space that are left: all that agree with an answer on
    the first labels and differ in the next (Nilsson, An efficient algorithm for finding the M most probable
    configurations in probabilistic expert systems, 1998).

    Args:
        energy, known, max_bytes: see :func:`log_partition`.
        top_k: the number of labellings of each example.

    Raises:
        ValueError: see :func:`log_partition`; an example with fewer allowed labellings than ``top_k``.
    """
    check_count("top_k", top_k)
    parts, best = parts_of(energy, known), partial(_best, max_bytes=max_bytes)
    if top_k == 1:
        labels = labels_in_rows(energy, parts, [best(part.energy)[0] for part in parts])
        objective = energy.score(labels)
        refuse_impossible(objective)
        return Decoding(labels, objective, objective.clone(), Status.certain(energy, energy.num_labels))
    found = []
    for part in parts:
        rows = [_several(one, top_k, best) for one in part.energy.examples()]
        found.append(torch.stack(rows))
    labels = labels_in_rows(energy, parts, [each.transpose(0, 1) for each in found], axis=1)
    objective = energy.score(labels).T.contiguous()
    status = Status.certain(energy, energy.num_labels)
    return Decoding(labels.transpose(0, 1).contiguous(), objective, objective[:, -1].clone(), status)


@one_door
@torch.no_grad()
def decode_hinge(
    energy: FactorEnergy,
    margin: float = 1.0,
    *,
    known: Known | None = None,
    top_k: int = 1,
    max_bytes: int | None = None,
) -> Decoding:
    """Return the labelling of least hinge loss Σ_i [margin − m_i]_+; ties are broken arbitrarily.

    A label's margin m_i (:meth:`~lmbm_torch.energies.FactorEnergy.local_margins`) depends on all labels that
    share a table with the label: the graph is wider than the graph of the score.

    Args:
        energy, known, max_bytes: see :func:`log_partition`.
        margin: γ > 0.
        top_k: see :func:`decode`.

    Raises:
        ValueError: see :func:`decode`; a margin that is not a finite number above 0.
    """
    check_positive("margin", margin)
    energy.check_values()
    found = decode(hinge_energy(energy, margin), known=known, top_k=top_k, max_bytes=max_bytes)
    loss = -found.objective
    bound = loss if top_k == 1 else loss[:, -1]
    return Decoding(found.labels, loss, bound.clone(), found.status)


@one_door
@torch.no_grad()
def sample(
    energy: FactorEnergy,
    num_samples: int,
    *,
    known: Known | None = None,
    generator: torch.Generator | None = None,
    max_bytes: int | None = None,
) -> Int[Tensor, "num_samples batch labels"]:
    """Draw independent labellings from P(y), given the ``known`` labels, the last eliminated label first.

    Args:
        energy, known, max_bytes: see :func:`log_partition`.
        num_samples: draws for each example.
        generator: the source of randomness, on the energy's device; by default torch's own.

    Raises:
        ValueError: see :func:`marginals`; fewer than 1 sample.
    """
    check_count("num_samples", num_samples)
    parts, found = parts_of(energy, known), []

    def draw(log_potentials: Tensor) -> Tensor:
        probability = log_potentials.softmax(-1).flatten(0, 1)
        return torch.multinomial(probability, 1, generator=generator).view(log_potentials.shape[:-1])

    for part in parts:
        drawn = []
        for problem in _chunks(part.energy, max_bytes, "gradient"):
            kept: list[Tensor] = []
            refuse_impossible(eliminate(problem.tables(), partial(_kept, kept, log_sum)))
            drawn.append(problem.labels(traced(problem.tables(), kept, num_samples, draw)))
        found.append(torch.cat(drawn, 1))
    return labels_in_rows(energy, parts, found, axis=1)


def log_sum(table: Tensor) -> Tensor:
    """Return log Σ exp over axis 1; −∞ of no finite entry, with gradients of 0."""
    largest = table.detach().amax(1, keepdim=True)
    largest = largest.masked_fill(largest == -torch.inf, 0)
    total = (table - largest).exp().sum(1)
    empty = total == 0
    return total.masked_fill(empty, 1).log().masked_fill(empty, -torch.inf) + largest.squeeze(1)


def refuse_impossible(log_values: Tensor) -> None:
    """Raise ValueError for examples whose log partition or best score is −∞."""
    impossible = int((log_values == -torch.inf).sum())
    if impossible:
        raise ValueError(f"energy: expected an allowed labelling of each example, got {impossible} without")


class _Problem(NamedTuple):
    """Elimination of one graph.

    Args:
        graph: without impossible states.
        layout: of the variables with several states, renumbered.
        variables: the variables' earlier numbers.
        scopes: the number of each table with such variables; all others are constants.
    """

    graph: Reduced
    layout: Layout
    variables: list[int]
    scopes: list[int]

    @classmethod
    def of(cls, energy: FactorEnergy) -> _Problem:
        """Return the elimination of a graph in an order of small width."""
        graph = reduced(energy)
        structure = graph.energy.structure
        variables = [each for each, states in enumerate(structure.num_states) if states > 1]
        place = {variable: number for number, variable in enumerate(variables)}
        scopes = [tuple(place[each] for each in scope if each in place) for scope in structure.every_scope]
        numbers = [number for number, scope in enumerate(scopes) if scope]
        sizes = tuple(structure.num_states[each] for each in variables)
        return cls(graph, layout_of(sizes, tuple(scopes[each] for each in numbers)), variables, numbers)

    @property
    def entries(self) -> tuple[int, ...]:
        return self.layout.entries or (1,)

    def bytes(self, need: str) -> int:
        """Return the memory for one example: of a ``"sum"`` alone, a ``"maximum"``, or a ``"gradient"``.

        A sum holds the messages that wait for their bucket, and a maximum the best state beside each message.
        """
        item = self.graph.energy.dtype.itemsize
        if need == "gradient":
            return GRADIENT_COPIES * item * sum(self.entries)
        sizes = [
            entries // self.layout.sizes[bucket[0]]
            for bucket, entries in zip(self.layout.buckets, self.entries, strict=False)
        ]
        live = most = 0
        for size, entries, senders in zip(sizes, self.entries, self.layout.messages, strict=False):
            most = max(most, live + COPIES * entries)
            live += size - sum(sizes[sender] for sender, _ in senders)
        return item * most + (sum(sizes) * _pointer(self.layout).itemsize if need == "maximum" else 0)

    def tables(self) -> Tables:
        energy = self.graph.energy
        first = energy.structure.first
        tables = [energy.table[:, first[each] : first[each + 1]] for each in self.scopes]
        none = energy.table.new_zeros(energy.batch_size, 0, 2)
        return Tables(self.layout, none, self.layout.in_order(tables))

    def constant(self) -> Tensor:
        energy, used = self.graph.energy, {*self.scopes}
        first = energy.structure.first
        rest = [int(at) for each, at in enumerate(first[:-1]) if each not in used]
        return energy.table[:, rest].sum(1)

    def labels(self, values: Int[Tensor, "*samples batch variables"]) -> Int[Tensor, "*samples batch labels"]:
        """Return labels of all variables from the values of the layout's variables."""
        found = values.new_zeros(*values.shape[:-1], len(self.graph.states))
        found[..., self.variables] = values
        return self.graph.labels(found)


def _pointer(layout: Layout) -> torch.dtype:
    """Return the smallest dtype that holds every state."""
    return torch.uint8 if max(layout.sizes, default=1) <= 256 else torch.int64


def _chunks(energy: FactorEnergy, max_bytes: int | None, need: str) -> Iterator[_Problem]:
    """Yield the eliminations of as many examples at a time as fit into memory."""
    problem = _Problem.of(energy)
    max_bytes = limit_bytes(LIMITS.table_bytes) if max_bytes is None else max_bytes
    needed = max(problem.bytes(need), 1)
    if needed > max_bytes:
        raise ValueError(
            f"energy: expected tables of at most {max_bytes / 2**30:.3g} GiB, got {needed / 2**30:.3g} GiB, "
            f"the largest of 2^{log2(max(problem.entries)):.3g} entries; see max_bytes"
        )
    graph, step = problem.graph, max_bytes // needed
    for start in range(0, max(energy.batch_size, 1), step):
        some = FactorEnergy(graph.energy.table[start : start + step], graph.energy.structure)
        yield problem._replace(graph=graph._replace(energy=some))


def _best(energy: FactorEnergy, max_bytes: int | None = None) -> tuple[Tensor, Tensor]:
    """Return labels (batch, variables) of largest score and the scores, −∞ where nothing is allowed."""
    labels, scores = [], []
    for problem in _chunks(energy, max_bytes, "maximum"):
        pointers: list[Tensor] = []
        largest = partial(_largest, pointers, _pointer(problem.layout))
        scores.append(eliminate(problem.tables(), largest) + problem.constant())
        table = problem.graph.energy.table
        rows = torch.arange(len(table), device=table.device)
        labels.append(problem.labels(_followed(problem.layout, pointers, rows)))
    return torch.cat(labels), torch.cat(scores)


def _largest(pointers: list[Tensor], dtype: torch.dtype, table: Tensor) -> Tensor:
    """Return the largest entry of each column of axis 1, and keep its place."""
    best = table.max(1)
    pointers.append(best.indices.to(dtype))
    return best.values


def _followed(
    layout: Layout, pointers: list[Tensor], rows: Int[Tensor, " batch"]
) -> Int[Tensor, "batch variables"]:
    """Return the values of all variables, the last eliminated variable first."""
    values = rows.new_zeros(len(rows), len(layout.sizes))
    for (variable, *others), pointer in reversed(list(zip(layout.buckets, pointers, strict=True))):
        place = torch.zeros_like(rows)
        for other in others:
            place = layout.sizes[other] * place + values[:, other]
        values[:, variable] = pointer.reshape(len(rows), -1)[rows, place].long()
    return values


def _kept(tables: list[Tensor], combine: Callable[[Tensor], Tensor], table: Tensor) -> Tensor:
    """Keep a table, and return the table combined."""
    tables.append(table)
    return combine(table)


def _several(energy: FactorEnergy, top_k: int, best: Any) -> Int[Tensor, "top_k labels"]:
    """Return the best labellings of one example."""
    size, device = energy.structure.num_unary, energy.device
    variable = energy.structure.tensor("unary_variable", device)
    state = energy.structure.tensor("unary_state", device)
    labels, scores = best(energy)
    # Parts of the label space: the best score, its labels, entries that are out, and variables held fixed.
    parts = [(float(scores), labels[0], torch.zeros(size, dtype=torch.bool, device=device), 0)]
    found = []
    while len(found) < top_k:
        at = max(range(len(parts)), key=lambda part: parts[part][0])
        score, answer, out, fixed = parts.pop(at)
        if score == -torch.inf:
            raise ValueError(f"top_k: expected at most {len(found)}, an example's labellings, got {top_k}")
        found.append(answer)
        is_answer = answer[variable] == state
        later = torch.arange(fixed, energy.structure.num_variables, device=device)[:, None]
        # Row i agrees before variable i, and differs there.
        masks = out | (~is_answer & (variable < later)) | (is_answer & (variable == later))
        if len(found) == top_k:
            break
        table = energy.table.expand(len(masks), -1)
        unary = table[:, :size].masked_fill(masks, -torch.inf)
        rest = FactorEnergy(torch.cat([unary, table[:, size:]], 1), energy.structure)
        labels, scores = best(rest)
        each = zip(scores.tolist(), labels, masks, later[:, 0].tolist(), strict=True)
        parts += [part for part in each if part[0] > -torch.inf]
        if not parts:
            parts = [(-torch.inf, answer, out, fixed)]
    return torch.stack(found)
