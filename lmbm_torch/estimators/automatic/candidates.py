"""The classifiers that are tried: the library's families and the usual peers, simplest settings first."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, zip_longest
from typing import Any, Self, cast

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, Normalizer, StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data

from lmbm_torch.estimators.automatic.beliefs import MANY_LABELS
from lmbm_torch.estimators.automatic.label_sets import LabelSetForest, LabelSetRidge
from lmbm_torch.estimators.baselines import LabelPowersetSVM
from lmbm_torch.estimators.label_chains.probabilistic import ProbabilisticClassifierChain
from lmbm_torch.estimators.machines.boltzmann import LMBMClassifier
from lmbm_torch.estimators.networks.ensembles import LMSBNEnsembleClassifier
from lmbm_torch.estimators.networks.sigmoid_belief import LMSBNClassifier
from lmbm_torch.fitting.feature_units import root_mean_square
from lmbm_torch.kernels.threads import single_threaded

# Undirected models of more labels are decoded within limits, and trained long.
MAX_MACHINE_LABELS = 10
# Of a forest, and of each forest of a chain.
TREES, LINK_TREES = 100, 30
# The prefixes that a chain's search keeps; one call of a link's classifier for each label.
BEAM = 10


@dataclass(frozen=True)
class Candidate:
    """A classifier to try.

    Args:
        family: its name.
        settings: what differs within the family, for readers.
        pipeline: unfitted; scaling of the features, and the model.
        decoders: settings of the model's parameter ``decoder``, all tried on one fit; None where it has none.
            What rules make of its probabilities is tried beside them.
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


@single_threaded()
def fitted(pipeline: Any, X: Any, labels: np.ndarray) -> Any:
    """The pipeline, once it has learned; trees may have a single label with its axis.

    A label of which no value is known counts as one that never occurs.
    """
    labels = np.where(np.isnan(labels).all(0), 0, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataConversionWarning)
        return pipeline.fit(X, labels)


def answers_of(pipeline: Any, X: Any) -> np.ndarray:
    """Labels (instances, labels) of a fitted pipeline; trees give a single label one axis."""
    found = np.asarray(pipeline.predict(X)).astype(np.int64)
    return found.reshape(len(found), -1)


def candidates(
    metric: str, num_labels: int, *, is_sparse: bool, families: Sequence[str] | None, seed: int
) -> list[Candidate]:
    """One setting of each family in turn.

    Raises:
        ValueError: a family that there is none of, or families that have nothing for these data.
    """
    for name in families or ():
        if name not in FAMILIES:
            raise ValueError(f"families: expected some of {list(FAMILIES)}, got {name!r}")
    named = [every for name, every in FAMILIES.items() if families is None or name in families]
    chosen = [every(metric, num_labels, is_sparse, seed) for every in named]
    found = [each for each in chain.from_iterable(zip_longest(*chosen)) if each is not None]
    if not found:
        kind = "sparse" if is_sparse else "dense"
        raise ValueError(
            f"families: expected some that take {kind} features and {num_labels} labels, got {families}"
        )
    return found


class UnitMeanSquare(TransformerMixin, BaseEstimator):
    """X / r with r² = mean ‖x‖²: the size of the features does not matter to the weight of the losses."""

    def fit(self, X, y=None):
        """Learn r, 1 for features of zero."""
        rows: Any = validate_data(self, X, accept_sparse="csr")
        self.scale_ = root_mean_square(rows)
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


def _behind(scaling: tuple[Any, ...], model: Any, kind: type[Pipeline] = Pipeline) -> Pipeline:
    """The model behind the steps of a scaling; a ``CompletingPipeline`` for one of complete labels alone."""
    return kind([*((f"scale_{place}", step) for place, step in enumerate(scaling)), ("model", model)])


def _as_it_is(family: str, model: Any, settings: str) -> Candidate:
    return Candidate(family, settings, _behind(("passthrough",), model, CompletingPipeline), (None,))


def _of_network(metric: str) -> tuple[str, ...]:
    """The decoders of networks that may be best by a measure; for others there are rules."""
    return ("hinge", "exact_match") if metric == "exact_match" else ("hinge",)


