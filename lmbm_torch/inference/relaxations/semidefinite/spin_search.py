"""Best-first branch and bound over spins, with semidefinite bounds.

A part of the search tree requires that some spins equal other spins or their opposites, which gives a smaller
problem of the same kind. The dual starts from the parent's point. If the bound does not close the part, the
part is split: the spin least correlated with the first spin is equal to it in one half, opposite in the
other. Labellings come from the relaxation, by random hyperplanes and single flips (Goemans and Williamson,
1995), and before the search from a tabu search.
"""

from __future__ import annotations

import heapq
import sys
import time
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Event
from typing import NamedTuple

import numpy as np

from lmbm_torch.inference.relaxations.semidefinite.bound import Proof, Relaxation
from lmbm_torch.inference.relaxations.semidefinite.spin_problems import SpinProblem, climbed, tabu
from lmbm_torch.kernels.threads import share

# Number of spins below which a part is enumerated.
ENUMERATED = 10
# Largest number of further rounds that a bound may need, at its last pace; otherwise the part is split
# (scripts/bench/dense_map.py).
PATIENCE = 6
# Largest number of further rounds that the bound of the root may need before the root is split.
FIRST_PATIENCE = 12
# Number of rounds after which a part may be split.
LEAST_ROUNDS = 2
# Largest number of rounds for a part.
MOST_ROUNDS = 60
# Number of random hyperplanes in each round.
HYPERPLANES = 12
# Number of parts bounded in parallel, whatever the number of cores, so that results are the same everywhere.
TOGETHER = 4


@dataclass(frozen=True)
class Limits:
    """Limits of a search.

    Args:
        nodes: the largest number of parts with a computed bound.
        clock: the value of ``time.perf_counter`` at which the search ends.
        stopped: an event by which another thread ends the search.
    """

    nodes: int = sys.maxsize
    clock: float = np.inf
    stopped: Event = field(default_factory=Event)

    @property
    def are_up(self) -> bool:
        """Return whether the time is up, or another thread has ended the search."""
        return self.stopped.is_set() or time.perf_counter() > self.clock


