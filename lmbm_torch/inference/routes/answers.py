"""Answers combined from other answers: for independent parts, under rules, and after unproven searches.

Each function takes a :class:`~lmbm_torch.inference.routes.table.Query`, and asks further queries through
:func:`~lmbm_torch.inference.routes.table.answer`. Independent parts of an energy are found by
:mod:`~lmbm_torch.inference.routes.parts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.constraints import Constraints, Rule
from lmbm_torch.energies import DirectedEnergy, RestrictedEnergy
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.inference.common.given import check_rules
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, Marginals, Status, joined, replaced, rows_of
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import dual_ascent, elimination
from lmbm_torch.inference.graphs.hinges import hinge_energy
from lmbm_torch.inference.graphs.rules import ruled
from lmbm_torch.inference.relaxations.semidefinite import decoding as semidefinite
from lmbm_torch.inference.routes.parts import Problem, Split, is_divisible, splits
from lmbm_torch.inference.routes.table import BEST, Query, answer
from lmbm_torch.inference.search import branch_and_bound, undirected_branch_and_bound
from lmbm_torch.inference.under_rules import constrained
from lmbm_torch.shapes import Float


def under_own_rules(query: Query) -> Any:
    """Answer for a restricted energy: take the energy inside, under its own rules and the query's rules."""
    energy: RestrictedEnergy = query.energy
    others = query.constraints
    if others is not None:
        check_rules(energy, others, None)
    names = tuple(map(str, range(energy.num_labels))) if others is None else others.names
    rules = [
        Rule({at: weight for at, weight in enumerate(weights) if weight}, bound, "a rule of the energy")
        for weights, bound in zip(energy.rules.tolist(), energy.bounds.tolist(), strict=True)
    ]
    every = Constraints((*rules, *(() if others is None else others.rules)), names)
    return answer(replace(query, energy=energy.base, constraints=every))


def as_pairs(query: Query) -> Any:
    """Convert the energy to a pairwise energy, and answer for the energy."""
    return answer(replace(query, energy=query.energy.to_pairwise()))


def normalised(query: Query) -> Float[Tensor, " batch"]:
    """Return 0, the log partition of a directed model without known labels."""
    query.energy.check_values()
    # A sum over no columns is 0 and has gradient 0; a constant would have no gradient.
    return query.energy.unary[:, :0].sum(-1)


def by_matched(query: Query) -> Any:
    """Return the marginals by the inference that the model was trained with."""
    assert query.matched is not None
    return query.matched.marginals(query.energy, query.known)


def around_rules(query: Query) -> Decoding:
    """Return the best labellings that obey the rules, by repeated decoding without rules."""
    search = constrained.decode_loss if query.quantity == "decode_hinge" else constrained.decode
    assert query.constraints is not None

    def free(energy: Any, *, known: Tensor | None) -> Decoding:
        return answer(replace(query, energy=energy, known=known, top_k=1, constraints=None, connected=False))

    return search(query.energy, query.constraints, free, known=query.known, top_k=query.top_k)


def graph_under_rules(query: Query) -> Any:
    """Answer for a graph of tables, with the rules as further tables.

    Raises:
        TypeError, ValueError: see :func:`~lmbm_torch.inference.graphs.rules.ruled`; if no labelling is
            allowed, the ValueError names the rules that contradict ``known``.
    """
    energy, constraints, known = query.energy, query.constraints, query.known
    assert constraints is not None
    is_hinge = query.quantity == "decode_hinge"
    whole = ruled(hinge_energy(energy, query.margin) if is_hinge else energy, constraints)
    labels, more = energy.num_labels, whole.num_labels - energy.num_labels
    given = {"known": known if known is None else pad(known, (0, more), value=torch.nan), "constraints": None}
    quantity = "decode" if is_hinge else query.quantity
    try:
        energy.given(known)
        found = answer(replace(query, energy=whole, quantity=quantity, **given))
    except ValueError:
        is_ruled = (constraints.matrix != 0).any(0)
        for row, values in enumerate([] if known is None else known.cpu().numpy()):
            constraints.check(np.where(is_ruled, values, np.nan), f"known[{row}]")
        raise
    if query.quantity == "log_partition":
        return found
    if query.quantity == "sample":
        return found[..., :labels]
    if query.quantity == "marginals":
        return replace(found, states=found.states[:, :labels, : energy.num_states])
    sign = -1 if is_hinge else 1
    objective, bound = sign * found.objective, sign * found.bound
    return replace(found, labels=found.labels[..., :labels], objective=objective, bound=bound)


