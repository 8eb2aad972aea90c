"""Successive halving over candidates within a budget of seconds: small parts first, then more folds."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold

from lmbm_torch.estimators.automatic.beliefs import Beliefs, beliefs
from lmbm_torch.estimators.automatic.candidates import Candidate, answers_of, fitted, with_decoder
from lmbm_torch.estimators.automatic.rules import Rule, rules_for
from lmbm_torch.estimators.common.measures import measure
from lmbm_torch.estimators.common.spreading import Kept, keep, spread, workers
from lmbm_torch.kernels.threads import single_threaded
from lmbm_torch.solvers.networks.problems import Features

# Training instances of the first round, and held out at most, where there are more; each round takes four
# times as many.
FIRST_SIZE = 250
GROWTH = 4
WARM_UP = 20
# Of the candidates of a round, the share that goes on; and how many are compared on all folds.
KEPT, FINALISTS = 1 / 2, 5
# The budget's share for the search; the rest is for training the choice on all instances.
SEARCH_SHARE = 0.8
# Of the time that is left, what a round may take; what is left in the end is for all folds.
ROUND_SHARE = 0.25
# What is left of it for candidates at least, whatever a process's first calls import and compile.
WARM_SHARE = 0.5
# How many a further round should be able to compare.
FEWEST_COMPARED = 2
# Powers of the number of instances between which training times grow, and the one until that is measured.
POWERS, FIRST_POWER = (0.5, 3.0), 1.0


Decoder = str | Rule | None
"""A model's own, or a rule from its beliefs."""


@dataclass(frozen=True)
class Fitted:
    """A model of a fold, the labels that each decoder gives the instances held out, and its seconds."""

    answers: dict[Decoder, np.ndarray]
    beliefs: Beliefs | None
    model: Any
    seconds: float


@dataclass(eq=False)
class Trial:
    """The results of a candidate so far.

    Attributes:
        answers: (fold, decoder) → labels of the instances held out.
        beliefs: of each fold, where the model has some and the measure has rules for them.
        models: of each fold, trained on ``size`` instances.
        seconds: of the last training and prediction.
        power: of the number of instances, by which these seconds grow.
        score, decoder: the best decoder's measure over the folds that are known.
    """

    candidate: Candidate
    answers: dict[tuple[int, Decoder], np.ndarray] = field(default_factory=dict)
    beliefs: dict[int, Beliefs] = field(default_factory=dict)
    models: dict[int, Any] = field(default_factory=dict)
    seconds: float = 0.0
    power: float = FIRST_POWER
    size: int = 0
    score: float = -np.inf
    decoder: Decoder = None

    @property
    def decoders(self) -> list[Decoder]:
        """Those that were tried."""
        return list(dict.fromkeys(decoder for _, decoder in self.answers))

    def expected_seconds(self, size: int) -> float:
        """Of a fold with so many training instances."""
        return self.seconds * max(size / self.size, 1) ** self.power if self.size else 0.0

    def knows(self, size: int, folds: range) -> bool:
        """Whether these folds are known with so many training instances."""
        return self.size >= size and all(fold in self.models for fold in folds)

    def is_comparable(self, other: Trial) -> bool:
        """Whether both know the same folds with as many training instances."""
        return self.size == other.size and self.models.keys() == other.models.keys()

    def take(self, fold: int, size: int, found: Fitted) -> None:
        """Note a fold's results."""
        if size > self.size:
            self.models.clear()
            self.beliefs.clear()
        self.answers |= {(fold, decoder): answer for decoder, answer in found.answers.items()}
        if found.beliefs is not None:
            self.beliefs[fold] = found.beliefs
        self.models[fold] = found.model
        self.timed(found.seconds, size)

    def timed(self, seconds: float, size: int) -> None:
        """Note the seconds of a fold with so many training instances."""
        if 0 < self.size < size and self.seconds > 0 and seconds > 0:
            self.power = float(np.clip(np.log(seconds / self.seconds) / np.log(size / self.size), *POWERS))
        self.seconds, self.size = seconds, size