def _networks(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for C in (1.0, 10.0, 0.1, 3.0, 0.3):
        for scaling, steps in _scalings(is_sparse).items():
            model = LMSBNClassifier(C, calibrate=num_labels <= MANY_LABELS, random_state=seed)
            yield Candidate("network", f"C={C:g}, {scaling}", _behind(steps, model), _of_network(metric))


def _kernel_networks(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for C in (3.0, 10.0, 1.0, 30.0):
        for scaling, steps in _scalings(is_sparse).items():
            model = LMSBNClassifier(C, kernel="rbf", calibrate=metric != "exact_match", random_state=seed)
            yield Candidate(
                "kernel network", f"C={C:g}, {scaling}", _behind(steps, model), _of_network(metric)
            )


def _ensembles(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for kernel, C in (("linear", 1.0), ("rbf", 10.0)):
        for scaling, steps in _scalings(is_sparse).items():
            base = LMSBNClassifier(C, kernel=kernel)
            model = LMSBNEnsembleClassifier(base, num_members=10, random_state=seed)
            yield Candidate(
                "ten networks", f"{kernel}, C={C:g}, {scaling}", _behind(steps, model), _of_network(metric)
            )


def _machines(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    if num_labels > MAX_MACHINE_LABELS:
        return
    for C in (10.0, 1.0, 100.0):
        for scaling, steps in _scalings(is_sparse).items():
            machine = _behind(steps, LMBMClassifier(C, random_state=seed))
            yield Candidate("Boltzmann machine", f"C={C:g}, {scaling}", machine, (None,))


def _forest_chains(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for leaf in (1, 3):
        for features in ("sqrt", 0.3):
            trees: Any = _sklearn_ensemble().ExtraTreesClassifier(
                LINK_TREES, min_samples_leaf=leaf, random_state=seed
            )
            trees.set_params(max_features=features)
            yield _chain("chain of extra trees", trees, f"leaf {leaf}, features {features}", seed)


def _logistic_chains(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for C in (1.0, 10.0, 0.1):
        for scaling, steps in _scalings(is_sparse).items():
            linear = _behind(steps, LogisticRegression(C=C, max_iter=10_000))
            yield _chain("chain of logistic regressions", linear, f"C={C:g}, {scaling}", seed)


def _boosting_chains(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    if is_sparse:
        return
    for rate in (0.1, 0.05):
        boosting = _sklearn_ensemble().HistGradientBoostingClassifier(
            learning_rate=rate, max_iter=100, random_state=seed
        )
        yield _chain("chain of boosting", boosting, f"rate {rate}", seed)


def _forests(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for leaf in (1, 3):
        for kind in (_sklearn_ensemble().ExtraTreesClassifier, _sklearn_ensemble().RandomForestClassifier):
            model = kind(TREES, min_samples_leaf=leaf, random_state=seed)
            yield _as_it_is("forest", model, f"{kind.__name__}, leaf {leaf}")


def _powersets(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for kernel, C in (("rbf", 10.0), ("linear", 1.0), ("rbf", 1.0), ("linear", 10.0), ("linear", 0.1)):
        for scaling, steps in _scalings(is_sparse).items():
            powerset = _behind(steps, LabelPowersetSVM(C, kernel=kernel), CompletingPipeline)
            yield Candidate("label powerset", f"{kernel}, C={C:g}, {scaling}", powerset, (None,))


def _label_set_forests(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for leaf in (1, 3):
        model = LabelSetForest(TREES, min_samples_leaf=leaf, random_state=seed)
        yield _as_it_is("forest of label sets", model, f"leaf {leaf}")


def _label_set_ridges(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for gamma in (3.0, 1.0, 0.3, 10.0):
        for scaling, steps in _scalings(is_sparse).items():
            model = LabelSetRidge(gamma, metric=metric, random_state=seed)
            ridge = _behind(steps, model, CompletingPipeline)
            yield Candidate("regression of label sets", f"width {gamma:g}, {scaling}", ridge, (None,))


def _sklearn_ensemble() -> Any:
    """scikit-learn's ensembles, imported at use: most who import the estimators need no trees."""
    return import_module("sklearn.ensemble")


def _chain(family: str, estimator: Any, settings: str, seed: int) -> Candidate:
    model = ProbabilisticClassifierChain(
        estimator, order="random", search="beam", beam_width=BEAM, random_state=seed
    )
    return Candidate(family, settings, _behind(("passthrough",), model), ("exact_match",))


FAMILIES = {
    "network": _networks,
    "forest": _forests,
    "label powerset": _powersets,
    "regression of label sets": _label_set_ridges,
    "kernel network": _kernel_networks,
    "forest of label sets": _label_set_forests,
    "chain of logistic regressions": _logistic_chains,
    "ten networks": _ensembles,
    "chain of extra trees": _forest_chains,
    "chain of boosting": _boosting_chains,
    "Boltzmann machine": _machines,
}
"""A family's name → (metric, number of labels, whether features are sparse, seed) → its candidates."""


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
