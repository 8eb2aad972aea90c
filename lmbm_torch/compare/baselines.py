"""Baselines: scikit-learn's classifiers, made to accept constant labels, ML-kNN, boosted trees and BOOMER."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.dummy import DummyClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if

from lmbm_torch.extras import naming_extras


class AnyClasses(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier that also learns from targets with a single class.

    With rare labels, some label often has only one value in a fold, which scikit-learn's classifiers refuse.
    """

    def __init__(self, estimator):
        self.estimator = estimator

    def fit(self, X, y):
        """Fit the estimator."""
        single = len(np.unique(y)) == 1
        estimator: Any = DummyClassifier(strategy="most_frequent") if single else clone(self.estimator)
        self.estimator_ = estimator.fit(X, y)
        # Always declare both classes, because scikit-learn's chains take the last class for "present".
        self.classes_ = np.union1d(self.estimator_.classes_, [0, 1])
        return self

    def predict(self, X):
        """Predict with the estimator."""
        return self.estimator_.predict(X)

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))
    def predict_proba(self, X):
        """Return the probabilities that the label is absent and present, (instances, 2)."""
        found = np.zeros((X.shape[0], 2))
        found[:, np.asarray(self.estimator_.classes_, int)] = self.estimator_.predict_proba(X)
        return found


class ChainEnsemble(ClassifierMixin, BaseEstimator):
    """Classifier chains in random orders that vote on each label (Read et al. 2011); a tie means absent.

    Args:
        chain: the chain to fit in every order.
        num_members: number of chains.
        random_state: seed of the orders.
    """

    def __init__(self, chain, num_members=10, random_state=None):
        self.chain = chain
        self.num_members = num_members
        self.random_state = random_state

    def fit(self, X, y):
        """Fit a chain in each order."""
        random = check_random_state(self.random_state)
        orders = [random.permutation(y.shape[1]) for _ in range(self.num_members)]
        chains: list[Any] = [clone(self.chain) for _ in orders]
        self.members_ = [
            chain.set_params(order=order).fit(X, y) for chain, order in zip(chains, orders, strict=True)
        ]
        return self

    def predict(self, X):
        """Predict labels (instances, labels)."""
        return (self.predict_proba(X) > 0.5).astype(int)

    def predict_proba(self, X):
        """Return the share of the chains' votes for each label, (instances, labels)."""
        return np.mean([member.predict(X) for member in self.members_], axis=0)


class MLkNN(ClassifierMixin, BaseEstimator):
    """ML-kNN (Zhang and Zhou 2007): the more likely value of each label, given the count among neighbours.

    Args:
        num_neighbors: number of nearest instances.
        smoothing: number to add to every count.
    """

    def __init__(self, num_neighbors=10, smoothing=1.0):
        self.num_neighbors = num_neighbors
        self.smoothing = smoothing

    def fit(self, X, y):
        """Count, for instances with and without a label, how often each number of neighbours has it."""
        labels = np.asarray(y).astype(bool)
        self.labels_ = labels
        self.classes_ = np.tile([0, 1], (labels.shape[1], 1))
        self.neighbors_ = NearestNeighbors(n_neighbors=min(self.num_neighbors, len(labels) - 1)).fit(X)
        # Without X, kneighbors does not return an instance as its own neighbour.
        near = self._near(self.neighbors_.kneighbors(return_distance=False))
        values = np.arange(self.neighbors_.n_neighbors + 1)
        counts = near[:, None] == values[:, None]  # (instances, counts, labels)
        # How often each count of neighbours occurs: (values, counts, labels).
        seen = np.stack([(counts & ~labels[:, None]).sum(0), (counts & labels[:, None]).sum(0)])
        seen = seen + self.smoothing
        present = self.smoothing + np.stack([(~labels).sum(0), labels.sum(0)])
        self.log_joint_ = np.log(seen / seen.sum(1, keepdims=True)) + np.log(present)[:, None]
        return self

    def predict(self, X):
        """Predict labels (instances, labels)."""
        return (self.predict_proba(X) > 0.5).astype(int)

    def predict_proba(self, X):
        """Return probabilities of the labels (instances, labels)."""
        near = self._near(self.neighbors_.kneighbors(X, return_distance=False))
        absent, present = (np.take_along_axis(each, near, 0) for each in self.log_joint_)
        return expit(present - absent)

    def _near(self, neighbors: np.ndarray) -> np.ndarray:
        """Count the neighbours with each label, (instances, labels)."""
        return self.labels_[neighbors].sum(1)


