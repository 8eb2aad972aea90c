"""Contributions to the probabilities of any classifier: weights of features, and TreeSHAP values of trees.

The TreeSHAP values are defined by Lundberg et al. (2020) and computed by ``shap``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import Pipeline

from lmbm_torch.data.features import numbered
from lmbm_torch.estimators.explain.contributions import dense
from lmbm_torch.extras import naming_extras

# Largest rounding error of a sum of contributions.
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
        unit, rest, of_inputs = _of_weights(classifier, seen, centre)
    else:
        return _unknown(probability)
    total = rest + of_inputs.sum()
    found = total if unit == "probability" else expit(2 * total)
    # If the sum does not give the probability, such as for another link function, it explains nothing.
    if abs(found - probability) > ROUND_OFF:
        return _unknown(probability)
    return Parts(unit, probability, rest, of_inputs)


def parts_of_each(
    estimator: Any, X: Any, probability: np.ndarray, centre: np.ndarray | None, names: Sequence[str] | None
) -> list[Parts]:
    """Return the contributions to every label of an estimator of label matrices, with names of inputs.

    Args:
        X: one instance in the estimator's form.
        probability: (labels,), predicted probabilities.
        centre: (features,), see :func:`parts_of`; None stands for zeros.
        names: names of the features; None to number the features.

    Raises:
        ModuleNotFoundError: the estimator has trees, and ``shap`` is not installed.
    """
    # Imported here, because only explanations need these classes.
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
    if not _is_explained(estimator):
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
    """Return an index for each name; repeated names have one index."""
    return {name: place for place, name in enumerate(dict.fromkeys(name for each in names for name in each))}


def made_names(steps: Any, inputs: Any) -> Sequence[str]:
    """Return the names of features ``inputs`` that a pipeline's steps make, or numbered names."""
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


def _is_explained(classifier: Any) -> bool:
    return _is_tree(classifier) or _is_boosted(classifier) or hasattr(classifier, "coef_")


def _is_tree(classifier: Any) -> bool:
    """Return whether a classifier is a tree or a forest whose probabilities ``shap`` can explain."""
    # Imported here, because only explanations need these classes.
    from sklearn import ensemble, tree

    kinds = (ensemble.ExtraTreesClassifier, ensemble.RandomForestClassifier, tree.DecisionTreeClassifier)
    return isinstance(classifier, kinds)


def _is_boosted(classifier: Any) -> bool:
    from sklearn import ensemble

    kinds = (ensemble.GradientBoostingClassifier, ensemble.HistGradientBoostingClassifier)
    return isinstance(classifier, kinds)


def _of_weights(classifier: Any, seen: np.ndarray, centre: np.ndarray) -> tuple[str, float, np.ndarray]:
    """Return contributions of a linear classifier's inputs to half the log-odds."""
    weights = classifier.coef_[0] / 2
    return "field", float(classifier.intercept_[0] / 2 + weights @ centre), weights * (seen - centre)


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
    # Explain each tree by itself: for some hundred labels, tables of all trees together exceed memory.
    alone = getattr(trees, "estimators_", [trees])
    for tree in alone:
        explainer: Any = shap.TreeExplainer(tree)
        # shap divides by the number of labels, as if they were one distribution; take class 1 of each.
        values += np.asarray(explainer.shap_values(seen[None]))[0, :, 1::2] * count / len(alone)
        rest += np.ravel(explainer.expected_value)[1::2] * count / len(alone)
    misses = np.abs(rest + values.sum(0) - probability) > ROUND_OFF
    return [
        _unknown(probability[label])
        if misses[label]
        else Parts("probability", float(probability[label]), float(rest[label]), values[:, label])
        for label in range(count)
    ]
