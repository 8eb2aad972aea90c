"""Boosting of label vectors by trees that have a value for each label in each leaf."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, logit

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.common.settings import COUNT, NOT_NEGATIVE, POSITIVE, SHARED, Constraints, Number
from lmbm_torch.estimators.label_chains import trees
from lmbm_torch.estimators.networks import independent_labels
from lmbm_torch.extras import naming_extras
from lmbm_torch.solvers.networks.problems import Features

SHARE = [Number(Real, 0, 1, closed="both")]
# Missing labels get this second derivative of the loss, because XGBoost refuses 0.
LEAST = 1e-16


class LabelBoostingClassifier(DecodingClassifier[DirectedEnergy]):
    """Gradient boosting of label vectors with missing labels, by trees for all labels together.

    XGBoost grows one tree in each round, with a value for each label in each leaf (Chen and Guestrin 2016;
    ``multi_strategy="multi_output_tree"``). The loss is the log loss of the known labels: only known labels
    decide about splits and values of leaves. Features that are 0 are treated as missing, also in dense X;
    each split sends missing features to the side with the larger gain. Needs the extra ``boosting``.

    Args:
        num_rounds: number of trees.
        learning_rate: factor on the values of leaves.
        max_depth: largest number of splits from root to leaf.
        subsample: share of the instances from which each tree learns.
        max_features: share of the features that are tried at each split.
        penalty: weight of the squared values of leaves.
        num_bins: number of intervals of a feature's values. On flags, chd_49, scene and yeast, 256 take up to
            13 times as long, with log losses that differ by at most .008 in either direction.
        random_state: seed for the samples of instances and features.
        constraints: rules that all predictions obey, as text or objects (:mod:`lmbm_torch.constraints`);
            training ignores rules.

    Attributes:
        booster_: the fitted booster of XGBoost.
        prior_: (labels,), (weight of positive instances + 1) / (weight of known instances + 2), the
            probabilities before the first tree.
        classes_: the classes; for label matrices (labels, 2), the two values of each label.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.estimators import LabelBoostingClassifier
        >>> X = np.arange(1.0, 41)[:, None]
        >>> Y = np.hstack([X > 20, np.where(X % 3 == 0, np.nan, X > 20)])
        >>> model = LabelBoostingClassifier(random_state=0).fit(X, Y)  # doctest: +SKIP
        >>> model.predict([[5.0], [35.0]])  # doctest: +SKIP
        array([[0, 0],
               [1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "num_rounds": [COUNT],
        "max_depth": [COUNT],
        "num_bins": [COUNT],
        "subsample": SHARE,
        "max_features": SHARE,
        "penalty": [NOT_NEGATIVE],
        "learning_rate": [POSITIVE],
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
        num_rounds=100,
        *,
        learning_rate=0.1,
        max_depth=6,
        subsample=0.7,
        max_features=0.3,
        penalty=1.0,
        num_bins=32,
        random_state=None,
        constraints=None,
    ):
        self.num_rounds = num_rounds
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.subsample = subsample
        self.max_features = max_features
        self.penalty = penalty
        self.num_bins = num_bins
        self.random_state = random_state
        self.constraints = constraints

    def _grow(self, X: Features, labels: np.ndarray, known: np.ndarray, weights: np.ndarray) -> None:
        counted = known * weights[:, None]

        def derivatives(odds: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            present = expit(odds.reshape(labels.shape))
            return counted * (present - labels), np.maximum(counted * present * (1 - present), LEAST)

        settings = {
            "tree_method": "hist",
            "multi_strategy": "multi_output_tree",
            "num_target": labels.shape[1],
            "base_score": 0.0,
            "disable_default_eval_metric": True,
            "learning_rate": self.learning_rate,
            "max_depth": self.max_depth,
            "subsample": self.subsample,
            "colsample_bynode": self.max_features,
            "reg_lambda": self.penalty,
            "max_bin": self.num_bins,
            "seed": self._seed(),
        }
        rows = self._matrix(X, labels)
        self.booster_ = _library().train(settings, rows, self.num_rounds, obj=derivatives)

    def _log_odds(self, X: Features) -> np.ndarray:
        odds = self.booster_.predict(self._matrix(X), output_margin=True)
        return odds.astype(np.float64).reshape(-1, len(self.prior_))

    def _matrix(self, X: Features, labels: np.ndarray | None = None) -> Any:
        """Convert instances to XGBoost's matrix, where boosting starts from the log-odds of the prior."""
        margins = np.tile(logit(self.prior_), (X.shape[0], 1))  # pyright: ignore[reportOptionalSubscript]
        return _library().DMatrix(X, label=labels, missing=0.0, base_margin=margins)


def is_installed() -> bool:
    """Return whether XGBoost is installed."""
    return find_spec("xgboost") is not None


def _library() -> Any:
    """Import XGBoost.

    Raises:
        ModuleNotFoundError: XGBoost is not installed; the message names the extra.
    """
    with naming_extras():
        return import_module("xgboost")
