"""Penalised maximum likelihood for the joint head.

The parameters are slopes and offsets of the log-odds, a weight for each number of present labels (count
weights), and weights of networks. Slopes start from 1 and offsets from 0, which leaves the scores unchanged;
count weights start from 0; networks start from the distribution with count weights. The penalty is half a
constant times the squared distance from these starting values. With count weights, the likelihood sums over
missing labels (NaN). Networks learn each label from the rows where the label is known; other labels that are
missing in these rows are drawn given the known labels.

Without networks, a labelling (vector of labels) y has the probability P(y) ∝ exp(Σ_l fields_l y_l +
count_weight[min(|y|, K)]), where |y| is the number of labels with value 1, and K the last index of
``count_weight``. All sums and the decoding are exact, also for hundreds of labels: sums are computed label
after label, with min(|y|, K) as the state, as for elementary symmetric polynomials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import expit
from torch.nn.functional import logsigmoid

from lmbm_torch.energies import SequentialEnergy
from lmbm_torch.memory import part_bytes

Gain = Callable[[int, np.ndarray, np.ndarray, int], np.ndarray]
"""A metric computed from the sizes of prediction, intersection and truth, and the number of all labels."""

# Expected metrics ignore the largest numbers of labels, if more labels have at most this probability.
MASS_LEFT = 1e-12
# Known labels get this log-odds or its negative, so large that the probabilities are exactly 1 or 0.
CERTAIN = 1e3
# Memory, in bytes, for tables of sums; rows are processed in chunks of this size.
CHUNK_BYTES = 2**27


# Penalty on count weights: small, because a few dozen rows are enough to learn count weights well.
COUNT_PENALTY = 1.0
# L-BFGS (TOL) and Newton's method (NEWTON_TOL) stop when the objective decreases relatively by less.
TOL, NEWTON_TOL = 1e-6, 1e-7
# Largest number of iterations of L-BFGS.
MAX_ITER = 200
# Largest number of Newton steps (about five are usual), and of halvings of a step in the line search.
NEWTON_STEPS, HALVINGS = 50, 20
# Number of samples of the missing labels in the estimate of P(known labels) under networks.
DRAWS = 10


def _f1(size: int, both: np.ndarray, true: np.ndarray, labels: int) -> np.ndarray:
    return np.where(size + true == 0, 1.0, 2 * both / np.maximum(size + true, 1))


def _jaccard(size: int, both: np.ndarray, true: np.ndarray, labels: int) -> np.ndarray:
    union = size + true - both
    return np.where(union == 0, 1.0, both / np.maximum(union, 1))


def _hamming(size: int, both: np.ndarray, true: np.ndarray, labels: int) -> np.ndarray:
    return 1 - (size + true - 2 * both) / labels


GAINS: dict[str, Gain] = {"f1": _f1, "jaccard": _jaccard, "hamming": _hamming}


@dataclass(frozen=True, eq=False)
class CountModel:
    """A distribution of label vectors for each row, with a weight for each number of present labels.

    Args:
        fields: log-odds of each label if all count weights are 0, (rows, labels).
        count_weight: log-potentials of 0, 1, …, K present labels, (K + 1,); the last is for K or more.
    """

    fields: np.ndarray
    count_weight: np.ndarray

    def log_partition(self) -> np.ndarray:
        """Return the log partition function of each row, log Σ_y exp(score(y)), (rows,)."""
        total = np.concatenate([np.log(part._suffixes()[0, 0]) for part in self._parts()])
        return np.logaddexp(0, self.fields).sum(1) + total + self.count_weight.max()

    def log_prob(self, labels: np.ndarray) -> np.ndarray:
        """Return log P(labels), (rows,), for (rows, labels) in {0, 1, NaN}, summed over missing labels."""
        missing = np.isnan(labels)
        if missing.any():
            return self.moments_given(labels)[2] - self.log_partition()
        counts = np.minimum(labels.sum(1).astype(int), len(self.count_weight) - 1)
        return (self.fields * labels).sum(1) + self.count_weight[counts] - self.log_partition()

    def given(self, labels: np.ndarray) -> CountModel:
        """Condition the distribution on known labels, (rows, labels) in {0, 1} and NaN for unknown labels."""
        known = np.where(labels == 1, CERTAIN, -CERTAIN)
        return CountModel(np.where(np.isnan(labels), self.fields, known), self.count_weight)

    def moments_given(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return :meth:`moments` given known labels, (rows, labels) in {0, 1} and NaN for unknown labels."""
        on, missing = labels == 1, np.isnan(labels)
        score = np.where(on, self.fields, 0).sum(1)
        if not missing.any():
            counts = np.minimum(on.sum(1), len(self.count_weight) - 1)
            return labels, np.eye(len(self.count_weight))[counts], score + self.count_weight[counts]
        marginals, numbers, total = self.given(labels).moments()
        return marginals, numbers, total - CERTAIN * on.sum(1) + score

    def drawn(self, random: np.random.Generator) -> np.ndarray:
        """Sample a label vector for each row, (rows, labels) in {0, 1}, as float64."""
        parts = []
        for part in self._parts():
            logs, rows = np.log(part._suffixes()[1:]), np.arange(len(part.fields))
            number, labels = np.zeros(len(rows), np.int64), np.empty(part.fields.shape)
            for label, chance in enumerate(random.random(part.fields.shape).T):
                more = np.minimum(number + 1, len(self.count_weight) - 1)
                odds = part.fields[:, label] + logs[label, more, rows] - logs[label, number, rows]
                labels[:, label] = chance < expit(odds)
                number = np.where(labels[:, label] == 1, more, number)
            parts.append(labels)
        return np.concatenate(parts)

    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return marginals (rows, labels), P(min(|y|, K) = k) (rows, K + 1) and log partitions (rows,)."""
        marginals, counts, totals = map(
            np.concatenate, zip(*(part._moments() for part in self._parts()), strict=True)
        )
        return marginals, counts, np.logaddexp(0, self.fields).sum(1) + totals + self.count_weight.max()

    def conditional_log_odds(self, ordering: np.ndarray) -> np.ndarray:
        """Return the log-odds of each label given the number of earlier labels, (labels, K + 1, rows).

        Entry (t, k, i) belongs to label ``ordering[t]`` in row i if min(earlier labels of value 1, K) = k.
        """
        ordered = CountModel(self.fields[:, ordering], self.count_weight)
        logs = np.log(ordered._suffixes()[1:])
        return ordered.fields.T[:, None] + np.concatenate([logs[:, 1:], logs[:, -1:]], 1) - logs

    def most_probable(self) -> np.ndarray:
        """Return the most probable labels, (rows, labels); among equally probable ones, the fewest labels."""
        order = np.argsort(-self.fields, axis=1, kind="stable")
        sums = np.cumsum(np.take_along_axis(self.fields, order, 1), 1)
        sizes = np.minimum(np.arange(self.fields.shape[1] + 1), len(self.count_weight) - 1)
        scores = np.hstack([np.zeros((len(sums), 1)), sums]) + self.count_weight[sizes]
        return _first(order, scores.argmax(1))

    def best(self, measure: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels with the largest expected metric, (rows, labels), and the maximum, (rows,).

        The best prediction with m labels consists of the m labels with the largest fields, if the metric only
        depends on the sizes of prediction, truth and intersection, and grows with the intersection: where
        replacing a label by one with a smaller field is a gain for one truth, it is an equal loss for a more
        probable truth (Lewis 1995 for independent labels). For each m the expected metric is a sum over two
        numbers: of true labels in the prediction, and of true labels outside.

        Args:
            measure: ``"f1"``, ``"jaccard"`` or ``"hamming"``.
        """
        found = [part._best(GAINS[measure]) for part in self._parts()]
        labels, worth = map(np.concatenate, zip(*found, strict=True))
        return labels, worth

    def _parts(self) -> Iterator[CountModel]:
        """Yield the distributions in chunks of rows, so tables of sums fit into memory."""
        rows, labels = self.fields.shape
        step = max(1, part_bytes(CHUNK_BYTES) // (8 * (labels + 1) * len(self.count_weight)))
        for first in range(0, max(rows, 1), step):
            yield CountModel(self.fields[first : first + step], self.count_weight)

    def _weights(self) -> np.ndarray:
        return np.exp(self.count_weight - self.count_weight.max())

    def _suffixes(self) -> np.ndarray:
        """Return E[exp(count weight of |y|) | k of the labels before t are 1], (labels + 1, K + 1, rows).

        In the expectation of entry (t, k), labels from t on are independent with the log-odds ``fields``.
        The weights are divided by the largest one.
        """
        rows, labels = self.fields.shape
        on, off = expit(self.fields.T), expit(-self.fields.T)
        tables = np.empty((labels + 1, len(self.count_weight), rows))
        tables[labels] = self._weights()[:, None]
        for label in reversed(range(labels)):
            after = tables[label + 1]
            # Compute off · a + on · b term by term, because a + on · (b − a) would lose small terms.
            np.multiply(after, off[label], out=tables[label])
            tables[label, :-1] += on[label] * after[1:]
            tables[label, -1] += on[label] * after[-1]
        return tables

    def _moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        on, off = expit(self.fields.T), expit(-self.fields.T)
        if len(self.count_weight) == 1:
            return on.T, np.ones((on.shape[1], 1)), np.zeros(on.shape[1])
        tables = self._suffixes()
        total = tables[0, 0]
        before = np.zeros_like(tables[0])
        before[0] = 1
        marginals = np.empty_like(on)
        for label in range(len(on)):
            after = tables[label + 1]
            mass = np.einsum("kr,kr->r", before[:-1], after[1:]) + before[-1] * after[-1]
            marginals[label] = on[label] * mass / total
            before = _added(before, on[label], off[label])
        return marginals.T, (before * tables[-1] / total).T, np.log(total)

    def _best(self, gain: Gain) -> tuple[np.ndarray, np.ndarray]:
        rows, labels = self.fields.shape
        order = np.argsort(-self.fields, axis=1, kind="stable")
        fields = np.take_along_axis(self.fields, order, 1).T
        on, off = expit(fields), expit(-fields)
        weights = self._weights()[np.minimum(np.arange(labels + 1), len(self.count_weight) - 1)]
        # P(number of labels) without count weights; with the weights, numbers above ``most`` are negligible.
        counts = np.eye(labels + 1, 1) * np.ones(rows)
        for label in range(labels):
            counts = _added(counts, on[label], off[label])
        mass = counts * weights[:, None]
        total = mass.sum(0)
        tail = (mass[::-1].cumsum(0)[::-1] / total).max(1)
        most = int((tail > MASS_LEFT).sum()) - 1
        others = [np.eye(most + 1, 1) * np.ones(rows)]
        for label in reversed(range(labels)):
            others.append(_added(others[-1], on[label], off[label], drop=True))
        own, worth = others[0], np.empty((labels + 1, rows))
        both, rest = np.arange(most + 1)[:, None], np.arange(most + 1)
        true = both + rest
        allowed = np.where(true <= most, weights[np.minimum(true, labels)], 0)
        for size in range(labels + 1):
            values = allowed * gain(size, both, true, labels)
            worth[size] = (own * (values @ others[labels - size])).sum(0) / total
            if size < labels:
                own = _added(own, on[size], off[size], drop=True)
        return _first(order, worth.argmax(0)), worth.max(0)


def _added(counts: np.ndarray, on: np.ndarray, off: np.ndarray, *, drop: bool = False) -> np.ndarray:
    """Update P(number of present labels), (numbers, rows), for one more independent label.

    Args:
        on, off: probabilities that the label is present and absent, (rows,).
        drop: whether larger numbers than the last index are dropped; otherwise the last entry includes them.
    """
    found, moved = counts * off, counts * on
    found[1:] += moved[:-1]
    if not drop:
        found[-1] += moved[-1]
    return found


def _first(order: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return label vectors in which the first ``size`` labels of ``order`` are present in each row."""
    found = np.zeros(order.shape, np.int64)
    np.put_along_axis(found, order, np.arange(order.shape[1]) < size[:, None], 1)
    return found


@dataclass(frozen=True, eq=False)
class Parameters:
    """The parameters of a joint head: a distribution of label vectors given log-odds of single labels.

    Args:
        slope, offset: (labels,), slopes and offsets of the log-odds.
        count_weight: (K + 1,), count weights as in :class:`CountModel`; a single entry has no effect.
        orderings: (orders, labels), the order of the labels in each network of an equally weighted mixture;
            (0, labels) for a distribution without networks.
        coef: (orders, labels, 2 labels + 2), the regression of the label at each position: the slope of the
            conditional log-odds under count weights, a slope for the log-odds of each label, a weight for the
            label at each position (0 for positions that are not earlier), and the offset.
    """

    slope: np.ndarray
    offset: np.ndarray
    count_weight: np.ndarray
    orderings: np.ndarray
    coef: np.ndarray

    @classmethod
    def unchanged(cls, labels: int, largest: int = 0) -> Parameters:
        """Return parameters that leave log-odds unchanged, without networks.

        Args:
            largest: K, the largest number of present labels with a count weight of its own.
        """
        return cls(
            slope=np.ones(labels),
            offset=np.zeros(labels),
            count_weight=np.zeros(largest + 1),
            orderings=np.zeros((0, labels), np.int64),
            coef=np.zeros((0, labels, 2 * labels + 2)),
        )

    def counts(self, log_odds: np.ndarray) -> CountModel:
        """Return the distribution of each row with slopes, offsets and count weights, without networks."""
        return CountModel(log_odds * self.slope + self.offset, self.count_weight)

    def log_prob(self, log_odds: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return log P(labels), (rows,), for (rows, labels) in {0, 1, NaN}, summed over missing labels.

        For networks the sum is estimated from samples of the missing labels under count weights.
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
        """Return an energy for each network of the mixture, for decoding; without networks, one energy."""
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
    """Return the penalised negative log-likelihood without networks, and its gradient.

    Args:
        packed: slopes, offsets and count weights in one vector.
        labels: (rows, labels) in {0, 1, NaN}, the true labels.
        weights: (rows,), sample weights.
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
    """Fit the slopes, offsets and count weights by penalised maximum likelihood.

    Args:
        start: the parameters from which L-BFGS starts; the number of count weights is kept.
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

    # Centre the log-odds at their means and scale each parameter to a curvature of about 1: then L-BFGS needs
    # only a third of the steps.
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
    """Fit a network for each order of the labels by penalised maximum likelihood.

    Args:
        start: slopes, offsets and count weights, which stay fixed; if ``start`` has networks (of the same
            orders), the search starts from these networks.
        orderings: (orders, labels), the order of the labels in each network.
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
        features: (rows, features), the inputs.
        target: (rows,) in {0, 1}, the outputs.
        weights: (rows,), sample weights.
        prior: (features,), the value to which each coefficient is shrunk.
        penalty: (features,), weight of the squared distance from ``prior``.
        start: (features,), the coefficients before the first step.
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
            # Armijo's condition, which a small enough step along a descent direction satisfies.
            if after <= before - decrease / 2**halving / 4:
                coef, before = coef - step / 2**halving, after
                break
        else:
            break
    return coef


def _features(
    model: CountModel, ordering: np.ndarray, log_odds: np.ndarray, ordered: np.ndarray
) -> list[np.ndarray]:
    """Return for each position the features of the label's regression, (rows, 2 + labels + position).

    Args:
        ordered: (rows, labels), the true labels, with columns in the order of ``ordering``.
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
    """Split ``coef`` (labels, 2 labels + 2) into a vector for each position; drop weights of later labels."""
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