Call = tuple[Trial, int]
"""A trial and a fold to fit it on."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """What all fits share; see :class:`Search`.

    Args:
        first: a candidate to warm up with.
        process: the search's own.
    """

    X: Features
    labels: np.ndarray
    folds: Sequence[tuple[np.ndarray, np.ndarray]]
    metric: str
    clock: Callable[[], float]
    first: Candidate
    process: int


@dataclass(eq=False)
class Search:
    """Candidates on the folds of one training set, fitted wherever joblib's active backend says.

    Workers fit as many folds of candidates at once as they are. Of what they do the longest fit counts, by
    their own clocks: a search for 60 seconds ends after 60 with any number of workers, which try more in it.

    Args:
        X, labels: (instances, features) and (instances, labels) in {0, 1}, NaN where missing.
        folds: pairs of training rows and rows held out, in random order.
        metric: to maximise.
        deadline: of the search, by :meth:`now`.
        clock: seconds.
        note: is told of each trial.

    Attributes:
        kept: what all fits share, where workers keep it.
    """

    X: Features
    labels: np.ndarray
    folds: Sequence[tuple[np.ndarray, np.ndarray]]
    metric: str
    deadline: float
    note: Callable[[Trial], None]
    clock: Callable[[], float] = time.perf_counter
    kept: Kept = field(init=False)
    _elsewhere: float = 0.0
    _failures: dict[str, str] = field(default_factory=dict)
    _first_seconds: dict[str, float] = field(default_factory=dict)
    _spent: dict[str, float] = field(default_factory=dict)

    def now(self) -> float:
        """The clock, and the seconds of workers that it has not seen."""
        return self.clock() + self._elsewhere

    def run(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """All that was tried: first those that know every fold, if time was left for that, the best first.

        Where the time is short the first candidates are tried; what they leave of it goes to the next ones.

        Raises:
            ValueError: none of the candidates could be trained, or not before the deadline.
        """
        found: list[Trial] = []
        waiting = [Trial(candidate) for candidate in candidates]
        table = Table(
            X=self.X,
            labels=self.labels,
            folds=self.folds,
            metric=self.metric,
            clock=self.clock,
            first=candidates[0],
            process=os.getpid(),
        )
        began = self.now()
        _warm_up(table)
        # What this imports and compiles is not to end a short search before its first candidate.
        self.deadline = max(self.deadline, self.now() + WARM_SHARE * (self.deadline - began))
        self.kept = keep(table)
        while tried := self._bracket(waiting):
            found += tried
            waiting = [trial for trial in waiting if not trial.size]
        if not found and not self._failures:
            raise ValueError("time_budget: expected seconds enough for a first candidate, but they were over")
        if not found:
            raise ValueError(
                f"families: expected some that learn from these data, but none did: {self._failures}"
            )
        return sorted(found, key=lambda trial: (-trial.size, -len(trial.models), -trial.score))

    def _bracket(self, waiting: Sequence[Trial]) -> list[Trial]:
        """Those that could be tried; each round may take its share of the time that is left."""
        alive, tried = waiting, []
        rounds = [*self._rounds()]
        for place, (size, folds) in enumerate(rounds):
            now = self.now()
            ends = now + ROUND_SHARE * (self.deadline - now)
            if place == len(rounds) - 1:
                ends = self.deadline
            elif not self._has_time(alive, *rounds[place + 1]):
                # Several families on less say more than one on all.
                ends, alive = self.deadline, _families_first(alive)
            # The best one of the last round has the time of all.
            ends_for_first = self.deadline if tried else ends
            pick = _first if tried else self._fair
            known = self._try(alive, size, folds, ends, ends_for_first, pick)
            if not known:
                break
            tried = tried or known
            known.sort(key=lambda trial: -trial.score)
            alive = known[: max(FINALISTS, int(np.ceil(KEPT * len(known))))]
            if place == len(rounds) - 2:
                alive = _families_first(known)[:FINALISTS]
        return tried

    def _has_time(self, trials: Sequence[Trial], size: int, folds: range) -> bool:
        """Whether the first of them can be compared on so many instances of these folds."""
        seconds = sum(self._expected_seconds(trial, size) for trial in trials[:FEWEST_COMPARED])
        return seconds * len(folds) <= self.deadline - self.now()

    def _rounds(self) -> Iterator[tuple[int, range]]:
        """Training instances, and the folds to know at the end of a round."""
        whole = min(len(train) for train, _ in self.folds)
        size = FIRST_SIZE
        while 2 * size <= whole:
            yield size, range(1)
            size *= GROWTH
        yield whole, range(1)
        yield whole, range(len(self.folds))

    def _try(
        self,
        trials: Sequence[Trial],
        size: int,
        folds: range,
        ends: float,
        ends_for_first: float,
        pick: Callable[[Sequence[Call], int], Call],
    ) -> list[Trial]:
        """The candidates that are known on these folds: none is begun that would not be done in time.

        Args:
            ends_for_first: until one is known.
            pick: of the calls that are left the next one.
        """
        known, lost = self._known(trials, size, folds, []), set[int]()
        todo = [
            (each, fold) for each in trials for fold in folds if not each.knows(size, range(fold, fold + 1))
        ]
        at_once = workers()
        while todo:
            left = (ends if known else ends_for_first) - self.now()
            wave: list[Call] = []
            for _ in range(min(at_once, len(todo))):
                wave.append(pick(todo, size))
                todo.remove(wave[-1])
            for trial, _ in wave:
                missing = sum(not trial.knows(size, range(fold, fold + 1)) for fold in folds)
                if left < self._expected_seconds(trial, size) * -(-missing // at_once):
                    lost.add(id(trial))
            self._fit([(each, fold) for each, fold in wave if id(each) not in lost], size, lost)
            known = self._known(trials, size, folds, known)
        return known

    def _known(
        self, trials: Sequence[Trial], size: int, folds: range, before: Sequence[Trial]
    ) -> list[Trial]:
        """Return the trials that are known on these folds, in order; rank each that is not in ``before``."""
        known = [trial for trial in trials if trial.knows(size, folds)]
        for trial in known:
            if trial not in before:
                self._rank(trial)
        return known

    def _fair(self, todo: Sequence[Call], size: int) -> Call:
        """Of the family that has had the least time with it: quick ones try more settings than dear ones."""

        def spent(call: Call) -> float:
            trial, _ = call
            return self._spent.get(trial.candidate.family, 0.0) + self._expected_seconds(trial, size)

        return min(todo, key=spent)

    def _fit(self, wave: Sequence[tuple[Trial, int]], size: int, lost: set[int]) -> None:
        """Fit these folds at once, and note which trials are lost."""
        started, longest = self.clock(), 0.0
        calls = [(trial.candidate, fold, size) for trial, fold in wave]
        for (trial, fold), found in zip(wave, spread(fit_fold, self.kept, calls), strict=True):
            if isinstance(found, str):
                self._failures[trial.candidate.family] = found
                lost.add(id(trial))
                continue
            trial.take(fold, size, found)
            longest = max(longest, found.seconds)
            family = trial.candidate.family
            self._first_seconds.setdefault(family, found.seconds)
            self._spent[family] = self._spent.get(family, 0.0) + found.seconds
        self._elsewhere += max(0.0, longest - (self.clock() - started))

    def _rank(self, trial: Trial) -> None:
        trial.decoder, trial.score = max(
            ((decoder, self.score(trial, decoder)) for decoder in trial.decoders),
            key=lambda found: found[1],
        )
        self.note(trial)

    def _expected_seconds(self, trial: Trial, size: int) -> float:
        """Of a fold; of a family that was not tried as much as of the dearest, for dear ones come last."""
        if trial.size:
            return trial.expected_seconds(size)
        dearest = max(self._first_seconds.values(), default=0.0)
        return self._first_seconds.get(trial.candidate.family, dearest)

    def score(self, trial: Trial, decoder: Decoder) -> float:
        """The metric over the instances held out in the folds that the candidate knows."""
        known = sorted(trial.models)
        answers = [trial.answers[fold, decoder] for fold in known]
        truths = [self.truth(trial, fold) for fold in known]
        return measure(self.metric, np.concatenate(answers), np.concatenate(truths))

    def truth(self, trial: Trial, fold: int) -> np.ndarray:
        """The labels of the instances that the trial has answered."""
        return self.labels[self.held_out(trial, fold)]

    def held_out(self, trial: Trial, fold: int) -> np.ndarray:
        """The instances that the trial has answered: those held out, but no more than it was trained on."""
        return self.folds[fold][1][: trial.size]


def _families_first(ranked: Sequence[Trial]) -> list[Trial]:
    """The best of each family, then the next best: what is of different kinds errs apart."""
    families: dict[str, Trial] = {}
    for trial in ranked:
        families.setdefault(trial.candidate.family, trial)
    best = [*families.values()]
    return [*best, *(trial for trial in ranked if trial not in best)]


def _first(todo: Sequence[Call], size: int) -> Call:
    return todo[0]


def fit_fold(table: Table, call: tuple[Candidate, int, int]) -> Fitted | str:
    """A candidate fitted to so many instances of a fold, or why it refuses them."""
    global _is_warm  # one for each process
    if os.getpid() != table.process and not _is_warm:
        _warm_up(table)
        _is_warm = True
    candidate, fold, size = call
    try:
        return _fitted(table, candidate, fold, size)
    except ValueError as refused:
        # Such as a label of one class only, which some of scikit-learn's classifiers refuse.
        return str(refused)


_is_warm = False


def _warm_up(table: Table) -> None:
    """Import and compile what first calls do, whose time says nothing of later ones."""
    with suppress(ValueError):
        found = _fitted(table, table.first, 0, WARM_UP)
        answer = next(iter(found.answers.values()))
        measure(table.metric, answer, table.labels[table.folds[0][1]][: len(answer)])


def _fitted(table: Table, candidate: Candidate, fold: int, size: int) -> Fitted:
    train, held_out = (rows[:size] for rows in table.folds[fold])
    X: Any = table.X
    started = table.clock()
    with warnings.catch_warnings(), single_threaded():
        # The choice is warned of where it is trained.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = fitted(candidate.unfitted(), X[train], table.labels[train])
        answers: dict[Decoder, np.ndarray] = {
            decoder: answers_of(with_decoder(model, decoder), X[held_out]) for decoder in candidate.decoders
        }
        rules = rules_for(table.metric, table.labels.shape[1])
        found = beliefs(model, X[held_out]) if rules else None
    if found is not None:
        answers |= {rule: rule.answer(found) for rule in rules}
    return Fitted(answers, found, model, table.clock() - started)


def stratified_folds(labels: np.ndarray, count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Folds with every frequent set of labels in each, both parts in random order.

    Args:
        labels: (instances, labels), NaN where missing: instances with the same known labels have one set.
    """
    labels = np.nan_to_num(labels, nan=-1)
    _, strata, counts = np.unique(labels, axis=0, return_inverse=True, return_counts=True)
    pooled = np.where(counts < count, -1, np.arange(len(counts)))[strata.reshape(-1)]
    if 0 < (pooled == -1).sum() < count:
        pooled[pooled == -1] = counts.argmax()
    random = np.random.default_rng(seed)
    splitter = StratifiedKFold(count, shuffle=True, random_state=seed)
    return [
        (random.permutation(train), random.permutation(held))
        for train, held in splitter.split(labels, pooled)
    ]
