"""Exact inference by eliminating variables along a junction tree: graphs of tables, and sparse models.

Variables are summed (or maximised) out in turn, in an order that keeps tables small
(:mod:`lmbm_torch.inference.trees.triangulation`). This passes messages along a junction tree towards the
roots (max_margin_markov_networks_survey_2003, section 7.3, shows that triangulation makes the result exact).
Order and layout are computed once for a structure; examples with the same graph are computed together.

In graphs of tables, states with −∞, like the other states of known labels, are removed first, which
narrows the graph. The graph of a Boltzmann machine has the machine's cliques. The graph of a directed model
couples each label with the parents, and the parents with each other. Rules (:mod:`lmbm_torch.constraints`)
become further tables; a rule over many labels needs further variables, called counters
(:mod:`lmbm_torch.inference.trees.rule_tables`). Rules and counters are part of the width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import log2
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.checks import check_count, check_known, check_positive
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, FactorEnergy, PairwiseEnergy
from lmbm_torch.inference.common.given import check_rules
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, Marginals, StateMarginals, Status
from lmbm_torch.inference.graphs.hinges import hinge_energy
from lmbm_torch.inference.graphs.parts import Part, Reduced, in_rows, labels_in_rows, parts_of, reduced
from lmbm_torch.inference.trees.elimination import Layout, Tables, eliminate, layout_of, traced
from lmbm_torch.inference.trees.log_tables import (
    EXCLUDED,
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

__all__ = ["decode", "decode_hinge", "fits", "log_partition", "marginals", "sample", "width"]

# Number of tables of the largest size in memory at once: the sum of tables, exponentials, and the message
# (scripts/bench/uai2014.py).
COPIES = 3
# Number of tables in memory for each eliminated variable if gradients are needed: the sum of tables and the
# exponentials, and the gradients of both (scripts/bench/uai2014.py).
GRADIENT_COPIES = 4
# Number of copies in memory of all tables of a sparse model: for a grid of 16 × 16, automatic differentiation
# of marginals kept 1.8 times their entries, decoding once.
SPARSE_COPIES = 2

SparseEnergy = PairwiseEnergy | CliqueEnergy | DirectedEnergy
AnyEnergy = SparseEnergy | FactorEnergy


def width(energy: AnyEnergy, *, known: Known | None = None, constraints: Constraints | None = None) -> float:
    """Return log₂ of the number of entries of the largest table in the elimination of a batch's widest graph.

    For labels of two values without counters this is 1 more than the width of the elimination order, which is
    at least the treewidth. The order is by minimum fill, or by the labels' numbers if this is narrower:
    finding the best order is NP-hard.

    Args:
        energy: see :func:`log_partition`. Edges are couplings of a pairwise energy, or weights of parents in
            a directed model, that are not 0 for some example; a clique of a clique energy couples all of its
            labels whatever the weight.
        known: known labels, which make graphs of tables narrower.
        constraints: rules that the labellings obey.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    if not isinstance(energy, FactorEnergy):
        return log2(max(_sparse_layout(energy.num_labels, scopes_of(energy), constraints)[0].entries))
    return max(log2(max(_Problem.of(part.energy).entries)) for part in parts_of(energy, known))


def is_narrow(
    energy: SparseEnergy,
    most: int = LIMITS.treewidth,
    *,
    constraints: Constraints | None = None,
    of_margins: bool = False,
) -> bool:
    """Return whether the width is at most ``most``; dense graphs are rejected without finding an order.

    Args:
        energy, constraints: see :func:`width`.
        of_margins: whether the graph is that of :func:`decode_hinge`; always true for a directed model.
    """
    of_margins = of_margins or isinstance(energy, DirectedEnergy)
    # Reject dense graphs by a count of neighbours: listing all cliques of 1000 labels takes 30 times as long.
    if of_margins and most_others(energy) > most:
        return False
    scopes = families(energy) if of_margins else scopes_of(energy)
    if degeneracy(energy.num_labels, scopes) > most:
        return False
    try:
        return _sparse_layout(energy.num_labels, scopes, constraints)[0].width <= most
    except ManySumsError:
        return False