def enumerated_under_rules(query: Query) -> Any:
    """Enumerate the allowed labellings; if there are none, the ValueError names the contradicting rules."""
    energy, constraints, known = query.energy, query.constraints, query.known
    assert constraints is not None
    possible = constrained.restricted(energy, constraints, known=known)
    given: dict[str, Any] = {"known": known}
    if query.quantity == "sample":
        given |= {"num_samples": query.num_samples, "generator": query.generator}
    try:
        return getattr(exact, query.quantity)(possible, **given)
    except ValueError:
        for row, labels in enumerate([] if known is None else known.cpu().numpy()):
            constraints.check(labels, f"known[{row}]")
        raise


def best_of_one(query: Query) -> Decoding:
    """Return the most probable labelling of a mixture with only one member."""
    one: dict[str, Any] = {"quantity": "decode", "energy": query.first, "measure": "", "node_limit": "auto"}
    return answer(replace(query, **one))


def best_few(query: Query) -> Decoding:
    """Return the ``top_k`` best labellings of a Boltzmann machine, by the semidefinite search."""
    nodes = _fewer_nodes(query)
    return semidefinite.decode(query.energy, known=query.known, top_k=query.top_k, node_limit=nodes)


def programmed(query: Query) -> Decoding:
    """Return the best labelling of a Boltzmann machine with large cliques and many labels, by HiGHS.

    Raises:
        ImportError: HiGHS is not installed.
    """
    # Import here: HiGHS is optional, and only this route needs it.
    from lmbm_torch.inference.relaxations import integer_program

    nodes = _fewer_nodes(query)
    if query.quantity == "decode":
        return integer_program.decode(query.energy, known=query.known, node_limit=nodes)
    return integer_program.decode_hinge(query.energy, query.margin, known=query.known, node_limit=nodes)


