"""scikit-learn's classifiers of label vectors, made to take labels that never or always occur."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.utils import check_random_state

from lmbm_torch.estimators.baselines import linear_svm


class AnyClasses(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier that predicts the one class that there is where there is but one.

    Folds of a set with rare labels often leave a label without a positive, which scikit-learn's refuse.
    """

    def __init__(self, estimator):
        self.estimator = estimator

    def fit(self, X, y):
        """Same as the estimator's own method."""
        single = len(np.unique(y)) == 1
        estimator: Any = DummyClassifier(strategy="most_frequent") if single else clone(self.estimator)
        self.estimator_ = estimator.fit(X, y)
        self.classes_ = self.estimator_.classes_
        return self

    def predict(self, X):
        """Same as the estimator's own method."""
        return self.estimator_.predict(X)


class ChainEnsemble(ClassifierMixin, BaseEstimator):
    """Classifier chains in random orders that vote on each label (Read et al. 2011), ties being negative.

    Args:
        chain: to fit in every order.
        num_members: how many.
        random_state: of the orders.
    """

    def __init__(self, chain, num_members=10, random_state=None):
        self.chain = chain
        self.num_members = num_members
        self.random_state = random_state

    def fit(self, X, y):
        """Same as the chain's own method."""
        random = check_random_state(self.random_state)
        orders = [random.permutation(y.shape[1]) for _ in range(self.num_members)]
        chains: list[Any] = [clone(self.chain) for _ in orders]
        self.members_ = [
            chain.set_params(order=order).fit(X, y) for chain, order in zip(chains, orders, strict=True)
        ]
        return self

    def predict(self, X):
        """Labels (instances, labels)."""
        votes = np.mean([member.predict(X) for member in self.members_], axis=0)
        return (votes > 0.5).astype(int)


def independent_svms() -> MultiOutputClassifier:
    """One linear SVM a label."""
    return MultiOutputClassifier(AnyClasses(linear_svm()))


def independent_logistic_regressions() -> MultiOutputClassifier:
    """One logistic regression a label."""
    return MultiOutputClassifier(AnyClasses(LogisticRegression(max_iter=10_000)))


def svm_chain() -> ClassifierChain:
    """Linear SVMs that see the labels before them in the order of the columns, decoded greedily."""
    return ClassifierChain(AnyClasses(linear_svm()))
