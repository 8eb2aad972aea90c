"""Contributions to the probabilities of any classifier: weights of features, and TreeSHAP values of trees.

The TreeSHAP values are defined by Lundberg et al. (2020) and computed by ``shap``. In chains of labels,
earlier labels contribute to later labels, too; in a hierarchy, ancestors or descendants contribute.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.special import expit
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import Pipeline

from lmbm_torch.constraints import Constraints, hierarchy
from lmbm_torch.data.features import numbered
from lmbm_torch.estimators.explain.contributions import (
    Contributions,
    checked,
    dense,
    given_names,
    most_effective,
    with_value,
)
from lmbm_torch.extras import naming_extras

# Tolerance when comparing a sum of contributions with the predicted probability.
ROUND_OFF = 1e-6


class Parts(NamedTuple):
    """The contributions to a classifier's field (half log-odds) or probability of class 1.

    Args:
        unit: see :class:`~lmbm_torch.estimators.explain.explanations.LabelExplanation`.
        probability: probability of class 1.
        rest: the field or probability minus all contributions.
        of_inputs: contributions (inputs,); empty if unknown.
        names: names of the inputs, or of the first inputs.
    """

    unit: str
    probability: float
    rest: float
    of_inputs: np.ndarray
    names: Sequence[str] = ()


def parts_of(classifier: Any, seen: np.ndarray, probability: float, centre: np.ndarray) -> Parts:
    """Return the contributions to a classifier of two classes.

    Args:
        seen: (inputs,), the classifier's inputs.
        probability: predicted probability of class 1.
        centre: (inputs,), values of inputs that contribute 0 to linear classifiers.

    Raises:
        ModuleNotFoundError: the classifier has trees, and ``shap`` is not installed.
    """
    if isinstance(classifier, DummyClassifier):
        return Parts("probability", probability, probability, np.zeros(0))
    if _is_tree(classifier) or _is_boosted(classifier):
        unit, rest, of_inputs = _of_trees(classifier, seen)
    elif np.shape(getattr(classifier, "coef_", ())) == (1, len(seen)):
        # Contributions to half the log-odds.
        weights = classifier.coef_[0] / 2
        unit, rest = "field", float(classifier.intercept_[0] / 2 + weights @ centre)
        of_inputs = weights * (seen - centre)
    else:
        return _unknown(probability)
    total = rest + of_inputs.sum()
    found = total if unit == "probability" else expit(2 * total)
    # Give no contributions unless the sum gives the probability, which fails for unknown link functions.
    if abs(found - probability) > ROUND_OFF:
        return _unknown(probability)
    return Parts(unit, probability, rest, of_inputs)


def parts_of_each(
    estimator: Any, X: Any, probability: np.ndarray, centre: np.ndarray | None, names: Sequence[str] | None
) -> list[Parts]:
    """Return the contributions to every label of an estimator of label matrices, with names of inputs.

    Args:
        X: an instance in the form that the estimator takes.
        probability: (labels,), predicted probabilities.
        centre: (features,), see :func:`parts_of`; None stands for zeros.
        names: names of the features; None to number the features.

    Raises:
        ModuleNotFoundError: the estimator has trees, and ``shap`` is not installed.
    """
    # Import these classes only when needed, for explanations.
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.multioutput import MultiOutputClassifier

    if isinstance(estimator, Pipeline) and len(estimator) > 1:
        steps = estimator[:-1]
        inputs = steps.transform(X)
        return parts_of_each(estimator[-1], inputs, probability, None, made_names(steps, inputs))
    if isinstance(estimator, Pipeline):
        return parts_of_each(estimator[-1], X, probability, centre, names)
    if isinstance(estimator, MultiOutputClassifier | OneVsRestClassifier):
        alone: Any = estimator.estimators_
        if len(alone) != len(probability):
            return [_unknown(each) for each in probability]
        return [
            parts_of_each(own, X, probability[[label]], centre, names)[0] for label, own in enumerate(alone)
        ]
    if not (_is_tree(estimator) or _is_boosted(estimator) or hasattr(estimator, "coef_")):
        return [_unknown(each) for each in probability]
    seen = array(X)[0]
    centre = np.zeros(len(seen)) if centre is None else centre
    if len(probability) == 1:
        found = [parts_of(estimator, seen, float(probability[0]), centre)]
    else:
        found = _of_outputs(estimator, seen, probability)
    names = numbered("feature", len(seen)) if names is None else names
    return [each._replace(names=names) if len(each.of_inputs) else each for each in found]


def union(names: Iterable[Sequence[str]]) -> dict[str, int]:
    """Return a dictionary from each different name to an index, in order of first occurrence."""
    return {name: place for place, name in enumerate(dict.fromkeys(name for each in names for name in each))}


def made_names(steps: Any, inputs: Any) -> Sequence[str]:
    """Return the names of the features ``inputs`` made by a pipeline's steps; numbered if unknown."""
    if steps is not None and hasattr(steps[-1], "get_feature_names_out"):
        return [str(name) for name in steps.get_feature_names_out()]
    return numbered("feature", array(inputs).shape[1])


