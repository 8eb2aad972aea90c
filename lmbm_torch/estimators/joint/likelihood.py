"""Penalised maximum likelihood for the joint head.

The parameters are slopes and offsets of the log-odds, weights for the number of labels (count weights), and
weights of a network. Each structure starts from the one before: slope 1 and offset 0 leave the scores
unchanged; count weights start from 0; the conditional log-odds of a network start from the exact conditional
log-odds of the labels with count weights. A penalty is half the weight times the squared distance from the
start. With count weights, the likelihood sums over missing labels (NaN). Networks learn each label from the
rows where the label is known, with missing other labels drawn given the known labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import expit
from torch.nn.functional import logsigmoid

from lmbm_torch.energies import SequentialEnergy
from lmbm_torch.estimators.joint.counts import CountModel

# Penalty on count weights; it is small, because a few dozen rows determine count weights well.
COUNT_PENALTY = 1.0
# Relative decrease of the objective at which L-BFGS, and Newton's method, stop.
TOL, NEWTON_TOL = 1e-6, 1e-7
MAX_ITER = 200
# Largest number of Newton steps (about five are usual), and of halvings of a step.
NEWTON_STEPS, HALVINGS = 50, 20
# Number of draws of missing labels, to estimate the probability of known labels under networks.
DRAWS = 10


@dataclass(frozen=True, eq=False)
class Parameters:
    """A distribution of labellings given log-odds of single labels.

    Args:
        slope, offset: (labels,), slopes and offsets of the log-odds.
        count_weight: see :class:`~lmbm_torch.estimators.joint.counts.CountModel`; a single entry has no
            effect. orderings: (orders, labels), orders of the labels for an equal mixture of networks; (0,
            labels) for a distribution without networks.
        coef: (orders, labels, 2 labels + 2), for the label at each position in turn: the slope of the
            conditional log-odds under count weights, a slope for the log-odds of each label, a weight for the
            label at each position (0 at its own and later positions), and the offset.
    """

    slope: np.ndarray
    offset: np.ndarray
    count_weight: np.ndarray
    orderings: np.ndarray
    coef: np.ndarray

    @classmethod
    def unchanged(cls, labels: int, largest: int = 0) -> Parameters:
        """Return parameters that leave log-odds unchanged.

        Args:
            largest: K, see :class:`~lmbm_torch.estimators.joint.counts.CountModel`.
        """
        return cls(
            slope=np.ones(labels),
            offset=np.zeros(labels),
            count_weight=np.zeros(largest + 1),
            orderings=np.zeros((0, labels), np.int64),
            coef=np.zeros((0, labels, 2 * labels + 2)),
        )

    def counts(self, log_odds: np.ndarray) -> CountModel:
        """Return the distribution of each row under count weights, without networks."""
        return CountModel(log_odds * self.slope + self.offset, self.count_weight)

    def log_prob(self, log_odds: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return log P(labels), (rows,), for labels (rows, labels) in {0, 1, NaN}; NaN sums over a label.

        For networks the sum is estimated by draws of the missing labels under count weights.
        """
        model = self.counts(log_odds)
        if not len(self.orderings):
            return model.log_prob(labels)
        if not np.isnan(labels).any():
            return self._log_prob_of_networks(model, log_odds, labels)
        given, random = model.given(labels), np.random.default_rng(0)
        drawn = [given.drawn(random) for _ in range(DRAWS)]
        ratios = [self._log_prob_of_networks(model, log_odds, each) - model.log_prob(each) for each in drawn]
        return model.log_prob(labels) + np.logaddexp.reduce(ratios) - np.log(DRAWS)

    def _log_prob_of_networks(
        self, model: CountModel, log_odds: np.ndarray, labels: np.ndarray
    ) -> np.ndarray:
        members = []
        for ordering, coef in zip(self.orderings, self.coef, strict=True):
            ordered = labels[:, ordering].astype(float)
            parts = _features(model, ordering, log_odds, ordered)
            found = np.stack([each @ own for each, own in zip(parts, _cut(coef), strict=True)], 1)
            members.append(-np.logaddexp(0, np.where(ordered == 1, -found, found)).sum(1))
        return np.logaddexp.reduce(members) - np.log(len(members))

    def energies(self, log_odds: np.ndarray) -> list[SequentialEnergy]:
        """Return the members of the mixture as energies for searches; one member without networks."""
        model, (rows, labels) = self.counts(log_odds), log_odds.shape
        orderings, coef = self.orderings, self.coef
        if not len(orderings):
            orderings, coef = np.arange(labels)[None], np.zeros((1, labels, 2 * labels + 2))
            coef[:, :, 0] = 1
        return [
            _energy(model.conditional_log_odds(order), log_odds, order, own, rows)
            for order, own in zip(orderings, coef, strict=True)
        ]


