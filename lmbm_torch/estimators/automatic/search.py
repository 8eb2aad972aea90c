"""Successive halving over candidates within a budget of seconds: small parts first, then more folds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold

from lmbm_torch.estimators.automatic.candidates import Candidate, with_decoder
from lmbm_torch.estimators.measures import measure
from lmbm_torch.solvers.networks.problems import Features

# Training instances of the first round, where there are more; each round takes four times as many.
FIRST_SIZE = 500
GROWTH = 4
# Of the candidates of a round, the share that goes on; and how many are compared on all folds.
KEPT, FINALISTS = 1 / 3, 5
# The budget's share for the search; the rest is for training the choice on all instances.
SEARCH_SHARE = 0.8
# Training time grows by this power of the instances, at the most that is usual: that of kernels.
POWER = 2.0


@dataclass
class Trial:
    """The results of a candidate so far.

    Attributes:
        answers: (fold, decoder) → labels of the instances held out.
        models: of each fold, trained on ``size`` instances.
        seconds: of the last training and prediction.
        score, decoder: the best decoder's measure over the folds that are known.
    """

    candidate: Candidate
    answers: dict[tuple[int, str | None], np.ndarray] = field(default_factory=dict)
    models: dict[int, Any] = field(default_factory=dict)
    seconds: float = 0.0
    size: int = 0
    score: float = -np.inf
    decoder: str | None = None

    def expected_seconds(self, size: int) -> float:
        """Of a fold with so many training instances."""
        return self.seconds * max(size / self.size, 1) ** POWER if self.size else 0.0


@dataclass(frozen=True)
class Search:
    """Candidates on the folds of one training set.

    Args:
        X, labels: (instances, features) and (instances, labels) in {0, 1}.
        folds: pairs of training rows and rows held out, in random order.
        metric: to maximise.
        deadline: of the search, by ``time.perf_counter``.
        note: is told of each trial.
    """

    X: Features
    labels: np.ndarray
    folds: Sequence[tuple[np.ndarray, np.ndarray]]
    metric: str
    deadline: float
    note: Callable[[Trial], None]
    _failures: dict[str, str] = field(default_factory=dict)

    def run(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """All that was tried, the best first; the first of them know every fold, if time was left for that.

        Candidates of the first round are dropped from behind if time is short.

        Raises:
            ValueError: none of the candidates could be trained, or not before the deadline.
        """
        alive, tried = [Trial(candidate) for candidate in candidates], []
        for size, folds in self._rounds():
            known = [trial for trial in alive if self._try(trial, size, folds)]
            if not known:
                break
            tried = tried or known
            known.sort(key=lambda trial: -trial.score)
            is_last = len(folds) == len(self.folds)
            alive = known[: FINALISTS if is_last else max(FINALISTS, int(np.ceil(KEPT * len(known))))]
        if not tried and not self._failures:
            raise ValueError("time_budget: expected seconds enough for a first candidate, but they were over")
        if not tried:
            raise ValueError(
                f"families: expected some that learn from these data, but none did: {self._failures}"
            )
        others = [trial for trial in tried if trial not in alive]
        return [*alive, *sorted(others, key=lambda trial: (-trial.size, -len(trial.answers), -trial.score))]

    def _rounds(self) -> Iterator[tuple[int, range]]:
        """Training instances, and the folds to know at the end of a round."""
        whole = min(len(train) for train, _ in self.folds)
        size = FIRST_SIZE
        while size < whole:
            yield size, range(1)
            size *= GROWTH
        for count in sorted({1, 2, len(self.folds)}):
            yield whole, range(min(count, len(self.folds)))

    def _try(self, trial: Trial, size: int, folds: range) -> bool:
        """Whether the candidate is known on these folds, as far as time allows."""
        todo = [fold for fold in folds if trial.size < size or fold not in trial.models]
        for fold in todo:
            left = self.deadline - time.perf_counter()
            if left < 0 or trial.expected_seconds(size) > left:
                return False
            try:
                self._fit(trial, fold, size)
            except ValueError as refused:
                # Such as a label of one class only, which some of scikit-learn's classifiers refuse.
                self._failures[trial.candidate.family] = str(refused)
                return False
        trial.decoder, trial.score = max(
            ((decoder, self.score(trial, decoder)) for decoder in trial.candidate.decoders),
            key=lambda found: found[1],
        )
        self.note(trial)
        return True

    def score(self, trial: Trial, decoder: str | None) -> float:
        """The metric over the instances held out in the folds that the candidate knows."""
        known = sorted(trial.models)
        answers = np.concatenate([trial.answers[fold, decoder] for fold in known])
        return measure(self.metric, answers, np.concatenate([self.truth(fold) for fold in known]))

    def truth(self, fold: int) -> np.ndarray:
        """The labels of the instances held out."""
        return self.labels[self.folds[fold][1]]

    def _fit(self, trial: Trial, fold: int, size: int) -> None:
        train, held_out = self.folds[fold]
        train = train[:size]
        started = time.perf_counter()
        with warnings.catch_warnings():
            # The choice is warned of where it is trained.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = trial.candidate.unfitted().fit(self.X[train], self.labels[train])  # pyright: ignore[reportOptionalSubscript]
            for decoder in trial.candidate.decoders:
                answers = with_decoder(model, decoder).predict(self.X[held_out])  # pyright: ignore[reportOptionalSubscript]
                trial.answers[fold, decoder] = np.asarray(answers).astype(np.int64)
        if size > trial.size:
            trial.models.clear()
        trial.models[fold] = model
        trial.seconds, trial.size = time.perf_counter() - started, size


def stratified_folds(labels: np.ndarray, count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Folds with every frequent set of labels in each; training rows are in random order.

    Args:
        labels: (instances, labels).
    """
    _, strata, counts = np.unique(labels, axis=0, return_inverse=True, return_counts=True)
    pooled = np.where(counts < count, -1, np.arange(len(counts)))[strata.reshape(-1)]
    if 0 < (pooled == -1).sum() < count:
        pooled[pooled == -1] = counts.argmax()
    random = np.random.default_rng(seed)
    splitter = StratifiedKFold(count, shuffle=True, random_state=seed)
    return [(random.permutation(train), held) for train, held in splitter.split(labels, pooled)]
