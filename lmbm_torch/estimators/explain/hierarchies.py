"""Explanations of labels in a hierarchy: contributions to the probabilities."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.special import expit

from lmbm_torch.constraints import Constraints, hierarchy
from lmbm_torch.data.features import numbered
from lmbm_torch.estimators.explain.contributions import (
    Contributions,
    checked,
    given_names,
    most_effective,
    with_value,
)
from lmbm_torch.estimators.explain.parts import Parts, array, like, parts_of_each, union


class _Share(NamedTuple):
    """A probability as a sum: ``rest`` + Σ ``of_sources``."""

    rest: float
    of_sources: np.ndarray

    @property
    def total(self) -> float:
        return self.rest + float(self.of_sources.sum())

    def times(self, other: _Share) -> _Share:
        """Return the product of two probabilities p and q; p₀ and q₀ are the values without contributions.

        The contributions are Shapley values: pq − p₀q₀ = (p − p₀)(q + q₀)/2 + (q − q₀)(p + p₀)/2.
        """
        by_own, by_other = (other.total + other.rest) / 2, (self.total + self.rest) / 2
        return _Share(self.rest * other.rest, self.of_sources * by_own + other.of_sources * by_other)


class HierarchyFields:
    """The probabilities of labels in a hierarchy, with contributions of features.

    If one estimator predicts all labels, a label whose probability is raised to that of a descendant has the
    descendant's contributions. If probabilities are multiplied along the path, contributions to the product
    are Shapley values of the factors; each factor's value is divided in proportion to the contributions. For
    decision trees the contributions are those of TreeSHAP. For linear classifiers, contributions to log-odds
    are scaled so that the sum is the change of the probability (the rescale rule of Shrikumar et al. 2017).

    Args:
        model: a fitted :class:`~lmbm_torch.estimators.HierarchicalClassifier`.
        reference: (features,), values of features that are left out, and the baseline for contributions to
            linear classifiers; by default the training means.

    Raises:
        ValueError: the reference has another shape than (features,), or instances are not numeric.
    """

    def __init__(self, model: Any, reference: ArrayLike | None) -> None:
        self.model, self.names = model, model.label_names_
        self.reference: np.ndarray | None = model.feature_means_
        self.features: Sequence[str] | None = None
        if self.reference is None and reference is not None:
            raise ValueError("reference: expected None for instances that are not numeric")
        if self.reference is not None:
            width = len(self.reference)
            self.features = given_names(model) or numbered("feature", width)
            self.reference = self.reference if reference is None else checked(reference, width)

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        found = self._parts(X)
        places = union(parts.names for parts in found)
        shares = self._combined([_share(parts, places) for parts in found], X)
        fields, count = self.model.predict_proba(X)[0], len(found)
        intercepts, from_sources = fields.copy(), np.zeros((count, len(places)))
        for label, share in enumerate(shares):
            if share is not None:
                intercepts[label], from_sources[label] = share
        units = ["unknown" if share is None else "probability" for share in shares]
        return Contributions(fields, intercepts, [*places], from_sources, np.zeros((count, count)), units)

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        if self.features is None or self.reference is None:
            return
        row, reference = array(X), self.reference

        def probability(rows: np.ndarray) -> np.ndarray:
            return self.model.predict_proba(like(X, rows))

        for place in most_effective(row, reference, probability)[:count]:
            yield self.features[place], like(X, with_value(row, place, reference[place]))

    def binding(self, X: Any) -> tuple[str, ...]:
        """Return the rules "child -> parent" broken by the probabilities before any correction."""
        if self.model.scope != "all":
            return ()
        parents = self.model.forest_.parents
        above = {
            name: self.names[parent] for name, parent in zip(self.names, parents, strict=True) if parent >= 0
        }
        rules = Constraints.of(hierarchy(above), self.names)
        return tuple(rules.broken((self.model.uncorrected(X)[:1] > 0.5).astype(np.int64))[0])

    def _parts(self, X: Any) -> list[Parts]:
        """Return for each label the contributions to the estimator's probability."""
        found: list[Any] = [None] * len(self.names)
        for member in self.model.members_:
            said = member.probability(X)[0]
            of_varying = iter(
                parts_of_each(member.estimator, X, said[member.is_varying], self.reference, self.features)
                if member.estimator is not None
                else ()
            )
            for label, value, is_varying in zip(member.labels, said, member.is_varying, strict=True):
                constant = Parts("probability", float(value), float(value), np.zeros(0))
                found[label] = next(of_varying) if is_varying else constant
        return found

    def _combined(self, shares: list[_Share | None], X: Any) -> list[_Share | None]:
        """Return the contributions to the probabilities under the hierarchy; None where unknown."""
        forest = self.model.forest_
        if self.model.scope == "all":
            return [shares[source] for source in forest.raised_from(self.model.uncorrected(X)[0])]
        shares = shares.copy()
        for label in forest.order:
            parent, own = forest.parents[label], shares[label]
            # The parent of roots is −1.
            if parent >= 0:
                above = shares[parent]
                shares[label] = None if above is None or own is None else above.times(own)
        return shares


def means_of(X: Any) -> np.ndarray | None:
    """Return the mean of each feature (features,) over known values; None if X is not numeric."""
    if sparse.issparse(X):
        return np.nan_to_num(np.asarray(X.mean(0), np.float64).ravel())
    try:
        rows = np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return None
    if rows.ndim != 2:
        return None
    with warnings.catch_warnings():
        # NumPy warns if a feature has no known value; its mean becomes 0.
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nan_to_num(np.nanmean(rows, 0))


def _share(parts: Parts, places: dict[str, int]) -> _Share | None:
    """Return the contributions to a probability; ``places`` gives the index of each source."""
    if parts.unit == "unknown":
        return None
    rest, values = parts.rest, parts.of_inputs
    if parts.unit == "field":
        change = values.sum()
        start, end = expit(2 * rest), expit(2 * (rest + change))
        # The ratio of the changes of probability and field; for no change, the derivative.
        slope = (end - start) / change if change else 2 * start * (1 - start)
        rest, values = float(start), values * slope
    of_sources = np.zeros(len(places))
    # Add, because a pipeline may give several features the same name.
    np.add.at(of_sources, [places[name] for name in parts.names], values)
    return _Share(rest, of_sources)
