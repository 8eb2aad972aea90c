"""Likely labellings of a directed model, with a bound on the probability of all further labellings.

If all further labellings together have probability δ, every marginal probability, and every expectation of a
measure with values in [0, 1], is known with an error of at most δ. One pass through the labels finds all
labellings above a threshold (Dembczyński, Waegeman and Hüllermeier 2012). The threshold is lowered until δ is
small enough, or until the limit on the number of labellings provably prevents this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.checks import check_count, check_not_negative, check_shape
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import LikelyLabellings, StateMarginals, Status, joined
from lmbm_torch.inference.search.sequential import Prefixes, Sequential, Sweep, ranks, sum_by_row, sweep
from lmbm_torch.kernels.installed import compiled
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import searched_on_host

__all__ = ["above", "labellings", "marginals"]


def likely_labellings(
    energy: DirectedEnergy | SequentialEnergy,
    model: Sequential,
    mass_left: float,
    max_labellings: int,
    step: float,
    slack: float,
) -> LikelyLabellings | None:
    """Return the result of :func:`lmbm_torch.inference.search.most_probable.labellings` by a compiled kernel.

    The result is None unless the energy is a belief network on the CPU and numba is installed.

    Args:
        model: the energy in the form for searches, with the known labels.
        step: the decrease of the threshold's logarithm from one pass to the next.
        slack: the amount by which the logarithm of the first threshold is lowered, against rounding errors.
    """
    kernel = _kernel(energy)
    if kernel is None:
        return None
    assert isinstance(energy, DirectedEnergy)
    limits = kernel.Limits(float(mass_left), max_labellings, step, slack)
    found = kernel.labellings(kernel.Network(*_arrays(energy)), model.known.numpy(), limits)
    return _unpacked(energy, kernel, found)


def _kernel(energy: DirectedEnergy | SequentialEnergy) -> Any:
    """Return the compiled kernel; None unless the energy is a belief network on the CPU, or without numba."""
    if not isinstance(energy, DirectedEnergy) or energy.device.type != "cpu":
        return None
    return compiled("search.likely")


def _unpacked(energy: DirectedEnergy, kernel: Any, found: Sequence[Any]) -> LikelyLabellings:
    """Convert the kernel's labellings to tensors, with labels in the energy's order."""
    shape = (len(found), max(len(each.log_prob) for each in found))
    labels = np.zeros((*shape, energy.num_labels), np.int64)
    log_prob = np.full(shape, -np.inf)
    ordering = energy.ordering.numpy()
    for row, each in enumerate(found):
        log_prob[row, : len(each.log_prob)] = each.log_prob
        kernel.read_labels(each.bits, ordering, labels[row])
    left, log_known = (
        torch.tensor([getattr(each, name) for each in found], dtype=torch.float64, device="cpu")
        for name in ("left", "log_known")
    )
    nodes, reached = (
        torch.tensor([getattr(each, name) for each in found], device="cpu") for name in ("nodes", "reached")
    )
    return LikelyLabellings(
        labels=torch.from_numpy(labels),
        probability=shares(torch.from_numpy(log_prob), left).to(energy.dtype),
        mass_left=left.to(energy.dtype),
        log_known=log_known.clamp(max=0).to(energy.dtype),
        status=Status(left == 0, reached, nodes, left.to(energy.dtype)),
    )


def shares(log_prob: Tensor, left: Tensor) -> Tensor:
    """Return probabilities (batch, found) proportional to exp(``log_prob``) whose sum is 1 − ``left``."""
    best = log_prob.amax(1, keepdim=True)
    probability = (log_prob - best.where(best.isfinite(), 0)).exp()
    share = (1 - left) / probability.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
    return probability * share[:, None]


def _arrays(energy: DirectedEnergy) -> tuple[np.ndarray, ...]:
    ordered = energy.in_order()
    labels, cliques = energy.num_labels, ordered.cliques
    order = sorted(range(len(cliques)), key=lambda clique: cliques[clique][-1])
    children = [cliques[clique][-1] for clique in order]
    parents = np.full((len(cliques), max(map(len, cliques), default=1)), -1)
    for place, clique in enumerate(order):
        parents[place, : len(cliques[clique]) - 1] = cliques[clique][:-1]
    weight = torch.zeros(1, 0, device="cpu") if ordered.clique_weight is None else ordered.clique_weight
    return (
        _array(ordered.unary),
        _array(ordered.parents.reshape(-1, labels, labels)),
        np.searchsorted(children, np.arange(labels + 1)),
        parents,
        _array(torch.atleast_2d(weight)[:, order]),
    )


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().double().numpy())


# Decrease of the threshold's logarithm from one pass to the next: each threshold is an eighth of the last.
_STEP = math.log(8)
# Amount by which the logarithm of the first threshold is lowered, so that rounding loses no labelling.
_SLACK = 1e-9
# Largest bytes of the prefixes in one pass; the batch is split into parts of this size.
_CHUNK_BYTES = 2**28


@searched_on_host
@torch.no_grad()
def labellings(
    energy: DirectedEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    mass_left: float = LIMITS.mass_left,
    max_labellings: int = LIMITS.labellings,
) -> LikelyLabellings:
    """Return the most probable labellings of each example, best first, and the probability of all others.

    Args:
        energy: a directed model with labels of two or more values, on any device; the search runs on the CPU.
        known: the values of known labels, NaN for a free label; only labellings with the known values are
            found, and probabilities are conditional on the known labels.
        mass_left: δ, the total probability that may be left out; with 0, all possible labellings are found.
        max_labellings: the largest number of labellings for an example; more than δ may then be left out.

    Raises:
        ValueError: NaN, infinity or a misplaced parent in the energy, or conditional probabilities that do
            not sum to 1; ``known`` of another shape than (batch, labels), or with impossible values; a
            negative ``mass_left``; a limit that is no positive integer.
    """
    check_not_negative("mass_left", mass_left)
    check_count("max_labellings", max_labellings)
    parts = []
    for some, given in _chunks(energy, known, max_labellings):
        model = Sequential.of(some, given)
        found = likely_labellings(some, model, mass_left, max_labellings, _STEP, _SLACK)
        parts.append(_padded(model, mass_left, max_labellings) if found is None else found)
    most = max(part.labels.shape[1] for part in parts)
    return joined([widened(part, most) for part in parts])


@searched_on_host
@torch.no_grad()
def above(
    energy: DirectedEnergy | SequentialEnergy,
    least: Float[Tensor, " batch"],
    *,
    max_labellings: int = LIMITS.labellings,
) -> LikelyLabellings:
    """Return all labellings of each example with a log-probability of at least ``least``, best first.

    One pass through the labels keeps the prefixes above the threshold, since no labelling is more probable
    than its prefixes. ``status.converged`` is true if the list is complete, because every dropped prefix is
    below the threshold. If no labelling reaches the threshold, the list contains the greedy labelling.

    Args:
        energy: a directed model with labels of two or more values, on any device; the search runs on the CPU.
        least: (batch,), the threshold of each example, a log-probability.
        max_labellings: the largest number of prefixes of each length that are kept for an example.

    Raises:
        ValueError: see :func:`labellings`; ``least`` has another shape than (batch,).
    """
    check_count("max_labellings", max_labellings)
    check_shape("least", least, energy.batch_size)
    step = max(1, part_bytes(_CHUNK_BYTES) // (max_labellings * (2 * energy.num_labels + 16)))
    starts = range(0, energy.batch_size, step)
    parts = [
        _above(
            energy.select(slice(start, start + step)), least[start : start + step].double(), max_labellings
        )
        for start in starts
    ]
    most = max(part.labels.shape[1] for part in parts)
    return joined([widened(part, most) for part in parts])


def _above(energy: DirectedEnergy | SequentialEnergy, least: Tensor, max_labellings: int) -> LikelyLabellings:
    model, kernel = Sequential.of(energy, None), _kernel(energy)
    if kernel is not None:
        assert isinstance(energy, DirectedEnergy)
        network = kernel.Network(*_arrays(energy))
        return _unpacked(
            energy, kernel, kernel.above(network, model.known.numpy(), least.numpy(), max_labellings)
        )
    passed = sweep(model, least, max_labellings)
    left = passed.mass_left.to(energy.dtype)
    status = Status(passed.mass_left == 0, passed.largest_left < least, passed.nodes, left)
    return _by_example(model, passed.leaves, passed.mass_left, torch.zeros_like(passed.mass_left), status)


def marginals(
    energy: DirectedEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    mass_left: float = LIMITS.mass_left,
    max_labellings: int = LIMITS.labellings,
) -> StateMarginals:
    """Return P(y_i = s) of each label and value, given ``known``, with errors of at most ``mass_left``.

    If the known labels are impossible, each known label has probability 1 for its value, and all other
    probabilities are 0. If there are few labellings (:class:`~lmbm_torch.inference.common.limits.Limits`),
    all are summed: marginals are exact.

    Args, Raises: see :func:`labellings`.
    """
    left = least_left(energy, mass_left, max_labellings)
    found = labellings(energy, known=known, mass_left=left, max_labellings=max_labellings)
    return found.marginals(num_states(energy), known)


def least_left(energy: DirectedEnergy | SequentialEnergy, mass_left: float, max_labellings: int) -> float:
    """Return ``mass_left``, or 0 if the model has so few labellings that all can be summed."""
    check_not_negative("mass_left", mass_left)
    check_count("max_labellings", max_labellings)
    is_sequential = isinstance(energy, SequentialEnergy)
    count = math.prod(energy.num_states) if is_sequential else 2**energy.num_labels
    return 0.0 if count <= min(2**LIMITS.listed, max_labellings) else mass_left


def affordable_labellings(num_labels: int, of_a_hundred_labels: int = LIMITS.labellings) -> int:
    """Return how many labellings take as much CPU time as ``of_a_hundred_labels`` labellings of 100 labels.

    The time of a labelling grows with the number of labels cubed: nodes, the field at a node, and the queue.
    """
    return math.ceil(of_a_hundred_labels * min(1.0, 100 / num_labels) ** 3)


def num_states(energy: DirectedEnergy | SequentialEnergy) -> int:
    """Return the largest number of values of a label."""
    return max(energy.num_states) if isinstance(energy, SequentialEnergy) else 2


def _chunks(
    energy: DirectedEnergy | SequentialEnergy, known: Tensor | None, max_labellings: int
) -> Iterator[tuple[DirectedEnergy | SequentialEnergy, Tensor | None]]:
    model = Sequential.of(energy, known)
    most = int(model.labellings().clamp(max=max_labellings).max())
    step = max(1, part_bytes(_CHUNK_BYTES) // (most * (2 * energy.num_labels + 16)))
    if step >= energy.batch_size:
        yield energy, known
        return
    for start in range(0, energy.batch_size, step):
        rows = slice(start, start + step)
        yield energy.select(rows), None if known is None else known[rows]


def _padded(model: Sequential, mass_left: float, max_labellings: int) -> LikelyLabellings:
    """Find the labellings of one chunk by repeated passes; pad with labellings of probability 0."""
    device = model.device
    rows = torch.arange(model.batch_size, device=device)
    left = torch.zeros(len(rows), dtype=torch.float64, device=device)
    if mass_left > 0:
        greedy = sweep(model, torch.full_like(left, torch.inf), 1)
        threshold = greedy.leaves.log_prob.minimum(_total(greedy).log() + math.log(mass_left)) - _SLACK
        nodes = greedy.nodes
    else:
        threshold, nodes = torch.full_like(left, -torch.inf), torch.zeros_like(rows)
    found: list[Prefixes] = []
    log_known, reached = left.clone(), torch.zeros_like(left, dtype=torch.bool)
    while len(rows):
        passed = sweep(model.select(rows), threshold, max_labellings)
        total = _total(passed)
        # Impossible known labels: no labelling is found, and all probability counts as left out.
        share = torch.where(total > 0, passed.mass_left / total, 1)
        is_reached = share <= mass_left
        # At least this many labellings are missing, since each is less probable than the threshold.
        missing = (share - mass_left) * total / threshold.exp()
        count = torch.bincount(passed.leaves.rows, minlength=len(rows))
        is_cut = (passed.largest_left >= threshold) | (count + missing > max_labellings)
        # A total of 0 is an underflow, which a lower threshold does not change.
        ends = is_reached | is_cut | (total <= 0)
        nodes[rows] += passed.nodes
        left[rows], log_known[rows], reached[rows] = share, total.log().clamp(max=0), is_reached
        kept = passed.leaves.where(ends[passed.leaves.rows])
        found.append(kept._replace(rows=rows[kept.rows]))
        rows, threshold = rows[~ends], threshold[~ends] - _STEP
    leaves = Prefixes(*map(torch.cat, zip(*found, strict=True)))
    return _by_example(
        model, leaves, left, log_known, Status(left == 0, reached, nodes, left.to(model.dtype))
    )


def widened(found: LikelyLabellings, most: int) -> LikelyLabellings:
    """Pad the labellings of each example to ``most``, with probability 0."""
    more = most - found.labels.shape[1]
    if not more:
        return found
    labels, probability = pad(found.labels, (0, 0, 0, more)), pad(found.probability, (0, more))
    return replace(found, labels=labels, probability=probability)


def _total(passed: Sweep) -> Tensor:
    """Return an upper bound of the probability of the known labels: the sum of kept and dropped prefixes."""
    found = sum_by_row(passed.leaves.rows, passed.leaves.log_prob.exp(), len(passed.mass_left))
    return found + passed.mass_left


def _by_example(
    model: Sequential, leaves: Prefixes, left: Tensor, log_known: Tensor, status: Status
) -> LikelyLabellings:
    """Arrange the labellings found by example, (batch, largest number for an example, labels)."""
    counts = torch.bincount(leaves.rows, minlength=model.batch_size)
    place = ranks(leaves.rows, leaves.log_prob)
    shape = (model.batch_size, int(counts.max()))
    log_prob = torch.full(shape, -torch.inf, dtype=torch.float64, device=model.device)
    log_prob[leaves.rows, place] = leaves.log_prob
    labels = leaves.values.new_zeros(*shape, model.num_labels)
    labels[leaves.rows, place] = leaves.values
    return LikelyLabellings(
        labels=labels.index_select(2, model.positions).long(),
        probability=shares(log_prob, left).to(model.dtype),
        mass_left=left.to(model.dtype),
        log_known=log_known.to(model.dtype),
        status=status,
    )
