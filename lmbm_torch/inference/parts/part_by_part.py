"""Answers of independent parts (:mod:`~lmbm_torch.inference.parts.independent`), put together to one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.parts.independent import Problem, Split, is_divisible, splits
from lmbm_torch.inference.results import Decoding, Marginals, Status, joined, replaced
from lmbm_torch.shapes import Float, Int, Known

__all__ = ["decode", "hinge_of", "log_partition", "marginals", "sample", "score_of", "soon"]

# Nodes of a search of the whole before the parts of what it has not proven are looked for.
SOON = 1000

Routine = Callable[..., Any]
"""``routine(energy, known=..., constraints=...)``, of a whole or of a part."""


def soon(node_limit: int | None) -> int:
    """A limit of nodes for a first search, no larger than the one given."""
    return SOON if node_limit is None else min(SOON, node_limit)


def score_of(energy: Any, labels: Tensor) -> Tensor:
    """The score of labels."""
    return energy.score(labels)


def hinge_of(margin: float, energy: Any, labels: Tensor) -> Tensor:
    """Σ_i [margin − m_i]_+."""
    return (margin - energy.local_margins(labels)).clamp(min=0).sum(-1)


def decode(
    energy: Any,
    routine: Routine,
    objective: Callable[[Any, Tensor], Tensor],
    whole: Routine,
    *,
    soon: Routine | None = None,
    known: Known | None = None,
    constraints: Constraints | None = None,
    of_margins: bool = False,
) -> Decoding:
    """The best labelling, by ``routine`` of each part where an example has some, else by ``whole``.

    Args:
        energy: any; of one whose parts cannot be told, all are decoded as a whole.
        objective: of an energy and labels, what the routines maximise or minimise.
        soon: a search of the whole that ends soon; what it proves is not taken apart.
        of_margins: whether the objective is a sum over margins.

    Returns:
        ``status`` is that of all parts together: exact where each of them is, and as far from its bound as
        they are; ``nodes`` are the sum of theirs.
    """
    if not is_divisible(energy):
        return whole(energy, known=known, constraints=constraints)
    found = None if soon is None else soon(energy, known=known, constraints=constraints)
    left = torch.arange(energy.batch_size, device=energy.device)
    if found is not None:
        left = left[~found.status.exact]
        if not len(left):
            return found
    given = None if known is None else known[left]
    rest = energy.select(left)
    several, connected = splits(rest, known=given, constraints=constraints, of_margins=of_margins, least=2)
    if len(connected) == energy.batch_size:
        return whole(energy, known=known, constraints=constraints)
    answers = [(split.rows, _decoded(split, routine, objective)) for split in several]
    if len(connected):
        part = None if given is None else given[connected]
        answer = whole(rest.select(connected), known=part, constraints=constraints)
        answers.append((connected, _with_nodes(answer)))
    if found is None:
        return _in_place(answers, len(rest.unary))
    for rows, answer in answers:
        found = replaced(_with_nodes(found), left[rows], answer)
    return found


def marginals(
    energy: Any, routine: Routine, *, known: Known | None = None, constraints: Constraints | None = None
) -> Marginals | None:
    """Those of all parts; None where no example has several."""
    parts = _of_all(energy, routine, partial(_marginals, routine), known, constraints)
    if parts is None:
        return None
    if any(found.standard_error is not None for _, found in parts):
        parts = [(rows, _with_error(found)) for rows, found in parts]
    methods = "; ".join(dict.fromkeys(found.method for _, found in parts))
    return replace(_in_place(parts, energy.batch_size), method=methods)


def log_partition(
    energy: Any, routine: Routine, *, known: Known | None = None, constraints: Constraints | None = None
) -> Float[Tensor, " batch"] | None:
    """That of all parts together; None where no example has several."""

    def summed(split: Split) -> Tensor:
        total = split.constant()
        for problem in _problems(split):
            total = total + _by_part(problem, _asked(routine, problem)).sum(0)
        return total

    parts = _of_all(energy, routine, summed, known, constraints)
    return None if parts is None else _in_place(parts, energy.batch_size)


def sample(
    energy: Any, routine: Routine, *, known: Known | None = None, constraints: Constraints | None = None
) -> Int[Tensor, "num_samples batch labels"] | None:
    """Draws of all parts, each an independent one of each part; None where no example has several."""

    def drawn(split: Split) -> Tensor:
        columns: dict[int, Tensor] = {}
        for problem in _problems(split):
            values = _asked(routine, problem).transpose(0, 1)
            for labels, own in zip(problem.labels, _by_part(problem, values), strict=True):
                columns |= dict(zip(labels.tolist(), own.unbind(-1), strict=True))
        given = _given(split)
        like = next(iter(columns.values()))
        whole = [
            columns[label] if label in columns else given[:, label, None].expand_as(like).to(like.dtype)
            for label in range(energy.num_labels)
        ]
        return torch.stack(whole, -1)

    def by_example(energy: Any, *, known: Tensor | None, constraints: Constraints | None) -> Tensor:
        return routine(energy, known=known, constraints=constraints).transpose(0, 1)

    parts = _of_all(energy, by_example, drawn, known, constraints)
    return None if parts is None else _in_place(parts, energy.batch_size).transpose(0, 1).contiguous()


def _of_all(
    energy: Any,
    routine: Routine,
    by_parts: Callable[[Split], Any],
    known: Tensor | None,
    constraints: Constraints | None,
) -> list[tuple[Tensor, Any]] | None:
    """Rows and their result, of examples that have parts ``by_parts``; None where none has."""
    if not is_divisible(energy):
        return None
    found, connected = splits(energy, known=known, constraints=constraints)
    if not found:
        return None
    results = [(split.rows, by_parts(split)) for split in found]
    if len(connected):
        part = None if known is None else known[connected]
        whole = routine(energy.select(connected), known=part, constraints=constraints)
        results.append((connected, whole))
    return results


def _problems(split: Split) -> list[Problem]:
    """The parts; refuses what is known where it is that which leaves rules no labelling."""
    try:
        return list(split.problems())
    except ValueError:
        if split.constraints is not None and split.known is not None:
            split.constraints.check(split.known[0].cpu().numpy(), f"known[{int(split.rows[0])}]")
        raise


def _asked(routine: Routine, problem: Problem) -> Any:
    return routine(problem.energy, known=problem.known, constraints=problem.constraints)


def _by_part(problem: Problem, values: Tensor) -> Tensor:
    """(parts, rows, …) of what a routine said of parts one behind the other."""
    return values.unflatten(0, (len(problem.labels), -1))


def _given(split: Split) -> Tensor:
    """The known labels, and 0 for the others."""
    if split.known is None:
        return torch.zeros_like(split.energy.unary)
    return split.known.nan_to_num()


def _decoded(split: Split, routine: Routine, objective: Callable[[Any, Tensor], Tensor]) -> Decoding:
    labels, status, gap = _given(split).long(), None, torch.zeros_like(split.energy.unary[:, 0])
    nodes = torch.zeros(len(gap), dtype=torch.int64, device=gap.device)
    for problem in _problems(split):
        found = _asked(routine, problem)
        for places, own in zip(problem.labels, _by_part(problem, found.labels), strict=True):
            labels[:, places] = own
        away = (found.bound - found.objective).masked_fill(found.status.exact, 0)
        gap = gap + _by_part(problem, away).sum(0)
        nodes = nodes + _by_part(problem, _nodes(found)).sum(0)
        status = _joined(status, problem, found.status)
    assert status is not None
    precise = objective(split.energy.to(torch.float64), labels).to(gap.dtype)
    return Decoding(labels, precise, precise + gap, replace(status, residual=gap.abs()), nodes)


def _marginals(routine: Routine, split: Split) -> Marginals:
    labels, log_partition, status = _given(split), split.constant(), None
    error, methods = torch.zeros_like(labels), {}
    for problem in _problems(split):
        found = _asked(routine, problem)
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


def _with_error(found: Marginals) -> Marginals:
    """The same with a standard error, of 0 where nothing was sampled."""
    exact = torch.zeros_like(found.labels)
    return found if found.standard_error is not None else replace(found, standard_error=exact)


def _joined(status: Status | None, problem: Problem, other: Status) -> Status:
    """The status of some parts and of others, all of the same examples."""
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
    """The same of the fields that all answers here have."""
    return Decoding(found.labels, found.objective, found.bound, found.status, _nodes(found))


def _in_place(parts: list[tuple[Tensor, Any]], size: int) -> Any:
    """Results of some rows each, which are all of them, in the order of the batch."""
    if len(parts) == 1 and len(parts[0][0]) == size:
        return parts[0][1]
    order = torch.cat([rows for rows, _ in parts]).argsort()
    return _reordered(joined([part for _, part in parts]), order)


def _reordered(whole: Any, order: Tensor) -> Any:
    if isinstance(whole, Tensor):
        return whole[order]
    if not is_dataclass(whole):
        return whole
    values = {field.name: _reordered(getattr(whole, field.name), order) for field in fields(whole)}
    return type(whole)(**values)
