"""Labels that depend on each other only by a weight for the number: exact sums and exact decoding.

A labelling y has the probability P(y) ∝ exp(Σ_l fields_l y_l + count_weight[min(|y|, K)]); |y| is the number
of labels with value 1, and K the last index of ``count_weight``. Sums are computed label after label, with
min(|y|, K) as the state, as for elementary symmetric polynomials; sums over hundreds of labels are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from lmbm_torch.memory import part_bytes

Gain = Callable[[int, np.ndarray, np.ndarray, int], np.ndarray]
"""A measure: a function of answer's size, number of common labels, truth's size, and number of all labels."""

# Total probability of the largest label sets that expected measures ignore: below the rounding of the sums.
MASS_LEFT = 1e-12
# Log-odds of known labels, so large that the probabilities are exactly 1 or 0.
CERTAIN = 1e3
# Number of bytes for tables; rows are processed in chunks of this size.
CHUNK_BYTES = 2**27


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
    """A distribution of labellings for each row, with a weight for every number of labels.

    Args:
        fields: log-odds of each label if all count weights are 0, (rows, labels).
        count_weight: log-potentials of 0, 1, …, K labels, (K + 1,); the last entry is for K or more labels.
    """

    fields: np.ndarray
    count_weight: np.ndarray

    def log_partition(self) -> np.ndarray:
        """Return log Σ_y exp(score(y)), (rows,)."""
        total = np.concatenate([np.log(part._suffixes()[0, 0]) for part in self._parts()])
        return np.logaddexp(0, self.fields).sum(1) + total + self.count_weight.max()

    def log_prob(self, labels: np.ndarray) -> np.ndarray:
        """Return log P(labels), (rows,), for labels (rows, labels) in {0, 1, NaN}; NaN sums over a label."""
        missing = np.isnan(labels)
        if missing.any():
            return self.moments_given(labels)[2] - self.log_partition()
        counts = np.minimum(labels.sum(1).astype(int), len(self.count_weight) - 1)
        return (self.fields * labels).sum(1) + self.count_weight[counts] - self.log_partition()

    def given(self, labels: np.ndarray) -> CountModel:
        """Return the distributions given known labels (rows, labels) in {0, 1}, with NaN for other labels."""
        known = np.where(labels == 1, CERTAIN, -CERTAIN)
        return CountModel(np.where(np.isnan(labels), self.fields, known), self.count_weight)

    def moments_given(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return :meth:`moments` over labellings that agree with labels (rows, labels) in {0, 1, NaN}."""
        on, missing = labels == 1, np.isnan(labels)
        score = np.where(on, self.fields, 0).sum(1)
        if not missing.any():
            counts = np.minimum(on.sum(1), len(self.count_weight) - 1)
            return labels, np.eye(len(self.count_weight))[counts], score + self.count_weight[counts]
        marginals, numbers, total = self.given(labels).moments()
        return marginals, numbers, total - CERTAIN * on.sum(1) + score

    def drawn(self, random: np.random.Generator) -> np.ndarray:
        """Draw a labelling for each row, (rows, labels) in {0, 1}, as float64."""
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
        """Return the most probable labelling of each row, (rows, labels); among equals, the smallest set."""
        order = np.argsort(-self.fields, axis=1, kind="stable")
        sums = np.cumsum(np.take_along_axis(self.fields, order, 1), 1)
        sizes = np.minimum(np.arange(self.fields.shape[1] + 1), len(self.count_weight) - 1)
        scores = np.hstack([np.zeros((len(sums), 1)), sums]) + self.count_weight[sizes]
        return _first(order, scores.argmax(1))

    def best(self, measure: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the labellings with the largest expected measure, (rows, labels), and the values, (rows,).

        The best answer with m labels consists of the m labels with the largest fields. This holds for every
        measure that depends only on the sizes of answer, truth and intersection, and grows with the
        intersection: if a swap of a label for one with a smaller field gains on one labelling, it loses as
        much on a more probable labelling (Lewis 1995 for independent labels). For each m the expected measure
        is a sum over two numbers: of true labels inside the answer, and outside.

        Args:
            measure: ``"f1"``, ``"jaccard"`` or ``"hamming"``.
        """
        found = [part._best(GAINS[measure]) for part in self._parts()]
        labels, worth = map(np.concatenate, zip(*found, strict=True))
        return labels, worth

    def _parts(self) -> Iterator[CountModel]:
        """Yield chunks of rows whose tables fit into memory."""
        rows, labels = self.fields.shape
        step = max(1, part_bytes(CHUNK_BYTES) // (8 * (labels + 1) * len(self.count_weight)))
        for first in range(0, max(rows, 1), step):
            yield CountModel(self.fields[first : first + step], self.count_weight)

    def _weights(self) -> np.ndarray:
        return np.exp(self.count_weight - self.count_weight.max())

    def _suffixes(self) -> np.ndarray:
        """Return E[weight of the number of labels | k labels before t], (labels + 1, K + 1, rows).

        For entry (t, k), k of the labels before t are 1, and labels from t on are independent by their
        fields.
        """
        rows, labels = self.fields.shape
        on, off = expit(self.fields.T), expit(-self.fields.T)
        tables = np.empty((labels + 1, len(self.count_weight), rows))
        tables[labels] = self._weights()[:, None]
        for label in reversed(range(labels)):
            after = tables[label + 1]
            # off · a + on · b is computed as it stands: a + on · (b − a) would lose small terms.
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
        # P(number of labels) for independent labels; numbers above ``most`` have almost no probability.
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
    """Return P(number of labels), (numbers, rows), after one more independent label.

    Args:
        on, off: probability of the label and of the absence, (rows,).
        drop: whether numbers above the last index are dropped; otherwise the last index counts them.
    """
    found, moved = counts * off, counts * on
    found[1:] += moved[:-1]
    if not drop:
        found[-1] += moved[-1]
    return found


def _first(order: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return labellings (rows, labels) with the first ``size`` (rows,) labels of ``order`` (rows, labels)."""
    found = np.zeros(order.shape, np.int64)
    np.put_along_axis(found, order, np.arange(order.shape[1]) < size[:, None], 1)
    return found
