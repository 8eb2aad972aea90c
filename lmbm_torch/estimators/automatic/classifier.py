"""The best classifier of label vectors that a budget of seconds finds, by cross-validation over families."""

from __future__ import annotations

import time
from typing import Any, ClassVar, Self, cast

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from lmbm_torch.estimators.automatic.blend import chosen, mixture_weights, worth
from lmbm_torch.estimators.automatic.candidates import FAMILIES, Candidate, candidates, with_decoder
from lmbm_torch.estimators.automatic.search import SEARCH_SHARE, Search, Trial, stratified_folds
from lmbm_torch.estimators.base import Rows, StructuredClassifier
from lmbm_torch.estimators.measures import MEASURES
from lmbm_torch.estimators.settings import COUNT, POSITIVE, SHARED, Constraints


class AutoLabelClassifier(StructuredClassifier):
    """The family of classifiers, its settings and its decoder that fit a table best, chosen within a time.

    Tried are networks, linear and with kernels, ensembles of them, Boltzmann machines, chains of extra trees,
    of boosting and of logistic regressions, forests and label powersets, each with several scalings of the
    features and penalties. Successive halving takes ever more instances and then more folds of a
    cross-validation; the best ones that know all folds are mixed where the folds prefer that.

    Args:
        metric: to maximise, ``"exact_match"``, ``"hamming"`` (the share of single labels that are right),
            ``"sample_f1"``, ``"macro_f1"``, ``"micro_f1"`` or ``"jaccard"``.
        time_budget: seconds that :meth:`fit` may take; a quarter more at the most, as long as one training on
            all instances takes less.
        families: names of those to try, in :data:`FAMILIES`; None for all.
        cv: number of folds, stratified by label sets.
        mixture: whether the best ones may be mixed.
        verbose: 1 prints a line for each trial.
        random_state: of the folds and of all that is tried.

    Attributes:
        members_: the classifiers of the mixture, fitted to all instances; mostly one.
        weights_: of the members, positive, sum 1.
        table_: all that was tried, the chosen ones first, then the next best: dictionaries of ``family``,
            ``settings``, ``decoder``, ``score``, ``folds``, ``instances`` (for training, in each fold),
            ``seconds`` (of the last fold) and ``weight``.
        best_score_: the cross-validated metric of the choice.
        label_names_, classes_: see :class:`StructuredClassifier`.
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **SHARED,
        "metric": [StrOptions({*MEASURES})],
        "time_budget": [POSITIVE],
        "families": ["array-like", None],
        "cv": [COUNT],
        "mixture": ["boolean"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        metric="exact_match",
        *,
        time_budget=60,
        families=None,
        cv=5,
        mixture=True,
        verbose=0,
        random_state=None,
    ):
        self.metric = metric
        self.time_budget = time_budget
        self.families = families
        self.cv = cv
        self.mixture = mixture
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Rows, y: Rows) -> Self:
        """Choose, and learn from all instances.

        Args:
            X: (instances, features), dense or CSR; finite.
            y: (instances, labels) in {0, 1}, complete; or one class per instance.

        Raises:
            ValueError: a setting or an input that is not as described; fewer instances than folds.
        """
        started = time.perf_counter()
        X, labels, _ = self._validate_fit(X, y, None)
        if not 2 <= self.cv <= len(labels):
            raise ValueError(f"cv: expected 2 folds to the {len(labels)} instances, got {self.cv}")
        labels = labels.astype(np.int64)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        tried = candidates(
            self.metric,
            labels.shape[1],
            is_sparse=not isinstance(X, np.ndarray),
            families=self.families,
            seed=seed,
        )
        folds = stratified_folds(labels, self.cv, seed)
        deadline = started + SEARCH_SHARE * self.time_budget
        search = Search(X, labels, folds, self.metric, deadline, self._note)
        trials = search.run(tried)
        finalists = [trial for trial in trials if len(trial.models) == len(folds)] if self.mixture else []
        if len(finalists) > 1:
            weights, self.best_score_ = self._mix(search, finalists)
        else:
            finalists, weights, self.best_score_ = trials[:1], np.ones(1), trials[0].score
        self._keep(trials, {id(trial): weight for trial, weight in zip(finalists, weights, strict=True)})
        taken = [(trial, weight) for trial, weight in zip(finalists, weights, strict=True) if weight > 0]
        self.members_ = [trial.candidate.unfitted(trial.decoder).fit(X, labels) for trial, _ in taken]
        self.weights_ = np.array([weight for _, weight in taken])
        return self

    def predict(self, X: Rows) -> np.ndarray:
        """Labels (instances, labels) in {0, 1}, or classes where ``fit`` was given classes."""
        X = self._validate_predict(X)
        answers = [np.asarray(member.predict(X)).astype(np.int64) for member in self.members_]
        labels = answers[0]
        if len(answers) > 1:
            labels = chosen(self.weights_, worth(self.metric, self.members_, answers, X), answers)
        if self.binarizer_ is None:
            return self._values(labels)
        return np.asarray(self.binarizer_.inverse_transform(labels))

    def unfitted(self, row: int) -> Any:
        """The classifier of a row of ``table_``, to fit."""
        check_is_fitted(self)
        candidate, decoder = self._candidates[row]
        return candidate.unfitted(decoder)

    def _mix(self, search: Search, finalists: list[Trial]) -> tuple[np.ndarray, float]:
        folds = range(len(search.folds))
        answers = [[trial.answers[fold, trial.decoder] for trial in finalists] for fold in folds]
        worths = []
        for fold in folds:
            models = [with_decoder(trial.models[fold], trial.decoder) for trial in finalists]
            held_out = cast(Any, search.X)[search.folds[fold][1]]
            worths.append(worth(self.metric, models, answers[fold], held_out))
        return mixture_weights(self.metric, worths, answers, [search.truth(fold) for fold in folds])

    def _keep(self, trials: list[Trial], weights: dict[int, float]) -> None:
        """Note the table, heavier members first, then as the search has ranked them."""
        ranked = sorted(trials, key=lambda trial: -weights.get(id(trial), 0.0))
        self._candidates: list[tuple[Candidate, str | None]] = [
            (trial.candidate, trial.decoder) for trial in ranked
        ]
        self.table_ = [{**_row(trial), "weight": float(weights.get(id(trial), 0.0))} for trial in ranked]

    def _note(self, trial: Trial) -> None:
        if self.verbose:
            row = _row(trial)
            print(f"{row['score']:.4f}  {row['family']}, {row['settings']} ({row['seconds']:.1f} s)")


def _row(trial: Trial) -> dict[str, Any]:
    return {
        "family": trial.candidate.family,
        "settings": trial.candidate.settings,
        "decoder": trial.decoder,
        "score": trial.score,
        "folds": len(trial.models),
        "instances": trial.size,
        "seconds": trial.seconds,
    }


__all__ = ["FAMILIES", "AutoLabelClassifier"]
