"""Best-bound search over spins: branch and bound with semidefinite bounds.

A part of the problem in which some spins equal others, or their opposites, is a smaller problem of the same
kind. The dual starts from that of the parent; the bound closes the part, or the two least decided spins are
made equal in one half and opposite in the other. Labellings come from the relaxation, by random hyperplanes
and single flips (Goemans and Williamson, 1995), and before all parts from a tabu search.
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

# Spins below which a part is enumerated.
ENUMERATED = 10
# Rounds of a part and of the root: a part is split if the bound, at the last pace, needs more further rounds
# (scripts/bench/dense_map.py).
PATIENCE = 6
FIRST_PATIENCE = 12
LEAST_ROUNDS = 2
MOST_ROUNDS = 60
# Random hyperplanes of a round.
HYPERPLANES = 12
# Parts that are examined in parallel, whatever the number of cores: results do not depend on the computer.
TOGETHER = 4


@dataclass(frozen=True)
class Limits:
    """Limits of a search.

    Args:
        nodes: the largest number of parts with a computed bound.
        clock: ``time.perf_counter`` at the end.
        stopped: set by another thread to end the search.
    """

    nodes: int = sys.maxsize
    clock: float = np.inf
    stopped: Event = field(default_factory=Event)

    @property
    def are_up(self) -> bool:
        """Return whether time is up."""
        return self.stopped.is_set() or time.perf_counter() > self.clock


@dataclass
class Best:
    """Best labellings so far, a fixed number, best first.

    Args:
        problem: of all spins.
        values: −∞ for missing labellings.
        step: the values of any two labellings differ by a multiple of the step; 0 if unknown.
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
        """Add rows of all spins, if better."""
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
        """Return rows of all spins, without missing labellings."""
        return self.spins[self.values > -np.inf]

    @property
    def threshold(self) -> float:
        """Return the largest bound of a part without further best labellings."""
        return self.values[-1] + max(self.slack, self.step - self.slack)


class Answer(NamedTuple):
    """End of a search.

    Args:
        bound: no unvisited labelling has a larger value; −∞ after a complete search.
        complete: no limit ended the search.
        nodes: parts with a computed bound.
    """

    bound: float
    complete: bool
    nodes: int


class _Part(NamedTuple):
    """Labellings in which some spins equal others, or their opposites.

    Args:
        rank: minus the bound of the parent.
        number: in the order of creation, the seed of the part's random numbers.
        whole: the relaxation of the parent; None for all labellings.
        merge: the further merge of the part, see :meth:`Relaxation.merged`.
    """

    rank: float
    number: int
    whole: Relaxation | None = None
    merge: tuple[int, int, int] = (0, 0, 0)


def search(problem: SpinProblem, best: Best, limits: Limits) -> Answer:
    """Improve ``best`` until no other labelling can belong to ``best``, or a limit is met."""
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
    """Part under examination, and the results.

    Args:
        best: the best labellings so far, improved.
        relaxation: the part's own; None if the labellings were enumerated.
    """

    part: _Part
    best: Best
    relaxation: Relaxation | None = None
    bound: float = -np.inf

    def look(self, problem: SpinProblem, limits: Limits) -> None:
        """Find labellings of the part, and a bound of the rest; an error here ends all parts."""
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
    """Return a part's bound, computed until the part is closed or better split."""
    patience = FIRST_PATIENCE if first else PATIENCE
    own = np.inf
    for number in range(MOST_ROUNDS):
        proof = relaxation.round()
        best.offer(_labellings(relaxation, proof, generator))
        # The leading vector's labelling has been examined.
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
    """Return spins by random hyperplanes and by the leading vector, improved by flips."""
    problem, factor = relaxation.problem, relaxation.factor
    directions = generator.standard_normal((factor.shape[1], HYPERPLANES))
    spins = np.where(factor @ directions < 0, -1.0, 1.0).T
    trust = np.abs(relaxation.products[0])
    return problem.in_full(np.concatenate([climbed(problem, spins, trust), proof.leading[None]]))


def _starts(problem: SpinProblem, generator: np.random.Generator) -> np.ndarray:
    """Return the fields' preferred spins, and random rows, improved by flips."""
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
    """Return the spin with the least correlation to the first spin."""
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
