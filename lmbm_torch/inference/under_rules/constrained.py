"""Exact decoding under rules (hard constraints), by any routine that decodes without rules.

First, labels that follow from the known labels and the rules are filled in
(:meth:`~lmbm_torch.constraints.Constraints.propagate`), and the example is decoded. If the best labelling
obeys the rules, the example is done. Otherwise the set of labellings is split into two parts by the value of
a label in a broken rule, and both parts are decoded in the same way. The part with the best bound is split
next, until the best labelling of the part obeys all rules: then no allowed labelling is better. For several
labellings, each labelling found is excluded by further splits (Lawler 1972). Rules are checked on the CPU.

If many rules are broken at once, many parts must be decoded. Belief networks and Boltzmann machines have
searches that apply the rules at every node: :func:`lmbm_torch.inference.search.branch_and_bound.decode` and
:func:`lmbm_torch.inference.search.undirected_branch_and_bound.decode`, with ``constraints``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_count, count_limit
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import Energy, RestrictedEnergy, SequentialEnergy
from lmbm_torch.inference.common.given import check_rules
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, Status, replaced
from lmbm_torch.shapes import Known

__all__ = []

Routine = Callable[..., Decoding]
"""``routine(energy, known=...)`` returns each example's best labelling, with the objective and bound."""


def decode(
    energy: Any,
    constraints: Constraints,
    routine: Routine,
    *,
    known: Known | None = None,
    top_k: int = 1,
    part_limit: int | None = LIMITS.parts,
) -> Decoding:
    """Return the best labelling that obeys all rules, where a larger objective is better.

    Args:
        energy: an energy that ``routine`` takes.
        constraints: rules over the energy's labels.
        routine: ``routine(energy, known=...)``, like :func:`lmbm_torch.inference.decode`, which returns
            one labelling for each example, with objective and bound.
        known: {0, 1, NaN}, NaN for a free label.
        top_k: the number of labellings to return, best first.
        part_limit: the number of parts that are decoded for an example. At the limit, an example gets the
            best allowed labelling so far; if there is none, the better half of a part is split repeatedly
            until its best labelling is allowed.

    Returns:
        No labelling of the result breaks a rule. ``nodes`` is the number of decoded parts; ``status.exact``
        is true if the objective equals the bound, ``status.converged`` if no limit ended the search.

    Raises:
        ValueError: the constraints are over another number of labels, or contradict the known labels; a limit
            or ``top_k`` is no positive integer; ``top_k`` is above the number of allowed labellings, or of
            those found within the limit; the routine refuses the energy.
    """
    search = partial(_decode, constraints, routine, 1.0, part_limit)
    alone = partial(_as_one_part, routine)
    return where_broken(energy, constraints, alone, search, known=known, top_k=top_k)


def decode_loss(
    energy: Any,
    constraints: Constraints,
    routine: Routine,
    *,
    known: Known | None = None,
    top_k: int = 1,
    part_limit: int | None = LIMITS.parts,
) -> Decoding:
    """Return the labelling of least loss that obeys all rules; arguments and result: see :func:`decode`."""
    search = partial(_decode, constraints, routine, -1.0, part_limit)
    alone = partial(_as_one_part, routine)
    return where_broken(energy, constraints, alone, search, known=known, top_k=top_k)