def fits(energy: FactorEnergy, quantity: str, max_bytes: int, *, known: Known | None = None) -> bool:
    """Return whether the tables for computing ``quantity`` fit into ``max_bytes`` for every example."""
    need = {"decode": "maximum", "log_partition": "sum"}.get(quantity, "gradient")
    return all(_Problem.of(part.energy).bytes(need) <= max_bytes for part in parts_of(energy, known))


@one_door
def log_partition(
    energy: AnyEnergy,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    max_bytes: int | None = None,
) -> Float[Tensor, " batch"]:
    """Return log Σ_y exp(score(y)), over the labellings that agree with ``known``; differentiable.

    The gradient by a table's entry is the probability of the entry; by a unary of a Boltzmann machine,
    E[s_i]; by a clique's weight, E[Π_{i∈c} s_i]. Couplings of a pairwise energy that are 0 for every example
    are no edges of the graph and get no gradient; a :class:`CliqueEnergy` has gradients for all its pairs.

    Args:
        energy: graphs of tables, a sparse Boltzmann machine or a directed model with few parents, in float32
            or float64, on any device. For a directed model the result is log P(known), under rules the
            log-probability of the known labels and the rules; −∞ for graphs without an allowed labelling.
        known: (batch, labels), a label's known value, or NaN for a free label.
        constraints: rules that the labellings obey; not for graphs of tables.
        max_bytes: memory for the tables, which sets the number of examples computed together. None: the
            :func:`lmbm_torch.memory_budget`, or 4 GiB.

    Raises:
        TypeError: ``constraints`` is no Constraints, or the energy is a graph of tables.
        ValueError: NaN or +∞ in the energy (−∞ outside of tables, too), couplings that are not symmetric;
            ``known`` has another shape than (batch, labels), or impossible values; the tables of an example
            exceed ``max_bytes``; constraints over another number of labels, that contradict the known labels,
            or over many labels whose sums take too many values.
    """
    is_learnt = isinstance(energy, FactorEnergy) and energy.table.requires_grad and torch.is_grad_enabled()
    need = "gradient" if is_learnt else "sum"
    parts, pieces = _parts(energy, known, constraints, max_bytes, need)
    return in_rows(parts, [each.total(_log_sum) for each in chain.from_iterable(pieces)])


@one_door
@torch.no_grad()
def marginals(
    energy: AnyEnergy,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    max_bytes: int | None = None,
) -> Any:
    """Return P(y_i = s) of every label, given the ``known`` labels, and the log partition.

    Args:
        energy, known, constraints, max_bytes: see :func:`log_partition`.

    Returns:
        ``Marginals``; for graphs of tables ``StateMarginals``. A known label's marginal is its value.

    Raises:
        TypeError, ValueError: see :func:`log_partition`; a graph without an allowed labelling.
    """
    parts, pieces = _parts(energy, known, constraints, max_bytes, "gradient")
    states, log_sums = [], []
    most = energy.num_states if isinstance(energy, FactorEnergy) else 2
    for piece in chain.from_iterable(pieces):
        with torch.inference_mode(False), torch.enable_grad():
            # Differentiate by the unaries of both values, so that small probabilities keep their digits.
            unary = piece.problem.unary.detach().clone().requires_grad_()
            total = piece._replace(problem=piece.problem._replace(unary=unary)).total(_log_sum)
            refuse_impossible(total)
            # If all labels are known, there is no unary to differentiate by.
            probability = torch.autograd.grad(total.sum(), unary)[0] if unary.numel() else unary
        shown = piece.states(probability)
        states.append(pad(shown, (0, most - shown.shape[2], 0, energy.num_labels - shown.shape[1])))
        log_sums.append(total.detach())
    # Round-off grows with the number of tables, so probabilities are normalised.
    found = in_rows(parts, states)
    found = found / found.sum(-1, keepdim=True).clamp(min=torch.finfo(found.dtype).tiny)
    status, total = Status.certain(energy, energy.num_labels), in_rows(parts, log_sums)
    if isinstance(energy, FactorEnergy):
        return StateMarginals(found, status, total)
    return Marginals(found[..., 1].contiguous(), total, status)


