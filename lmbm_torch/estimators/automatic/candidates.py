"""The classifiers that are tried: the library's families and the usual peers, simplest settings first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, cast

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, MinMaxScaler, Normalizer, StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data

from lmbm_torch.estimators.baselines import LabelPowersetSVM
from lmbm_torch.estimators.boltzmann import LMBMClassifier
from lmbm_torch.estimators.ensembles import LMSBNEnsembleClassifier
from lmbm_torch.estimators.label_chains.probabilistic import ProbabilisticClassifierChain
from lmbm_torch.estimators.sigmoid_belief import LMSBNClassifier

# Undirected models of more labels are decoded within limits, and trained long.
MAX_MACHINE_LABELS = 20
TREES = 200
# The decoders of a network or a chain by the measure that is asked for.
EXPECTATION = {"exact_match": "exact_match", "hamming": "hamming", "jaccard": "jaccard"}


@dataclass(frozen=True)
class Candidate:
    """A classifier to try.

    Args:
        family: its name.
        settings: what differs within the family, for readers.
        pipeline: unfitted; scaling of the features, and the model.
        decoders: settings of the model's parameter ``decoder``, all tried on one fit; None where it has none.
    """

    family: str
    settings: str
    pipeline: Pipeline
    decoders: tuple[str | None, ...]

    def unfitted(self, decoder: str | None = None) -> Pipeline:
        """A copy to fit."""
        return with_decoder(cast(Pipeline, clone(self.pipeline)), decoder)


def with_decoder(pipeline: Pipeline, decoder: str | None) -> Pipeline:
    """The pipeline, its model's decoder set, where there is one."""
    if decoder is not None:
        pipeline[-1].set_params(decoder=decoder)
    return pipeline


def candidates(
    metric: str, num_labels: int, *, is_sparse: bool, families: Sequence[str] | None, seed: int
) -> list[Candidate]:
    """One setting of each family in turn.

    Raises:
        ValueError: a family that there is none of.
    """
    tried = {name: list(every(metric, num_labels, is_sparse, seed)) for name, every in FAMILIES.items()}
    for name in families or ():
        if name not in FAMILIES:
            raise ValueError(f"families: expected some of {list(FAMILIES)}, got {name!r}")
    chosen = [tried[name] for name in FAMILIES if families is None or name in families]
    return [each for each in chain.from_iterable(zip_longest(*chosen)) if each is not None]


class UnitMeanSquare(TransformerMixin, BaseEstimator):
    """X / r with r² = mean ‖x‖²: the size of the features does not matter to the weight of the losses."""

    def fit(self, X, y=None):
        """Learn r, 1 for features of zero."""
        rows: Any = validate_data(self, X, accept_sparse="csr")
        squares = rows.multiply(rows) if issparse(rows) else np.square(rows)
        self.scale_ = float(np.sqrt(squares.sum() / rows.shape[0])) or 1.0
        return self

    def transform(self, X):
        """X / r, (instances, features)."""
        check_is_fitted(self)
        rows: Any = validate_data(self, X, accept_sparse="csr", reset=False)
        return rows / self.scale_

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _scalings(is_sparse: bool) -> dict[str, tuple[Any, ...]]:
    """Those of the features, the one first that mostly is best."""
    if is_sparse:
        return {"unit rows": (Normalizer(),), "largest 1": (MaxAbsScaler(), UnitMeanSquare())}
    return {
        "standardised, unit rows": (StandardScaler(), Normalizer()),
        "[0, 1]": (MinMaxScaler(clip=True), UnitMeanSquare()),
        "unit rows": (Normalizer(),),
        "standardised": (StandardScaler(), UnitMeanSquare()),
    }


def _scaled(family: str, model: Any, settings: str, scaling: str, is_sparse: bool, *decoders: str | None):
    steps = [(f"scale_{place}", step) for place, step in enumerate(_scalings(is_sparse)[scaling])]
    return Candidate(
        family, f"{settings}, {scaling}", Pipeline([*steps, ("model", model)]), decoders or (None,)
    )