@torch.no_grad()
def where_broken(
    energy: Any,
    constraints: Constraints,
    routine: Routine,
    search: Routine,
    *,
    known: Known | None = None,
    top_k: int = 1,
) -> Decoding:
    """Decode by ``routine``; for examples whose answer breaks a rule, return the answer of ``search``.

    Both get the labels that follow from rules and known labels, since fixed labels make searches fast.

    Args:
        energy, constraints, routine, known: see :func:`decode`.
        search: ``search(energy, known=..., top_k=...)`` returns the best labellings that obey all rules.
        top_k: the number of labellings; if above 1, all answers come from ``search``.

    Raises:
        TypeError: the energy has labels of more than two values.
        ValueError: see :func:`decode`.
    """
    check_count("top_k", top_k)
    check_rules(energy, constraints, known)
    given = np.full((energy.batch_size, energy.num_labels), np.nan)
    if known is not None:
        given[:] = known.cpu().numpy()
    filled, _ = constraints.propagate(given)
    try:
        return _where_broken(energy, constraints, routine, search, filled, top_k)
    except ValueError:
        # If the rules contradict an example's known labels, raise an error that says so instead.
        for row, labels in enumerate([] if known is None else given):
            constraints.check(labels, f"known[{row}]")
        raise


def _as_one_part(routine: Routine, energy: Any, *, known: Tensor | None) -> Decoding:
    found = routine(energy, known=known)
    ones = torch.ones_like(found.status.num_iters)
    return replace(found, status=replace(found.status, num_iters=ones), nodes=ones)


def _where_broken(
    energy: Any, constraints: Constraints, routine: Routine, search: Routine, known: np.ndarray, top_k: int
) -> Decoding:
    """Return the answers of :func:`where_broken`, if ``known`` already includes the labels that follow."""
    is_free = bool(np.isnan(known).all())
    given = None if is_free else torch.from_numpy(known).to(energy.device, energy.dtype)
    if top_k > 1:
        return search(energy, known=given, top_k=top_k)
    found = routine(energy, known=given)
    # Drop optional fields such as hidden units, because ``search`` does not return them.
    found = Decoding(found.labels, found.objective, found.bound, found.status, found.nodes)
    broken = constraints.violated(found.labels.cpu().numpy())
    rows = torch.from_numpy(np.flatnonzero(broken.any(1))).to(energy.device)
    if not len(rows):
        return found
    part = None if given is None else given[rows]
    return replaced(found, rows, search(energy.select(rows), known=part, top_k=1))


def restricted(energy: Energy, constraints: Constraints, *, known: Known | None = None) -> RestrictedEnergy:
    """Return the energy restricted to allowed labellings, for :mod:`lmbm_torch.inference.enumeration.exact`.

    Args:
        energy: an energy over labels in {0, 1}.
        constraints: rules over the labels.
        known: {0, 1, NaN}, the known labels of a later call.

    Raises:
        TypeError: the energy has labels of more than two values.
        ValueError: constraints over another number of labels; ``known`` of another shape than (batch,
            labels), or with impossible values.
    """
    if isinstance(energy, SequentialEnergy):
        raise TypeError(f"energy: expected a kind with labels in {{0, 1}}, got {type(energy).__name__}")
    check_rules(energy, constraints, known)
    to = {"dtype": torch.float64, "device": energy.device}
    # A restricted energy needs at least one rule: without rules, take 0 ≤ 0.
    matrix = constraints.matrix if len(constraints.bounds) else np.zeros((1, energy.num_labels))
    bounds = constraints.bounds if len(constraints.bounds) else np.zeros(1)
    return RestrictedEnergy(energy, torch.tensor(matrix, **to), torch.tensor(bounds, **to))


@dataclass(frozen=True, eq=False)
class Part:
    """Set of an example's labellings with some labels fixed, and the routine's answer for the set.

    Args:
        row: the index of the example.
        fixed: (labels,), the fixed values in {0, 1}, NaN for a free label.
        labels: (labels,), the best labelling of the part, allowed or not.
        gain: the objective; for losses, minus the loss.
        bound: no labelling of the part has a larger gain.
        broken: (inequalities,), whether ``labels`` break each inequality of the rules.
    """

    row: int
    fixed: np.ndarray
    labels: np.ndarray
    gain: float
    bound: float
    broken: np.ndarray

    @property
    def is_allowed(self) -> bool:
        return not self.broken.any()

    def halves(self, constraints: Constraints) -> np.ndarray:
        """Split by the free label that is in most broken rules; return the halves' fixed labels."""
        counts = constraints.involved(self.broken) * np.isnan(self.fixed)
        halves = np.stack([self.fixed, self.fixed])
        halves[:, counts.argmax()] = 0, 1
        return halves

    def without_best(self) -> np.ndarray:
        """Split off ``labels``; return the fixed labels of the parts that contain all other labellings."""
        free = np.isnan(self.fixed).nonzero()[0]
        parts = np.repeat(self.fixed[None], len(free), 0)
        for part, label in zip(range(len(free)), free, strict=True):
            parts[part, free[:part]] = self.labels[free[:part]]
            parts[part, label] = 1 - self.labels[label]
        return parts