@one_door
@torch.no_grad()
def decode(
    energy: AnyEnergy,
    *,
    known: Known | None = None,
    top_k: int = 1,
    constraints: Constraints | None = None,
    max_bytes: int | None = None,
) -> Decoding:
    """Return the labelling of largest score (MAP), or the ``top_k`` best; ties are broken arbitrarily.

    After each answer, the other labellings are split into parts, each agreeing with the answer on the first
    labels and differing in the next; the best of all parts comes next (Nilsson, An efficient algorithm for
    finding the M most probable configurations in probabilistic expert systems, 1998).

    Args:
        energy, known, constraints, max_bytes: see :func:`log_partition`.
        top_k: the number of labellings of each example; above 1 only for graphs of tables.

    Raises:
        TypeError, ValueError: see :func:`marginals`; an example has fewer allowed labellings than ``top_k``;
            ``top_k`` above 1 for another energy than graphs of tables.
    """
    check_count("top_k", top_k)
    status = Status.certain(energy, energy.num_labels)
    if top_k == 1:
        labels = _best(energy, known, constraints, max_bytes)[0]
        objective = allowed_score(energy, known, labels)
        return Decoding(labels, objective, objective.clone(), status)
    if not isinstance(energy, FactorEnergy):
        raise ValueError(f"top_k: expected 1 for {type(energy).__name__}, got {top_k}")
    parts, best = parts_of(energy, known), partial(_best, max_bytes=max_bytes)
    found = [torch.stack([_several(one, top_k, best) for one in part.energy.examples()]) for part in parts]
    labels = labels_in_rows(energy, parts, [each.transpose(0, 1) for each in found], axis=1)
    objective = energy.score(labels).T.contiguous()
    return Decoding(labels.transpose(0, 1).contiguous(), objective, objective[:, -1].clone(), status)


@one_door
@torch.no_grad()
def decode_hinge(
    energy: AnyEnergy,
    margin: float = 1.0,
    *,
    known: Known | None = None,
    top_k: int = 1,
    constraints: Constraints | None = None,
    max_bytes: int | None = None,
) -> Decoding:
    """Return the labelling of least hinge loss Σ_i [margin − m_i]_+; ties are broken arbitrarily.

    A label's margin m_i (:meth:`~lmbm_torch.energies.FactorEnergy.local_margins`) depends on the label's
    parents, or on all labels that share a table or a clique with it. The graph couples the labels with each
    other, and is wider than the graph of the score.

    Args:
        energy, known, constraints, max_bytes: see :func:`log_partition`; known labels add their hinge losses.
        margin: γ > 0, in units of the local fields.
        top_k: see :func:`decode`.

    Raises:
        TypeError, ValueError: see :func:`decode`; a margin that is not a finite number above 0.
    """
    check_positive("margin", margin)
    energy.check_values()
    if isinstance(energy, FactorEnergy):
        if constraints is not None:
            check_rules(energy, constraints, known)
        found = decode(hinge_energy(energy, margin), known=known, top_k=top_k, max_bytes=max_bytes)
        loss = -found.objective
        bound = loss if top_k == 1 else loss[:, -1]
        return Decoding(found.labels, loss, bound.clone(), found.status)
    if top_k > 1:
        raise ValueError(f"top_k: expected 1 for {type(energy).__name__}, got {top_k}")
    labels = _best(energy, known, constraints, max_bytes, margin)[0]
    loss = (margin - energy.local_margins(labels)).clamp(min=0).sum(-1)
    return Decoding(labels, loss, loss.clone(), Status.certain(energy, energy.num_labels))


@one_door
@torch.no_grad()
def sample(
    energy: AnyEnergy,
    num_samples: int,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    generator: torch.Generator | None = None,
    max_bytes: int | None = None,
) -> Int[Tensor, "num_samples batch labels"]:
    """Draw independent labellings from P(y), given the ``known`` labels.

    Args:
        energy, known, constraints, max_bytes: see :func:`log_partition`.
        num_samples: the number of draws for each example.
        generator: the source of randomness, on the energy's device; by default torch's own.

    Raises:
        TypeError, ValueError: see :func:`marginals`; fewer than 1 sample.
    """
    check_count("num_samples", num_samples)

    def draw(log_potentials: Tensor) -> Tensor:
        probability = log_potentials.softmax(-1).flatten(0, 1)
        return torch.multinomial(probability, 1, generator=generator).view(log_potentials.shape[:-1])

    def drawn(piece: _Piece) -> Tensor:
        kept: list[Tensor] = []
        refuse_impossible(piece.total(partial(_kept, kept)))
        return piece.labels(traced(piece.problem, kept, num_samples, draw))

    parts, pieces = _parts(energy, known, constraints, max_bytes, "gradient")
    found = [drawn(each) for each in chain.from_iterable(pieces)]
    return labels_in_rows(energy, parts, found, axis=1)