def array(inputs: Any) -> np.ndarray:
    """Convert instances (instances, features), also a sparse matrix or a data frame, to an array."""
    return dense(inputs.to_numpy() if hasattr(inputs, "to_numpy") else inputs)


def like(X: Any, rows: np.ndarray) -> Any:
    """Convert rows (instances, features) to a data frame if X is a data frame; else return the rows."""
    return type(X)(dict(zip(X.columns, rows.T, strict=True))) if hasattr(X, "columns") else rows


def _unknown(probability: float) -> Parts:
    return Parts("unknown", float(probability), float(probability), np.zeros(0))


def _is_tree(classifier: Any) -> bool:
    """Return whether a classifier is a tree or a forest whose probabilities ``shap`` can explain."""
    # Import these modules only when needed, for explanations.
    from sklearn import ensemble, tree

    kinds = (ensemble.ExtraTreesClassifier, ensemble.RandomForestClassifier, tree.DecisionTreeClassifier)
    return isinstance(classifier, kinds)


def _is_boosted(classifier: Any) -> bool:
    from sklearn import ensemble

    kinds = (ensemble.GradientBoostingClassifier, ensemble.HistGradientBoostingClassifier)
    return isinstance(classifier, kinds)


def _of_trees(classifier: Any, seen: np.ndarray) -> tuple[str, float, np.ndarray]:
    """Return contributions to a forest's probability, or to half the log-odds of boosted trees."""
    with naming_extras():
        import shap
    explainer: Any = shap.TreeExplainer(classifier)
    values, rest = np.asarray(explainer.shap_values(seen[None])), np.ravel(explainer.expected_value)
    if values.ndim == 3:
        return "probability", float(rest[1]), values[0, :, 1]
    return "field", float(rest[0]) / 2, values[0] / 2


def _of_outputs(trees: Any, seen: np.ndarray, probability: np.ndarray) -> list[Parts]:
    """Return contributions to each label of a tree or forest for several labels of two classes."""
    count = len(probability)
    if not _is_tree(trees) or len(getattr(trees, "n_classes_", ())) != count:
        return [_unknown(each) for each in probability]
    with naming_extras():
        import shap
    rest, values = np.zeros(count), np.zeros((len(seen), count))
    # Explain each tree separately, because for hundreds of labels the tables of all trees exceed memory.
    alone = getattr(trees, "estimators_", [trees])
    for tree in alone:
        explainer: Any = shap.TreeExplainer(tree)
        # Take class 1 of each label, and multiply by the number of labels, by which shap divides.
        values += np.asarray(explainer.shap_values(seen[None]))[0, :, 1::2] * count / len(alone)
        rest += np.ravel(explainer.expected_value)[1::2] * count / len(alone)
    misses = np.abs(rest + values.sum(0) - probability) > ROUND_OFF
    return [
        _unknown(probability[label])
        if misses[label]
        else Parts("probability", float(probability[label]), float(rest[label]), values[:, label])
        for label in range(count)
    ]


