"""A convex mixture of fitted classifiers: of their answers, the one that all expect most of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lmbm_torch.estimators.measures import agreement, measure

# Members are added so often; one may be added again.
MAX_ADDED = 8

Worth = np.ndarray
"""(members, members, instances): what each member expects of the answer of each."""


def worth(metric: str, models: Sequence[Any], answers: Sequence[np.ndarray], X: Any) -> Worth:
    """The expected metric of each answer, model by model.

    Of exact match that is the answer's probability, where all models have probabilities; otherwise by how
    much the answer agrees with the model's own.

    Args:
        models: pipelines.
        answers: (instances, labels), of each model.
    """
    if metric == "exact_match" and all(hasattr(model[-1], "log_prob") for model in models):
        scaled = [model[:-1].transform(X) for model in models]
        return np.array(
            [
                [np.exp(model[-1].log_prob(rows, answer)) for answer in answers]
                for model, rows in zip(models, scaled, strict=True)
            ]
        )
    return np.array([[agreement(metric, own, answer) for answer in answers] for own in answers])


def chosen(weights: np.ndarray, worths: Worth, answers: Sequence[np.ndarray]) -> np.ndarray:
    """For each instance the answer of largest mixed worth, of equals the heavier member's.

    Args:
        weights: (members,).
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
    """Weights of the members (Caruana et al. 2004), and the measure of their mixture.

    The best member is taken first; then, again and again, the one with which the measure over the instances
    held out is largest. The best mixture on the way is the answer, of equal ones the first.

    Args:
        worths, answers, truths: of each fold.
    """
    truth = np.concatenate(truths)

    def value(weights: np.ndarray) -> float:
        found = [chosen(weights, each, answer) for each, answer in zip(worths, answers, strict=True)]
        return measure(metric, np.concatenate(found), truth)

    counts = np.zeros(len(answers[0]))
    weights, best = counts, -np.inf
    for _ in range(MAX_ADDED):
        trials = counts + np.eye(len(counts))
        values = np.array([value(trial / trial.sum()) for trial in trials])
        # Of equally good ones a new member, with which others may rise in the next step.
        equal = values == values.max()
        counts = trials[int(np.where(equal, counts, np.inf).argmin())]
        if values.max() > best:
            weights, best = counts / counts.sum(), float(values.max())
    return weights, best
