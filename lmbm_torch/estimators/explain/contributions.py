"""Contributions to the fields of belief networks and Boltzmann machines, and explanations by answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.utils import get_tags

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.data.features import numbered
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy

# Largest number of features left out, and largest number of entries of a batch of changed instances.
MOST_FEATURES = 1000
ENTRIES = 2**22


@dataclass(frozen=True)
class Contributions:
    """Contributions to the fields of an instance, given its labels.

    ``fields`` = ``intercepts`` + Σ ``from_sources`` + Σ ``from_labels``.

    Args:
        fields, intercepts: (labels,).
        sources: names of features or, for a kernel, of training instances.
        from_sources: (labels, sources).
        from_labels: (labels, labels), row i the contributions to label i.
        units: (labels,), the unit of each field.
        whose: name of the explained classifier, if several classifiers answer together.
    """

    fields: np.ndarray
    intercepts: np.ndarray
    sources: Sequence[str]
    from_sources: np.ndarray
    from_labels: np.ndarray
    units: Sequence[str]
    whose: str = ""


class Fields(Protocol):
    """Fields with additive contributions."""

    names: Sequence[str]
    """Of the labels."""

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        """Return the contributions to the fields of an instance (1, features) and its labels (labels,)."""
        ...

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        """Yield the most important features' names, and the instance with the feature at its reference."""
        ...


def fields_of(model: Any, reference: ArrayLike | None) -> Fields:
    """Return the fields of a belief network or Boltzmann machine, fitted to arrays.

    Raises:
        TypeError: a model of another kind.
        ValueError: a model of classes, or of several labels in one clique; a reference of another shape or
            with infinite values.
    """
    if not _has_fields(model):
        kinds = "a belief network or a Boltzmann machine"
        raise TypeError(f"explain: expected {kinds}, got {type(model).__name__}")
    check_label_matrices(model)
    return (LinearFields if _is_linear(model) else KernelFields)(model, reference)


def are_taken_apart(model: Any, X: Any) -> bool:
    """Return whether :func:`fields_of` a model of label matrices has fields for instances like X."""
    if not _has_fields(model):
        return False
    energy = model.energy(X)
    return isinstance(energy, PairwiseEnergy) or not getattr(energy, "cliques", ())


def _is_linear(model: Any) -> bool:
    return getattr(model, "kernel", "linear") == "linear"


def _has_fields(model: Any) -> bool:
    """Return whether a model has weights of features or of support vectors."""
    return hasattr(model, "energy") and hasattr(model, "coef_" if _is_linear(model) else "dual_coef_")


class LinearFields:
    """The fields of a linear model: weights of the features, and couplings of the labels.

    Args:
        model: with ``names_of_features_`` if fitted to a data frame.
        reference: (features,), baseline of the contributions; by default the training means.
    """

    def __init__(self, model: Any, reference: ArrayLike | None) -> None:
        self.model, self.names = model, model.label_names_
        width = model.coef_.shape[1]
        self.features = _names_of_features(model, width)
        self.reference = left_out_at(model, reference, width)

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        coef = self.model.coef_
        intercepts = self.model.intercept_ + coef @ self.reference
        from_features = coef * (dense(X)[0] - self.reference)
        return _with_labels(self.model, X, labels, intercepts, self.features, from_features)

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        X = dense(X)
        effect = np.abs(self.model.coef_ * (X[0] - self.reference)).max(0)
        for place in largest_first(effect)[:count]:
            yield self.features[place], with_value(X, place, self.reference[place])


class KernelFields:
    """The fields of a belief network with a kernel: Σ_j α_j s_j k(x, x_j) over the support vectors.

    Args:
        model: with ``names_of_features_`` if fitted to a data frame.
        reference: (features,), value of a left-out feature; by default the means of the support vectors.
    """

    def __init__(self, model: Any, reference: ArrayLike | None) -> None:
        self.model, self.names = model, model.label_names_
        support = model.support_vectors_
        self.reference: np.ndarray | None = None
        if support is not None:
            means = np.asarray(support.mean(0), np.float64).ravel()
            self.reference = means if reference is None else checked(reference, len(means))
        elif reference is not None:
            raise ValueError("reference: expected None with precomputed kernel values, not features")

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        model = self.model
        rows = X[:, model.support_] if model.kernel_.is_precomputed else X
        values = model.kernel_.expand(rows, model.support_vectors_, np.eye(len(model.support_)))
        sources = [f"row {place}" for place in model.support_]
        return _with_labels(model, X, labels, model.intercept_, sources, model.dual_coef_ * values)

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        if self.reference is None:
            return
        X, reference = dense(X), self.reference
        names = _names_of_features(self.model, len(reference))

        def fields(rows: np.ndarray) -> np.ndarray:
            return self.model.energy(rows).unary.cpu().numpy()

        for place in most_effective(X, reference, fields)[:count]:
            yield names[place], with_value(X, place, reference[place])


def _with_labels(
    model: Any,
    X: Any,
    labels: np.ndarray,
    intercepts: np.ndarray,
    sources: Sequence[str],
    from_sources: np.ndarray,
) -> Contributions:
    """Add the contributions of the labels, by the model's couplings."""
    from_labels = _couplings(model.energy(X)) * (2 * labels - 1)
    fields = intercepts + from_sources.sum(1) + from_labels.sum(1)
    return Contributions(fields, intercepts, sources, from_sources, from_labels, ["field"] * len(fields))


