"""Best-bound search over spins: branch and bound with semidefinite bounds.

A part of the problem in which some spins equal others, or their opposites, is a smaller problem of the same
kind. Its dual starts from that of the part that it was split off from; its bound ends it, or two spins of
which the relaxation says least are made equal in one half and opposite in the other. Labellings come from the
relaxation, by random hyperplanes and single flips (Goemans and Williamson, 1995), and before all parts from a
tabu search.
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

from lmbm_torch.inference.semidefinite.bound import Proof, Relaxation
from lmbm_torch.inference.semidefinite.spin_problems import SpinProblem, climbed, tabu
from lmbm_torch.kernels.threads import share

__all__ = ["Answer", "Best", "Limits", "least_decided", "prove_bound", "search"]

# Parts of fewer spins are enumerated.
ENUMERATED = 10
# A part's rounds: it is split once its bound, at its last pace, would need more than so many further ones.
PATIENCE = 6
FIRST_PATIENCE = 12
LEAST_ROUNDS = 2
MOST_ROUNDS = 60
HYPERPLANES = 12
# Parts that are looked at beside each other, however many cores there are: no result depends on that.
TOGETHER = 4


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

    def copy(self) -> Best:
        """One that is improved by itself."""
        return replace(self, seen=self.seen.copy())

    @property
    def found(self) -> np.ndarray:
        """Rows of all spins, as many as there are."""
        return self.spins[self.values > -np.inf]

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


class _Part(NamedTuple):
    """Labellings in which some spins equal others, or their opposites.

    Args:
        rank: minus the bound of what it was split off from.
        number: of the order in which parts were made, from which a part draws its random numbers.
        whole: the relaxation of what it was split off from; None of all labellings.
        merge: what is equal here beyond that, see :meth:`Relaxation.merged`.
    """

    rank: float
    number: int
    whole: Relaxation | None = None
    merge: tuple[int, int, int] = (0, 0, 0)


def search(problem: SpinProblem, best: Best, limits: Limits) -> Answer:
    """Improve ``best`` until nothing else can belong to it, or a limit is met."""
    best.offer(problem.in_full(_starts(problem, np.random.default_rng(0))))
    order, nodes = count(), 0
    parts = [_Part(-np.inf if problem.hinge is None else 0.0, next(order))]
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
    """A part that is looked at, beside others, and what was found.

    Args:
        best: the best labellings before, improved.
        relaxation: the part's own; None where its labellings were enumerated.
    """

    part: _Part
    best: Best
    relaxation: Relaxation | None = None
    bound: float = -np.inf

    def look(self, problem: SpinProblem, limits: Limits) -> None:
        """Find what the part has, and a bound on what is left of it; what ends this ends all parts."""
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
    trust = np.abs(relaxation.products[0])
    return problem.in_full(np.concatenate([climbed(problem, spins, trust), proof.leading[None]]))


def _starts(problem: SpinProblem, generator: np.random.Generator) -> np.ndarray:
    """What the spins' own fields ask for, and random rows, each made better."""
    own, trust = np.where(problem.fields > 0, 1.0, -1.0), np.abs(problem.fields)
    own[0] = 1
    random = generator.choice([-1.0, 1.0], (HYPERPLANES, len(problem)))
    rows = climbed(problem, np.concatenate([own[None], random]), trust)
    if problem.hinge is not None or problem.rules is not None:
        return rows
    best = rows[problem.values(rows).argmax()]
    return np.concatenate([rows, climbed(problem, tabu(problem, best)[None], trust)])


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
