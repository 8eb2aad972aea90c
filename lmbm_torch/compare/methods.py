"""The methods of a comparison: this library's and usual classifiers, with the settings to try for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from typing import Any

from scipy.sparse import issparse
from scipy.stats import loguniform
from sklearn.base import BaseEstimator
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, MinMaxScaler, Normalizer, StandardScaler
from sklearn.svm import SVC

from lmbm_torch.compare.baselines import AnyClasses, BoostedRules, BoostedTrees, ChainEnsemble, MLkNN
from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    StructuralSVMClassifier,
)
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM, linear_svm
from lmbm_torch.fitting import recipe

PENALTIES = loguniform(0.03, 10)
# This library's own classifiers get unscaled features, because C="scale" scales features.
OWN = {"C": [recipe.times_scale(C) for C in recipe.SEARCHED_C]}
# Largest C for structural SVMs, as a multiple of "scale": a larger C is no better, and training takes two to
# five times as long (scripts/bench/recipes.py).
MOST_STRUCTURAL_C = 3.0
KERNEL_PENALTIES, WIDTHS = loguniform(0.1, 100), ["scale", 0.3, 1.0, 3.0]
GROWTH = {"max_features": ["sqrt", 0.1, 0.3], "min_samples_leaf": [1, 2, 5]}
RULES = {"shrinkage": [0.1, 0.3, 0.5], "feature_share": [None, 0.2]}
BOOSTED = {"learning_rate": [0.03, 0.1, 0.3], "num_rounds": [50, 100, 200], "max_depth": [3, 6, 8]}
MEMBERS = 10


@dataclass(frozen=True)
class Tuned:
    """A model some of whose parameters are chosen by a search.

    Args:
        model: the model with all other parameters.
        space: for each parameter, the values or the distribution from which a search draws.
        is_scaled: whether the scaling of the features is chosen, too.
        takes_sparse: whether the model learns from CSR features.
        library: the module of the optional library that the model needs; None if it needs none.
    """

    model: BaseEstimator
    space: Mapping[str, Any]
    is_scaled: bool = True
    takes_sparse: bool = True
    library: str | None = None


@dataclass(frozen=True)
class Ensemble:
    """An ensemble of several copies of a model, with the parameters that were chosen for the single model.

    Args:
        base: the name of the method with the single model.
        gather: function from the model to the ensemble.
    """

    base: str
    gather: Callable[[BaseEstimator], BaseEstimator]


def _alone(estimator: BaseEstimator) -> MultiOutputClassifier:
    """Return a classifier that trains a copy of ``estimator`` for each label."""
    return MultiOutputClassifier(AnyClasses(estimator))


def _chain(estimator: BaseEstimator) -> ClassifierChain:
    """Return a greedy classifier chain in the order of the columns."""
    return ClassifierChain(AnyClasses(estimator))


def _chains(base: str) -> Ensemble:
    """Return an ensemble of chains in random orders that vote on each label."""
    return Ensemble(base, lambda chain: ChainEnsemble(chain, MEMBERS, random_state=0))


METHODS: dict[str, Tuned | Ensemble] = {
    "independent SVMs": Tuned(_alone(linear_svm()), {"estimator__estimator__C": PENALTIES}),
    "independent SVMs, RBF kernel": Tuned(
        _alone(SVC()), {"estimator__estimator__C": KERNEL_PENALTIES, "estimator__estimator__gamma": WIDTHS}
    ),
    "independent logistic regressions": Tuned(
        _alone(LogisticRegression(max_iter=10_000)), {"estimator__estimator__C": PENALTIES}
    ),
    "classifier chain": Tuned(_chain(linear_svm()), {"estimator__estimator__C": PENALTIES}),
    f"{MEMBERS} classifier chains": _chains("classifier chain"),
    "chain of logistic regressions": Tuned(
        _chain(LogisticRegression(max_iter=10_000)), {"estimator__estimator__C": loguniform(0.1, 30)}
    ),
    f"{MEMBERS} chains of logistic regressions": _chains("chain of logistic regressions"),
    "chain of random forests": Tuned(
        _chain(RandomForestClassifier(50, random_state=0)),
        {f"estimator__estimator__{key}": values for key, values in GROWTH.items()},
        is_scaled=False,
    ),
    f"{MEMBERS} chains of random forests": _chains("chain of random forests"),
    "chain of boosting": Tuned(
        _chain(HistGradientBoostingClassifier(random_state=0)),
        {
            "estimator__estimator__learning_rate": [0.03, 0.1, 0.3],
            "estimator__estimator__max_iter": [30, 100],
        },
        is_scaled=False,
        takes_sparse=False,
    ),
    f"{MEMBERS} chains of boosting": _chains("chain of boosting"),
    "label powerset": Tuned(LabelPowersetSVM(), {"C": PENALTIES}),
    "label powerset, RBF kernel": Tuned(
        LabelPowersetSVM(kernel="rbf"), {"C": KERNEL_PENALTIES, "gamma": WIDTHS}
    ),
    "ML-kNN": Tuned(MLkNN(), {"num_neighbors": [5, 10, 20, 40]}),
    "BCE network": Tuned(
        MLPClassifier((128,), max_iter=100, random_state=0),
        {"alpha": loguniform(1e-5, 1), "learning_rate_init": loguniform(3e-4, 1e-2)},
    ),
    "random forest": Tuned(RandomForestClassifier(random_state=0), GROWTH, is_scaled=False),
    "extra trees": Tuned(ExtraTreesClassifier(random_state=0), GROWTH, is_scaled=False),
    **{
        name: Tuned(BoostedTrees(library, random_state=0), BOOSTED, is_scaled=False, library=library)
        for name, library in (
            ("CatBoost, MultiLogloss", "catboost"),
            ("XGBoost, vector leaves", "xgboost"),
            ("LightGBM for each label", "lightgbm"),
        )
    },
    "BOOMER": Tuned(
        BoostedRules(random_state=0), RULES | {"num_rules": [100, 300, 1000]}, is_scaled=False, library="mlrl"
    ),
    # At most 300 rules, because a rule for label vectors takes four to ten times as long.
    "BOOMER, label vectors": Tuned(
        BoostedRules(is_joint=True, num_rules=300, random_state=0),
        RULES | {"num_rules": [100, 300]},
        is_scaled=False,
        library="mlrl",
    ),
    "LMSBN": Tuned(LMSBNClassifier(random_state=0), OWN, is_scaled=False),
    "LMSBN, RBF kernel": Tuned(LMSBNClassifier(kernel="rbf", random_state=0), OWN, is_scaled=False),
    f"{MEMBERS} LMSBNs": Ensemble(
        "LMSBN", lambda network: LMSBNEnsembleClassifier(network, num_members=MEMBERS, random_state=0)
    ),
    "LMBM": Tuned(LMBMClassifier(random_state=0), OWN, is_scaled=False),
    "structural SVM": Tuned(
        StructuralSVMClassifier(random_state=0),
        {"C": [recipe.times_scale(C) for C in recipe.SEARCHED_C if C <= MOST_STRUCTURAL_C]},
        is_scaled=False,
    ),
    "conditional RBM": Tuned(
        ConditionalRBMClassifier(random_state=0), OWN | {"num_hidden": [4, 8]}, is_scaled=False
    ),
}


def num_settings(space: Mapping[str, Any], most: int) -> int:
    """Return the number of settings in a space, but at most ``most``; a distribution has infinitely many."""
    sizes = [len(values) if isinstance(values, list) else most for values in space.values()]
    return min(most, prod(sizes))


def tuned(name: str) -> Tuned:
    """Return the method of a name; for an ensemble, return the method of the base."""
    method = METHODS[name]
    return tuned(method.base) if isinstance(method, Ensemble) else method


def is_installed(name: str) -> bool:
    """Return whether the library that a method needs is installed."""
    library = tuned(name).library
    return library is None or find_spec(library) is not None


def takes(name: str, features: Any) -> bool:
    """Return whether a method learns from dense or sparse features such as ``features``."""
    return tuned(name).takes_sparse or not issparse(features)


def scalings(features: Any) -> dict[str, BaseEstimator]:
    """Return the scalings to choose from, by name; for sparse features zeros stay zeros."""
    if issparse(features):
        return {"unit rows": Normalizer(), "largest 1": MaxAbsScaler()}
    return {"unit rows": Normalizer(), "[0, 1]": MinMaxScaler(clip=True), "unit variance": StandardScaler()}


def unscaled() -> BaseEstimator:
    """Return a transformer that returns features unchanged."""
    return FunctionTransformer(accept_sparse=True)