def _couplings(energy: Any) -> np.ndarray:
    """Return the weights of the labels that label i depends on, in row i."""
    if isinstance(energy, DirectedEnergy) and not energy.cliques:
        weights = energy.parents
    elif isinstance(energy, PairwiseEnergy):
        weights = energy.pairwise
    else:
        raise ValueError("explain: expected cliques of two labels, got larger cliques")
    return (weights if weights.ndim == 2 else weights[0]).detach().cpu().numpy()


def given_names(model: Any) -> tuple[str, ...] | None:
    """Return the names of the features of the data frame of ``fit``, encoded or not; None for arrays."""
    encoder = getattr(model, "encoder_", None)
    names = getattr(model, "feature_names_in_", None) if encoder is None else encoder.get_feature_names_out()
    return None if names is None else tuple(map(str, names))


def _names_of_features(model: Any, width: int) -> Sequence[str]:
    return getattr(model, "names_of_features_", None) or numbered("feature", width)


def checked(reference: ArrayLike, width: int) -> np.ndarray:
    """Return a reference (width,).

    Raises:
        ValueError: another shape, or infinite values.
    """
    reference = np.asarray(reference, np.float64)
    check_shape("reference", reference, width)
    check_finite("reference", reference)
    return reference


def left_out_at(model: Any, reference: ArrayLike | None, width: int) -> np.ndarray:
    """Return the values of left-out features, (width,): a checked reference, or the training means."""
    if reference is not None:
        return checked(reference, width)
    # Models of scaled features, and older files, have no means.
    means = getattr(model, "feature_means_", 0.0)
    return np.array(np.broadcast_to(means, (width,)))


def dense(X: Any) -> np.ndarray:
    """Return instances (instances, features) as an array."""
    return X.toarray() if sparse.issparse(X) else np.asarray(X, np.float64)


def with_value(X: np.ndarray, feature: int, value: float) -> np.ndarray:
    """Return an instance (1, features) with another value of one feature."""
    changed = X.copy()
    changed[0, feature] = value
    return changed


def most_effective(
    X: np.ndarray, reference: np.ndarray, fields: Callable[[np.ndarray], np.ndarray]
) -> list[int]:
    """Return features by the largest change of a field if the feature alone is set to its reference.

    Of many features only the furthest from their reference are tried.

    Args:
        X: (1, features).
        fields: (instances, features) → (instances, labels).
    """
    tried = np.array(largest_first(X[0] - reference)[:MOST_FEATURES], int)
    here, changes = fields(X), []
    size = max(1, ENTRIES // X.shape[1])
    for first in range(0, len(tried), size):
        places = tried[first : first + size]
        rows = np.repeat(X, len(places), 0)
        rows[np.arange(len(places)), places] = reference[places]
        changes.append(np.abs(fields(rows) - here).max(1))
    return tried[largest_first(np.concatenate(changes))].tolist()


def largest_first(sizes: np.ndarray) -> list[int]:
    """Return places by absolute size, largest first; ties in order."""
    return np.argsort(-np.abs(sizes), kind="stable").tolist()


Effects = Callable[[np.ndarray], np.ndarray]
"""Rows (instances, features) → what features matter to, (instances, labels)."""


class AnswerFields:
    """The answers of a classifier of label matrices: probabilities without contributions.

    Features are ranked by the effect of leaving out one at a time.

    Args:
        model: fitted, for arrays (:func:`~lmbm_torch.estimators.explain.explanations.without_names`).
        effects: rows → values by whose change features are ranked.
        X: (1, features), validated.
        reference: (features,), value of a left-out feature; None for the training means.

    Raises:
        ValueError: several instances, a model of classes, a reference of another shape.
    """

    def __init__(self, model: Any, effects: Effects, X: Any, reference: ArrayLike | None) -> None:
        check_label_matrices(model)
        check_shape("X", X, 1, None)
        self.model, self.effects = model, effects
        width = X.shape[1]
        self.reference = left_out_at(model, reference, width)
        self.names: Sequence[str] = model.label_names_
        named = getattr(model, "names_of_features_", None)
        self.features = numbered("feature", width) if named is None else named

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        count, fields = len(labels), self.probabilities(X)[0]
        units = ["unknown"] * count
        return Contributions(fields, fields, (), np.zeros((count, 0)), np.zeros((count, count)), units)

    def probabilities(self, X: Any) -> np.ndarray:
        """Return P(y_i = 1 | x), (instances, labels); NaN for a classifier without probabilities."""
        if hasattr(self.model, "predict_proba"):
            return self.model.predict_proba(X)
        return np.full((X.shape[0], len(self.names)), np.nan)

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        # Kernel values are not features.
        if get_tags(self.model).input_tags.pairwise:
            return
        row = dense(X)
        for place in most_effective(row, self.reference, self.effects)[:count]:
            yield self.features[place], with_value(row, place, self.reference[place])


def check_label_matrices(model: Any) -> None:
    """Raise ValueError for a model of classes."""
    if model.binarizer_ is not None:
        raise ValueError("explain: expected a model of label matrices, got one that was fitted to classes")
