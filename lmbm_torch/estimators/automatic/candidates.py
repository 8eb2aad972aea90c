"""Candidate classifiers of the automatic choice, by family: classifiers of the library and baselines."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
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
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM
from lmbm_torch.estimators.common.settings import seeds_for
from lmbm_torch.estimators.joint.bases import LabelScorer
from lmbm_torch.estimators.joint.classifier import JointClassifier
from lmbm_torch.estimators.joint.head import JointHead
from lmbm_torch.estimators.label_chains.boosting import LabelBoostingClassifier, is_installed
from lmbm_torch.estimators.label_chains.forest import LabelForestClassifier
from lmbm_torch.estimators.label_chains.probabilistic import ProbabilisticClassifierChain
from lmbm_torch.estimators.machines.boltzmann import LMBMClassifier
from lmbm_torch.estimators.networks.ensembles import LMSBNEnsembleClassifier
from lmbm_torch.estimators.networks.independent_labels import IndependentLabelsClassifier
from lmbm_torch.estimators.networks.sigmoid_belief import LMSBNClassifier
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.recipe import root_mean_square
from lmbm_torch.kernels.threads import single_threaded

# Largest number of labels for Boltzmann machines: with more, training is slow and decoding may not be exact.
MAX_MACHINE_LABELS = 10
# Number of trees in a forest, and in the forest of each link of a classifier chain.
TREES, LINK_TREES = 100, 30
# Name of the searched metric → the metric for which a joint head (a model of label dependence) is trained.
HEAD_METRICS = {
    **{name: name for name in ("exact_match", "hamming", "jaccard", "macro_f1", "micro_f1", "log_loss")},
    "sample_f1": "f1",
}
HEAD_FOLDS = 3
# With more labels, joint heads model only the number of labels, because pairwise heads would be slow.
MAX_HEAD_LABELS = 30
# The name of the family of independent labels; with many labels, the search tries this family first.
INDEPENDENT = "logistic regressions"
# Beam width of a classifier chain's search; each label costs a call of the link's classifier.
BEAM = 10


@dataclass(frozen=True)
class Candidate:
    """A classifier to try.

    Args:
        family: name of the family.
        settings: text that tells candidates of a family apart, such as ``"C=1"``.
        pipeline: unfitted pipeline of feature scalings and the model.
        decoders: values of the model's parameter ``decoder``, all tried on the same fitted model; ``(None,)``
            if the model has no such parameter. Decision rules for probabilities are tried in addition.
    """

    family: str
    settings: str
    pipeline: Pipeline
    decoders: tuple[str | None, ...]

    def unfitted(self, decoder: str | None = None) -> Pipeline:
        """Return an unfitted copy of the pipeline, with the decoder set."""
        return with_decoder(cast(Pipeline, clone(self.pipeline)), decoder)


def with_decoder(pipeline: Pipeline, decoder: str | None) -> Pipeline:
    """Set the decoder of the pipeline's model in place, unless ``decoder`` is None; return the pipeline."""
    if decoder is not None:
        pipeline[-1].set_params(decoder=decoder)
    return pipeline


@single_threaded()
def fitted(pipeline: Any, X: Any, labels: np.ndarray) -> Any:
    """Fit a pipeline, without warnings about the shape of the labels.

    A label without any known value is set to 0 for all instances.
    """
    labels = np.where(np.isnan(labels).all(0), 0, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataConversionWarning)
        return pipeline.fit(X, labels)


def answers_of(pipeline: Any, X: Any) -> np.ndarray:
    """Predict labels (instances, labels), also if the classifier returns a flat array for a single label."""
    found = np.asarray(pipeline.predict(X)).astype(np.int64)
    return found.reshape(len(found), -1)