def refuse_impossible(log_values: Tensor) -> None:
    """Raise ValueError if the log partition or best score of an example is −∞."""
    impossible = int((log_values == -torch.inf).sum())
    if impossible:
        raise ValueError(f"energy: expected an allowed labelling of each example, got {impossible} without")


def allowed_score(energy: AnyEnergy, known: Tensor | None, labels: Tensor) -> Float[Tensor, " batch"]:
    """Return the score of ``labels``; raise ValueError if an example has no allowed labelling."""
    objective = (energy.given(known) if isinstance(energy, FactorEnergy) else energy).score(labels)
    refuse_impossible(objective)
    return objective


def _log_sum(table: Tensor) -> Tensor:
    # Not logaddexp, whose second derivative is NaN if one of the values is EXCLUDED.
    return table.logsumexp(1)


def _kept(tables: list[Tensor], table: Tensor) -> Tensor:
    """Append the table to ``tables``, and return its log-sum."""
    tables.append(table)
    return _log_sum(table)


class _Piece(NamedTuple):
    """Examples with the same graph that fit into memory together.

    Args:
        problem: the tables, with EXCLUDED for −∞.
        constant: the part of the scores outside the tables.
        labels: maps values (…, batch, variables) of the problem's variables to all labels.
        states: maps probabilities of the problem's unaries to probabilities (batch, labels, states).
        refuse: a function that raises for examples without an allowed labelling, given their mask; None to
            leave this to the caller.
    """

    problem: Tables
    constant: Float[Tensor, " batch"]
    labels: Callable[[Tensor], Tensor]
    states: Callable[[Tensor], Tensor]
    refuse: Callable[[Tensor], None] | None = None

    def total(self, combine: Callable[[Tensor], Tensor]) -> Float[Tensor, " batch"]:
        """Eliminate all variables, and return the total; −∞ if no labelling is allowed."""
        total = eliminate(self.problem, combine) + self.constant
        impossible = total.detach() < EXCLUDED / 2
        if self.refuse is not None:
            self.refuse(impossible)
        return total.masked_fill(impossible, -torch.inf)


def _parts(
    energy: AnyEnergy,
    known: Tensor | None,
    constraints: Constraints | None,
    max_bytes: int | None,
    need: str,
    margin: float | None = None,
) -> tuple[Sequence[Part], list[Iterator[_Piece]]]:
    """Check the input, group the examples by graph, and set up the eliminations of each graph.

    Args:
        need: see :meth:`_Problem.bytes`.
        margin: the margin of hinge losses of a sparse model; None for scores.
    """
    max_bytes = limit_bytes(LIMITS.table_bytes) if max_bytes is None else max_bytes
    if constraints is not None:
        check_rules(energy, constraints, known)
    if isinstance(energy, FactorEnergy):
        parts = parts_of(energy, known)
        return parts, [_graph_pieces(part.energy, max_bytes, need) for part in parts]
    energy.check_values()
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    whole = Part(range(energy.batch_size), energy)
    return [whole], [_sparse_pieces(energy, known, constraints, max_bytes, margin)]


