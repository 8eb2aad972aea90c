"""What the probabilities of a chain are sums of: weights of linear classifiers, TreeSHAP's values of trees.

The values of trees are those of Lundberg et al. (2020), computed by ``shap``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.dummy import DummyClassifier

from lmbm_torch.data.features import numbered
from lmbm_torch.estimators.contributions import Contributions, checked, dense, most_effective, with_value
from lmbm_torch.estimators.label_chains.links import Link
from lmbm_torch.estimators.label_chains.members import Chain
from lmbm_torch.extras import naming_extras

__all__ = ["ChainFields"]

# By how much the parts of a probability, which are added in another order, may miss it.
ROUND_OFF = 1e-6


class _Parts(NamedTuple):
    """Those of one classifier's field or probability, of class 1.

    Args:
        rest: what no input contributes.
        of_inputs: (inputs,), features and then the labels before this one; none where they are not known.
    """

    unit: str
    rest: float
    of_inputs: np.ndarray


class ChainFields:
    """The conditional distributions of a chain of binary labels, each given the labels before it.

    Args:
        chain: fitted.
        names: of the labels.
        features: names of what the instances hold; None where a pipeline makes features of them.
        reference: (features,), where a feature is left out and relative to which linear classifiers'
            contribute; by default 0.
    """

    def __init__(
        self, chain: Chain, names: Sequence[str], features: Sequence[str] | None, reference: ArrayLike | None
    ) -> None:
        self.chain, self.names, self.features = chain, names, features
        self.reference = None
        if features is not None:
            width = len(features)
            self.reference = np.zeros(width) if reference is None else checked(reference, width)
        elif reference is not None:
            raise ValueError("reference: expected none for a pipeline, which makes features of its own")

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        ordering, count = list(self.chain.ordering), len(labels)
        sources = self._made(X) if self.features is None else self.features
        intercepts, units = np.empty(count), [""] * count
        from_sources, from_labels = np.zeros((count, len(sources))), np.zeros((count, count))
        for position, (link, label) in enumerate(zip(self.chain.links, ordering, strict=True)):
            earlier = ordering[:position]
            units[label], intercepts[label], own = _parts(link, X, labels[earlier], self.reference)
            if len(own):
                from_sources[label], from_labels[label, earlier] = np.split(own, [len(sources)])
        fields = intercepts + from_sources.sum(1) + from_labels.sum(1)
        return Contributions(fields, intercepts, sources, from_sources, from_labels, units)

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        if self.features is None or self.reference is None:
            return
        row, reference = _array(X), self.reference

        def chances(rows: np.ndarray) -> np.ndarray:
            return self._chances(_like(X, rows), len(rows), labels)

        for place in most_effective(row, reference, chances)[:count]:
            yield self.features[place], _like(X, with_value(row, place, reference[place]))

    def _chances(self, X: Any, instances: int, labels: np.ndarray) -> np.ndarray:
        """P(y_i = 1 | x, labels before it), (instances, positions)."""
        energy, rows = self.chain.energy(X, instances), torch.arange(instances)
        seen = torch.from_numpy(labels[list(self.chain.ordering)]).expand(instances, -1)
        every = [
            energy.log_conditional(position, rows, seen[:, :position])[:, 1]
            for position in range(len(labels))
        ]
        return torch.stack(every, 1).exp().numpy()

    def _made(self, X: Any) -> Sequence[str]:
        """Names of the features that a pipeline makes."""
        every: Any = [link.steps for link in self.chain.links if link.steps is not None]
        if every and hasattr(every[0][-1], "get_feature_names_out"):
            return [str(name) for name in every[0].get_feature_names_out()]
        return numbered("feature", _array(self.chain.links[0].inputs(X)).shape[1])


def _parts(link: Link, X: Any, earlier: np.ndarray, reference: np.ndarray | None) -> _Parts:
    """Those of one label, given the instance and the labels before it, which have two values."""
    classifier, inputs = link.classifier, link.inputs(X)
    probability = float(np.exp(link.log_proba(inputs, np.zeros(1, int), earlier[None])[0, 1]))
    seen = np.concatenate([_array(inputs)[0], earlier])
    if isinstance(classifier, DummyClassifier):
        return _Parts("probability", probability, np.zeros(0))
    if _has_trees(classifier):
        parts = _of_trees(classifier, seen)
    elif hasattr(classifier, "coef_") and np.shape(classifier.coef_) == (1, len(seen)):
        parts = _of_weights(classifier, seen, reference)
    else:
        return _Parts("unknown", probability, np.zeros(0))
    total = parts.rest + parts.of_inputs.sum()
    found = total if parts.unit == "probability" else expit(2 * total)
    # Other links, weights that are changed by a calibration, …: not the parts of this probability.
    return parts if abs(found - probability) <= ROUND_OFF else _Parts("unknown", probability, np.zeros(0))


def _has_trees(classifier: Any) -> bool:
    """Whether ``shap`` knows the trees of a classifier."""
    # Nothing but an explanation needs them.
    from sklearn import ensemble, tree

    kinds = (
        ensemble.ExtraTreesClassifier,
        ensemble.GradientBoostingClassifier,
        ensemble.HistGradientBoostingClassifier,
        ensemble.RandomForestClassifier,
        tree.DecisionTreeClassifier,
    )
    return isinstance(classifier, kinds)


def _of_weights(classifier: Any, seen: np.ndarray, reference: np.ndarray | None) -> _Parts:
    """Of half the log-odds, the labels before relative to 0."""
    weights, centre = classifier.coef_[0] / 2, np.zeros(len(seen))
    if reference is not None:
        centre[: len(reference)] = reference
    return _Parts("field", float(classifier.intercept_[0] / 2 + weights @ centre), weights * (seen - centre))


def _of_trees(classifier: Any, seen: np.ndarray) -> _Parts:
    """Of the probability that a forest says, or of half the log-odds of boosted trees."""
    with naming_extras():
        import shap
    explainer: Any = shap.TreeExplainer(classifier)
    values, rest = np.asarray(explainer.shap_values(seen[None])), np.ravel(explainer.expected_value)
    if values.ndim == 3:
        return _Parts("probability", float(rest[1]), values[0, :, 1])
    return _Parts("field", float(rest[0]) / 2, values[0] / 2)


def _array(inputs: Any) -> np.ndarray:
    """Instances (instances, features) of an array, a sparse matrix or a data frame."""
    return dense(inputs.to_numpy() if hasattr(inputs, "to_numpy") else inputs)


def _like(X: Any, rows: np.ndarray) -> Any:
    """Rows (instances, features), as a data frame of the same kind where X is one."""
    return type(X)(dict(zip(X.columns, rows.T, strict=True))) if hasattr(X, "columns") else rows