def candidates(
    metric: str,
    num_labels: int,
    *,
    is_sparse: bool,
    families: Sequence[str] | None,
    seed: int,
    given: Sequence[tuple[str, Any]] = (),
) -> list[Candidate]:
    """Return the candidates: the first setting of each family, then the second, …; cheap families first.

    Args:
        given: names and estimators from the user. Each gives two candidates: the estimator itself, and a
            joint head (a model of label dependence) on top of the estimator.

    Raises:
        ValueError: a family is unknown, a name is already taken, or no family suits the data.
    """
    for name in families or ():
        if name not in FAMILIES:
            raise ValueError(f"families: expected some of {list(FAMILIES)}, got {name!r}")
    names = [name for name, _ in given]
    for name in names:
        if name in FAMILIES or names.count(name) > 1:
            raise ValueError(f"candidates: expected names of their own, got {name!r} twice")
    named = [every for name, every in FAMILIES.items() if families is None or name in families]
    chosen = [every(metric, num_labels, is_sparse, seed) for every in named]
    # Insert the user's estimators after the first, cheapest family.
    chosen[1:1] = [_of_user(name, estimator, metric, num_labels, seed) for name, estimator in given]
    found = [each for each in chain.from_iterable(zip_longest(*chosen)) if each is not None]
    if not found:
        kind = "sparse" if is_sparse else "dense"
        raise ValueError(
            f"families: expected a family for {kind} features and {num_labels} labels, got {families}"
        )
    return found


class UnitMeanSquare(TransformerMixin, BaseEstimator):
    """A scaling X / r with r² = mean ‖x‖², so the same C suits features of any magnitude."""

    def fit(self, X, y=None):
        """Compute r, the root mean square of the norms ‖x‖; if all features are 0, r is 1."""
        rows: Any = validate_data(self, X, accept_sparse="csr")
        self.scale_ = root_mean_square(rows)
        return self

    def transform(self, X):
        """Return X / r, (instances, features)."""
        check_is_fitted(self)
        rows: Any = validate_data(self, X, accept_sparse="csr", reset=False)
        return rows / self.scale_

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _scalings(is_sparse: bool) -> dict[str, tuple[Any, ...]]:
    """Return the feature scalings to try, by name: pipeline steps, the usually best scaling first."""
    steps = {
        "standardised, unit rows": (StandardScaler(), Normalizer()),
        "[0, 1]": (MinMaxScaler(clip=True), UnitMeanSquare()),
        "largest 1": (MaxAbsScaler(), UnitMeanSquare()),
        "unit rows": (Normalizer(),),
        "standardised": (StandardScaler(), UnitMeanSquare()),
    }
    return {name: steps[name] for name in recipe.SEARCHED_UNITS["sparse" if is_sparse else "dense"]}


def _behind(scaling: tuple[Any, ...], model: Any, kind: type[Pipeline] = Pipeline) -> Pipeline:
    """Return a pipeline of scalings and a model; ``kind`` completes missing labels if the model cannot."""
    return kind([*((f"scale_{place}", step) for place, step in enumerate(scaling)), ("model", model)])


def _unscaled(family: str, model: Any, settings: str) -> Candidate:
    return Candidate(family, settings, _behind(("passthrough",), model, CompletingPipeline), (None,))


Made = Callable[..., tuple[Any, str]]
"""A function from a setting, such as C, to the model with this setting and the setting as text."""


def _in_all_units(
    family: str,
    is_sparse: bool,
    made: Made,
    decoders: tuple[str | None, ...] = (None,),
    kind: type[Pipeline] = Pipeline,
) -> Iterator[Candidate]:
    """Yield a candidate for each setting of the family and each scaling of the features."""
    for setting in recipe.SEARCHED[family]:
        for scaling, steps in _scalings(is_sparse).items():
            model, words = made(*setting) if isinstance(setting, tuple) else made(setting)
            yield Candidate(family, f"{words}, {scaling}", _behind(steps, model, kind), decoders)


def _of_network(metric: str) -> tuple[str, ...]:
    """Return the decoders to try for belief networks; metrics but exact match also try decision rules."""
    return ("hinge", "exact_match") if metric == "exact_match" else ("hinge",)