@dataclass(eq=False)
class Search:
    """State of one example's search.

    Attributes:
        open: a heap of the parts not yet split, largest bound first; at ties the part created first.
        found: allowed labellings, best first, each proven to be the best of all that remain.
        best: the best allowed labelling so far, proven or not.
        is_limited: whether the search ended without proof, by the limit or by ``has_gap``.
        has_gap: whether the routine's own bound did not prove its answer for a part.
        last_bound: the bound of the part that was split last.
    """

    row: int
    top_k: int
    open: list[tuple[float, int, Part]] = field(default_factory=list)
    found: list[Part] = field(default_factory=list)
    best: Part | None = None
    num_parts: int = 0
    is_limited: bool = False
    has_gap: bool = False
    last_bound: float = np.inf

    def add(self, part: Part) -> None:
        """Add a part that the routine has decoded."""
        self.num_parts += 1
        heappush(self.open, (-part.bound, self.num_parts, part))
        if part.is_allowed and (self.best is None or part.gain > self.best.gain):
            self.best = part

    def next_parts(self, constraints: Constraints, limit: int) -> np.ndarray:
        """Return the parts to decode next, as fixed labels (parts, labels); empty if the search is over."""
        while self.open and len(self.found) < self.top_k:
            entry = heappop(self.open)
            part = entry[2]
            if part.is_allowed and part.gain < part.bound:
                parts = None
            elif part.is_allowed:
                self.found.append(part)
                parts = part.without_best()
            else:
                parts = part.halves(constraints)
            if len(self.found) == self.top_k:
                break
            if parts is None or self.num_parts + len(parts) > limit:
                heappush(self.open, entry)
                self.is_limited, self.has_gap = True, parts is None
                break
            if len(parts):
                self.last_bound = part.bound
                return parts
        return np.zeros((0, constraints.num_labels))

    @property
    def answers(self) -> list[Part]:
        """Return the proven labellings; if the search ended before ``top_k``, the best labelling so far."""
        if len(self.found) == self.top_k:
            return self.found
        assert self.best is not None
        return [self.best]

    @property
    def bound(self) -> float:
        """Return an upper bound of the gain of every allowed labelling outside the answer.

        For ``top_k=1`` the bound also holds for the answer.
        """
        if len(self.found) == self.top_k:
            return self.found[-1].gain
        assert self.best is not None
        return max(self.best.gain, *(-bound for bound, _, _ in self.open[:1]))


def _decode(
    constraints: Constraints,
    routine: Routine,
    sign: float,
    part_limit: int | None,
    energy: Any,
    *,
    known: Tensor | None,
    top_k: int,
) -> Decoding:
    """Decode parts of all examples together, round by round, until the search of each example ends."""
    limit = count_limit("part_limit", part_limit)
    given = np.full((energy.batch_size, energy.num_labels), np.nan)
    if known is not None:
        given[:] = known.cpu().numpy()
    searches = [Search(row, top_k) for row in range(energy.batch_size)]
    going_on = searches
    rows, asked = np.arange(energy.batch_size), given
    while len(rows):
        filled, consistent = constraints.propagate(asked)
        rows, filled = rows[consistent], filled[consistent]
        if len(rows):
            bounds = np.array([searches[row].last_bound for row in rows])
            for part in _parts(energy, constraints, routine, sign, rows, filled, bounds):
                searches[part.row].add(part)
        parts = [search.next_parts(constraints, limit) for search in going_on]
        rows = np.repeat([search.row for search in going_on], [len(each) for each in parts])
        asked = np.concatenate(parts)
        going_on = [search for search, each in zip(going_on, parts, strict=True) if len(each)]
    for search in searches:
        _complete(search, given[search.row], energy, constraints, routine, sign)
    return _decoding(energy, searches, sign)


