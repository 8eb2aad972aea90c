"""A forest whose classes are the label sets that occur, with a probability for each of them."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin


class LabelSetForest(ClassifierMixin, BaseEstimator):
    """Extra trees over whole label sets, those of training alone.

    Args:
        num_trees, min_samples_leaf, random_state: of scikit-learn's ``ExtraTreesClassifier``.

    Attributes:
        labellings_: (label sets, labels).
    """

    def __init__(self, num_trees=100, *, min_samples_leaf=1, random_state=None):
        self.num_trees = num_trees
        self.min_samples_leaf = min_samples_leaf
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from features (instances, features) and labels (instances, labels) in {0, 1}."""
        self.labellings_, sets = np.unique(np.asarray(y), axis=0, return_inverse=True)
        # At use: most who import the estimators need no trees.
        trees = import_module("sklearn.ensemble").ExtraTreesClassifier
        self.forest_ = trees(
            self.num_trees, min_samples_leaf=self.min_samples_leaf, random_state=self.random_state
        )
        with warnings.catch_warnings():
            # That there are many classes for so few instances, tree by tree: label sets are.
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            self.forest_.fit(X, sets.reshape(-1))
        self.classes_ = np.tile([0, 1], (self.labellings_.shape[1], 1))
        return self

    def label_set_proba(self, X: Any) -> np.ndarray:
        """P(label set | x), (instances, label sets)."""
        return self.forest_.predict_proba(X)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label set, (instances, labels)."""
        return self.labellings_[self.label_set_proba(X).argmax(1)]

    def log_prob(self, X: Any, Y: np.ndarray) -> np.ndarray:
        """log P(Y | x), (instances,), −∞ for a label set that training has not."""
        places = {labelling.tobytes(): place for place, labelling in enumerate(self.labellings_)}
        found = self.label_set_proba(X)
        values = np.ascontiguousarray(np.asarray(Y).astype(self.labellings_.dtype))
        known = np.array([places.get(labelling.tobytes(), -1) for labelling in values])
        chosen = np.where(known < 0, 0.0, found[np.arange(len(known)), known])
        with np.errstate(divide="ignore"):
            return np.log(chosen)