class _Problem(NamedTuple):
    """Elimination of one graph of tables.

    Args:
        graph: the graph without impossible states.
        layout: the elimination of the variables with two or more states, renumbered.
        variables: the original numbers of the variables.
        scopes: the numbers of the tables of several variables that contain one of the variables; all other
            tables are unaries or constants.
    """

    graph: Reduced
    layout: Layout
    variables: list[int]
    scopes: list[int]

    @classmethod
    def of(cls, energy: FactorEnergy) -> _Problem:
        """Set up the elimination of a graph, in an order that keeps tables small."""
        graph = reduced(energy)
        structure = graph.energy.structure
        variables = [each for each, states in enumerate(structure.num_states) if states > 1]
        place = {variable: number for number, variable in enumerate(variables)}
        scopes = [tuple(place[each] for each in scope if each in place) for scope in structure.every_scope]
        numbers = [number for number in range(structure.num_variables, len(scopes)) if scopes[number]]
        sizes = tuple(structure.num_states[each] for each in variables)
        return cls(graph, layout_of(sizes, tuple(scopes[each] for each in numbers)), variables, numbers)

    @property
    def entries(self) -> tuple[int, ...]:
        return self.layout.entries or (1,)

    def bytes(self, need: str) -> int:
        """Return the bytes for an example if ``need`` is ``"sum"``, ``"maximum"`` or ``"gradient"``.

        A sum stores messages until they are used; a maximum also stores the best state for each entry.
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

    def piece(self, rows: slice) -> _Piece:
        """Return the tables of the examples ``rows``."""
        structure = self.graph.energy.structure
        table = self.graph.energy.table[rows].clamp(min=EXCLUDED)
        parts = table.split(np.diff(structure.first).tolist(), 1)
        tables = self.layout.in_order([parts[each] for each in self.scopes])
        unary = torch.cat([table[:, :0], *(parts[each] for each in self.variables)], 1)
        used = {*self.scopes, *self.variables}
        rest = [part for each, part in enumerate(parts) if each not in used]
        constant = torch.cat([table[:, :0], *rest], 1).sum(1)
        problem = Tables(self.layout, unary, len(self.variables), tables)
        return _Piece(problem, constant, self.labels, self.states)

    def labels(self, values: Int[Tensor, "*samples batch variables"]) -> Int[Tensor, "*samples batch labels"]:
        """Convert values of the layout's variables to labels of all variables."""
        found = values.new_zeros(*values.shape[:-1], len(self.graph.states))
        found[..., self.variables] = values
        return self.graph.labels(found)

    def states(self, probability: Float[Tensor, "batch entries"]) -> Float[Tensor, "batch labels states"]:
        """Convert probabilities of the layout's variables to all labels; a single possible state gets 1."""
        kept, most = self.graph.states, max(int(states[-1]) for states in self.graph.states) + 1
        found = probability.new_zeros(len(probability), len(kept) * most)
        single = [most * each + int(states[0]) for each, states in enumerate(kept) if len(states) == 1]
        several = [most * each + kept[each] for each in self.variables]
        found[:, single] = 1.0
        found[:, np.concatenate([np.zeros(0, np.int64), *several])] = probability
        return found.view(len(probability), -1, most)


def _graph_pieces(energy: FactorEnergy, max_bytes: int, need: str) -> Iterator[_Piece]:
    """Yield the eliminations of a graph, for as many examples at a time as fit into ``max_bytes``."""
    problem = _Problem.of(energy)
    needed = max(problem.bytes(need), 1)
    if needed > max_bytes:
        raise ValueError(
            f"energy: expected tables of at most {max_bytes / 2**30:.3g} GiB, got {needed / 2**30:.3g} GiB, "
            f"the largest of 2^{log2(max(problem.entries)):.3g} entries; lmbm_torch.memory_budget "
            "allows more, and messages.mini_buckets.bounds bounds the log partition"
        )
    step = max_bytes // needed
    for start in range(0, max(energy.batch_size, 1), step):
        yield problem.piece(slice(start, start + step))


def _sparse_pieces(
    energy: SparseEnergy,
    known: Tensor | None,
    constraints: Constraints | None,
    max_bytes: int,
    margin: float | None,
) -> Iterator[_Piece]:
    """Yield the eliminations of a sparse model, for as many examples at a time as fit into ``max_bytes``."""
    scopes, labels = scopes_of(energy) if margin is None else families(energy), energy.num_labels
    layout, rules, needed = _fitting_layout(energy, scopes, constraints, max_bytes)
    allowed = [torch.from_numpy(~each).to(energy.device).view(1, -1) for each in rules.tables]
    step = max_bytes // needed
    for start in range(0, max(energy.batch_size, 1), step):
        rows = slice(start, start + step)
        some = energy.select(rows) if step < energy.batch_size else energy
        given = None if known is None else known[rows]
        if margin is None:
            unary, tables, constant = log_tables(some, scopes)
        else:
            unary, tables, constant = margin_tables(some, scopes, lambda m: -(margin - m).clamp(min=0))
        tables += [unary.new_zeros(out.shape).masked_fill(out, EXCLUDED) for out in allowed]
        if given is not None:
            unary = unary.masked_fill(torch.stack([given == 1, given == 0], -1), EXCLUDED)
        yield _Piece(
            Tables(layout, unary.flatten(1), labels, layout.in_order(tables)),
            constant,
            lambda values: values[..., :labels].contiguous(),
            lambda probability: probability.unflatten(1, (labels, 2)),
            partial(_refuse_contradictions, constraints, given, start),
        )