def _fewer_nodes(query: Query) -> int | None:
    """Return a node limit for searches whose nodes take far longer than those of branch and bound."""
    return query.nodes and max(1, query.nodes // LIMITS.nodes_to_one)


def searched_then_tree(query: Query) -> Decoding:
    """Decode a belief network by branch and bound; use a junction tree for examples without a proof."""
    found = _searched(query, query.nodes)
    rows = _open_rows(found)
    if not len(rows) or not query.is_narrow:
        return found
    proven = _taken_of(elimination, query, rows)
    assert found.nodes is not None
    return replaced(found, rows, replace(proven, nodes=found.nodes[rows]))


def searched_then_semidefinite(query: Query) -> Decoding:
    """Decode by branch and bound; use the semidefinite search for examples without a proof."""
    found = _searched(query, LIMITS.machine_nodes)
    rows = _open_rows(found)
    return replaced(found, rows, _taken_of(semidefinite, query, rows)) if len(rows) else found


def ascended_then_eliminated(query: Query) -> Decoding:
    """Decode graphs of tables by dual ascent; use elimination for examples without a proof."""
    return _ascended_then(elimination.decode, query)


def ascended_then_cut(query: Query) -> Decoding:
    """Decode graphs of tables by dual ascent; use cutting planes for examples without a proof."""
    # Import here: SciPy is optional, and among the routes of graphs only this one needs it.
    from lmbm_torch.inference.graphs import cycles

    return _ascended_then(partial(cycles.decode, node_limit=_fewer_nodes(query)), query)


def _ascended_then(routine: Callable[..., Decoding], query: Query) -> Decoding:
    found = dual_ascent.decode(query.energy, known=query.known)
    rows = _open_rows(found)
    if not len(rows):
        return found
    some, known = query.energy.select(rows), query.known
    known = None if known is None else known[rows, : some.num_labels]
    proven = _with_nodes(routine(some, known=known))
    beyond = query.energy.num_labels - some.num_labels
    labels = pad(proven.labels, (0, beyond), value=PADDING)
    return replaced(found, rows, replace(proven, labels=labels))


def best_by_parts(query: Query) -> Decoding:
    """Return the best labelling; examples with independent parts are decoded part by part.

    Returns:
        ``status`` is exact if each part is exact, and ``status.residual`` is the sum over the parts;
        ``nodes`` is the sum over the parts.
    """
    energy, whole = query.energy, replace(query, connected=True)
    if not is_divisible(energy):
        return answer(whole)
    found, left = None, torch.arange(energy.batch_size, device=energy.device)
    is_directed = isinstance(energy, DirectedEnergy)
    if is_directed or query.constraints is None:
        # First try a short search of all labels: examples that it proves need no parts. A short search of a
        # Boltzmann machine under rules proves nothing.
        most = LIMITS.soon_nodes
        found = _searched(query, most if query.nodes is None else min(most, query.nodes))
        left = _open_rows(found)
        if not len(left):
            return found
    given = None if query.known is None else query.known[left]
    rest = energy.select(left)
    of_margins = is_directed or query.quantity == "decode_hinge"
    limits: dict[str, Any] = {"constraints": query.constraints, "of_margins": of_margins, "least": 2}
    several, connected = splits(rest, known=given, **limits)
    if len(connected) == energy.batch_size:
        return answer(whole)
    answers = [(split.rows, _decoded(query, split)) for split in several]
    if len(connected):
        part = None if given is None else given[connected]
        other = answer(replace(whole, energy=rest.select(connected), known=part))
        answers.append((connected, _with_nodes(other)))
    if found is None:
        return _in_place(answers, len(rest.unary))
    for rows, part in answers:
        found = replaced(_with_nodes(found), left[rows], part)
    return found


def sums_by_parts(query: Query) -> Any:
    """Return marginals, log partitions or samples, part by part for examples with independent parts."""
    energy, whole = query.energy, replace(query, connected=True)
    if not is_divisible(energy):
        return answer(whole)
    found, connected = splits(energy, known=query.known, constraints=query.constraints)
    if not found:
        return answer(whole)
    by_parts = {"marginals": _marginals, "log_partition": _log_partition, "sample": _drawn}[query.quantity]
    parts = [(split.rows, by_parts(query, split)) for split in found]
    if len(connected):
        part = None if query.known is None else query.known[connected]
        other = answer(replace(whole, energy=energy.select(connected), known=part))
        parts.append((connected, other.transpose(0, 1) if query.quantity == "sample" else other))
    if query.quantity == "sample":
        return _in_place(parts, energy.batch_size).transpose(0, 1).contiguous()
    if query.quantity == "log_partition":
        return _in_place(parts, energy.batch_size)
    if any(each.standard_error is not None for _, each in parts):
        parts = [(rows, _with_error(each)) for rows, each in parts]
    methods = "; ".join(dict.fromkeys(each.method for _, each in parts))
    return replace(_in_place(parts, energy.batch_size), method=methods)


def _searched(query: Query, node_limit: int | None) -> Decoding:
    is_directed = isinstance(query.energy, DirectedEnergy)
    module = branch_and_bound if is_directed else undirected_branch_and_bound
    return _taken_of(module, query, None, node_limit=node_limit)


def _taken_of(module: Any, query: Query, rows: Tensor | None, **limits: int | None) -> Decoding:
    """Answer by a module's function for the examples ``rows``; for all examples if ``rows`` is None."""
    some = query.energy if rows is None else query.energy.select(rows)
    known = query.known if rows is None or query.known is None else query.known[rows]
    margin = {"margin": query.margin} if query.quantity == "decode_hinge" else {}
    given: dict[str, Any] = {"known": known, "constraints": query.constraints, **margin, **limits}
    return getattr(module, query.quantity)(some, **given)


def _open_rows(found: Decoding) -> Tensor:
    return (~found.status.exact).nonzero(as_tuple=True)[0]


def _problems(split: Split) -> list[Problem]:
    """Return the parts as problems; if rules contradict known labels, the ValueError names the rules."""
    try:
        return list(split.problems())
    except ValueError:
        if split.constraints is not None and split.known is not None:
            split.constraints.check(split.known[0].cpu().numpy(), f"known[{int(split.rows[0])}]")
        raise


def _asked(query: Query, problem: Problem) -> Any:
    """Answer for stacked parts of equal size, without looking for smaller parts."""
    constraints = problem.constraints
    if constraints is None and query.constraints is not None and query.quantity not in BEST:
        # Pass an empty set of rules: parts with rules have exact answers, and so must the others.
        constraints = Constraints((), tuple(map(str, range(problem.energy.num_labels))))
    given: dict[str, Any] = {"energy": problem.energy, "known": problem.known, "constraints": constraints}
    return answer(replace(query, connected=True, **given))


def _by_part(problem: Problem, values: Tensor) -> Tensor:
    """Separate the values of stacked parts: (parts, rows, …)."""
    return values.unflatten(0, (len(problem.labels), -1))


def _given(split: Split) -> Tensor:
    if split.known is None:
        return torch.zeros_like(split.energy.unary)
    return split.known.nan_to_num()


def _decoded(query: Query, split: Split) -> Decoding:
    labels, status, gap = _given(split).long(), None, torch.zeros_like(split.energy.unary[:, 0])
    nodes = torch.zeros(len(gap), dtype=torch.int64, device=gap.device)
    for problem in _problems(split):
        found = _asked(query, problem)
        for places, own in zip(problem.labels, _by_part(problem, found.labels), strict=True):
            labels[:, places] = own
        away = (found.bound - found.objective).masked_fill(found.status.exact, 0)
        gap = gap + _by_part(problem, away).sum(0)
        nodes = nodes + _by_part(problem, _nodes(found)).sum(0)
        status = _joined(status, problem, found.status)
    assert status is not None
    whole = split.energy.to(torch.float64)
    if query.quantity == "decode_hinge":
        precise = (query.margin - whole.local_margins(labels)).clamp(min=0).sum(-1)
    else:
        precise = whole.score(labels)
    precise = precise.to(gap.dtype)
    return Decoding(labels, precise, precise + gap, replace(status, residual=gap.abs()), nodes)


def _marginals(query: Query, split: Split) -> Marginals:
    labels, log_partition, status = _given(split), split.constant(), None
    error, methods = torch.zeros_like(labels), {}
    for problem in _problems(split):
        found = _asked(query, problem)
        log_partition = log_partition + _by_part(problem, found.log_partition).sum(0)
        status = _joined(status, problem, found.status)
        methods[found.method] = None
        for places, own in zip(problem.labels, _by_part(problem, found.labels), strict=True):
            labels[:, places] = own
        if found.standard_error is not None:
            for places, own in zip(problem.labels, _by_part(problem, found.standard_error), strict=True):
                error[:, places] = own
    assert status is not None
    method = f"{'; '.join(methods)}, of each independent part"
    return Marginals(labels, log_partition, status, error if bool(error.any()) else None, method=method)


def _log_partition(query: Query, split: Split) -> Float[Tensor, " rows"]:
    total = split.constant()
    for problem in _problems(split):
        total = total + _by_part(problem, _asked(query, problem)).sum(0)
    return total


def _drawn(query: Query, split: Split) -> Tensor:
    """Draw each part independently; return labels (rows, samples, labels) of the examples of a split."""
    columns: dict[int, Tensor] = {}
    for problem in _problems(split):
        values = _asked(query, problem).transpose(0, 1)
        for labels, own in zip(problem.labels, _by_part(problem, values), strict=True):
            columns |= dict(zip(labels.tolist(), own.unbind(-1), strict=True))
    given = _given(split)
    like = next(iter(columns.values()))
    whole = [
        columns[label] if label in columns else given[:, label, None].expand_as(like).to(like.dtype)
        for label in range(split.energy.num_labels)
    ]
    return torch.stack(whole, -1)


def _with_error(found: Marginals) -> Marginals:
    """Return the marginals with a standard error, which is 0 if nothing was sampled."""
    exact = torch.zeros_like(found.labels)
    return found if found.standard_error is not None else replace(found, standard_error=exact)


def _joined(status: Status | None, problem: Problem, other: Status) -> Status:
    """Combine the status of earlier parts with the status of further parts of the same examples."""
    own = Status(
        _by_part(problem, other.exact).all(0),
        _by_part(problem, other.converged).all(0),
        _by_part(problem, other.num_iters).sum(0),
        _by_part(problem, other.residual).sum(0),
    )
    if status is None:
        return own
    return Status(
        status.exact & own.exact,
        status.converged & own.converged,
        status.num_iters + own.num_iters,
        status.residual + own.residual,
    )


def _nodes(found: Decoding) -> Tensor:
    return torch.zeros_like(found.status.num_iters) if found.nodes is None else found.nodes


def _with_nodes(found: Decoding) -> Decoding:
    """Return the decoding with ``nodes``, 0 if nothing was searched, but no other optional field."""
    return Decoding(found.labels, found.objective, found.bound, found.status, _nodes(found))


def _in_place(parts: list[tuple[Tensor, Any]], size: int) -> Any:
    """Join results of groups of rows, and return them in the order of the batch."""
    if len(parts) == 1 and len(parts[0][0]) == size:
        return parts[0][1]
    order = torch.cat([rows for rows, _ in parts]).argsort()
    return rows_of(joined([part for _, part in parts]), order)
