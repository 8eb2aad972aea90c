"""Classifiers of complete labels, trained on incomplete ones: a network completes them."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from lmbm_torch.estimators.sigmoid_belief import LMSBNClassifier

# The network need not be learned well to complete labels.
TOL = 1e-2


class CompletingPipeline(Pipeline):
    """A pipeline whose classifier takes no missing labels, trained on what a network makes of them.

    The network is an :class:`LMSBNClassifier` of C = 1 over features of unit length, and learns from all
    labels that are known; a missing one is that of its best labelling around the known ones of the instance.
    With complete labels this is scikit-learn's own pipeline.
    """

    def fit(self, X: Any, y: Any, **params: Any) -> Self:
        """Learn from features (instances, features) and labels (instances, labels), NaN where missing."""
        return super().fit(X, completed(X, np.asarray(y)), **params)


def completed(X: Any, labels: np.ndarray) -> np.ndarray:
    """Labels (instances, labels) as integers, those that are missing as a network completes them."""
    missing = np.isnan(labels)
    rows = np.flatnonzero(missing.any(1))
    if len(rows):
        # What is known most often imputes the rest while the network is learned.
        order: Any = np.argsort(missing.sum(0), kind="stable")
        network = LMSBNClassifier(ordering=order, tol=TOL, random_state=0)
        scaling = [Normalizer()] if issparse(X) else [StandardScaler(), Normalizer()]
        pipeline = make_pipeline(*scaling, network).fit(X, labels)
        found = network.decode(pipeline[:-1].transform(X[rows]), known=labels[rows])
        labels = labels.copy()
        labels[rows] = found.labels.numpy()
    return labels.astype(np.int64)
