"""Paths over C: the scores of a grid search over the same folds, in fewer iterations."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from strategies.label_problems import random_inputs

from lmbm_torch import load
from lmbm_torch.estimators import (
    LMBMClassifier,
    LMBMClassifierCV,
    LMSBNClassifier,
    LMSBNClassifierCV,
    StructuralSVMClassifier,
    StructuralSVMClassifierCV,
)
from lmbm_torch.estimators.automatic.search import stratified_folds
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.fitting.dual import Path

X, Y = random_inputs(1, 60, 4, 3)
CS = [3.0, 0.01, 0.1, 1.0]
OPTIONS = {"tol": 1e-5, "random_state": 0}
KINDS = {
    "network": (LMSBNClassifierCV, LMSBNClassifier(ordering="index", **OPTIONS)),
    "gradient": (
        LMSBNClassifierCV,
        LMSBNClassifier(ordering="index", solver="exponentiated_gradient", **OPTIONS),
    ),
    "pegasos": (
        LMSBNClassifierCV,
        LMSBNClassifier(ordering="index", solver="pegasos", tol=0.05, random_state=0),
    ),
    "kernel": (LMSBNClassifierCV, LMSBNClassifier(ordering="index", kernel="rbf", gamma=0.3, **OPTIONS)),
    "machine": (LMBMClassifierCV, LMBMClassifier(coupling_penalty=10.0, **OPTIONS)),
    "coordinates": (LMBMClassifierCV, LMBMClassifier(solver="dual_coordinate", **OPTIONS)),
    "structural": (StructuralSVMClassifierCV, StructuralSVMClassifier(**OPTIONS)),
    "chain": (StructuralSVMClassifierCV, StructuralSVMClassifier(graph="chain", max_iter=2000, **OPTIONS)),
}
FEW = ("network", "machine")
every = pytest.mark.parametrize(
    ("kind", "base"),
    [
        pytest.param(*pair, id=name, marks=() if name in FEW else pytest.mark.slow)
        for name, pair in KINDS.items()
    ],
)
pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore:.*values may be better:UserWarning"
)


@every
def test_a_path_reaches_the_optimum_of_every_penalty(kind, base):
    path = Path()
    for C in sorted(CS):
        along = clone(base).set_params(C=C)._fit_along(path, X, Y)
        alone = clone(base).set_params(C=C).fit(X, Y)
        assert along.duality_gap_ <= base.tol
        assert along.objective_ == pytest.approx(alone.objective_, rel=2 * base.tol)


@every
def test_scores_are_those_of_a_grid_search(kind, base):
    chosen = kind(base, Cs=CS, cv=3, random_state=0).fit(X, Y)
    seed = int(np.random.RandomState(0).randint(2**31))
    folds = stratified_folds(Y, 3, seed)
    grid = GridSearchCV(base, {"C": sorted(CS)}, cv=folds).fit(X, Y)
    scores = [grid.cv_results_[f"split{fold}_test_score"] for fold in range(3)]
    np.testing.assert_array_equal(chosen.Cs_, sorted(CS))
    if base.tol <= 1e-5:
        np.testing.assert_allclose(chosen.scores_, scores, atol=1.5 / 20)
        assert np.mean(chosen.scores_ == scores) > 0.7
    assert chosen.Cs_[chosen.scores_.mean(0).argmax()] == chosen.C_
    plain = clone(base).set_params(C=chosen.C_).fit(X, Y)
    np.testing.assert_array_equal(chosen.predict(X), plain.predict(X))
    np.testing.assert_array_equal(chosen.decode(X).labels, plain.decode(X).labels)
    np.testing.assert_array_equal(chosen.decision_function(X), plain.decision_function(X))
    assert hasattr(chosen, "predict_proba") == hasattr(plain, "predict_proba")


@pytest.mark.parametrize("name", ["network", "machine", "structural"])
def test_later_penalties_take_fewer_iterations(name):
    kind, base = KINDS[name]
    close = np.geomspace(0.5, 1.0, 5)
    chosen = kind(base, Cs=close, cv=2, random_state=0).fit(X, Y)
    seed = int(np.random.RandomState(0).randint(2**31))
    alone = [
        clone(base).set_params(C=C).fit(X[train], Y[train]).n_iter_
        for train, _ in stratified_folds(Y, 2, seed)
        for C in close[1:]
    ]
    assert chosen.n_iters_[:, 1:].sum() < sum(alone)


def test_the_ordering_of_a_fold_is_sought_once(monkeypatch):
    asked = []
    choose = orderings.chosen

    def counted(*arguments, **settings):
        asked.append(arguments)
        return choose(*arguments, **settings)

    monkeypatch.setattr(orderings, "chosen", counted)
    LMSBNClassifierCV(Cs=4, cv=3, random_state=0).fit(X, Y)
    assert len(asked) == 3 + 1


def test_scoring_classes_texts_missing_labels_and_pipelines(tmp_path):
    def right(truth, predicted):
        return (np.asarray(truth) == np.asarray(predicted)).mean()

    hamming = LMSBNClassifierCV(Cs=3, cv=2, scoring=make_scorer(right), random_state=0).fit(X, Y)
    assert (hamming.scores_ >= LMSBNClassifierCV(Cs=3, cv=2, random_state=0).fit(X, Y).scores_).all()
    y = np.array(["a", "b", "c"])[(Y[:, 0] + Y[:, 1]).astype(int)]
    classes = LMBMClassifierCV(Cs=2, cv=2, random_state=0).fit(X, y)
    assert {*classes.predict(X)} <= {"a", "b", "c"}
    assert classes.scores_.max() > 0.4
    texts = LMSBNClassifierCV(Cs=2, cv=2, random_state=0).fit(X, np.where(Y == 1, "yes", "no"))
    assert {*texts.predict(X).ravel()} == {"yes", "no"}
    missing = Y.copy()
    missing[::5, 1] = np.nan
    assert LMSBNClassifierCV(Cs=2, cv=2, random_state=0).fit(X, missing).predict(X).shape == Y.shape
    piped = make_pipeline(StandardScaler(), LMSBNClassifierCV(Cs=2, cv=2, random_state=0)).fit(X, Y)
    assert piped.score(X, Y) > 0.3
    path = tmp_path / "model.safetensors"
    texts.save(path)
    for copy in (load(path), pickle.loads(pickle.dumps(texts))):
        np.testing.assert_array_equal(copy.predict(X), texts.predict(X))


def test_kernel_values_are_split_both_ways():
    gram = X @ X.T
    chosen = LMSBNClassifierCV(LMSBNClassifier(kernel="precomputed"), Cs=2, cv=2, random_state=0).fit(gram, Y)
    assert chosen.predict(gram).shape == Y.shape


def test_settings_are_refused_by_name():
    with pytest.raises(TypeError, match="base: expected LMBMClassifier, got LMSBNClassifier"):
        LMBMClassifierCV(LMSBNClassifier()).fit(X, Y)
    with pytest.raises(ValueError, match="Cs: expected a finite number above 0"):
        LMSBNClassifierCV(Cs=[1.0, -1.0]).fit(X, Y)
    for name, value in (("Cs", 0), ("cv", 1), ("cv", 61)):
        with pytest.raises(ValueError, match=name):
            LMSBNClassifierCV(**{name: value}).fit(X, Y)
    assert not hasattr(StructuralSVMClassifierCV(), "predict_proba")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            [1e-5, 1e-4, 0.5],
            "C = 0.5 is the largest of 3 values; larger values may be better: add such values",
        ),
        (
            [0.5, 1e4, 1e5],
            "C = 0.5 is the smallest of 3 values; smaller values may be better: add such values",
        ),
        ([1e-5, 0.5, 1e5], None),
        ([0.5, 1e5], None),
    ],
)
def test_a_C_at_an_end_of_the_values_warns(values, words, monkeypatch):
    monkeypatch.setattr(LMSBNClassifier, "score", lambda self, X, y: float(self.C == 0.5))
    path = LMSBNClassifierCV(LMSBNClassifier(random_state=0), Cs=values, cv=2, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        path.fit(X, Y)
    told = [str(each.message) for each in caught if "values" in str(each.message)]
    assert len(told) == (words is not None)
    assert words is None or (words in told[0] and caught[0].filename == __file__)