def _refuse_contradictions(
    constraints: Constraints | None, known: Tensor | None, start: int, impossible: Tensor
) -> None:
    """If rules contradict an example's known labels, raise ValueError that names the rules."""
    if constraints is not None and known is not None:
        for row in impossible.nonzero()[:, 0].tolist():
            constraints.check(known[row].cpu().numpy(), f"known[{start + row}]")


def _fitting_layout(
    energy: SparseEnergy, scopes: Cliques, constraints: Constraints | None, max_bytes: int
) -> tuple[Layout, RuleTables, int]:
    """Return the layout and the bytes for an example; raise ValueError if the layout is too wide."""
    entry = SPARSE_COPIES * energy.dtype.itemsize
    # The table of a variable with w neighbours has 2^(w + 1) entries, so this w is the largest that fits.
    fitting = max(max_bytes // entry, 1).bit_length() - 2
    at_least = degeneracy(energy.num_labels, scopes)
    if at_least > fitting:
        raise ValueError(
            f"energy: expected a treewidth of at most {fitting}, got at least {at_least}, whose tables do "
            "not fit into max_bytes; use mini_buckets or belief propagation"
        )
    layout, rules = _sparse_layout(energy.num_labels, scopes, constraints)
    needed = entry * sum(layout.entries)
    if layout.width > fitting:
        with_rules = "" if constraints is None else " under these constraints"
        raise ValueError(f"energy: expected a treewidth of at most {fitting}, got {layout.width}{with_rules}")
    if needed > max_bytes:
        raise ValueError(
            f"energy: expected tables of at most {max_bytes / 2**30:.3g} GiB, got some "
            f"{needed / 2**30:.3g} GiB for a treewidth of {layout.width}; lmbm_torch.memory_budget allows "
            "more, and messages.mini_buckets.bounds bounds the log partition"
        )
    return layout, rules, needed


def _sparse_layout(
    num_labels: int, scopes: Cliques, constraints: Constraints | None
) -> tuple[Layout, RuleTables]:
    rules = RuleTables((), (), ()) if constraints is None else rule_tables(constraints, scopes)
    return layout_of((2,) * num_labels + rules.sizes, scopes + rules.scopes), rules


def _pointer(layout: Layout) -> torch.dtype:
    """Return the smallest integer type that can number the states of a variable."""
    return torch.uint8 if max(layout.sizes, default=1) <= 256 else torch.int64


def _best(
    energy: AnyEnergy,
    known: Tensor | None = None,
    constraints: Constraints | None = None,
    max_bytes: int | None = None,
    margin: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return labels (batch, labels) of largest score, and the scores; −∞ if no labelling is allowed."""
    parts, pieces = _parts(energy, known, constraints, max_bytes, "maximum", margin)
    labels, scores = [], []
    for piece in chain.from_iterable(pieces):
        layout, pointers = piece.problem.layout, []
        scores.append(piece.total(partial(_largest, pointers, _pointer(layout))))
        rows = torch.arange(len(scores[-1]), device=scores[-1].device)
        labels.append(piece.labels(_followed(layout, pointers, rows)))
    return labels_in_rows(energy, parts, labels), in_rows(parts, scores)


def _largest(pointers: list[Tensor], dtype: torch.dtype, table: Tensor) -> Tensor:
    """Return the maximum over axis 1, and append the index of each maximum to ``pointers``."""
    if table.shape[1] == 2:
        # For two states: a tenth of the time of ``max``, which also returns the index.
        low, high = table.unbind(1)
        pointers.append(high > low)
        return torch.maximum(low, high)
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
        values[:, variable] = pointer.reshape(len(pointer), -1).expand(len(rows), -1)[rows, place].long()
    return values


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