class BoostedTrees(ClassifierMixin, BaseEstimator):
    """Boosted trees of another library: vectors of labels in each leaf, or trees for each label.

    Args:
        library: ``"catboost"`` (loss ``MultiLogloss``), ``"xgboost"`` (a vector in each leaf) or
            ``"lightgbm"`` (a classifier for each label).
        num_rounds: number of rounds of boosting.
        learning_rate: factor on the scores of each tree.
        max_depth: largest depth of a tree.
        random_state: seed of the draws.
    """

    def __init__(self, library, num_rounds=100, learning_rate=0.1, max_depth=6, random_state=None):
        self.library = library
        self.num_rounds = num_rounds
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.random_state = random_state

    def fit(self, X, y):
        """Fit the other library's classifier to labels with two values in training; keep others constant."""
        self.constant_ = y.mean(0)
        self.is_varying_ = y.min(0) < y.max(0)
        self.classes_ = np.tile([0, 1], (y.shape[1], 1))
        own = y[:, self.is_varying_]
        self.estimator_ = self._unfitted(own.shape[1]).fit(_as_matrix(X), own) if own.shape[1] else None
        return self

    def predict(self, X):
        """Predict labels (instances, labels)."""
        return (self.predict_proba(X) > 0.5).astype(int)

    def predict_proba(self, X):
        """Return probabilities of the labels (instances, labels)."""
        found = np.tile(self.constant_, (X.shape[0], 1))
        if self.estimator_ is not None:
            own: Any = self.estimator_.predict_proba(_as_matrix(X))
            own = np.stack([each[:, 1] for each in own], 1) if isinstance(own, list) else np.asarray(own)
            found[:, self.is_varying_] = own[:, -1:] if self.is_varying_.sum() == 1 else own
        return found

    def _unfitted(self, num_labels: int) -> Any:
        options: dict[str, Any] = {"learning_rate": self.learning_rate, "max_depth": self.max_depth}
        with naming_extras():
            module = import_module(self.library)
        if self.library == "catboost":
            loss = "MultiLogloss" if num_labels > 1 else "Logloss"
            settings = {"iterations": self.num_rounds, "random_seed": self.random_state, "thread_count": 1}
            quiet = {"verbose": 0, "allow_writing_files": False}
            return module.CatBoostClassifier(loss_function=loss, **options, **settings, **quiet)
        options |= {"n_estimators": self.num_rounds, "random_state": self.random_state, "n_jobs": 1}
        if self.library == "xgboost":
            return module.XGBClassifier(multi_strategy="multi_output_tree", **options)
        return MultiOutputClassifier(module.LGBMClassifier(verbose=-1, **options))


def _as_matrix(X: Any) -> Any:
    """Convert sparse features to SciPy's older class of matrices, because CatBoost refuses sparse arrays."""
    return csr_matrix(X) if issparse(X) else X


class BoostedRules(ClassifierMixin, BaseEstimator):
    """BOOMER: boosted rules for several labels at once (Rapp et al. 2020), by the library mlrl-boomer.

    Args:
        is_joint: whether to train by the logistic loss of whole label vectors, and to predict the most
            probable label vector of the training set; otherwise train by the sum of the labels' losses.
        num_rules: largest number of rules.
        shrinkage: factor on the scores of each rule.
        feature_share: share of the features to draw for each rule; None for the library's default, a number
            that grows with the logarithm of the number of features. If features are rarely non-zero, the
            default may end training at once.
        random_state: seed of the draws.
    """

    def __init__(self, is_joint=False, num_rules=1000, shrinkage=0.3, feature_share=None, random_state=None):
        self.is_joint = is_joint
        self.num_rules = num_rules
        self.shrinkage = shrinkage
        self.feature_share = feature_share
        self.random_state = random_state

    def fit(self, X, y):
        """Fit the rules; the library comes with the extra ``boomer``."""
        with naming_extras():
            from mlrl.boosting import BoomerClassifier  # pyright: ignore[reportMissingImports]
        share = self.feature_share
        sampling = "none" if share == 1 else f"without-replacement{{sample_size={share}}}"
        self.rules_ = BoomerClassifier(
            loss="logistic-non-decomposable" if self.is_joint else "logistic-decomposable",
            binary_predictor="example-wise" if self.is_joint else "output-wise",
            max_rules=self.num_rules,
            shrinkage=self.shrinkage,
            # The library refuses the seed 0.
            random_state=check_random_state(self.random_state).randint(1, 2**31),
            feature_sampling=None if share is None else sampling,
        ).fit(X, np.asarray(y).astype(np.uint8))
        self.classes_ = np.tile([0, 1], (y.shape[1], 1))
        return self

    def predict(self, X):
        """Predict labels (instances, labels)."""
        return np.asarray(self.rules_.predict(X)).astype(int)

    @available_if(lambda self: not self.is_joint)
    def predict_proba(self, X):
        """Return probabilities of the labels (instances, labels)."""
        return np.asarray(self.rules_.predict_proba(X))
