"""Best-bound search over spins: branch and bound with semidefinite bounds.

A part of the problem in which some spins equal others, or their opposites, is a smaller problem of the same
kind. Its dual starts from that of the part that it was split off from; its bound ends it, or two spins of
which the relaxation says least are made equal in one half and opposite in the other. Labellings come from the
relaxation, by random hyperplanes and single flips (Goemans and Williamson, 1995).
"""

from __future__ import annotations

import heapq
import sys
import time
from dataclasses import dataclass, field
from itertools import count
from threading import Event
from typing import NamedTuple

import numpy as np

from lmbm_torch.inference.parts.semidefinite_bound import Proof, Relaxation
from lmbm_torch.inference.parts.spin_problems import SpinProblem

__all__ = ["Answer", "Best", "Limits", "least_decided", "prove_bound", "search"]

# Parts of so few spins are enumerated.
ENUMERATED = 10
# A part's rounds: it is split once its bound, at its last pace, would need more than so many further ones.
PATIENCE = 6
FIRST_PATIENCE = 12
LEAST_ROUNDS = 2
MOST_ROUNDS = 60
HYPERPLANES = 12


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Args:
        nodes: parts of the problem whose bound is computed, at most.
        clock: ``time.perf_counter`` at which to end.
        stopped: set by another thread to end it now.
    """

    nodes: int = sys.maxsize
    clock: float = np.inf
    stopped: Event = field(default_factory=Event)

    @property
    def are_up(self) -> bool:
        """Time is up."""
        return self.stopped.is_set() or time.perf_counter() > self.clock


@dataclass
class Best:
    """The best labellings so far, a fixed number of them, best first.

    Args:
        problem: of all spins.
        values: −∞ where none has been found.
        step: the values of any two labellings differ by a multiple of it; 0 where nothing is known.
        slack: values that differ by no more tie.
    """

    problem: SpinProblem
    values: np.ndarray
    spins: np.ndarray
    step: float
    slack: float
    seen: set[bytes] = field(default_factory=set)

    @classmethod
    def of(cls, problem: SpinProblem, number: int, step: float, slack: float) -> Best:
        return cls(problem, np.full(number, -np.inf), np.ones((number, len(problem))), step, slack)

    def offer(self, spins: np.ndarray) -> None:
        """Rows of all spins."""
        values = self.problem.values(spins)
        for row in np.argsort(-values, kind="stable"):
            if values[row] <= self.values[-1]:
                return
            name = spins[row].astype(np.int8).tobytes()
            if name in self.seen:
                continue
            self.seen.add(name)
            place = int(np.searchsorted(-self.values, -values[row], side="right"))
            self.values = np.insert(self.values, place, values[row])[:-1]
            self.spins = np.insert(self.spins, place, spins[row], 0)[:-1]

    @property
    def threshold(self) -> float:
        """A part whose bound is no larger has no labelling that belongs here."""
        return self.values[-1] + max(self.slack, self.step - self.slack)


class Answer(NamedTuple):
    """How a search ended.

    Args:
        bound: no labelling that was not offered has a larger value; −∞ where it has seen to all.
        complete: no limit ended it.
        nodes: parts whose bound was computed.
    """

    bound: float
    complete: bool
    nodes: int


def search(problem: SpinProblem, best: Best, limits: Limits) -> Answer:
    """Improve ``best`` until nothing else can belong to it, or a limit is met."""
    generator, order = np.random.default_rng(0), count()
    best.offer(problem.in_full(_climb(problem, _starts(problem, generator))))
    # Parts by the bound of what they were split off from, the largest first.
    ceiling = np.inf if problem.hinge is None else 0.0
    parts: list[tuple[float, int, Relaxation | None, tuple[int, int, int]]] = []
    parts.append((-ceiling, next(order), None, (0, 0, 0)))
    nodes = 0
    while parts and -parts[0][0] > best.threshold:
        if nodes and (nodes >= limits.nodes or limits.are_up):
            return Answer(-parts[0][0], False, nodes)
        above, _, parent, merge = heapq.heappop(parts)
        nodes += 1
        if len(problem if parent is None else parent.problem) <= ENUMERATED:
            _enumerate(problem if parent is None else parent.problem.merged(*merge), best)
            continue
        relaxation = Relaxation.of(problem) if parent is None else parent.merged(*merge)
        bound = prove_bound(relaxation, -above, parent is None, best, limits, generator)
        if bound > best.threshold:
            gone = least_decided(relaxation.products)
            for sign in (1, -1):
                heapq.heappush(parts, (-bound, next(order), relaxation, (gone, 0, sign)))
    return Answer(-np.inf, True, nodes)


def prove_bound(
    relaxation: Relaxation,
    bound: float,
    first: bool,
    best: Best,
    limits: Limits,
    generator: np.random.Generator,
) -> float:
    """A part's bound, computed until it ends the part, or the part is better split."""
    patience = FIRST_PATIENCE if first else PATIENCE
    own = np.inf
    for number in range(MOST_ROUNDS):
        proof = relaxation.round()
        best.offer(_labellings(relaxation, proof, generator))
        # What the leading vector says has been looked at.
        proven = min(proof.others, proof.bound) if proof.others <= best.threshold else proof.bound
        pace, own = own - proven, min(own, proven)
        bound = min(bound, own)
        if bound <= best.threshold or limits.are_up:
            break
        slow = own - best.threshold > patience * pace
        if slow and number >= LEAST_ROUNDS and not relaxation.warming:
            break
        relaxation.tighten()
    return bound


