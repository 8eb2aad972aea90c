"""Belief propagation and mean field in graphs of tables: approximate marginals, and a lower bound.

Sum-product messages at a fixed point are exact on forests, and elsewhere a stationary point of the Bethe free
energy (Yedidia, Freeman and Weiss 2005). Messages are probabilities, not logarithms: zeros are exact. The
parallel schedule for marginals runs on any device; all other sweeps run on the CPU, example by example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.checks import check_count, check_not_negative
from lmbm_torch.energies import FactorEnergy, FactorScopes
from lmbm_torch.inference.common.results import Decoding, StateMarginals, Status
from lmbm_torch.inference.graphs import parallel_messages
from lmbm_torch.inference.graphs.arrays import Example, examples_of, sweeps
from lmbm_torch.inference.graphs.elimination import allowed_score
from lmbm_torch.inference.graphs.parts import Part, in_rows, labels_in_rows, parts_of, reduced
from lmbm_torch.inference.trees.triangulation import is_forest
from lmbm_torch.kernels.threads import share
from lmbm_torch.shapes import Known
from lmbm_torch.verdicts import one_door

__all__ = ["decode", "entries", "marginals", "mean_field"]

Schedule = Literal["parallel", "sequential", "residual", "double loop"]
SCHEDULES: tuple[Schedule, ...] = ("parallel", "sequential", "residual", "double loop")


@one_door
@torch.no_grad()
def marginals(
    energy: FactorEnergy,
    *,
    known: Known | None = None,
    schedule: Schedule = "sequential",
    damping: float = 0.0,
    num_iters: int = 1000,
    tol: float = 1e-8,
) -> StateMarginals:
    """Return approximate P(y_i = s) by sum-product messages, and the Bethe approximation of log Z.

    Args:
        energy: graphs of tables; forests have exact results.
        known: (batch, labels), a label's known state, or NaN for a free label.
        schedule: the order of updates. ``"parallel"``: all tables at once; ``"sequential"``: one table after
            another, forwards and backwards; ``"residual"``: always the table whose messages would change
            most; ``"double loop"``: ascent of the Bethe free energy, slower, but convergent (Yuille, CCCP
            algorithms to minimize the Bethe and Kikuchi free energies, 2002).
        damping: the share of the old message in the new one, in [0, 1); 0 for the double loop.
        num_iters: the largest number of sweeps, each with as many updates as there are tables.
        tol: the largest change of a message, a probability, at convergence; the parallel schedule, in the
            energy's precision, needs at least 8 units in the last place of 1.

    Raises:
        ValueError: NaN or +∞ in the energy; ``known`` has another shape than (batch, labels), or impossible
            values; an unknown schedule; a damping outside of [0, 1); ``num_iters`` below 1.
    """
    if schedule == "parallel":
        _check_schedule(schedule, SCHEDULES, damping, num_iters)
        return _all_at_once(energy, known, damping, num_iters, tol)
    found = _propagated(energy, known, schedule, damping, num_iters, tol, is_max=False)
    each = [_padded(energy, part, [one.states for one in rows]) for part, rows in found]
    parts = [part for part, _ in found]
    states = in_rows(parts, each).to(energy.dtype)
    numbers = in_rows(parts, [_numbers(rows) for _, rows in found])
    numbers = numbers.to(energy.device)
    exact, converged, iters, residual, log_sum = numbers.T
    status = Status((exact * converged) > 0, converged > 0, iters.long(), residual.to(energy.dtype))
    return StateMarginals(states, status, log_sum.to(energy.dtype))


@one_door
@torch.no_grad()
def decode(
    energy: FactorEnergy,
    *,
    known: Known | None = None,
    schedule: Schedule = "sequential",
    damping: float = 0.0,
    num_iters: int = 1000,
    tol: float = 1e-8,
) -> Decoding:
    """Return the labels of largest max-marginals by max-product messages, improved by changes of one label.

    The result is exact on forests without ties; elsewhere nothing is proven, and ``bound`` is ∞.

    Args:
        energy, known, schedule, damping, num_iters, tol: see :func:`marginals`; not the double loop.

    Raises:
        ValueError: see :func:`marginals`; the labelling found for an example is not allowed.
    """
    found = _propagated(energy, known, schedule, damping, num_iters, tol, is_max=True)
    parts = [part for part, _ in found]
    labels = labels_in_rows(energy, parts, [torch.stack([one.labels for one in rows]) for _, rows in found])
    objective = allowed_score(energy, known, labels)
    numbers = in_rows(parts, [_numbers(rows) for _, rows in found])
    _, converged, iters, _, _ = numbers.to(energy.device).T
    unproven = torch.full_like(objective, torch.inf)
    status = Status(converged < 0, converged > 0, iters.long(), unproven)
    return Decoding(labels, objective, unproven.clone(), status)


@one_door
@torch.no_grad()
def mean_field(
    energy: FactorEnergy,
    *,
    known: Known | None = None,
    labels: Tensor | None = None,
    num_iters: int = 1000,
    tol: float = 1e-9,
) -> StateMarginals:
    """Return the marginals of the best product of independent distributions, and a lower bound of log Z.

    The bound is E[score] + Σ entropies under the product. One label after another is improved, starting from
    the uniform distribution, and also from ``labels`` with probability 1; the better result is returned.

    Args:
        energy, known: see :func:`marginals`.
        labels: (batch, labels), an allowed labelling of each example to start from; by default the labelling
            of largest unary log-potentials.
        num_iters: the largest number of sweeps over the labels.
        tol: the relative gain of the bound by a sweep below which the sweeps end.

    Raises:
        ValueError: see :func:`marginals`.
    """
    check_count("num_iters", num_iters)

    def improve(example: Example) -> _Answer:
        return _product(example, None if labels is None else labels[example.row], num_iters, tol)

    found = [(part, _shared(examples, improve)) for part, examples in examples_of(energy, known)]
    parts = [part for part, _ in found]
    each = [_padded(energy, part, [one.states for one in rows]) for part, rows in found]
    numbers = in_rows(parts, [_numbers(rows) for _, rows in found])
    exact, converged, iters, residual, bound = numbers.to(energy.device).T
    status = Status(exact > 0, converged > 0, iters.long(), residual.to(energy.dtype))
    return StateMarginals(in_rows(parts, each).to(energy.dtype), status, bound.to(energy.dtype))


@torch.no_grad()
def entries(energy: FactorEnergy, *, num_iters: int = 200, tol: float = 1e-6) -> tuple[Tensor, np.ndarray]:
    """Return the Bethe approximations of log Z, and the marginals of all entries, as in ``energy.table``.

    Args:
        energy: packed graphs of finite tables.
        num_iters, tol: see :func:`marginals`.
    """
    sums, every = [], []
    structure = energy.structure
    beliefs = np.zeros(structure.num_entries)
    starts = structure.first[structure.num_variables]
    for _, examples in examples_of(energy, None):
        every += examples
    unary_at, entry_at = 0, int(starts)
    for example in sorted(every, key=lambda each: each.row):
        found = _fixed_point(example, SCHEDULES.index("sequential"), 0.0, num_iters, tol, False)
        graph = example.graph
        beliefs[unary_at : unary_at + len(example.unary)] = found.belief
        weight = found.values.copy()
        for place in range(len(graph.variable)):
            table = graph.table[place]
            low, high = graph.first[table], graph.first[table + 1]
            state = np.arange(high - low) // graph.inner[place] % graph.states[graph.variable[place]]
            weight[low:high] *= found.sums[graph.slot[place] + state]
        total = np.add.reduceat(weight, graph.first[:-1]) if len(weight) else weight
        beliefs[entry_at : entry_at + len(weight)] = weight / np.repeat(total, np.diff(graph.first))
        unary_at, entry_at = unary_at + len(example.unary), entry_at + len(weight)
        sums.append(found.log_sum)
    return torch.tensor(sums, dtype=torch.float64, device="cpu"), beliefs


class _FixedPoint(NamedTuple):
    """Messages of an example after the last update, and numbers computed from them."""

    values: np.ndarray
    sums: np.ndarray
    belief: np.ndarray
    made: int
    residual: float
    log_sum: float


class _Answer(NamedTuple):
    """Result for an example.

    Args:
        states: (variables, states), the marginals.
        labels: (variables,).
        numbers: exact, converged, iterations, residual, log partition.
    """

    states: Tensor
    labels: Tensor
    numbers: list[float]


def _propagated(
    energy: FactorEnergy,
    known: Tensor | None,
    schedule: Schedule,
    damping: float,
    num_iters: int,
    tol: float,
    *,
    is_max: bool,
) -> list[tuple[Part, list[_Answer]]]:
    _check_schedule(schedule, SCHEDULES[:3] if is_max else SCHEDULES, damping, num_iters)
    number = SCHEDULES.index(schedule)

    def propagate(example: Example) -> _Answer:
        return _beliefs(example, number, damping, num_iters, tol, is_max)

    return [(part, _shared(examples, propagate)) for part, examples in examples_of(energy, known)]


def _check_schedule(schedule: str, possible: tuple[Schedule, ...], damping: float, num_iters: int) -> None:
    if schedule not in possible:
        raise ValueError(f"schedule: expected one of {', '.join(possible)}, got {schedule!r}")
    check_count("num_iters", num_iters)
    check_not_negative("damping", damping)
    if damping and schedule == "double loop":
        raise ValueError(f"damping: expected 0 for the double loop, got {damping}")
    if damping >= 1:
        raise ValueError(f"damping: expected a number from 0 to below 1, got {damping}")


def _all_at_once(
    energy: FactorEnergy, known: Tensor | None, damping: float, num_iters: int, tol: float
) -> StateMarginals:
    parts, found, states, exact = parts_of(energy, known), [], [], []
    for part in parts:
        back = reduced(part.energy)
        found.append(parallel_messages.fixed_point(back.energy, damping, num_iters, tol))
        shown = found[-1].states
        if back.energy is not part.energy:
            shown = shown.new_zeros(len(part.rows), len(back.states), energy.num_states)
            for variable, kept in enumerate(back.states):
                shown[:, variable, kept] = found[-1].states[:, variable, : len(kept)]
        missing = energy.num_states - shown.shape[2], energy.num_labels - shown.shape[1]
        states.append(pad(shown, (0, missing[0], 0, missing[1])))
        exact.append(found[-1].converged & _is_forest(part.energy.structure))
    converged, sweeps, residual, log_sum = (
        in_rows(parts, [getattr(each, name) for each in found])
        for name in ("converged", "sweeps", "residual", "log_partition")
    )
    status = Status(in_rows(parts, exact), converged, sweeps, residual)
    return StateMarginals(in_rows(parts, states), status, log_sum)


def _is_forest(structure: FactorScopes) -> bool:
    """Return whether the bipartite graph of variables and tables has no cycle."""
    variables, scopes = structure.num_variables, structure.scopes
    edges = [(each, variables + table) for table, scope in enumerate(scopes) for each in scope]
    return is_forest(variables + len(scopes), edges)


def _shared(examples: list[Example], work: Callable[[Example], _Answer]) -> list[_Answer]:
    """Apply ``work`` to all examples in several threads, and return the results."""
    found: list[Any] = [None] * len(examples)

    def run(number: int) -> None:
        found[number] = work(examples[number])

    share(range(len(examples)), run)
    return found


def _beliefs(
    example: Example, schedule: int, damping: float, num_iters: int, tol: float, is_max: bool
) -> _Answer:
    graph = example.graph
    found = _fixed_point(example, schedule, damping, num_iters, tol, is_max)
    belief = found.belief
    labels = np.array([belief[low:high].argmax() for low, high in zip(graph.at, graph.at[1:], strict=False)])
    if is_max:
        sweeps().improved(graph, example.unary, example.entries, labels)
    states = torch.from_numpy(example.spread(belief, 0.0, max(map(_most, example.back.states)) + 1))
    # Test for a forest in the graph whose nodes are variables and tables: no cycle means exact results.
    edges = zip(graph.variable.tolist(), (len(graph.states) + graph.table).tolist(), strict=True)
    exact = is_forest(len(graph.states) + len(graph.first) - 1, edges)
    numbers = [exact, found.residual <= tol, found.made, found.residual, found.log_sum]
    return _Answer(states, example.labels(labels), [float(each) for each in numbers])


def _fixed_point(
    example: Example, schedule: int, damping: float, num_iters: int, tol: float, is_max: bool
) -> _FixedPoint:
    graph, kernel = example.graph, sweeps()
    largest = _largest(graph.first, example.entries)
    values = np.exp(example.entries - np.repeat(largest, np.diff(graph.first)))
    widths = np.diff(graph.slot)
    messages = np.repeat(1.0 / np.maximum(widths, 1), widths)
    sums, belief = np.empty_like(messages), np.empty_like(example.unary)
    with np.errstate(divide="ignore"):
        arrays = (graph, example.unary, values, messages, sums, belief)
        if SCHEDULES[schedule] == "double loop":
            made, residual = kernel.double_loop(*arrays, tol, num_iters)
        else:
            made, residual = kernel.propagate(*arrays, schedule, is_max, damping, tol, num_iters)
        log_sum = kernel.bethe(graph, example.unary, values, messages, sums, belief)
    total = log_sum + largest.sum() + example.constant
    return _FixedPoint(values, sums, belief, int(made), float(residual), float(total))


def _product(example: Example, labels: Tensor | None, num_iters: int, tol: float) -> _Answer:
    graph, kernel = example.graph, sweeps()
    uniform = np.repeat(1.0 / graph.states, graph.states)
    start = np.zeros(len(graph.states), np.int64)
    if labels is None:
        for variable, (low, high) in enumerate(zip(graph.at, graph.at[1:], strict=False)):
            start[variable] = example.unary[low:high].argmax()
    else:
        for variable, kept in enumerate(example.back.states):
            start[variable] = int(np.searchsorted(kept, int(labels[variable])))
    certain = np.zeros_like(uniform)
    certain[graph.at[:-1] + start] = 1.0
    best: tuple[float, int, float, np.ndarray] = (-np.inf, 0, np.inf, uniform)
    for belief in (uniform, certain):
        bound, made, gain = kernel.mean_field(graph, example.unary, example.entries, belief, num_iters, tol)
        if bound > best[0]:
            best = (bound, made, gain, belief)
    bound, made, gain, belief = best
    states = torch.from_numpy(example.spread(belief, 0.0, max(map(_most, example.back.states)) + 1))
    is_product = not len(graph.variable)
    numbers = [is_product, gain <= tol * (1 + abs(bound)), made, gain, bound + example.constant]
    return _Answer(states, example.labels(start), [float(each) for each in numbers])


def _most(states: np.ndarray) -> int:
    return int(states[-1])


def _largest(first: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Return the largest entry of each table; 0 if all entries are −∞."""
    if len(first) == 1:
        return np.zeros(0)
    largest = np.maximum.reduceat(entries, first[:-1])
    return np.where(largest > -np.inf, largest, 0.0)


def _numbers(rows: list[_Answer]) -> Tensor:
    """Return the ``numbers`` of all results, (examples, 5)."""
    return torch.tensor([one.numbers for one in rows], dtype=torch.float64, device="cpu")


def _padded(energy: FactorEnergy, part: Part, states: list[Tensor]) -> Tensor:
    """Return the marginals of a part's examples, padded to the batch's numbers of labels and states."""
    found = torch.zeros(len(states), energy.num_labels, energy.num_states, dtype=torch.float64, device="cpu")
    for row, each in enumerate(states):
        found[row, : each.shape[0], : each.shape[1]] = each
    return found.to(energy.device)
