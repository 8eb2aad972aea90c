"""Convex mixtures of fitted classifiers: by mean probabilities, or by a choice among the predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from lmbm_torch.estimators.automatic.beliefs import Beliefs, marginals
from lmbm_torch.estimators.automatic.candidates import with_decoder
from lmbm_torch.estimators.automatic.rules import Rule, best_thresholds, held_out_thresholds, rules_for
from lmbm_torch.estimators.automatic.search import Search, Trial
from lmbm_torch.estimators.common.measures import agreement, measure

# Number of steps of the greedy choice of weights; each step adds a member, also one added before.
MAX_ADDED = 8
# Members whose score is within this many standard errors of the best score are treated as equally good.
AS_GOOD = 2.0
# Metrics for which a threshold for each label, chosen by the label's F1, may be better than a common one.
OF_SINGLE_LABELS = {"macro_f1"}

Worth = np.ndarray
"""Array with the metric that member i expects for member j's prediction for instance n in entry (i, j, n)."""


def worth(
    metric: str, models: Sequence[Any], answers: Sequence[np.ndarray], X: Any, scores: Sequence[float]
) -> Worth:
    """Return the metric that each model expects for each model's predictions, (models, models, instances).

    For exact match the value is the prediction's probability under the model; a model without probabilities
    expects its held-out score for predictions equal to its own, and 0 for different ones. For other metrics
    the value is the agreement of the prediction with the model's own prediction.

    Args:
        models: fitted pipelines.
        answers: predicted labels (instances, labels) of each model.
        scores: the metric's value for each model over held-out instances.
    """
    own = [np.array([agreement(metric, mine, each) for each in answers]) for mine in answers]
    if metric != "exact_match":
        return np.array(own)
    return np.array(
        [
            _probability(model, answers, X) if hasattr(model[-1], "log_prob") else score * agrees
            for model, score, agrees in zip(models, scores, own, strict=True)
        ]
    )


def _probability(model: Any, answers: Sequence[np.ndarray], X: Any) -> np.ndarray:
    rows = model[:-1].transform(X)
    return np.array([np.exp(model[-1].log_prob(rows, answer)) for answer in answers])


def chosen(weights: np.ndarray, worths: Worth, answers: Sequence[np.ndarray]) -> np.ndarray:
    """Return for each instance the prediction with the largest weighted mean of expected metrics.

    Args:
        weights: (members,), the members' weights; among equal means the heavier member's prediction is taken.
    """
    mixed = np.einsum("m,man->an", weights, worths)
    mixed[weights == 0] = -np.inf
    order = np.argsort(-weights, kind="stable")
    best = order[mixed[order].round(12).argmax(0)]
    return np.stack(list(answers))[best, np.arange(len(best))]


def mixture_weights(
    metric: str,
    worths: Sequence[Worth],
    answers: Sequence[Sequence[np.ndarray]],
    truths: Sequence[np.ndarray],
) -> tuple[np.ndarray, float]:
    """Return the members' weights for :func:`chosen`, and the metric's value for the mixture.

    Args:
        worths, answers, truths: for each fold the expected metrics, the predictions and the true labels.
    """
    truth = np.concatenate(truths)

    def value(weights: np.ndarray) -> float:
        found = [chosen(weights, each, answer) for each, answer in zip(worths, answers, strict=True)]
        return measure(metric, np.concatenate(found), truth)

    return _ascended(value, len(answers[0]), len(truth))


