"""Successive halving over candidates within a time budget: small samples first, then more folds."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold, check_cv

from lmbm_torch.data.splits import IterativeStratifiedKFold
from lmbm_torch.estimators.automatic.beliefs import MANY_LABELS, Beliefs, beliefs
from lmbm_torch.estimators.automatic.candidates import (
    INDEPENDENT,
    Candidate,
    answers_of,
    fitted,
    with_decoder,
)
from lmbm_torch.estimators.automatic.rules import Rule, rules_for
from lmbm_torch.estimators.common.measures import measure
from lmbm_torch.estimators.common.spreading import Kept, keep, spread, workers
from lmbm_torch.kernels.threads import single_threaded
from lmbm_torch.solvers.networks.problems import Features

# Number of training instances in the first round, and the largest number of held-out instances; each further
# round has GROWTH times as many.
FIRST_SIZE = 250
GROWTH = 4
WARM_UP = 20
# Share of a round's candidates that enters the next round, and number of candidates compared on all folds.
KEPT, FINALISTS = 1 / 2, 5
# Share of the time budget for the search; the rest is for training the chosen candidates on all instances.
SEARCH_SHARE = 0.8
# Share of the remaining time that a round may use; the last round, on all folds, may use all of it.
ROUND_SHARE = 0.25
# Least share of the search time left for candidates after a process's first imports and compilation.
WARM_SHARE = 0.5
# A further round starts only with time to compare at least this many candidates.
FEWEST_COMPARED = 2
# Numbers of labels, and of instances, in small fits from which a family's time for more labels is predicted.
PROBED_LABELS, PROBED_SIZE = (4, 16, 64, 256), 100
# Range of the exponent p in: training time ∝ instances ** p; and the exponent assumed before a measurement.
POWERS, FIRST_POWER = (0.5, 3.0), 1.0


Decoder = str | Rule | None
"""The name of a model's own decoder, a decision rule for probabilities, or None for the plain ``predict``."""


@dataclass(frozen=True)
class Fitted:
    """The result of a fit to a fold: model, predictions for held-out instances by decoder, and seconds."""

    answers: dict[Decoder, np.ndarray]
    beliefs: Beliefs | None
    model: Any
    seconds: float


