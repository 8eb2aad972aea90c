"""The choice after a search: the best trial, or a mixture of the best where the folds prefer that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from lmbm_torch.estimators.automatic.blend import belief_weights, mixture_weights, standard_error, worth
from lmbm_torch.estimators.automatic.candidates import with_decoder
from lmbm_torch.estimators.automatic.rules import Rule, rules_for
from lmbm_torch.estimators.automatic.search import Search, Trial


@dataclass(frozen=True)
class Choice:
    """What is trained on all instances.

    Args:
        members: trials with their weights, which are positive and sum to 1.
        rule: from the members' mean beliefs to answers; None for their own answers.
        score: cross-validated.
    """

    members: list[tuple[Trial, float]]
    rule: Rule | None
    score: float


def choose(search: Search, trials: Sequence[Trial]) -> Choice:
    """A mixture of the trials, or the first one alone, if that is better by more than a standard error.

    Args:
        trials: the best first; all know the folds that it knows.
    """
    best = trials[0]
    alone = Choice([(best, 1.0)], best.decoder if isinstance(best.decoder, Rule) else None, best.score)
    with_beliefs = [trial for trial in trials if trial.beliefs.keys() >= best.models.keys()]
    if with_beliefs and rules_for(search.metric, search.labels.shape[1]):
        mixture = _of_beliefs(search, with_beliefs)
    elif len(trials) > 1:
        mixture = _of_answers(search, trials)
    else:
        return alone
    if len(mixture.members) == 1:
        return max(alone, mixture, key=lambda choice: choice.score)
    error = standard_error(alone.score, sum(len(search.held_out(best, fold)) for fold in best.models))
    return mixture if mixture.score >= alone.score - error else alone


def _of_beliefs(search: Search, trials: Sequence[Trial]) -> Choice:
    folds = sorted(trials[0].models)
    members = [[trial.beliefs[fold] for fold in folds] for trial in trials]
    truths = [search.truth(trials[0], fold) for fold in folds]
    weights, rule, score = belief_weights(search.metric, members, truths)
    return Choice(_taken(trials, weights), rule, score)


def _of_answers(search: Search, trials: Sequence[Trial]) -> Choice:
    X: Any = search.X
    answers, worths, truths = [], [], []
    scores = [trial.score for trial in trials]
    for fold in sorted(trials[0].models):
        # Where no trial has beliefs none has rules.
        models = [with_decoder(trial.models[fold], cast("str | None", trial.decoder)) for trial in trials]
        answers.append([trial.answers[fold, trial.decoder] for trial in trials])
        worths.append(worth(search.metric, models, answers[-1], X[search.held_out(trials[0], fold)], scores))
        truths.append(search.truth(trials[0], fold))
    weights, score = mixture_weights(search.metric, worths, answers, truths)
    return Choice(_taken(trials, weights), None, score)


def _taken(trials: Sequence[Trial], weights: np.ndarray) -> list[tuple[Trial, float]]:
    return [(trial, float(weight)) for trial, weight in zip(trials, weights, strict=True) if weight > 0]
