"""Contributions of features and labels to fields (half log-odds), and effects of changed features."""

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

# Largest number of features left out in turn, and largest number of entries in a batch of such instances.
MOST_FEATURES = 1000
ENTRIES = 2**22


@dataclass(frozen=True)
class Contributions:
    """Contributions to the field of each label of an instance, given the labels.

    ``fields`` = ``intercepts`` + Σ ``from_sources`` + Σ ``from_labels``.

    Args:
        fields, intercepts: (labels,).
        sources: names of features; for a kernel, names of training instances.
        from_sources: (labels, sources).
        from_labels: (labels, labels); row i holds the contributions to label i.
        units: (labels,), the unit of each field, see
            :class:`~lmbm_torch.estimators.explain.explanations.LabelExplanation`.
        whose: name of the explained classifier, if several classifiers predict together.
    """

    fields: np.ndarray
    intercepts: np.ndarray
    sources: Sequence[str]
    from_sources: np.ndarray
    from_labels: np.ndarray
    units: Sequence[str]
    whose: str = ""


class Fields(Protocol):
    """Fields that are sums of contributions."""

    names: Sequence[str]
    """Names of the labels."""

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        """Return the contributions to the fields of an instance (1, features) and the labels (labels,)."""
        ...

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        """Yield names of the most important features, each with X in which the feature has the reference."""
        ...


def fields_of(model: Any, reference: ArrayLike | None) -> Fields:
    """Return the fields of a belief network or Boltzmann machine that takes arrays.

    Raises:
        TypeError: the model is neither a belief network nor a Boltzmann machine.
        ValueError: the model was fitted to classes, or the reference is not finite or not (features,).
    """
    if not _has_fields(model):
        kinds = "a belief network or a Boltzmann machine"
        raise TypeError(f"explain: expected {kinds}, got {type(model).__name__}")
    check_label_matrices(model)
    return (LinearFields if _is_linear(model) else KernelFields)(model, reference)


def are_taken_apart(model: Any, X: Any) -> bool:
    """Return whether :func:`fields_of` can write a model's fields as sums, for instances like X."""
    if not _has_fields(model):
        return False
    energy = model.energy(X)
    return isinstance(energy, PairwiseEnergy) or not getattr(energy, "cliques", ())


def _is_linear(model: Any) -> bool:
    return getattr(model, "kernel", "linear") == "linear"


def _has_fields(model: Any) -> bool:
    """Return whether a model has weights for features or for support vectors."""
    return hasattr(model, "energy") and hasattr(model, "coef_" if _is_linear(model) else "dual_coef_")


class LinearFields:
    """The fields of a linear model: sums of contributions of features and of neighbouring labels.

    Args:
        model: the fitted model, with ``names_of_features_`` after a fit to a data frame.
        reference: (features,), values of features that contribute 0; by default the training means.
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
        model: the fitted model, with ``names_of_features_`` if it was fitted to a data frame.
        reference: (features,), values of features that are left out; by default means of the support vectors.
    """

    def __init__(self, model: Any, reference: ArrayLike | None) -> None:
        self.model, self.names = model, model.label_names_
        support = model.support_vectors_
        self.reference: np.ndarray | None = None
        if support is not None:
            means = np.asarray(support.mean(0), np.float64).ravel()
            self.reference = means if reference is None else checked(reference, len(means))
        elif reference is not None:
            raise ValueError("reference: expected None, because a precomputed kernel has no features")

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
    """Complete the contributions by those of labels: coupling times value of the neighbouring label."""
    from_labels = _couplings(model.energy(X)) * (2 * labels - 1)
    fields = intercepts + from_sources.sum(1) + from_labels.sum(1)
    return Contributions(fields, intercepts, sources, from_sources, from_labels, ["field"] * len(fields))