def _labellings(relaxation: Relaxation, proof: Proof, generator: np.random.Generator) -> np.ndarray:
    """Spins by random hyperplanes and by the leading vector, each flipped one by one while that is better."""
    problem, factor = relaxation.problem, relaxation.factor
    directions = generator.standard_normal((factor.shape[1], HYPERPLANES))
    spins = np.where(factor @ directions < 0, -1.0, 1.0).T
    return problem.in_full(np.concatenate([_climb(problem, spins), proof.leading[None]]))


def _starts(problem: SpinProblem, generator: np.random.Generator) -> np.ndarray:
    """What the spins' own fields ask for, and random rows."""
    fields = (
        problem.matrix[0]
        if problem.hinge is None
        else problem.hinge.weighted(np.ones(len(problem.hinge.owner)))[0]
    )
    own = np.where(fields > 0, 1.0, -1.0)
    own[0] = 1
    return np.concatenate([own[None], generator.choice([-1.0, 1.0], (HYPERPLANES, len(problem)))])


def _climb(problem: SpinProblem, spins: np.ndarray) -> np.ndarray:
    """Rows of spins, each improved by the best single flip until none is better."""
    least = 1e-12 * np.abs(problem.matrix).sum()
    spins = spins.copy()
    if problem.hinge is not None:
        for row in spins:
            for _ in range(10 * len(row)):
                gains = problem.flip_gains(row, problem.matrix @ row)
                flip = int(gains.argmax())
                if gains[flip] <= least:
                    break
                row[flip] *= -1
        return spins
    products, rows = spins @ problem.matrix, np.arange(len(spins))
    for _ in range(10 * len(problem)):
        gains = -spins * products
        flips = gains.argmax(1)
        better = gains[rows, flips] > least
        if not better.any():
            break
        spins[rows[better], flips[better]] *= -1
        changed = spins[rows, flips][:, None] * problem.matrix[flips]
        products += 2 * better[:, None] * changed
    return spins


def least_decided(products: np.ndarray) -> int:
    """The spin that the first one says least of."""
    return 1 + int(np.abs(products[0, 1:]).argmin())


def _enumerate(problem: SpinProblem, best: Best) -> None:
    """Offer all labellings of a small problem."""
    free = len(problem) - 1
    bits = np.arange(2**free)[:, None] >> np.arange(free)[::-1] & 1
    spins = np.concatenate([np.ones((2**free, 1)), 2.0 * bits - 1], 1)
    if len(best.values) < len(spins):
        values = problem.values(spins)
        spins = spins[np.argsort(-values, kind="stable")[: len(best.values)]]
    best.offer(problem.in_full(spins))