def belief_weights(
    metric: str, members: Sequence[Sequence[Beliefs]], truths: Sequence[np.ndarray]
) -> tuple[np.ndarray, Rule, float]:
    """Return the weights for averaging the members' probabilities, the decision rule, and the metric's value.

    Each label has a separate threshold if separate thresholds are better than a common threshold on folds
    from which the thresholds were not learned.

    Args:
        metric: name of the metric to maximise.
        members: for each member the probabilities in each fold.
        truths: the true labels in each fold.
    """
    truth = np.concatenate(truths)
    whole = [np.concatenate(member) for member in members]
    rules = rules_for(metric, truth.shape[1])

    def best_rule(weights: np.ndarray) -> tuple[float, Rule]:
        mixed = pooled(weights, whole)
        values = [measure(metric, rule.measured(mixed), truth) for rule in rules]
        return max(values), rules[int(np.argmax(values))]

    weights, value = _ascended(lambda weights: best_rule(weights)[0], len(members), len(truth))
    _, rule = best_rule(weights)
    if metric in OF_SINGLE_LABELS and len(truths) > 1:
        sizes = np.cumsum([len(each) for each in truths])[:-1]
        parts = np.split(marginals(pooled(weights, whole)), sizes)
        held_out = measure(metric, np.concatenate(held_out_thresholds(parts, truths)), truth)
        if held_out > value:
            rule, value = best_thresholds(np.concatenate(parts), truth), held_out
    return weights, rule, value


def pooled(weights: np.ndarray, members: Sequence[Beliefs]) -> Beliefs:
    """Return the mixture's beliefs P(y_i = 1, |y| = s): the weighted mean of the members' beliefs."""
    mixed = np.zeros(members[0].shape)
    for weight, each in zip(weights, members, strict=True):
        mixed += weight * each
    return mixed


def standard_error(score: float, count: int) -> float:
    """Return the standard error of a share of ``count`` instances; for other metrics an approximation."""
    return float(np.sqrt(max(score * (1 - score), 0.0) / count))


def _ascended(value: Callable[[np.ndarray], float], members: int, instances: int) -> tuple[np.ndarray, float]:
    """Maximise ``value`` over mixture weights by greedy selection (Caruana et al. 2004).

    The first mixture holds all members within two standard errors of the best value. Each step adds the
    member with which the mixture has the largest value. Return the weights and value of the best mixture
    found; or of the best single member, if better by more than a standard error.

    Args:
        instances: number of instances from which ``value`` is computed.
    """
    alone = np.array([value(member) for member in np.eye(members)])
    error = standard_error(alone.max(), instances)
    counts = (alone >= alone.max() - AS_GOOD * error).astype(float)
    weights, best = counts / counts.sum(), value(counts / counts.sum())
    for _ in range(MAX_ADDED):
        trials = counts + np.eye(members)
        values = np.array([value(trial / trial.sum()) for trial in trials])
        # Among equally good members add the least used: a new member may make later additions useful.
        equal = values == values.max()
        counts = trials[int(np.where(equal, counts, np.inf).argmin())]
        if values.max() > best:
            weights, best = counts / counts.sum(), float(values.max())
    if alone.max() > best + error:
        return np.eye(members)[alone.argmax()], float(alone.max())
    return weights, best


@dataclass(frozen=True)
class Choice:
    """The chosen mixture, whose members are then trained on all instances.

    Args:
        members: pairs of a trial and its positive weight; weights sum to 1.
        rule: decision rule that chooses labels from the mean probabilities; None to choose among predictions.
        score: cross-validated value of the metric.
    """

    members: list[tuple[Trial, float]]
    rule: Rule | None
    score: float


def choose(search: Search, trials: Sequence[Trial]) -> Choice:
    """Return a mixture of the trials, or only the best trial if better by more than a standard error.

    Args:
        trials: the trials, best first, all fitted to the same folds.
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
        # Here each trial's decoder is a text or None, because without probabilities there are no rules.
        models = [with_decoder(trial.models[fold], cast("str | None", trial.decoder)) for trial in trials]
        answers.append([trial.answers[fold, trial.decoder] for trial in trials])
        worths.append(worth(search.metric, models, answers[-1], X[search.held_out(trials[0], fold)], scores))
        truths.append(search.truth(trials[0], fold))
    weights, score = mixture_weights(search.metric, worths, answers, truths)
    return Choice(_taken(trials, weights), None, score)


def _taken(trials: Sequence[Trial], weights: np.ndarray) -> list[tuple[Trial, float]]:
    return [(trial, float(weight)) for trial, weight in zip(trials, weights, strict=True) if weight > 0]