def _couplings(energy: Any) -> np.ndarray:
    """Return couplings (labels, labels); row i holds the weights of the labels on which label i depends."""
    if isinstance(energy, DirectedEnergy) and not energy.cliques:
        weights = energy.parents
    elif isinstance(energy, PairwiseEnergy):
        weights = energy.pairwise
    else:
        raise ValueError("explain: expected cliques of two labels, got larger cliques")
    return (weights if weights.ndim == 2 else weights[0]).detach().cpu().numpy()


def given_names(model: Any) -> tuple[str, ...] | None:
    """Return the feature names of the data frame of ``fit``, after encoding; None if ``fit`` had an array."""
    encoder = getattr(model, "encoder_", None)
    names = getattr(model, "feature_names_in_", None) if encoder is None else encoder.get_feature_names_out()
    return None if names is None else tuple(map(str, names))


def _names_of_features(model: Any, width: int) -> Sequence[str]:
    return getattr(model, "names_of_features_", None) or numbered("feature", width)


def checked(reference: ArrayLike, width: int) -> np.ndarray:
    """Check a reference (width,), and return it as float64.

    Raises:
        ValueError: the reference has a wrong shape, or values that are not finite.
    """
    reference = np.asarray(reference, np.float64)
    check_shape("reference", reference, width)
    check_finite("reference", reference)
    return reference


def left_out_at(model: Any, reference: ArrayLike | None, width: int) -> np.ndarray:
    """Return the values that replace left-out features, (width,): the reference, or the training means."""
    if reference is not None:
        return checked(reference, width)
    # Models without training means, such as on features already scaled, use 0.
    means = getattr(model, "feature_means_", 0.0)
    return np.array(np.broadcast_to(means, (width,)))


def dense(X: Any) -> np.ndarray:
    """Return instances (instances, features) as an array."""
    return X.toarray() if sparse.issparse(X) else np.asarray(X, np.float64)


def with_value(X: np.ndarray, feature: int, value: float) -> np.ndarray:
    """Return a copy of an instance (1, features) in which a feature has a new value."""
    changed = X.copy()
    changed[0, feature] = value
    return changed


def most_effective(
    X: np.ndarray, reference: np.ndarray, fields: Callable[[np.ndarray], np.ndarray]
) -> list[int]:
    """Rank features by the largest change of a field if only the feature is set to the reference.

    If there are more than ``MOST_FEATURES``, only the features furthest from the reference are tried.

    Args:
        X: (1, features), the instance.
        reference: (features,), values of left-out features.
        fields: function from instances (instances, features) to fields (instances, labels).
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
    """Return indices in descending order of absolute size; equal sizes keep the order."""
    return np.argsort(-np.abs(sizes), kind="stable").tolist()


Effects = Callable[[np.ndarray], np.ndarray]
"""A function from instances (instances, features) to values (instances, labels), to rank features."""


class AnswerFields:
    """The probabilities of any classifier of label matrices, for explanations without contributions.

    Features are ranked by the effect of leaving out one feature at a time.

    Args:
        model: the fitted model, which takes arrays
            (:func:`~lmbm_torch.estimators.explain.explanations.without_names`).
        effects: function from instances to values, whose changes rank the features.
        X: validated instance (1, features).
        reference: (features,), values of features that are left out; None for the training means.

    Raises:
        ValueError: X has several instances, the model predicts classes, or the reference has a wrong shape.
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
        """Return P(y_i = 1 | x), (instances, labels); NaN if the classifier has no probabilities."""
        if hasattr(self.model, "predict_proba"):
            return self.model.predict_proba(X)
        return np.full((X.shape[0], len(self.names)), np.nan)

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        # Precomputed kernel values cannot be left out one by one.
        if get_tags(self.model).input_tags.pairwise:
            return
        row = dense(X)
        for place in most_effective(row, self.reference, self.effects)[:count]:
            yield self.features[place], with_value(row, place, self.reference[place])


def check_label_matrices(model: Any) -> None:
    """Check that the model was fitted to a label matrix, and raise ValueError otherwise."""
    if model.binarizer_ is not None:
        raise ValueError("explain: expected a model of label matrices, got a model fitted to classes")