@dataclass(eq=False)
class Trial:
    """The results of a candidate so far.

    Attributes:
        answers: (fold, decoder) → predicted labels of the held-out instances; probabilities for log loss.
        beliefs: fold → probabilities P(label i, number of labels), if a decision rule uses them.
        models: fold → the model, trained on ``size`` instances.
        seconds: duration of the last training and prediction.
        power: exponent p, if the seconds grow as instances ** p.
        score, decoder: the best metric value over the fitted folds, and the decoder with this value.
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
        """Return the tried decoders."""
        return list(dict.fromkeys(decoder for _, decoder in self.answers))

    def expected_seconds(self, size: int) -> float:
        """Return the expected seconds of a fit to a fold with ``size`` training instances."""
        return self.seconds * max(size / self.size, 1) ** self.power if self.size else 0.0

    def knows(self, size: int, folds: range) -> bool:
        """Return whether the candidate was fitted to all ``folds`` with at least ``size`` instances."""
        return self.size >= size and all(fold in self.models for fold in folds)

    def is_comparable(self, other: Trial) -> bool:
        """Return whether both trials were fitted to the same folds with equally many training instances."""
        return self.size == other.size and self.models.keys() == other.models.keys()

    def take(self, fold: int, size: int, found: Fitted) -> None:
        """Add the results of a fold; results from more instances than before replace the earlier ones."""
        if size > self.size:
            self.models.clear()
            self.beliefs.clear()
        self.answers |= {(fold, decoder): answer for decoder, answer in found.answers.items()}
        if found.beliefs is not None:
            self.beliefs[fold] = found.beliefs
        self.models[fold] = found.model
        self.timed(found.seconds, size)

    def timed(self, seconds: float, size: int) -> None:
        """Store the seconds of a fit to ``size`` instances; estimate the growth with the instances."""
        if 0 < self.size < size and self.seconds > 0 and seconds > 0:
            self.power = float(np.clip(np.log(seconds / self.seconds) / np.log(size / self.size), *POWERS))
        self.seconds, self.size = seconds, size


Call = tuple[Trial, int]
"""A trial and a fold to fit it on."""


@dataclass(frozen=True)
class Part:
    """The part of the data that is used in a fit.

    Args:
        fold: index of the fold.
        size: number of training instances, and the largest number of held-out instances.
        num_labels: if given, only this many of the most frequent labels are used.
    """

    fold: int
    size: int
    num_labels: int | None = None


@dataclass(frozen=True, kw_only=True)
class Table:
    """The data of all fits, see :class:`Search`.

    Args:
        first: a candidate that is fitted once before times are measured, to import and compile.
        process: process id of the search; a process with a different id is a worker.
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
    """A search over candidates by cross-validation, with the workers of joblib's backend.

    Workers fit several candidates and folds at once. Among fits that run at once, only the longest enters the
    time budget: a search takes equally long with any number of workers, but more workers try more candidates.

    Args:
        X, labels: (instances, features) and (instances, labels) in {0, 1}, NaN for missing labels.
        folds: pairs of training rows and held-out rows, in random order.
        metric: name of the metric to maximise.
        deadline: time of :meth:`now` at which the search ends.
        clock: function that returns the time in seconds.
        note: function called with each scored trial.

    Attributes:
        kept: handle of the data, which the workers keep between fits.
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
        """Return the clock's time, plus the time of workers that this process's clock does not measure."""
        return self.clock() + self._elsewhere

    def run(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """Try the candidates, and return their trials: trials fitted to all folds first, the best first.

        If time is short, the first candidates are tried; further candidates use the time left over.

        Raises:
            ValueError: no candidate could be trained, or the time was too short for a first candidate.
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
        # Extend the deadline if imports and compilation took most of the time of a short search.
        self.deadline = max(self.deadline, self.now() + WARM_SHARE * (self.deadline - began))
        self.kept = keep(table)
        while tried := self._bracket(waiting):
            found += tried
            waiting = [trial for trial in waiting if not trial.size]
        if not found and not self._failures:
            raise ValueError("time_budget: expected time for a first candidate, got too few seconds")
        if not found:
            raise ValueError(
                f"families: expected a family for these data, got only failures: {self._failures}"
            )
        return sorted(found, key=lambda trial: (-trial.size, -len(trial.models), -trial.score))

    def _bracket(self, waiting: Sequence[Trial]) -> list[Trial]:
        """Run rounds of successive halving, each for a share of the time left; return the fitted trials."""
        alive, tried = waiting, []
        rounds = [*self._rounds()]
        for place, (size, folds) in enumerate(rounds):
            now = self.now()
            ends = now + ROUND_SHARE * (self.deadline - now)
            if place == len(rounds) - 1:
                ends = self.deadline
            elif not self._has_time(alive, *rounds[place + 1]):
                # Compare several families on few instances rather than fit one family to all instances.
                ends, alive = self.deadline, _families_first(alive)
            # After a first round, the best candidate of the previous round may use all remaining time.
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
        """Return whether time is left to fit the first ``FEWEST_COMPARED`` trials in a round."""
        seconds = sum(self._expected_seconds(trial, size) for trial in trials[:FEWEST_COMPARED])
        return seconds * len(folds) <= self.deadline - self.now()

    def _rounds(self) -> Iterator[tuple[int, range]]:
        """Yield the number of training instances and the folds of each round."""
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
        """Fit the trials to the folds as far as time allows, and return the trials fitted to all ``folds``.

        Args:
            ends, ends_for_first: deadlines; ``ends_for_first`` holds until a trial is fitted to all
                ``folds``.
            pick: function that chooses the next (trial, fold) from a list.
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
                self._probe(trial.candidate, size, left)
                left = (ends if known else ends_for_first) - self.now()
                missing = sum(not trial.knows(size, range(fold, fold + 1)) for fold in folds)
                if left < self._expected_seconds(trial, size) * -(-missing // at_once):
                    lost.add(id(trial))
            self._fit([(each, fold) for each, fold in wave if id(each) not in lost], size, lost)
            known = self._known(trials, size, folds, known)
        return known

    def _known(
        self, trials: Sequence[Trial], size: int, folds: range, before: Sequence[Trial]
    ) -> list[Trial]:
        """Return the trials fitted to all ``folds``; score the trials that are not in ``before``."""
        known = [trial for trial in trials if trial.knows(size, folds)]
        for trial in known:
            if trial not in before:
                self._rank(trial)
        return known

    def _fair(self, todo: Sequence[Call], size: int) -> Call:
        """Return a call of the family with the least time so far, so fast families try more settings.

        With many labels, all settings of independent classifiers come before the other families.
        """
        are_many = self.labels.shape[1] > MANY_LABELS

        def spent(call: Call) -> tuple[bool, float]:
            trial, _ = call
            family = trial.candidate.family
            is_later = are_many and family != INDEPENDENT
            return is_later, self._spent.get(family, 0.0) + self._expected_seconds(trial, size)

        return min(todo, key=spent)

    def _probe(self, candidate: Candidate, size: int, left: float) -> None:
        """Estimate the time of an untried family with many labels, by small fits to more and more labels.

        Otherwise the first fit to all labels could exceed the whole time budget.

        Args:
            left: seconds left; the small fits stop once the estimate is longer.
        """
        labels, rows = self.labels.shape[1], min(size, PROBED_SIZE)
        if left <= 0 or candidate.family in self._first_seconds or labels <= PROBED_LABELS[1]:
            return
        counts, times = [], []
        for count in PROBED_LABELS:
            if count >= labels:
                return
            (found,) = spread(fit_fold, self.kept, [(candidate, Part(0, rows, count))])
            if isinstance(found, str):
                return
            counts.append(count)
            times.append(max(found.seconds, np.finfo(float).tiny))
            if len(counts) == 1:
                continue
            (few, more), (first, second) = counts[-2:], times[-2:]
            # Take the longer of a linear and a power-law extrapolation from the last two measured times.
            line = second + max(second - first, 0.0) / (more - few) * (labels - more)
            exponent = np.clip(np.log(second / first) / np.log(more / few), 0, 3)
            expected = max(line, second * (labels / more) ** exponent) * size / rows
            self._first_seconds[candidate.family] = expected
            if expected > left:
                return

    def _fit(self, wave: Sequence[tuple[Trial, int]], size: int, lost: set[int]) -> None:
        """Fit the (trial, fold) pairs in parallel, and add the ids of failed trials to ``lost``."""
        started, longest = self.clock(), 0.0
        calls = [(trial.candidate, Part(fold, size)) for trial, fold in wave]
        for (trial, fold), found in zip(wave, spread(fit_fold, self.kept, calls), strict=True):
            if isinstance(found, str):
                self._failures[trial.candidate.family] = found
                lost.add(id(trial))
                continue
            trial.take(fold, size, found)
            longest = max(longest, found.seconds)
            family = trial.candidate.family
            if not self._spent.get(family):
                self._first_seconds[family] = found.seconds
            self._spent[family] = self._spent.get(family, 0.0) + found.seconds
        self._elsewhere += max(0.0, longest - (self.clock() - started))

    def _rank(self, trial: Trial) -> None:
        trial.decoder, trial.score = max(
            ((decoder, self.score(trial, decoder)) for decoder in trial.decoders), key=lambda found: found[1]
        )
        self.note(trial)

    def _expected_seconds(self, trial: Trial, size: int) -> float:
        """Return the expected seconds of a fit; for an untried family the longest first fit of any family."""
        if trial.size:
            return trial.expected_seconds(size)
        dearest = max(self._first_seconds.values(), default=0.0)
        return self._first_seconds.get(trial.candidate.family, dearest)

    def score(self, trial: Trial, decoder: Decoder) -> float:
        """Return the metric's value over the held-out instances of all folds that the trial was fitted to."""
        known = sorted(trial.models)
        answers = [trial.answers[fold, decoder] for fold in known]
        truths = [self.truth(trial, fold) for fold in known]
        return measure(self.metric, np.concatenate(answers), np.concatenate(truths))

    def truth(self, trial: Trial, fold: int) -> np.ndarray:
        """Return the true labels of a fold's held-out instances that the trial predicts."""
        return self.labels[self.held_out(trial, fold)]

    def held_out(self, trial: Trial, fold: int) -> np.ndarray:
        """Return a fold's held-out rows that are predicted: at most as many as training instances."""
        return self.folds[fold][1][: trial.size]


