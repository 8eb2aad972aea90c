"""Linear rules as tables over a few variables each, to be eliminated together with an energy's tables.

A rule over many labels needs further variables, the counters, whose values are the rule's sums over growing
sets of labels. Two counters at a time are joined into one, where their labels meet in an elimination tree; in
a hierarchy, from the leaves up. The labels determine the counters: each labelling is counted once. Sums
share a value if further labels cannot make a difference: for at_least(2, …) the values are 0, 1 and "enough".
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache, partial, reduce
from itertools import product
from typing import NamedTuple

import numpy as np

from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.trees.triangulation import Cliques, narrowest

# Largest number of a rule's labels in one table, equal to the variables of a table that joins two counters.
FEW_LABELS = 3
# Largest number of a rule's labels in one table if a table of the elimination contains these labels anyway.
MOST_LABELS = 10
# Largest number of entries of a table that joins two counters: 100 sums of each, and 100 joint sums.
MOST_ENTRIES = 2**20
# Number of decimals to which sums of scaled weights must agree to be equal: coarser than rounding errors.
DIGITS = 12
# Largest number of rule sets whose tables are cached.
NUM_KEPT = 32


class ManySumsError(ValueError):
    """Error for a rule over many labels whose sums have too many different values for counters."""


class RuleTables(NamedTuple):
    """Tables of the allowed values of labels and counters.

    Args:
        sizes: the number of values of each counter; counters are numbered after the labels.
        scopes: the variables of each table.
        tables: boolean tables with an axis for each variable of the scope.
    """

    sizes: tuple[int, ...]
    scopes: Cliques
    tables: tuple[np.ndarray, ...]


@lru_cache(NUM_KEPT)
def rule_tables(constraints: Constraints, cliques: Cliques) -> RuleTables:
    """Return the tables, and the counters, of all rules.

    Args:
        constraints: rules over the labels.
        cliques: sets of labels that depend on each other in the energy.

    Raises:
        ManySumsError: the sums of a rule over many labels have too many different values.
    """
    # Rules over the same labels share a table, for example the two inequalities of an exactly_one.
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, weights in enumerate(constraints.matrix):
        groups[tuple(weights.nonzero()[0].tolist())].append(row)
    several = [_Together.of(constraints, *group) for group in groups.items()]
    few = [each.labels for each in several if len(each.labels) <= FEW_LABELS]
    buckets = narrowest(constraints.num_labels, (*cliques, *few)).buckets
    tables = _Tables(constraints.num_labels)
    for rules in several:
        # Use one table if some bucket of the elimination contains all labels of the rules, and they are few.
        is_held = len(rules.labels) <= MOST_LABELS and any({*rules.labels} <= {*each} for each in buckets)
        if len(rules.labels) <= FEW_LABELS or is_held:
            tables.add(rules.labels, rules.table())
        else:
            tables.count(rules, buckets)
    return RuleTables(tuple(tables.sizes), tuple(tables.scopes), tuple(tables.tables))


class _Together(NamedTuple):
    """Rules over the same labels, Σ_i weights_ri y_i ≤ bounds_r, scaled to a largest weight of ±1.

    Args:
        labels: the labels in ascending order.
        weights: (labels, rules).
        bounds: (rules,).
        texts: the rules in words.
    """

    labels: tuple[int, ...]
    weights: np.ndarray
    bounds: np.ndarray
    texts: tuple[str, ...]

    @classmethod
    def of(cls, constraints: Constraints, labels: tuple[int, ...], rows: list[int]) -> _Together:
        weights = constraints.matrix[rows][:, labels].T
        scale = np.abs(weights).max(0)
        texts = tuple(dict.fromkeys(constraints.texts[row] for row in rows))
        return cls(labels, weights / scale, constraints.bounds[rows] / scale, texts)

    @property
    def least(self) -> np.ndarray:
        """Return the smallest possible sum of each rule, (rules,)."""
        return np.minimum(self.weights, 0).sum(0)

    @property
    def most(self) -> np.ndarray:
        """Return the largest possible sum of each rule, (rules,)."""
        return np.maximum(self.weights, 0).sum(0)

    def table(self) -> np.ndarray:
        """Return a boolean table with an axis for each label: whether the labelling is allowed."""
        labellings = np.array(list(product((0, 1), repeat=len(self.labels))))
        is_obeyed = np.all(labellings @ self.weights <= self.bounds, axis=1)
        return is_obeyed.reshape([2] * len(self.labels))


class _Counter(NamedTuple):
    """Variable of an elimination, a label or a counter, whose values are sums over a set of labels.

    Args:
        variable: the number of the variable; for a single label, the label's number.
        sums: (values, rules), the sums; −∞ if the other labels can no longer break the rule.
        least, most: (rules,), the smallest and the largest possible sum over the set.
    """

    variable: int
    sums: np.ndarray
    least: np.ndarray
    most: np.ndarray


class _Tables:
    """Tables of rules and the counters, under construction.

    Args:
        num_labels: the number of the first counter.
    """

    def __init__(self, num_labels: int) -> None:
        self.num_labels = num_labels
        self.sizes: list[int] = []
        self.scopes: list[tuple[int, ...]] = []
        self.tables: list[np.ndarray] = []

    def add(self, scope: tuple[int, ...], table: np.ndarray) -> None:
        self.scopes.append(scope)
        self.tables.append(table)

    def count(self, rules: _Together, buckets: Cliques) -> None:
        """Count the labels of ``rules`` by counters, joined along the ``buckets`` of an elimination."""
        singles = dict(zip(rules.labels, rules.weights, strict=True))
        join = partial(self._joined, rules)
        waiting: dict[int, list[_Counter]] = defaultdict(list)
        roots = -1
        for label, *others in buckets:
            if label in singles:
                sums = np.stack([np.zeros_like(singles[label]), singles[label]])
                waiting[label].append(_Counter(label, sums, sums.min(0), sums.max(0)))
            if waiting[label]:
                waiting[others[0] if others else roots].append(reduce(join, waiting[label]))
        # The last counter has one value left, so its table allows only labels that obey all rules.
        reduce(join, waiting[roots])

    def _joined(self, rules: _Together, one: _Counter, other: _Counter) -> _Counter:
        """Join two counters into one for both sets of labels; add the table that connects all three."""
        least, most = one.least + other.least, one.most + other.most
        sums = one.sums[:, None] + other.sums
        allowed = np.all(sums + (rules.least - least) <= rules.bounds, axis=-1)
        is_sure = sums + (rules.most - most) <= rules.bounds
        # Add 0, because −0 would otherwise differ from 0.
        sums = np.where(is_sure, -np.inf, sums.round(DIGITS) + 0.0)
        values, place = np.unique(sums[allowed], axis=0, return_inverse=True)
        if allowed.size * len(values) > MOST_ENTRIES:
            raise ManySumsError(
                f"constraints: expected weights with few different sums in rules over more than {FEW_LABELS} "
                f"labels, got {len(values)} sums of weights of {'; '.join(rules.texts)}"
            )
        table = np.zeros((*allowed.shape, len(values)), bool)
        table[(*allowed.nonzero(), place.ravel())] = True
        variable = self.num_labels + len(self.sizes)
        self.sizes.append(len(values))
        self.add((one.variable, other.variable, variable), table)
        return _Counter(variable, values, least, most)
