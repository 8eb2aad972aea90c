"""Confidence intervals of the metrics of a report, by bootstrap samples of the rows."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from lmbm_torch.shapes import Float, Int

LEVEL = 0.95
NUM_RESAMPLES = 1000
# Largest number of units that the bootstrap draws: more rows are put into so many random groups of about
# equal size, and groups are drawn. The sums have the same variance.
MAX_GROUPS = 5000
SEED = 0


def intervals(
    given: Int[Tensor, "rows labels"], truth: Int[Tensor, "rows labels"]
) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each headline metric: percentiles of 1,000 bootstrap samples of the rows.

    Every call draws the same samples. Rows count as independent; the interval does not cover the variation
    between trainings, and has no width if all rows are equal.

    Args:
        given, truth: labels in {0, 1}.

    Returns:
        Both ends of the interval for ``exact_match``, ``hamming_loss``, ``sample_f1``, ``macro_f1``,
        ``micro_f1`` and ``jaccard_index``.
    """
    random = np.random.default_rng(SEED)
    sums = _Sums.of(given, truth, random)
    drawn = metrics_of(sums.drawn(random))
    tail = 50 * (1 - LEVEL)
    ends = {name: np.percentile(values, [tail, 100 - tail]) for name, values in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


class _Sums:
    """Sums over each group of rows, from which the metrics are computed.

    Args:
        of_rows: (groups, 7), sums over rows of: 1, exact match, share of wrong decisions, F1, Jaccard index,
            number of labels both true and given, number of true labels plus number of given labels.
        both, either: (groups, labels), the last two numbers for each label.
    """

    def __init__(
        self,
        of_rows: Float[np.ndarray, "groups 7"],
        both: Float[np.ndarray, "groups labels"],
        either: Float[np.ndarray, "groups labels"],
    ) -> None:
        self.of_rows, self.both, self.either = of_rows, both, either

    @classmethod
    def of(cls, given: Tensor, truth: Tensor, random: np.random.Generator) -> _Sums:
        """Return the sums for given and true labels; if rows are grouped, the groups are random."""
        found, wanted = (labels.bool().cpu().numpy() for labels in (given, truth))
        both, either = (found & wanted).astype(np.float64), found.astype(np.float64) + wanted
        in_both, in_either = both.sum(1), either.sum(1)
        # Rows without true and without given labels count as right.
        f1 = np.where(in_either == 0, 1.0, 2 * in_both / np.maximum(in_either, 1))
        union = in_either - in_both
        jaccard = np.where(union == 0, 1.0, in_both / np.maximum(union, 1))
        wrong = (found != wanted).mean(1)
        of_rows = np.stack([np.ones(len(f1)), wrong == 0, wrong, f1, jaccard, in_both, in_either], 1)
        if len(of_rows) <= MAX_GROUPS:
            return cls(of_rows, both, either)
        order = random.permutation(len(of_rows))
        starts = np.linspace(0, len(order), MAX_GROUPS, endpoint=False).astype(np.int64)
        return cls(*(np.add.reduceat(each[order], starts) for each in (of_rows, both, either)))

    def drawn(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sums over bootstrap samples of the groups: (samples, …) each."""
        groups = len(self.of_rows)
        places = random.integers(groups, size=(NUM_RESAMPLES, groups))
        places += groups * np.arange(NUM_RESAMPLES)[:, None]
        counts = np.bincount(places.ravel(), minlength=NUM_RESAMPLES * groups).astype(np.float64)
        counts = counts.reshape(NUM_RESAMPLES, groups)
        return counts @ self.of_rows, counts @ self.both, counts @ self.either


def metrics_of(sums: tuple[np.ndarray, np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    """Return each metric (samples,), computed from sums as :mod:`lmbm_torch.metrics` defines it."""
    (rows, right, wrong, f1, jaccard, both, either), of_labels = sums[0].T, sums[1:]
    return {
        "exact_match": right / rows,
        "hamming_loss": wrong / rows,
        "sample_f1": f1 / rows,
        "macro_f1": (2 * of_labels[0] / np.maximum(of_labels[1], 1)).mean(1),
        "micro_f1": 2 * both / np.maximum(either, 1),
        "jaccard_index": jaccard / rows,
    }