def _as_it_is(family: str, model: Any, settings: str, *decoders: str | None) -> Candidate:
    pipeline = Pipeline([("scale", FunctionTransformer(accept_sparse=True)), ("model", model)])
    return Candidate(family, settings, pipeline, decoders or (None,))


def _networks(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    decoders = ("hinge", EXPECTATION.get(metric, "f1"))
    for C in (1.0, 10.0, 0.1, 3.0, 0.3):
        for scaling in _scalings(is_sparse):
            model = LMSBNClassifier(C, calibrate=True, random_state=seed)
            yield _scaled("network", model, f"C={C:g}", scaling, is_sparse, *decoders)


def _kernel_networks(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    decoders = ("hinge", EXPECTATION.get(metric, "f1"))
    for C in (3.0, 10.0, 1.0, 30.0):
        for scaling in _scalings(is_sparse):
            model = LMSBNClassifier(C, kernel="rbf", random_state=seed)
            yield _scaled("kernel network", model, f"C={C:g}", scaling, is_sparse, *decoders)


def _ensembles(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    decoders = ("hinge", EXPECTATION.get(metric, "f1"))
    for kernel, C in (("linear", 1.0), ("rbf", 10.0)):
        for scaling in _scalings(is_sparse):
            base = LMSBNClassifier(C, kernel=kernel)
            model = LMSBNEnsembleClassifier(base, num_members=10, random_state=seed)
            yield _scaled("ten networks", model, f"{kernel}, C={C:g}", scaling, is_sparse, *decoders)


def _machines(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    if num_labels > MAX_MACHINE_LABELS:
        return
    for C in (10.0, 1.0, 100.0):
        for scaling in _scalings(is_sparse):
            yield _scaled(
                "Boltzmann machine", LMBMClassifier(C, random_state=seed), f"C={C:g}", scaling, is_sparse
            )


def _forest_chains(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for leaf in (1, 3):
        for features in ("sqrt", 0.3):
            trees: Any = ExtraTreesClassifier(TREES, min_samples_leaf=leaf, random_state=seed)
            trees.set_params(max_features=features)
            yield _chain("chain of extra trees", trees, f"leaf {leaf}, features {features}", metric, seed)


def _logistic_chains(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for C in (1.0, 10.0, 0.1):
        for name, steps in _scalings(is_sparse).items():
            scaled = [(f"scale_{place}", step) for place, step in enumerate(steps)]
            linear = Pipeline([*scaled, ("classifier", LogisticRegression(C=C, max_iter=10_000))])
            yield _chain("chain of logistic regressions", linear, f"C={C:g}, {name}", metric, seed)


def _boosting_chains(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    if is_sparse:
        return
    for rate in (0.1, 0.05):
        boosting = HistGradientBoostingClassifier(learning_rate=rate, max_iter=100, random_state=seed)
        yield _chain("chain of boosting", boosting, f"rate {rate}", metric, seed)


def _forests(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for kind in (ExtraTreesClassifier, RandomForestClassifier):
        for leaf in (1, 3):
            model = kind(TREES, min_samples_leaf=leaf, random_state=seed)
            yield _as_it_is("forest", model, f"{kind.__name__}, leaf {leaf}")


def _powersets(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for C in (1.0, 10.0, 0.1):
        for scaling in _scalings(is_sparse):
            yield _scaled("label powerset", LabelPowersetSVM(C), f"C={C:g}", scaling, is_sparse)


def _chain(family: str, estimator: Any, settings: str, metric: str, seed: int) -> Candidate:
    model = ProbabilisticClassifierChain(estimator, order="random", random_state=seed)
    return _as_it_is(family, model, settings, EXPECTATION.get(metric, "f1"))


FAMILIES = {
    "network": _networks,
    "kernel network": _kernel_networks,
    "chain of extra trees": _forest_chains,
    "chain of logistic regressions": _logistic_chains,
    "Boltzmann machine": _machines,
    "forest": _forests,
    "label powerset": _powersets,
    "ten networks": _ensembles,
    "chain of boosting": _boosting_chains,
}
"""A family's name → (metric, number of labels, whether features are sparse, seed) → its candidates."""