def _families_first(ranked: Sequence[Trial]) -> list[Trial]:
    """Return the best trial of each family, then the other trials: different families err differently."""
    families: dict[str, Trial] = {}
    for trial in ranked:
        families.setdefault(trial.candidate.family, trial)
    best = [*families.values()]
    return [*best, *(trial for trial in ranked if trial not in best)]


def _first(todo: Sequence[Call], size: int) -> Call:
    return todo[0]


def fit_fold(table: Table, call: tuple[Candidate, Part]) -> Fitted | str:
    """Fit a candidate to a part of the data; return the error's text if the candidate refuses the data."""
    global _is_warm  # One for each process.
    if os.getpid() != table.process and not _is_warm:
        _warm_up(table)
        _is_warm = True
    try:
        return _fitted(table, *call)
    except ValueError as refused:
        # For example a label of a single class, which some scikit-learn classifiers refuse.
        return str(refused)


_is_warm = False


def _warm_up(table: Table) -> None:
    """Fit a candidate once, so imports and compilation are not part of measured times."""
    with suppress(ValueError):
        found = _fitted(table, table.first, Part(0, WARM_UP, PROBED_LABELS[0]))
        answer = next(iter(found.answers.values()))
        measure(table.metric, answer, answer)


def _fitted(table: Table, candidate: Candidate, part: Part) -> Fitted:
    train, held_out = (rows[: part.size] for rows in table.folds[part.fold])
    X: Any = table.X
    labels = table.labels
    if part.num_labels is not None:
        frequent = np.argsort(-np.nan_to_num(labels[train]).sum(0), kind="stable")[: part.num_labels]
        labels = labels[:, np.sort(frequent)]
    started = table.clock()
    with warnings.catch_warnings(), single_threaded():
        # Show convergence warnings only in the final training, not in the search.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = fitted(candidate.unfitted(), X[train], labels[train])
        answers: dict[Decoder, np.ndarray] = {
            decoder: answers_of(with_decoder(model, decoder), X[held_out]) for decoder in candidate.decoders
        }
        rules = rules_for(table.metric, labels.shape[1])
        found = beliefs(model, X[held_out]) if rules else None
    if found is not None:
        answers |= {rule: rule.measured(found) for rule in rules}
    return Fitted(answers, found, model, table.clock() - started)