def _parts(
    energy: Any,
    constraints: Constraints,
    routine: Routine,
    sign: float,
    rows: np.ndarray,
    fixed: np.ndarray,
    bounds: np.ndarray,
) -> list[Part]:
    known = torch.from_numpy(fixed).to(energy.device, energy.dtype)
    decoding = routine(energy.select(torch.from_numpy(rows).to(energy.device)), known=known)
    labels = decoding.labels.cpu().numpy()
    gains = sign * decoding.objective.double().cpu().numpy()
    own = np.where(decoding.status.exact.cpu().numpy(), gains, sign * decoding.bound.double().cpu().numpy())
    bounds = np.maximum(gains, np.minimum(own, bounds))
    columns = rows.tolist(), fixed, labels, gains.tolist(), bounds.tolist(), constraints.violated(labels)
    return [Part(*values) for values in zip(*columns, strict=True)]


def _complete(
    search: Search, known: np.ndarray, energy: Any, constraints: Constraints, routine: Routine, sign: float
) -> None:
    """Raise ValueError if too few labellings were found; at a limit, find one allowed labelling at least."""
    found = len(search.found)
    if not found and not search.is_limited:
        constraints.check(known, f"known[{search.row}]")
    if found < search.top_k and (search.top_k > 1 or not search.is_limited):
        what = "found within part_limit" if search.is_limited else "allowed"
        if search.has_gap:
            what = "proven best by the decoder's own bound"
        raise ValueError(
            f"top_k: expected at most {found}, the number of labellings of example {search.row} {what}, "
            f"got {search.top_k}"
        )
    if search.best is None:
        constraints.check(known, f"known[{search.row}]")
        search.best = _dive(search.open[0][2], known, energy, constraints, routine, sign)


def _dive(
    part: Part, known: np.ndarray, energy: Any, constraints: Constraints, routine: Routine, sign: float
) -> Part:
    """Halve the part and keep the better half until its labelling is allowed, or else take the nearest."""

    def decoded(fixed: np.ndarray) -> list[Part]:
        rows = np.full(len(fixed), part.row)
        return _parts(energy, constraints, routine, sign, rows, fixed, np.full(len(fixed), np.inf))

    while not part.is_allowed:
        filled, consistent = constraints.propagate(part.halves(constraints))
        if not consistent.any():
            nearest = constraints.nearest(part.labels, known)
            assert nearest is not None
            return decoded(nearest[None])[0]
        part = max(decoded(filled[consistent]), key=lambda half: half.gain)
    return part


def _decoding(energy: Any, searches: list[Search], sign: float) -> Decoding:
    chosen = [search.answers for search in searches]
    to = {"device": energy.device, "dtype": energy.dtype}
    labels = torch.tensor(
        np.array([[part.labels for part in parts] for parts in chosen]), device=energy.device
    )
    objective = torch.tensor([[sign * part.gain for part in parts] for parts in chosen], **to)
    bound = torch.tensor([sign * search.bound for search in searches], **to)
    nodes = torch.tensor([search.num_parts for search in searches], device=energy.device)
    limited = torch.tensor([search.is_limited for search in searches], device=energy.device)
    residual = (bound - objective[:, -1]).abs()
    if searches[0].top_k == 1:
        labels, objective = labels[:, 0], objective[:, 0]
    return Decoding(labels, objective, bound, Status(residual == 0, ~limited, nodes, residual), nodes)
