"""Exact decoding of dense Boltzmann machines: branch and bound with semidefinite bounds.

If couplings contradict each other, the bounds of :mod:`~lmbm_torch.inference.relaxations.integer_program` and
:mod:`~lmbm_torch.inference.search.undirected_branch_and_bound` are loose, and the searches fail beyond some
fifty labels. Semidefinite programming with triangle and pentagonal inequalities
(:mod:`lmbm_torch.inference.relaxations.semidefinite.bound`) leaves gaps so small that a hundred dense labels
need some tens of nodes, of some tenths of a second each (Rendl, Rinaldi and Wiegele, Solving Max-Cut to
optimality by intersecting semidefinite and polyhedral relaxations, 2010). Labels decided by dominant weights
or roof duality are settled first, labels determined by another label are merged with it, and independent
parts of the graph are searched separately. Rules are propagated at every node, and products of rules and
labels tighten the bound. Several nodes are bounded in parallel. Bounds are computed in floating point.

Objectives count as tied if they differ by less than 10⁻¹² of the largest possible objective of a label; ties
are broken arbitrarily.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Event
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from lmbm_torch.checks import check_count, check_positive, count_limit
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.common.given import check_rules
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.relaxations.objectives import Score, Task
from lmbm_torch.inference.relaxations.persistency import Settled, settle_persistent, settle_scores
from lmbm_torch.inference.relaxations.semidefinite.spin_parts import Example, Labellings, best_labellings
from lmbm_torch.inference.relaxations.semidefinite.spin_search import Limits
from lmbm_torch.kernels.threads import share, single_threaded
from lmbm_torch.shapes import Known
from lmbm_torch.verdicts import searched_on_host

__all__ = ["decode"]


@searched_on_host
@torch.no_grad()
def decode(
    energy: PairwiseEnergy,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: int | None = None,
    time_limit: float | None = None,
    constraints: Constraints | None = None,
) -> Decoding:
    """Return argmax_y score(y), the MAP labelling; the score is the objective, bound ≥ objective.

    Args:
        energy: a Boltzmann machine, on any device; the search runs on the CPU.
        known: {0, 1, NaN}, NaN for a free label; only labellings with the known values are considered.
        top_k: the number of labellings to return, best first; the bound then holds for all other labellings.
        node_limit: the number of nodes after which an example's search ends; a node is a set of labellings
            with a computed bound. Each independent part of the graph has at least one node.
        time_limit: the approximate number of seconds for an example. Results then depend on the computer.
        constraints: rules that the labellings must obey. Products of rules and labels tighten the bound.

    Returns:
        ``status.exact`` is true if no labelling is better, ``status.converged`` if no limit ended the search.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` has another
            shape than (batch, labels), or impossible values; a limit or ``top_k`` is no positive integer, or
            ``top_k`` is above the number of an example's labellings, or of those allowed, or of those found
            within a limit; a time limit that is not a finite number above 0; constraints over another number
            of labels, or that contradict the known labels.
    """
    limits = _Limits.of(node_limit, time_limit)
    check_count("top_k", top_k)
    task = Task.of(energy, Score(), known)
    if constraints is not None:
        check_rules(energy, constraints, known)
        for row, given in enumerate(task.known.numpy()):
            constraints.check(given, f"known[{row}]")
    free = int(task.known.isnan().sum(1).min())
    if top_k > 2**free:
        raise ValueError(f"top_k: expected at most 2^{free}, the labellings of an example, got {top_k}")
    settled = Settled.nothing(task.precise, task.known)
    # Settle labels only for one labelling without rules: further labellings may differ in settled labels.
    if top_k == 1 and constraints is None:
        settled = settle_persistent(settle_scores(cast(Any, task.precise), task.known))
    couplings = settled.energy.pairwise.expand(energy.batch_size, -1, -1).numpy()
    spins = (2 * settled.known - 1).nan_to_num(0.0).numpy()
    found: list[Any] = [None] * energy.batch_size
    stopped = Event()

    def search(row: int) -> None:
        example = Example(settled.energy.unary[row].numpy(), couplings[row], spins[row], constraints)
        clock = time.perf_counter() + limits.seconds
        found[row] = best_labellings(example, top_k, Limits(limits.nodes, clock, stopped))

    with single_threaded():
        _share(search, energy.batch_size, stopped)
    few = [row for row, each in enumerate(found) if not np.isfinite(each.values).all()]
    if few:
        raise ValueError(f"top_k: expected at most what the rules allow and a limit lets find, got {top_k}")
    return _decoding(task, settled, found, top_k)


class _Limits(NamedTuple):
    """Limits of an example's search after a check: nodes and seconds."""

    nodes: int
    seconds: float

    @classmethod
    def of(cls, node_limit: int | None, time_limit: float | None) -> _Limits:
        if time_limit is not None:
            check_positive("time_limit", time_limit)
        return cls(count_limit("node_limit", node_limit), math.inf if time_limit is None else time_limit)


def _share(search: Callable[[int], None], batch_size: int, stopped: Event) -> None:
    """Search the examples in several threads; an error in one thread ends the searches of all."""

    def guarded(row: int) -> None:
        try:
            search(row)
        except BaseException:
            stopped.set()
            raise

    try:
        share(range(batch_size), guarded)
    except BaseException:
        stopped.set()
        raise


def _decoding(task: Task, settled: Settled, found: list[Labellings], top_k: int) -> Decoding:
    spins = torch.tensor(np.stack([each.spins for each in found]), device="cpu")
    labels = torch.stack([settled.of_all((each + 1) / 2) for each in spins.unbind(1)], 1).long()
    losses = torch.stack([task.rule.loss(task.precise, each) for each in labels.unbind(1)], 1)
    losses, order = losses.sort(dim=1, stable=True)
    labels = labels.gather(1, order[:, :, None].expand_as(labels))
    complete = torch.tensor([each.complete for each in found], device="cpu")
    proven = -settled.energy.constant - torch.tensor(
        [each.others for each in found], dtype=torch.float64, device="cpu"
    )
    proven = torch.where(complete, losses[:, -1], torch.minimum(proven, losses[:, -1]))
    energy = task.energy
    objective, bound = (
        task.rule.objective(energy, values.to(energy.dtype)) for values in (losses.mT, proven)
    )
    nodes = torch.tensor([each.nodes for each in found], device="cpu")
    status = Status(proven == losses[:, -1], complete, nodes, (objective[-1] - bound).abs())
    if top_k == 1:
        labels, objective = labels.squeeze(1), objective.squeeze(0)
    else:
        objective = objective.mT
    return Decoding(labels, objective, bound, status, nodes)