def folds_of(
    cv: Any, X: Any, labels: np.ndarray, groups: ArrayLike | None, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the training rows and the held-out rows of each fold, both in random order.

    Args:
        cv: number of folds, a splitter of scikit-learn, or pairs of row indices; None for 5 folds. With a
            number, folds are stratified by label sets; if there are groups, by single labels.
        labels: (instances, labels), NaN for missing labels.
        groups: (instances,), group of each instance; a group is never split between folds.
        seed: seed of the folds and of the order of rows.

    Raises:
        ValueError: there are fewer than 2 folds, or more folds than instances.
    """
    together, count = None if groups is None else np.asarray(groups), 5 if cv is None else cv
    if isinstance(count, Integral):
        folds = int(count)
        if not 2 <= folds <= len(labels):
            raise ValueError(
                f"cv: expected 2 folds to the {len(labels)} instances with known labels, got {folds}"
            )
        if together is None:
            return stratified_folds(labels, folds, seed)
        count = IterativeStratifiedKFold(folds, random_state=seed % 2**31)
    random, splitter = np.random.default_rng(seed), cast(Any, check_cv(cast(Any, count)))
    return [
        (random.permutation(train), random.permutation(held))
        for train, held in splitter.split(X, labels, together)
    ]


def stratified_folds(labels: np.ndarray, count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the training and held-out rows of folds stratified by label sets, in random order.

    Args:
        labels: (instances, labels), NaN for missing labels; a missing label is treated as a third value.
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