def count_objective(
    packed: np.ndarray, log_odds: np.ndarray, labels: np.ndarray, weights: np.ndarray, penalty: float
) -> tuple[float, np.ndarray]:
    """Return the penalised negative log-likelihood under count weights, and the gradient.

    Args:
        packed: slopes, offsets and count weights in one vector.
        labels: (rows, labels) in {0, 1, NaN}.
        weights: (rows,).
        penalty: weight of the penalty on slopes and offsets.
    """
    num_labels = labels.shape[1]
    slope, offset, count_weight = np.split(packed, [num_labels, 2 * num_labels])
    model = CountModel(log_odds * slope + offset, count_weight)
    marginals, numbers, log_partition = model.moments()
    given, own, log_known = model.moments_given(labels)
    value = weights @ (log_partition - log_known)
    value += penalty * (((slope - 1) ** 2).sum() + (offset**2).sum()) / 2
    value += COUNT_PENALTY * (count_weight**2).sum() / 2
    residual = weights[:, None] * (marginals - given)
    gradient = [
        (residual * log_odds).sum(0) + penalty * (slope - 1),
        residual.sum(0) + penalty * offset,
        weights @ (numbers - own) + COUNT_PENALTY * count_weight,
    ]
    return value, np.concatenate(gradient)


def fit_counts(
    log_odds: np.ndarray, labels: np.ndarray, weights: np.ndarray, penalty: float, start: Parameters
) -> Parameters:
    """Return the slopes, offsets and count weights with the largest penalised likelihood.

    Args:
        start: the first point of the search; a single count weight has no effect.
    """
    chance = weights[:, None] * ~np.isnan(labels) * expit(log_odds) * expit(-log_odds)
    centre = (chance * log_odds).sum(0) / np.maximum(chance.sum(0), np.finfo(float).tiny)
    numbers = np.minimum(np.nansum(labels, 1).astype(int), len(start.count_weight) - 1)
    curvature = [
        (chance * (log_odds - centre) ** 2).sum(0) + penalty,
        chance.sum(0) + penalty,
        np.bincount(numbers, weights, len(start.count_weight)) / 4 + COUNT_PENALTY,
    ]
    unit = 1 / np.sqrt(np.concatenate(curvature))
    size = len(centre)

    # Slopes turn about the mean log-odds, and each parameter is scaled to a curvature of about 1: the search
    # then needs a third of the steps.
    def unpacked(scaled: np.ndarray) -> np.ndarray:
        packed = scaled * unit
        packed[size : 2 * size] -= packed[:size] * centre
        return packed

    def objective(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = count_objective(unpacked(scaled), log_odds, labels, weights, penalty)
        gradient[:size] -= gradient[size : 2 * size] * centre
        return value, gradient * unit

    first = np.concatenate([start.slope, start.offset + start.slope * centre, start.count_weight]) / unit
    options = {"maxiter": MAX_ITER, "ftol": TOL}
    found: Any = minimize(objective, first, jac=True, method="L-BFGS-B", options=options)
    slope, offset, count_weight = np.split(unpacked(found.x), [size, 2 * size])
    return replace(start, slope=slope, offset=offset, count_weight=count_weight)


def fit_network(
    log_odds: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    start: Parameters,
    orderings: np.ndarray,
    penalties: tuple[float, float, float],
) -> Parameters:
    """Return the networks with the largest penalised likelihood, one for each order.

    Args:
        start: slopes, offsets and count weights, which stay fixed; if there are networks of the same orders,
            the search starts from them.
        orderings: (orders, labels).
        penalties: weights of three penalties: on the slope and offset of the conditional log-odds under count
            weights, on the slopes of all log-odds, and on the weights of earlier labels.
    """
    own, cross, before = penalties
    model, num_labels = start.counts(log_odds), labels.shape[1]
    known = ~np.isnan(labels)
    if not known.all():
        labels = model.given(labels).drawn(np.random.default_rng(0))
    coef = np.zeros((len(orderings), num_labels, 2 * num_labels + 2))
    for order, ordering in enumerate(orderings):
        ordered = labels[:, ordering].astype(float)
        for position, features in enumerate(_features(model, ordering, log_odds, ordered)):
            penalty = np.concatenate([[own], np.full(num_labels, cross), np.full(position, before), [own]])
            prior = np.eye(1, len(penalty))[0]
            first = _cut(start.coef[order])[position] if len(start.orderings) else prior
            own_weights = weights * known[:, ordering[position]]
            found = logistic(features, ordered[:, position], own_weights, prior, penalty, first)
            coef[order, position, : num_labels + 1 + position] = found[:-1]
            coef[order, position, -1] = found[-1]
    return replace(start, orderings=orderings, coef=coef)


def logistic(
    features: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray,
    prior: np.ndarray,
    penalty: np.ndarray,
    start: np.ndarray,
) -> np.ndarray:
    """Fit a logistic regression by Newton's method; return the coefficients, which are shrunk to ``prior``.

    Args:
        features: (rows, features).
        target: (rows,) in {0, 1}.
        weights: (rows,).
        prior: (features,), the value to which each coefficient is shrunk.
        penalty: (features,), weight of the squared distance from ``prior``.
        start: (features,), the first point of the search.
    """

    def value(coef: np.ndarray) -> float:
        fields = features @ coef
        loss = weights @ (np.logaddexp(0, fields) - target * fields)
        return float(loss + (penalty * (coef - prior) ** 2).sum() / 2)

    coef, before = start, value(start)
    for _ in range(NEWTON_STEPS):
        chance = expit(features @ coef)
        gradient = features.T @ (weights * (chance - target)) + penalty * (coef - prior)
        curvature = (features * (weights * chance * (1 - chance))[:, None]).T @ features + np.diag(penalty)
        step = cho_solve(cho_factor(curvature), gradient)
        decrease = float(gradient @ step)
        if decrease <= NEWTON_TOL * max(1.0, before):
            break
        for halving in range(HALVINGS):
            after = value(coef - step / 2**halving)
            # Armijo's condition: a small enough step satisfies it, because the objective is convex.
            if after <= before - decrease / 2**halving / 4:
                coef, before = coef - step / 2**halving, after
                break
        else:
            break
    return coef


def _features(
    model: CountModel, ordering: np.ndarray, log_odds: np.ndarray, ordered: np.ndarray
) -> list[np.ndarray]:
    """Return for each position the inputs of the label's regression, (rows, 2 + labels + position).

    Args:
        ordered: (rows, labels), the labels in the order of ``ordering``.
    """
    table = model.conditional_log_odds(ordering)
    rows, last = np.arange(len(ordered)), table.shape[1] - 1
    numbers = np.minimum(np.cumsum(ordered, 1) - ordered, last).astype(int)
    ones = np.ones((len(ordered), 1))
    return [
        np.hstack([table[t, numbers[:, t], rows][:, None], log_odds, ordered[:, :t], ones])
        for t in range(len(ordering))
    ]


def _cut(coef: np.ndarray) -> list[np.ndarray]:
    """Split coefficients (labels, 2 labels + 2) by position, without the weights of later labels."""
    labels = len(coef)
    return [np.append(own[: labels + 1 + position], own[-1]) for position, own in enumerate(coef)]


def _energy(
    table: np.ndarray, log_odds: np.ndarray, ordering: np.ndarray, coef: np.ndarray, rows: int
) -> SequentialEnergy:
    labels, last = len(ordering), table.shape[1] - 1
    tables, weights = torch.from_numpy(table), torch.from_numpy(coef)
    fixed = torch.from_numpy(log_odds @ coef[:, 1 : labels + 1].T + coef[:, -1])

    def conditional(position: int, rows: torch.Tensor, earlier: torch.Tensor) -> torch.Tensor:
        number = earlier.sum(1).clamp(max=last)
        by_number = weights[position, 0] * tables[position, number, rows]
        by_labels = earlier.double() @ weights[position, labels + 1 : labels + 1 + position]
        field = by_number + by_labels + fixed[rows, position]
        return logsigmoid(torch.stack([-field, field], 1))

    return SequentialEnergy(rows, (2,) * labels, tuple(ordering.tolist()), conditional)
