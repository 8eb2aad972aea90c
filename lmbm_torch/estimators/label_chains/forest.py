"""A random forest for label matrices with missing labels."""

from __future__ import annotations

from importlib import import_module
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array
from scipy.special import logit

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.common.settings import COUNT, POSITIVE, SHARED, Constraints, Number, StrOptions
from lmbm_torch.estimators.label_chains import trees
from lmbm_torch.estimators.networks import independent_labels
from lmbm_torch.solvers.networks.problems import Features


class LabelForestClassifier(DecodingClassifier[DirectedEnergy]):
    """A random forest of label vectors with missing labels.

    The trees are grown by scikit-learn's ``RandomForestRegressor`` (Breiman 2001), with splits for all labels
    together. The target for a known label is the deviation from the prior, divided by the prior's standard
    deviation; for a missing label the target is 0. If a leaf has n known values of a label, and k of them are
    positive, the probability is (k + smoothing · prior) / (n + smoothing). All training instances enter n and
    k, also instances outside of the tree's bootstrap sample.

    Args:
        num_trees: number of trees.
        max_features: features to try at each split: ``"sqrt"``, a number, or a share of the features.
        min_samples_leaf: smallest number of instances in a leaf, including those with missing labels.
        smoothing: weight of the prior in each leaf, as a number of instances.
        random_state: seed of the trees.
        constraints: rules that all predictions obey, as text or objects (:mod:`lmbm_torch.constraints`);
            training ignores rules.

    Attributes:
        forest_: the fitted forest of scikit-learn.
        leaves_: for each tree the probabilities (nodes, labels).
        prior_: (labels,), (weight of positive instances + 1) / (weight of known instances + 2).
        classes_: the classes; for label matrices (labels, 2), the two values of each label.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.estimators import LabelForestClassifier
        >>> X = np.arange(12.0)[:, None]
        >>> Y = np.hstack([X > 5, np.where(X % 3 == 0, np.nan, X > 5)])
        >>> LabelForestClassifier(20, random_state=0).fit(X, Y).predict([[1.0], [10.0]])
        array([[0, 0],
               [1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "num_trees": [COUNT],
        "max_features": [StrOptions({"sqrt"}), COUNT, Number(Real, 0, 1, closed="neither")],
        "min_samples_leaf": [COUNT],
        "smoothing": [POSITIVE],
    }

    device = "cpu"
    holds_others: ClassVar[bool] = True
    capabilities, predict_decoding = independent_labels.capabilities, independent_labels.predict_decoding
    _energy = independent_labels.energy_of_log_odds
    _decode_energy, _code_losses = independent_labels.decode_energy, independent_labels.code_losses
    fit = trees.fit

    prior_: np.ndarray

    def __init__(
        self,
        num_trees=100,
        *,
        max_features="sqrt",
        min_samples_leaf=3,
        smoothing=1.0,
        random_state=None,
        constraints=None,
    ):
        self.num_trees = num_trees
        self.max_features = max_features
        self.min_samples_leaf = min_samples_leaf
        self.smoothing = smoothing
        self.random_state = random_state
        self.constraints = constraints

    def _grow(self, X: Features, labels: np.ndarray, known: np.ndarray, weights: np.ndarray) -> None:
        # Import the forest only when needed: most users of the estimators need no trees.
        kind = import_module("sklearn.ensemble").RandomForestRegressor
        self.forest_ = kind(
            self.num_trees,
            max_features=self.max_features,
            min_samples_leaf=self.min_samples_leaf,
            random_state=self._seed(),
        )
        deviations = known * (labels - self.prior_) / np.sqrt(self.prior_ * (1 - self.prior_))
        self.forest_.fit(X, deviations if labels.shape[1] > 1 else deviations[:, 0], weights)
        self.leaves_: list[Any] = []
        for tree, places in zip(self.forest_.estimators_, self.forest_.apply(X).T, strict=True):
            at = (weights, (places, np.arange(len(weights))))
            in_leaf: Any = csr_array(at, shape=(tree.tree_.node_count, len(weights)))
            on, counted = in_leaf @ labels, in_leaf @ known.astype(np.float64)
            self.leaves_.append((on + self.smoothing * self.prior_) / (counted + self.smoothing))

    def _log_odds(self, X: Features) -> np.ndarray:
        places = self.forest_.apply(X).T
        found = np.zeros((places.shape[1], len(self.prior_)))
        for leaves, own in zip(self.leaves_, places, strict=True):
            found += leaves[own]
        return logit(found / len(self.leaves_))