def _of_user(name: str, estimator: Any, metric: str, num_labels: int, seed: int) -> Iterator[Candidate]:
    """Yield candidates for a user's estimator: the estimator itself, and a joint head on top of it."""
    base: Any = clone(estimator)
    base.set_params(**seeds_for(base, seed))
    yield Candidate(name, "as given", _behind(("passthrough",), LabelScorer(base)), (None,))
    yield _with_head(name, base, metric, num_labels, "as given", seed)


def _with_head(family: str, base: Any, metric: str, num_labels: int, settings: str, seed: int) -> Candidate:
    structure = "auto" if num_labels <= MAX_HEAD_LABELS else "cardinality"
    head = JointHead(HEAD_METRICS[metric], structure=structure)
    model = JointClassifier(base, head, cv=HEAD_FOLDS, random_state=seed)
    # Make joint heads a separate family, because the search shares time between families and heads are slow.
    name = f"joint head over {family}"
    return Candidate(name, settings, _behind(("passthrough",), model), (None,))


def _logistic_labels(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    family = INDEPENDENT
    for C in recipe.SEARCHED[family]:
        # Use only the simplest scaling, so the first candidate of the search is cheap.
        steps = (MaxAbsScaler(),) if is_sparse else (StandardScaler(),)
        model = LogisticRegression(C=C, solver="liblinear" if is_sparse else "lbfgs", max_iter=1000)
        independent = IndependentLabelsClassifier(model)
        yield Candidate(family, f"C={C:g}", _behind(steps, independent), (None,))
        yield _with_head(family, _behind(steps, model), metric, num_labels, f"C={C:g}", seed)


def _networks(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    def made(C: float) -> tuple[Any, str]:
        calibrate = num_labels <= MANY_LABELS
        return LMSBNClassifier(C, calibrate=calibrate, random_state=seed), f"C={C:g}"

    return _in_all_units("network", is_sparse, made, _of_network(metric))


def _kernel_networks(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    def made(C: float) -> tuple[Any, str]:
        settings: Any = {"kernel": "rbf", "calibrate": metric != "exact_match", "random_state": seed}
        return LMSBNClassifier(C, **settings), f"C={C:g}"

    return _in_all_units("kernel network", is_sparse, made, _of_network(metric))


def _ensembles(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    def made(kernel: str, C: float) -> tuple[Any, str]:
        base = LMSBNClassifier(C, kernel=kernel)
        model = LMSBNEnsembleClassifier(base, num_members=10, random_state=seed)
        return model, f"{kernel}, C={C:g}"

    return _in_all_units("ten networks", is_sparse, made, _of_network(metric))


def _machines(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    if num_labels <= MAX_MACHINE_LABELS:
        yield from _in_all_units(
            "Boltzmann machine", is_sparse, lambda C: (LMBMClassifier(C, random_state=seed), f"C={C:g}")
        )


def _forest_chains(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for leaf, features in recipe.SEARCHED["chain of extra trees"]:
        trees: Any = _sklearn_ensemble().ExtraTreesClassifier(
            LINK_TREES, min_samples_leaf=leaf, random_state=seed
        )
        trees.set_params(max_features=features)
        yield _chain("chain of extra trees", trees, f"leaf {leaf}, features {features}", seed)


def _logistic_chains(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    family = "chain of logistic regressions"
    for C in recipe.SEARCHED[family]:
        for scaling, steps in _scalings(is_sparse).items():
            linear = _behind(steps, LogisticRegression(C=C, max_iter=10_000))
            yield _chain(family, linear, f"C={C:g}, {scaling}", seed)


def _boosting_chains(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for rate in () if is_sparse else recipe.SEARCHED["chain of boosting"]:
        boosting = _sklearn_ensemble().HistGradientBoostingClassifier(
            learning_rate=rate, max_iter=100, random_state=seed
        )
        yield _chain("chain of boosting", boosting, f"rate {rate}", seed)


def _forests(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for leaf in recipe.SEARCHED["forest"]:
        for kind in (_sklearn_ensemble().ExtraTreesClassifier, _sklearn_ensemble().RandomForestClassifier):
            model = kind(TREES, min_samples_leaf=leaf, random_state=seed)
            yield _unscaled("forest", model, f"{kind.__name__}, leaf {leaf}")
    model = LabelForestClassifier(TREES, random_state=seed)
    yield Candidate("forest", "LabelForestClassifier", _behind(("passthrough",), model), (None,))


def _label_boosting(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    family = "label boosting"
    for rate in recipe.SEARCHED[family] if is_installed() else ():
        model = LabelBoostingClassifier(learning_rate=rate, random_state=seed)
        yield Candidate(family, f"rate {rate:g}", _behind(("passthrough",), model), (None,))
        yield _with_head(family, model, metric, num_labels, f"rate {rate:g}", seed)


def _powersets(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    def made(kernel: str, C: float) -> tuple[Any, str]:
        return LabelPowersetSVM(C, kernel=kernel), f"{kernel}, C={C:g}"

    # With more labels almost each row has a different label set, and each pair of label sets needs an SVM.
    if num_labels <= MANY_LABELS:
        yield from _in_all_units("label powerset", is_sparse, made, kind=CompletingPipeline)


def _label_set_forests(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    for leaf in recipe.SEARCHED["forest of label sets"]:
        model = LabelSetForest(TREES, min_samples_leaf=leaf, random_state=seed)
        yield _unscaled("forest of label sets", model, f"leaf {leaf}")


def _label_set_ridges(metric: str, num_labels: int, is_sparse: bool, seed: int) -> Iterator[Candidate]:
    # The regression compares predicted label sets, for which log loss is not defined.
    of_labels = "hamming" if metric == "log_loss" else metric

    def made(gamma: float) -> tuple[Any, str]:
        return LabelSetRidge(gamma, metric=of_labels, random_state=seed), f"width {gamma:g}"

    return _in_all_units("regression of label sets", is_sparse, made, kind=CompletingPipeline)


def _sklearn_ensemble() -> Any:
    """Import scikit-learn's ensembles only when needed: most users of the estimators need no trees."""
    return import_module("sklearn.ensemble")


def _chain(family: str, estimator: Any, settings: str, seed: int) -> Candidate:
    model = ProbabilisticClassifierChain(
        estimator, order="random", search="beam", beam_width=BEAM, random_state=seed
    )
    return Candidate(family, settings, _behind(("passthrough",), model), ("exact_match",))


FAMILIES = {
    INDEPENDENT: _logistic_labels,
    "network": _networks,
    "forest": _forests,
    "label boosting": _label_boosting,
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
"""Name of a family → function (metric, number of labels, are features sparse, seed) → candidates.

Label boosting has candidates only if XGBoost is installed.
"""


# Relative duality gap at which the network that completes labels stops training; a rough fit suffices.
TOL = 1e-2


class CompletingPipeline(Pipeline):
    """A pipeline that first predicts missing training labels, for classifiers that need complete labels.

    An :class:`LMSBNClassifier`, trained on all known labels with features of unit length, decodes the missing
    labels given the known labels of the instance. With complete labels the pipeline is the same as
    scikit-learn's.
    """

    def fit(self, X: Any, y: Any, **params: Any) -> Self:
        """Train on features (instances, features) and labels (instances, labels), NaN for missing labels."""
        return super().fit(X, completed(X, np.asarray(y)), **params)


def completed(X: Any, labels: np.ndarray) -> np.ndarray:
    """Replace missing labels by a belief network's predictions; return integers (instances, labels)."""
    missing = np.isnan(labels)
    rows = np.flatnonzero(missing.any(1))
    if len(rows):
        # Labels with few missing values come first: in training they help to complete the labels after them.
        order: Any = np.argsort(missing.sum(0), kind="stable")
        network = LMSBNClassifier(ordering=order, tol=TOL, random_state=0)
        scaling = [Normalizer()] if issparse(X) else [StandardScaler(), Normalizer()]
        pipeline = make_pipeline(*scaling, network).fit(X, labels)
        found = network.decode(pipeline[:-1].transform(X[rows]), known=labels[rows])
        labels = labels.copy()
        labels[rows] = found.labels.numpy()
    return labels.astype(np.int64)