@dataclass
class Best:
    """Best labellings found so far, a fixed number, best first.

    Args:
        problem: the original problem, with all spins.
        values: the labellings' values; −∞ for labellings not yet found.
        step: a number such that values of labellings differ by multiples of it; 0 if unknown.
        slack: the largest difference of tied values.
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
        """Insert rows of all spins that are better than the worst labelling so far."""
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

    def copy(self) -> Best:
        """Return an independent copy."""
        return replace(self, seen=self.seen.copy())

    @property
    def found(self) -> np.ndarray:
        """Return the labellings found, as rows of all spins."""
        return self.spins[self.values > -np.inf]

    @property
    def threshold(self) -> float:
        """Return the largest bound at which a part cannot contain a better labelling."""
        return self.values[-1] + max(self.slack, self.step - self.slack)


class Answer(NamedTuple):
    """Result of a search.

    Args:
        bound: an upper bound of the values of unvisited labellings; −∞ after a complete search.
        complete: whether no limit ended the search.
        nodes: the number of parts with a computed bound.
    """

    bound: float
    complete: bool
    nodes: int


class _Part(NamedTuple):
    """Part of the search tree: labellings in which some spins equal others, or their opposites.

    Args:
        rank: minus the parent's bound.
        number: the order of creation, also the seed of the part's random numbers.
        whole: the parent's relaxation; None for the root.
        merge: the replacement of a spin that defines this half, see :meth:`Relaxation.merged`.
    """

    rank: float
    number: int
    whole: Relaxation | None = None
    merge: tuple[int, int, int] = (0, 0, 0)


def search(problem: SpinProblem, best: Best, limits: Limits) -> Answer:
    """Improve ``best`` until no labelling can be better, or until a limit ends the search."""
    best.offer(problem.in_full(_starts(problem, np.random.default_rng(0))))
    order, nodes = count(), 0
    parts = [_Part(-np.inf, next(order))]
    while parts and -parts[0].rank > best.threshold:
        if nodes and (nodes >= limits.nodes or limits.are_up):
            return Answer(-parts[0].rank, False, nodes)
        most = min(TOGETHER, max(1, limits.nodes - nodes), len(parts))
        together = [heapq.heappop(parts) for _ in range(most)]
        bounded = [_Bounded(part, best.copy()) for part in together if -part.rank > best.threshold]
        share(bounded, lambda each: each.look(problem, limits))
        nodes += len(bounded)
        for each in bounded:
            best.offer(each.best.found)
        for each in bounded:
            if each.relaxation is not None and each.bound > best.threshold:
                gone = least_decided(each.relaxation.products)
                for sign in (1, -1):
                    half = _Part(-each.bound, next(order), each.relaxation, (gone, 0, sign))
                    heapq.heappush(parts, half)
    return Answer(-np.inf, True, nodes)


@dataclass
class _Bounded:
    """Part for which a bound is computed, and the results.

    Args:
        best: the best labellings so far, which are improved.
        relaxation: the part's own relaxation; None if the part was enumerated.
    """

    part: _Part
    best: Best
    relaxation: Relaxation | None = None
    bound: float = -np.inf

    def look(self, problem: SpinProblem, limits: Limits) -> None:
        """Find labellings in the part, and bound all others; an error ends the search of all parts."""
        try:
            self._look(problem, limits)
        except BaseException:
            limits.stopped.set()
            raise

    def _look(self, problem: SpinProblem, limits: Limits) -> None:
        rank, number, whole, merge = self.part
        own = problem if whole is None else whole.problem.merged(*merge)
        implied = own.implied()
        if implied is None:
            return
        merges = [(spin, 0, sign) for spin, sign in implied]
        own = own.merged_by(merges)
        if len(own) < ENUMERATED:
            _enumerate(own, self.best)
            return
        self.relaxation = Relaxation.of(own) if whole is None else whole.merged_by([merge, *merges])
        generator = np.random.default_rng(number)
        self.bound = prove_bound(self.relaxation, -rank, whole is None, self.best, limits, generator)


def prove_bound(
    relaxation: Relaxation,
    bound: float,
    first: bool,
    best: Best,
    limits: Limits,
    generator: np.random.Generator,
) -> float:
    """Tighten a part's bound until the part is closed, or until a split is likely to be faster."""
    patience = FIRST_PATIENCE if first else PATIENCE
    own = np.inf
    for number in range(MOST_ROUNDS):
        proof = relaxation.round()
        best.offer(_labellings(relaxation, proof, generator))
        # The labelling of the leading eigenvector has been offered, so bound only the others.
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
    """Return labellings from random hyperplanes, improved by flips, and from the leading eigenvector."""
    problem, factor = relaxation.problem, relaxation.factor
    directions = generator.standard_normal((factor.shape[1], HYPERPLANES))
    spins = np.where(factor @ directions < 0, -1.0, 1.0).T
    trust = np.abs(relaxation.products[0])
    return problem.in_full(np.concatenate([climbed(problem, spins, trust), proof.leading[None]]))


def _starts(problem: SpinProblem, generator: np.random.Generator) -> np.ndarray:
    """Return first labellings: the signs of the fields, random rows, and a tabu search, improved by flips."""
    fields = problem.matrix[0]
    own, trust = np.where(fields > 0, 1.0, -1.0), np.abs(fields)
    own[0] = 1
    random = generator.choice([-1.0, 1.0], (HYPERPLANES, len(problem)))
    rows = climbed(problem, np.concatenate([own[None], random]), trust)
    if problem.rules is not None:
        return rows
    best = rows[problem.values(rows).argmax()]
    return np.concatenate([rows, climbed(problem, tabu(problem, best)[None], trust)])


def least_decided(products: np.ndarray) -> int:
    """Return the spin with the smallest correlation to the first spin."""
    return 1 + int(np.abs(products[0, 1:]).argmin())


def _enumerate(problem: SpinProblem, best: Best) -> None:
    """Add all labellings of a small problem to ``best``."""
    free = len(problem) - 1
    bits = np.arange(2**free)[:, None] >> np.arange(free)[::-1] & 1
    spins = np.concatenate([np.ones((2**free, 1)), 2.0 * bits - 1], 1)
    if len(best.values) < len(spins):
        values = problem.values(spins)
        spins = spins[np.argsort(-values, kind="stable")[: len(best.values)]]
    best.offer(problem.in_full(spins))
