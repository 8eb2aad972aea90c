"""Classifiers of the label sets seen in training, with a probability for each label set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self, cast

import numpy as np
from scipy.linalg import cho_solve, cholesky, get_lapack_funcs, solve_triangular
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_array
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import check_random_state, gen_batches

from lmbm_torch.estimators.common.baselines import many_classes
from lmbm_torch.estimators.common.measures import measure

# Ridge penalties to try: added to the diagonal of the kernel matrix, where each kernel value is 1.
PENALTIES = (0.01, 0.1, 1.0)
# Decay rates to try in the similarity exp(−rate · Hamming distance); with ∞ only equal sets are similar.
DECAYS = (0.5, 1.0, 2.0, np.inf)
# Range of the temperature, by which scores are divided before the softmax.
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 10.0
# Largest number of landmarks (training instances with kernel values), and of label sets to choose from.
LANDMARKS, ANSWERS = 2000, 2000
# Added to the diagonal of the kernel matrix, which duplicate instances would otherwise make singular.
JITTER = 1e-6
# Number of instances whose kernel values are computed at once; limits memory.
BATCH = 4096


class LabelSetClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of whole label sets.

    Attributes:
        labellings_: (label sets, labels), the different label sets seen in training.
        classes_: (labels, 2), the values 0 and 1 of each label.
    """

    labellings_: np.ndarray

    @abstractmethod
    def label_set_proba(self, X: Any) -> np.ndarray:
        """Return P(label set | x), (instances, label sets)."""

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable label set, (instances, labels)."""
        return self.labellings_[self.label_set_proba(X).argmax(1)]

    def log_prob(self, X: Any, Y: np.ndarray) -> np.ndarray:
        """Return log P(Y | x), (instances,), −∞ for label sets without training instances."""
        places = {labelling.tobytes(): place for place, labelling in enumerate(self.labellings_)}
        found = self.label_set_proba(X)
        values = np.ascontiguousarray(np.asarray(Y).astype(self.labellings_.dtype))
        known = np.array([places.get(labelling.tobytes(), -1) for labelling in values])
        chosen = np.where(known < 0, 0.0, found[np.arange(len(known)), known])
        with np.errstate(divide="ignore"):
            return np.log(chosen)

    def _sets(self, y: Any) -> np.ndarray:
        """Store the different label sets of ``y``; return the index of each instance's set, (instances,)."""
        self.labellings_, sets = np.unique(np.asarray(y), axis=0, return_inverse=True)
        self.classes_ = np.tile([0, 1], (self.labellings_.shape[1], 1))
        return sets.reshape(-1)


