"""The methods compared, every family of the library and the peers, each with its settings to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scipy.sparse import issparse
from scipy.stats import loguniform
from sklearn.base import BaseEstimator
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, MinMaxScaler, Normalizer, StandardScaler

from lmbm_torch.comparisons.baselines import (
    ChainEnsemble,
    independent_logistic_regressions,
    independent_svms,
    svm_chain,
)
from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    StructuralSVMClassifier,
)
from lmbm_torch.estimators.baselines import LabelPowersetSVM

PENALTIES = loguniform(0.03, 10)
MEMBERS = 10


@dataclass(frozen=True)
class Tuned:
    """A model with choices.

    Args:
        model: with everything that is not chosen.
        space: parameter → values, or a distribution, to draw from.
        is_scaled: whether the scaling of the features is chosen, too.
    """

    model: BaseEstimator
    space: Mapping[str, Any]
    is_scaled: bool = True


@dataclass(frozen=True)
class Ensemble:
    """Several of a tuned model, at the choices made for it.

    Args:
        base: the tuned method's name.
        gather: its model → the ensemble.
    """

    base: str
    gather: Callable[[BaseEstimator], BaseEstimator]


METHODS: dict[str, Tuned | Ensemble] = {
    "independent SVMs": Tuned(independent_svms(), {"estimator__estimator__C": PENALTIES}),
    "independent logistic regressions": Tuned(
        independent_logistic_regressions(), {"estimator__estimator__C": PENALTIES}
    ),
    "classifier chain": Tuned(svm_chain(), {"estimator__estimator__C": PENALTIES}),
    f"{MEMBERS} classifier chains": Ensemble(
        "classifier chain", lambda chain: ChainEnsemble(chain, MEMBERS, random_state=0)
    ),
    "label powerset": Tuned(LabelPowersetSVM(), {"C": PENALTIES}),
    "random forest": Tuned(
        RandomForestClassifier(random_state=0),
        {"max_features": ["sqrt", 0.1, 0.3], "min_samples_leaf": [1, 2, 5]},
        is_scaled=False,
    ),
    "LMSBN": Tuned(LMSBNClassifier(random_state=0), {"C": PENALTIES}),
    "LMSBN, RBF kernel": Tuned(LMSBNClassifier(kernel="rbf", random_state=0), {"C": PENALTIES}),
    f"{MEMBERS} LMSBNs": Ensemble(
        "LMSBN", lambda network: LMSBNEnsembleClassifier(network, num_members=MEMBERS, random_state=0)
    ),
    "LMBM": Tuned(LMBMClassifier(random_state=0), {"C": PENALTIES, "coupling_penalty": loguniform(1, 100)}),
    "structural SVM": Tuned(
        StructuralSVMClassifier(random_state=0), {"C": PENALTIES, "coupling_penalty": loguniform(1, 100)}
    ),
    "conditional RBM": Tuned(
        ConditionalRBMClassifier(objective="mle_mf", max_iter=20, batch_size=100, random_state=0),
        {"C": PENALTIES, "num_hidden": [16, 32, 64], "learning_rate": loguniform(0.02, 0.2)},
    ),
}


def scalings(features: Any) -> dict[str, BaseEstimator]:
    """The scalings to choose from, by name; those for sparse features keep them sparse."""
    if issparse(features):
        return {"unit rows": Normalizer(), "largest 1": MaxAbsScaler()}
    return {"unit rows": Normalizer(), "[0, 1]": MinMaxScaler(clip=True), "unit variance": StandardScaler()}


def unscaled() -> BaseEstimator:
    """The features as they are."""
    return FunctionTransformer(accept_sparse=True)
