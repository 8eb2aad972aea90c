"""Best-bound search over spins: branch and bound with semidefinite bounds.

A part of the problem in which some spins equal others, or their opposites, is a smaller problem of the same
kind. Its dual starts from that of the part that it was split off from; its bound ends it, or two spins of
which the relaxation says least are made equal in one half and opposite in the other. Labellings come from the
relaxation, by random hyperplanes and single flips (Goemans and Williamson, 1995).
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from lmbm_torch.inference.parts.semidefinite_bound import Proof, Relaxation
from lmbm_torch.inference.parts.spin_problems import SpinProblem

__all__ = ["Answer", "Best", "Limits", "search"]

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
    """

    nodes: float = np.inf
    clock: float = np.inf


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


@dataclass(frozen=True)
class Answer:
    """What a search found.

    Args:
        spins: of all spins, (number, spins), best first.
        bound: no other labelling has a larger value; −∞ where the search has seen to all.
        complete: no limit ended it.
    """

    spins: np.ndarray
    bound: float
    complete: bool
    nodes: int


def search(problem: SpinProblem, best: Best, limits: Limits, generator: np.random.Generator) -> Answer:
    """Improve ``best`` until nothing else can belong to it, or a limit is met."""
    order = count()
    # Parts by their bounds, the largest first: of their parent where they have not been looked at.
    parts: list[tuple[float, int, Relaxation, tuple[int, int, int] | None]] = []
    root = Relaxation.of(problem)
    parts.append((-np.inf, next(order), root, None))
    nodes, left = 0, -np.inf
    while parts:
        bound = -parts[0][0]
        if bound <= best.threshold:
            parts.clear()
            break
        if nodes >= limits.nodes or time.perf_counter() > limits.clock:
            break
        _, _, parent, merge = heapq.heappop(parts)
        nodes += 1
        relaxation = parent if merge is None else parent.merged(*merge)
        if len(relaxation.problem) <= ENUMERATED:
            _enumerate(relaxation.problem, best)
            continue
        own = _bound(relaxation, bound, merge is None, best, limits, generator)
        if own <= best.threshold:
            continue
        kept, gone = _least_decided(relaxation.products)
        for sign in (1, -1):
            heapq.heappush(parts, (-min(own, bound), next(order), relaxation, (gone, kept, sign)))
    if parts:
        left = max(-part[0] for part in parts)
    return Answer(best.spins, left, not parts, nodes)


def _bound(
    relaxation: Relaxation,
    bound: float,
    first: bool,
    best: Best,
    limits: Limits,
    generator: np.random.Generator,
) -> float:
    """A part's bound, computed until it ends the part, or the part is better split."""
    patience = FIRST_PATIENCE if first else PATIENCE
    for number in range(MOST_ROUNDS):
        before = bound
        proof = relaxation.round()
        best.offer(_labellings(relaxation, proof, generator))
        others = min(proof.others, proof.bound)
        # What the leading vector says has been looked at.
        bound = min(bound, proof.bound if others > best.threshold else others)
        needed = bound - best.threshold
        if needed <= 0 or time.perf_counter() > limits.clock:
            break
        if number >= LEAST_ROUNDS and needed > patience * (before - bound) and not relaxation.warming:
            break
        relaxation.tighten()
    return bound


def _labellings(relaxation: Relaxation, proof: Proof, generator: np.random.Generator) -> np.ndarray:
    """Spins by random hyperplanes and by the leading vector, each flipped one by one while that is better."""
    problem, factor = relaxation.problem, relaxation.factor
    directions = generator.standard_normal((factor.shape[1], HYPERPLANES))
    spins = np.where(factor @ directions < 0, -1.0, 1.0).T
    return problem.in_full(np.concatenate([_climb(problem, spins), proof.leading[None]]))


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


def _least_decided(products: np.ndarray) -> tuple[int, int]:
    """The spin that the first one says least of."""
    return 0, 1 + int(np.abs(products[0, 1:]).argmin())


def _enumerate(problem: SpinProblem, best: Best) -> None:
    """Offer all labellings of a small problem."""
    free = len(problem) - 1
    bits = np.arange(2**free)[:, None] >> np.arange(free) & 1
    spins = np.concatenate([np.ones((2**free, 1)), 2.0 * bits - 1], 1)
    if len(best.values) < len(spins):
        values = problem.values(spins)
        spins = spins[np.argpartition(-values, len(best.values) - 1)[: len(best.values)]]
    best.offer(problem.in_full(spins))