class LabelSetForest(LabelSetClassifier):
    """A forest of extra trees with one class for each label set.

    Args:
        num_trees, min_samples_leaf, random_state: passed to scikit-learn's ``ExtraTreesClassifier``.
    """

    def __init__(self, num_trees=100, *, min_samples_leaf=1, random_state=None):
        self.num_trees = num_trees
        self.min_samples_leaf = min_samples_leaf
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train on features (instances, features) and labels (instances, labels) in {0, 1}."""
        sets = self._sets(y)
        # Imported at use: most users of the estimators need no trees.
        trees = import_module("sklearn.ensemble").ExtraTreesClassifier
        self.forest_ = trees(
            self.num_trees, min_samples_leaf=self.min_samples_leaf, random_state=self.random_state
        )
        with many_classes():
            self.forest_.fit(X, sets)
        return self

    def label_set_proba(self, X: Any) -> np.ndarray:
        return self.forest_.predict_proba(X)


class LabelSetRidge(LabelSetClassifier):
    """A kernel ridge regression that predicts the similarity to each label set.

    Input output kernel regression (Brouard et al. 2016): the predicted label set has the largest expected
    similarity to the true label set; label sets with few different labels are similar. Penalty, decay rate of
    the similarity and temperature of the probabilities are chosen by leave-one-out predictions.

    Args:
        gamma: γ in the Gaussian kernel exp(−γ ‖x − x'‖² / median), with the median of the squared distances.
        metric: name of the metric by which penalty and decay rate are chosen.
        random_state: seed of the choice of landmarks, if there are more instances than ``LANDMARKS``.

    Attributes:
        labellings_: (label sets, labels), the ``ANSWERS`` most frequent label sets of the training.
        landmarks_: (landmarks, features), the training instances with which kernel values are computed.
        penalty_, decay_, temperature_: the chosen values.
        coef_: (landmarks, label sets), the weights of the kernel values.
    """

    def __init__(self, gamma=3.0, *, metric="exact_match", random_state=None):
        self.gamma = gamma
        self.metric = metric
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train on features (instances, features) and labels (instances, labels) in {0, 1}."""
        rows, sets = cast(Any, X), self._sets(y)
        occurring = self.labellings_
        frequent = np.sort(np.argsort(-np.bincount(sets), kind="stable")[:ANSWERS])
        self.labellings_ = occurring[frequent]
        chosen = np.arange(len(sets))
        if len(sets) > LANDMARKS:
            chosen = np.sort(check_random_state(self.random_state).permutation(len(sets))[:LANDMARKS])
        self.landmarks_ = rows[chosen]
        squares = euclidean_distances(self.landmarks_, squared=True)
        self._median = float(np.median(squares[squares > 0])) if (squares > 0).any() else 1.0
        kernel = self._kernel(self.landmarks_)
        if len(chosen) == len(sets):
            regression = _Regression(kernel, sets)
        else:
            batches = (rows[batch] for batch in gen_batches(rows.shape[0], BATCH))
            regression = _LandmarkRegression.of(kernel, map(self._kernel, batches), sets, chosen)
        likeness = {decay: self._likeness(occurring, decay) for decay in DECAYS}
        found = (
            (self._quality(scores, occurring[sets[chosen]]), penalty, decay, coef, scores)
            for penalty in PENALTIES
            for coef, expected in [regression.solved(penalty)]
            for decay, scores in ((decay, expected @ alike) for decay, alike in likeness.items())
        )
        _, self.penalty_, self.decay_, coef, scores = max(found, key=lambda each: each[0])
        self.coef_ = coef @ likeness[self.decay_]
        answered = np.isin(sets[chosen], frequent)
        places = np.searchsorted(frequent, sets[chosen][answered])
        self.temperature_ = _temperature(scores[answered], places) if answered.any() else 1.0
        return self

    def label_set_proba(self, X: Any) -> np.ndarray:
        return softmax(self._kernel(X) @ self.coef_ / self.temperature_, axis=1)

    def _quality(self, scores: np.ndarray, truths: np.ndarray) -> float:
        return measure(self.metric, self.labellings_[scores.argmax(1)], truths)

    def _likeness(self, occurring: np.ndarray, decay: float) -> np.ndarray:
        """Return exp(−decay · Hamming distance), (label sets seen in training, label sets to predict)."""
        ours, theirs = occurring.astype(float), self.labellings_.astype(float)
        differ = ours @ (1 - theirs.T) + (1 - ours) @ theirs.T
        return np.exp(-np.where(differ > 0, decay, 0) * np.maximum(differ, 1))

    def _kernel(self, X: Any) -> np.ndarray:
        """Return the kernel values between ``X`` and the landmarks, (instances, landmarks)."""
        squares = euclidean_distances(X, self.landmarks_, squared=True).astype(float)
        return np.exp(-self.gamma * squares / self._median)


@dataclass(frozen=True)
class _Regression:
    """A kernel ridge regression whose targets are indicators of the label sets.

    Args:
        kernel: (instances, instances), the kernel values.
        sets: (instances,), the index of each instance's label set.
    """

    kernel: np.ndarray
    sets: np.ndarray

    def solved(self, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients of the kernel values, and the leave-one-out predictions."""
        factor = cholesky(self.kernel + penalty * np.eye(len(self.sets)), lower=True)
        targets = _indicators(self.sets).toarray()
        coef = cho_solve((factor, True), targets)
        (invert,) = get_lapack_funcs(("trtri",), (factor,))
        inverse, _ = invert(factor, lower=1)
        # Divide by the diagonal of the inverse kernel matrix: equation (4) of Rifkin and Lippert (2007).
        return coef, targets - coef / np.square(inverse).sum(0)[:, None]


@dataclass(frozen=True)
class _LandmarkRegression:
    """A kernel ridge regression on Nyström features, from kernel values with landmarks.

    Args:
        root: (landmarks, landmarks), lower triangular Cholesky factor of the landmarks' kernel matrix.
        square: (landmarks, landmarks), Gram matrix of the Nyström features over all instances.
        sums: (landmarks, label sets), the sum of the Nyström features over the instances of each label set.
        inputs: (landmarks, landmarks), the landmarks' Nyström features; a column for each landmark.
        targets: (landmarks, label sets), 1 for the label set of each landmark.
    """

    root: np.ndarray
    square: np.ndarray
    sums: np.ndarray
    inputs: np.ndarray
    targets: csr_array

    @classmethod
    def of(
        cls, kernel: np.ndarray, batches: Iterator[np.ndarray], sets: np.ndarray, chosen: np.ndarray
    ) -> Self:
        """Build the regression from batches of kernel values.

        Args:
            kernel: (landmarks, landmarks), the kernel values of all pairs of landmarks.
            batches: kernel values of consecutive instances, each (batch, landmarks).
            sets: (instances,), the index of each instance's label set.
            chosen: ascending indices of the instances that are landmarks.
        """
        root = cholesky(kernel + JITTER * np.eye(len(chosen)), lower=True)
        targets = _indicators(sets)
        square, sums, inputs, start = np.zeros(()), np.zeros(()), [], 0
        for values in batches:
            features = solve_triangular(root, values.T, lower=True)
            rows = slice(start, start + features.shape[1])
            square, sums = square + features @ features.T, sums + (targets[rows].T @ features.T).T
            inputs.append(features[:, chosen[(chosen >= rows.start) & (chosen < rows.stop)] - start])
            start = rows.stop
        return cls(root, square, sums, np.hstack(inputs), targets[chosen])

    def solved(self, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients, and leave-one-out predictions for the landmarks only."""
        factor = cholesky(self.square + penalty * np.eye(len(self.square)), lower=True)
        weights = cho_solve((factor, True), self.sums)
        # Subtract each landmark's own share of the prediction, so the prediction leaves the landmark out.
        own = np.square(solve_triangular(factor, self.inputs, lower=True)).sum(0)[:, None]
        expected = self.inputs.T @ weights - own * self.targets.toarray()
        return solve_triangular(self.root.T, weights), expected / np.maximum(1 - own, JITTER)


def _indicators(sets: np.ndarray) -> csr_array:
    """Return an indicator matrix (instances, label sets), with a 1 for the label set of each instance."""
    return csr_array((np.ones(len(sets)), (np.arange(len(sets)), sets)))


def _temperature(scores: np.ndarray, sets: np.ndarray) -> float:
    """Return the temperature for which the softmax of scores / temperature has the least log loss."""

    def log_loss(logarithm: float) -> float:
        return -log_softmax(scores / np.exp(logarithm), axis=1)[np.arange(len(sets)), sets].mean()

    bounds = np.log([MIN_TEMPERATURE, MAX_TEMPERATURE])
    found: Any = minimize_scalar(log_loss, bounds=bounds, method="bounded")
    return float(np.exp(found.x))