class ChainFields:
    """The probabilities of labels in classifier chains, with contributions of features and earlier labels.

    Several chains form a mixture with equal weights: contributions are means over the chains, which have
    different orders of labels.

    Args:
        chains: fitted :class:`~lmbm_torch.estimators.label_chains.probabilistic.Chain` objects of
            the same labels.
        names: names of the labels.
        features: names of the features of an instance; None if a pipeline makes features.
        reference: (features,), values of features that are left out, and the baseline for contributions to
            linear classifiers; by default 0.
    """

    def __init__(
        self,
        chains: Sequence[Any],
        names: Sequence[str],
        features: Sequence[str] | None,
        reference: ArrayLike | None,
    ) -> None:
        self.chains, self.names, self.features = chains, names, features
        self.reference = None
        if features is not None:
            width = len(features)
            self.reference = np.zeros(width) if reference is None else checked(reference, width)
        elif reference is not None:
            raise ValueError("reference: expected None, because the steps of a pipeline make the features")

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        count, chains = len(labels), self.chains
        every = [self._parts(chain, X, labels) for chain in chains]
        places = union(each.names for parts in every for each in parts)
        intercepts, units = np.empty(count), [""] * count
        from_sources, from_labels = np.zeros((count, len(places))), np.zeros((count, count))
        for label in range(count):
            found = [
                (parts[chain.ordering.index(label)], chain)
                for parts, chain in zip(every, chains, strict=True)
            ]
            of_chains = {parts.unit for parts, _ in found}
            (units[label],) = of_chains if len(of_chains) == 1 else {"unknown"}
            if units[label] == "unknown":
                intercepts[label] = np.mean([parts.probability for parts, _ in found])
                continue
            intercepts[label] = np.mean([parts.rest for parts, _ in found])
            for parts, chain in found:
                own, before = np.split(parts.of_inputs / len(chains), [len(parts.names)])
                # Add contributions with equal names, because a pipeline may name several features the same.
                np.add.at(from_sources[label], [places[name] for name in parts.names], own)
                from_labels[label, list(chain.ordering[: len(before)])] += before
        fields = intercepts + from_sources.sum(1) + from_labels.sum(1)
        whose = f"{len(chains)} chains on average" if len(chains) > 1 else ""
        return Contributions(fields, intercepts, [*places], from_sources, from_labels, units, whose)

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        if self.features is None or self.reference is None:
            return
        row, reference = array(X), self.reference

        def chances(rows: np.ndarray) -> np.ndarray:
            made = like(X, rows)
            return np.mean([_chances(chain, made, len(rows), labels) for chain in self.chains], 0)

        for place in most_effective(row, reference, chances)[:count]:
            yield self.features[place], like(X, with_value(row, place, reference[place]))

    def _parts(self, chain: Any, X: Any, labels: np.ndarray) -> list[Parts]:
        """Return the contributions to the label at each position, given the instance and earlier labels."""
        seen = labels[list(chain.ordering)]
        return [self._of_link(link, X, seen[:position]) for position, link in enumerate(chain.links)]

    def _of_link(self, link: Any, X: Any, earlier: np.ndarray) -> Parts:
        inputs = link.inputs(X)
        probability = float(np.exp(link.log_proba(inputs, np.zeros(1, int), earlier[None])[0, 1]))
        seen = np.concatenate([array(inputs)[0], earlier])
        # Contributions of earlier labels are relative to the value 0.
        centre = np.zeros(len(seen))
        if self.reference is not None:
            centre[: len(self.reference)] = self.reference
        found = parts_of(link.classifier, seen, probability, centre)
        if not len(found.of_inputs):
            return found
        return found._replace(names=self.features or made_names(link.steps, inputs))


def _chances(chain: Any, X: Any, instances: int, labels: np.ndarray) -> np.ndarray:
    """Return P(y_i = 1 | x, earlier labels of the chain), (instances, labels)."""
    energy, rows, ordering = (
        chain.energy(X, instances),
        torch.arange(instances, device="cpu"),
        list(chain.ordering),
    )
    seen = torch.from_numpy(labels[ordering]).expand(instances, -1)
    found = np.empty((instances, len(labels)))
    for position, label in enumerate(ordering):
        found[:, label] = energy.log_conditional(position, rows, seen[:, :position])[:, 1].exp().numpy()
    return found


class _Share(NamedTuple):
    """A probability as the sum of contributions of sources (features) and a rest."""

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

    If a single estimator predicts all labels, a label with the raised probability of a descendant has the
    descendant's contributions. If probabilities are multiplied along the path, contributions to the product
    are Shapley values of the factors; each factor's value is divided in proportion to the contributions. For
    decision trees the contributions are those of TreeSHAP. For linear classifiers, contributions to log-odds
    are scaled so that the sum is the change of the probability (the rescale rule of Shrikumar et al. 2017).

    Args:
        model: a fitted :class:`~lmbm_torch.estimators.HierarchicalClassifier`.
        reference: (features,), values of features that are left out, and the baseline for contributions to
            linear classifiers; by default the training means.

    Raises:
        ValueError: the reference has not the shape (features,), or instances are not numeric.
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
        """Return the rules "child -> parent" that labels with an uncorrected probability above ½ break."""
        if self.model.scope != "all":
            return ()
        parents = self.model.forest_.parents
        above = {
            name: self.names[parent] for name, parent in zip(self.names, parents, strict=True) if parent >= 0
        }
        rules = Constraints.of(hierarchy(above), self.names)
        return tuple(rules.broken((self.model.uncorrected(X)[:1] > 0.5).astype(np.int64))[0])

    def _parts(self, X: Any) -> list[Parts]:
        """Return the contributions to each label's probability by the estimator, before corrections."""
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
            # Roots have no parent (−1), so nothing is multiplied.
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
        # Suppress NumPy's warning for features without a known value, whose mean is set to 0.
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
        # Scale contributions by (change of probability) / (change of field), or the derivative for no change.
        slope = (end - start) / change if change else 2 * start * (1 - start)
        rest, values = float(start), values * slope
    of_sources = np.zeros(len(places))
    # Add contributions with equal names, because a pipeline may name several features the same.
    np.add.at(of_sources, [places[name] for name in parts.names], values)
    return _Share(rest, of_sources)
