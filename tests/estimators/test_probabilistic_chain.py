"""Chains of anyone's classifiers: their links, their decoding, and what users bring."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.multioutput import ClassifierChain
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import parametrize_with_checks
from sweeps import slow

from lmbm_torch import save
from lmbm_torch.estimators import ProbabilisticClassifierChain

ORDER = [2, 0, 3, 1]
LINEAR = ProbabilisticClassifierChain(LogisticRegression(), order=ORDER)
TREES = ExtraTreesClassifier(5, max_depth=3, random_state=0)


def inputs(instances: int = 80) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.normal(size=(instances, 3))
    scores = X @ random.normal(size=(3, 4)) + random.normal(size=(instances, 4))
    return X, (scores > 0).astype(int)


def mixed() -> tuple[np.ndarray, np.ndarray]:
    """Labels of two, three and two classes, numbers and words."""
    X, Y = inputs()
    words = np.array(["low", "mid", "high"])[Y[:, 1] + (X[:, 0] > 0.3)]
    return X, np.array([*zip(Y[:, 0], words, np.where(Y[:, 2] == 1, 7, 3), strict=True)], dtype=object)


def every(classes: list) -> np.ndarray:
    return np.array([*itertools.product(*classes)], dtype=object)


ONE_OUTPUT = "the check gives targets of one axis, or takes the probabilities of several labels for an array"
OF_ONE_OUTPUT = (
    *("check_estimator_sparse_array", "check_estimator_sparse_matrix", "check_classifiers_one_label"),
    *("check_classifiers_one_label_sample_weights", "check_classifiers_classes", "check_classifiers_train"),
    *("check_classifiers_regression_target", "check_class_weight_classifiers"),
    "check_methods_sample_order_invariance",
)


@parametrize_with_checks(
    [ProbabilisticClassifierChain(LogisticRegression())],
    expected_failed_checks=lambda _: dict.fromkeys(OF_ONE_OUTPUT, ONE_OUTPUT),
)
def test_scikit_learn_s_check(estimator, check):
    check(estimator)


@pytest.mark.parametrize("cv", [None, 3])
def test_links_are_those_of_scikit_learn_s_chain(cv):
    X, Y = inputs()
    ours = ProbabilisticClassifierChain(LogisticRegression(), order=ORDER, cv=cv).fit(X, Y)
    theirs = ClassifierChain(LogisticRegression(), order=ORDER, cv=cv).fit(X, Y)
    for link, peer in zip(ours.members_[0].links, theirs.estimators_, strict=True):
        np.testing.assert_allclose(link.classifier.coef_, peer.coef_)
    greedy = ours.set_params(search="beam", beam_width=1)
    np.testing.assert_array_equal(greedy.predict(X), theirs.predict(X))


@pytest.mark.parametrize("estimator", [LogisticRegression(), slow(TREES), KNeighborsClassifier(3)])
@pytest.mark.parametrize("data", [inputs, mixed])
@pytest.mark.parametrize("members", [1, 3])
def test_predictions_are_the_most_probable_labellings(estimator, data, members):
    X, Y = data()
    chain = ProbabilisticClassifierChain(estimator, num_members=members, random_state=0).fit(X, Y)
    labellings = every(chain.classes_)
    table = np.stack([chain.log_prob(X, np.tile(row, (len(X), 1))) for row in labellings])
    np.testing.assert_allclose(np.exp(table).sum(0), 1)
    decoding = chain.decode(X)
    assert decoding.status.exact.all()
    np.testing.assert_allclose(decoding.objective, table.max(0))
    np.testing.assert_allclose(chain.log_prob(X, chain.predict(X)), table.max(0))
    came = chain.predict_proba(X)
    for label, classes in enumerate(chain.classes_):
        for place, value in enumerate(classes):
            expected = (np.exp(table) * (labellings[:, [label]] == value)).sum(0)
            own = came[label][:, place] if data is mixed else np.abs(1 - place - came[:, label])
            np.testing.assert_allclose(own, expected, rtol=0, atol=1e-12)
    ranked = np.sort(table, 0)[::-1]
    for search in ("best_first", "depth_first"):
        found = chain.set_params(search=search).decode(X, top_k=3)
        np.testing.assert_allclose(found.objective, ranked[:3].T)


def test_known_labels_are_kept_and_conditioned_on():
    X, Y = mixed()
    chain = ProbabilisticClassifierChain(TREES, order=[2, 0, 1]).fit(X, Y)
    known = np.full(Y.shape, None, object)
    known[:40, 1], known[20:, 0] = "mid", 1
    found = chain.predict(X, known=known)
    assert (found[:40, 1] == "mid").all()
    assert (found[20:, 0] == 1).all()
    labellings = every(chain.classes_)
    table = np.stack([chain.log_prob(X, np.tile(row, (len(X), 1))) for row in labellings])
    agrees = np.array(
        [
            [all(k in (None, v) for k, v in zip(given, row, strict=True)) for given in known]
            for row in labellings
        ]
    )
    best = np.where(agrees, table, -np.inf).max(0)
    np.testing.assert_allclose(chain.decode(X, known=known).objective, best)
    for strange, message in (("low-ish", "known: expected classes"), ("all", "known: expected shape")):
        given = known[:, :2] if strange == "all" else np.where(known == "mid", strange, known)
        with pytest.raises(ValueError, match=message):
            chain.predict(X, known=given)


def test_expected_measures_are_decoded():
    X, Y = inputs()
    chain = ProbabilisticClassifierChain(TREES).fit(X, Y)
    labellings = every(chain.classes_).astype(int)
    probability = np.exp([chain.log_prob(X, np.tile(row, (len(X), 1))) for row in labellings]).T
    both, sizes = labellings @ labellings.T, labellings.sum(1)[:, None] + labellings.sum(1)
    worth = probability @ np.where(sizes == 0, 1, 2 * both / np.maximum(sizes, 1))
    chain.set_params(decoder="f1")
    found = chain.predict(X)
    own = worth[np.arange(len(X)), (found @ [8, 4, 2, 1])]
    regret = chain.predict_decoding(X).regret.numpy()
    assert (worth.max(1) - own <= regret + 1e-9).all()
    assert (regret <= chain.precision).all()
    mean = probability @ (labellings[:, None] == labellings).mean(-1)
    found = chain.set_params(decoder="hamming").predict(X)
    assert (mean.max(1) - mean[np.arange(len(X)), found @ [8, 4, 2, 1]] <= chain.precision).all()


def test_samples_follow_the_distribution():
    X, Y = mixed()
    chain = ProbabilisticClassifierChain(TREES, num_members=2, random_state=0).fit(X, Y)
    drawn = chain.sample(X[:5], 2000)
    assert drawn.shape == (2000, 5, 3)
    proba = chain.predict_proba(X[:5])
    for label, classes in enumerate(chain.classes_):
        share = np.stack([(drawn[:, :, label] == value).mean(0) for value in classes], 1)
        np.testing.assert_allclose(share, proba[label], atol=0.06)
    np.testing.assert_array_equal(chain.sample(X[:5], 3), chain.sample(X[:5], 3))


def test_a_node_limit_is_told():
    X, Y = inputs()
    chain = ProbabilisticClassifierChain(KNeighborsClassifier(30), node_limit=1).fit(X, Y)
    with pytest.warns(ConvergenceWarning, match="searches were ended by their limits"):
        chain.predict(X)
    exact = clone(chain).set_params(node_limit=None).fit(X, Y).decode(X)
    found = chain.decode(X)
    assert (found.bound >= exact.objective - 1e-12).all()
    assert (found.objective <= exact.objective + 1e-12).all()


def test_missing_labels_leave_their_link_and_are_imputed_for_later_ones():
    X, Y = inputs()
    holes = Y.astype(float)
    holes[:20, ORDER[0]] = np.nan
    chain = clone(LINEAR).fit(X, holes)
    first, second = chain.members_[0].links[:2]
    alone = LogisticRegression().fit(X[20:], Y[20:, ORDER[0]])
    np.testing.assert_allclose(first.classifier.coef_, alone.coef_)
    imputed = np.where(np.arange(len(X)) < 20, alone.predict(X), Y[:, ORDER[0]])
    following = LogisticRegression().fit(np.column_stack([X, imputed]), Y[:, ORDER[1]])
    np.testing.assert_allclose(second.classifier.coef_, following.coef_)
    with pytest.raises(
        ValueError, match="y: expected a known value of each label, got no known value of label_1"
    ):
        clone(LINEAR).fit(X, np.where(np.arange(4) == 1, np.nan, Y))


def test_parents_of_held_out_instances_are_predicted():
    X, Y = inputs()
    folds = KFold(4)
    chain = ProbabilisticClassifierChain(LogisticRegression(), cv=folds).fit(X, Y)
    seen = cross_val_predict(LogisticRegression(), X, Y[:, 0], cv=folds)
    second = LogisticRegression().fit(np.column_stack([X, seen]), Y[:, 1])
    np.testing.assert_allclose(chain.members_[0].links[1].classifier.coef_, second.coef_)
    assert (seen != Y[:, 0]).any()


@pytest.mark.parametrize("setting", ["balanced", {1: 5.0}, ["balanced", {0: 2.0}, None, {1: 3.0, 0: 0.5}]])
def test_class_weights_are_sample_weights_of_each_label(setting):
    X, Y = inputs()
    given = np.random.default_rng(1).uniform(0.5, 2, len(X))
    chain = ProbabilisticClassifierChain(LogisticRegression(), class_weight=setting).fit(X, Y, given)
    for label, link in enumerate(chain.members_[0].links):
        own = setting[label] if isinstance(setting, list) else setting
        own = {0: 1.0, 1: 1.0, **own} if isinstance(own, dict) else own
        weight = given * compute_sample_weight(own, Y[:, label])
        peer = LogisticRegression().fit(np.column_stack([X, Y[:, :label]]), Y[:, label], weight)
        np.testing.assert_allclose(link.classifier.coef_, peer.coef_)


def test_constant_labels_and_folds_without_a_class():
    X, Y = inputs()
    Y[:, 1], Y[:, 2] = 0, 0
    Y[5, 2] = 1
    for cv in (None, KFold(4)):
        chain = ProbabilisticClassifierChain(LogisticRegression(), cv=cv, order=[1, 2, 0, 3]).fit(X, Y)
        assert (chain.predict(X)[:, 1] == 0).all()
        assert (chain.predict_proba(X)[:, 1] == 0).all()
        assert chain.log_prob(X, np.where(np.arange(4) == 1, 1, Y)).max() == -np.inf
        known = np.where(np.arange(4) == 1, 1.0, np.full(Y.shape, np.nan))
        assert (chain.predict(X, known=known)[:, 1] == 1).all()


@pytest.mark.parametrize("rules", [None, "label_0 -> label_1"])
@pytest.mark.parametrize("decoder", ["exact_match", "hamming", "f1", "jaccard"])
@pytest.mark.filterwarnings("error")
def test_what_is_known_is_answered_where_the_links_rule_it_out(decoder, rules):
    X = np.random.default_rng(0).normal(size=(60, 2))
    Y = np.stack([X[:, 0] > 0, X[:, 0] > 0.5, X[:, 0] > -0.5], 1).astype(int)
    chain = ProbabilisticClassifierChain(DecisionTreeClassifier(), decoder=decoder, constraints=rules)
    chain.fit(X, Y)
    # Trees are sure of what they say, which is 1, 1, 1 here.
    known = np.array([[0, np.nan, np.nan], [0, 1, np.nan], [np.nan, np.nan, np.nan]])
    found = chain.predict(np.full((3, 2), 2.0), known=known)
    assert found[0, 0] == 0
    assert found[1, :2].tolist() == [0, 1]
    assert found[2].tolist() == [1, 1, 1]
    decoding = chain.predict_decoding(np.full((3, 2), 2.0), known=known)
    assert decoding.status.converged.all()
    states = chain.marginals(np.full((3, 2), 2.0), known=known).states.numpy()
    assert states[0, 0].tolist() == [1, 0]
    assert states[1, :2].tolist() == [[1, 0], [0, 1]]


def test_texts_and_frames_pass_through():
    random = np.random.default_rng(0)
    Y = random.integers(0, 2, (60, 3))
    words = ["apple", "pear", "plum"]
    texts = [" ".join([w for w, on in zip(words, row, strict=True) if on] + ["fruit"]) for row in Y]
    chain = ProbabilisticClassifierChain(make_pipeline(TfidfVectorizer(), LogisticRegression(C=100.0)))
    for X in (texts, np.array(texts, object)):
        assert (clone(chain).fit(X, Y).predict(X) == Y).all()
    frame = pd.DataFrame({"size": random.normal(size=60), "kind": pd.Categorical(random.choice([*"ab"], 60))})
    labels = pd.DataFrame(Y, columns=["first", "second", "third"])
    boosted = ProbabilisticClassifierChain(
        HistGradientBoostingClassifier(max_iter=3, categorical_features="from_dtype")
    ).fit(frame, labels)
    assert boosted.label_names_ == ("first", "second", "third")
    assert boosted.predict(frame).shape == Y.shape
    assert boosted.members_[0].links[2].classifier.n_features_in_ == 4
    with pytest.raises(ValueError, match="feature names"):
        boosted.predict(frame.rename(columns={"size": "weight"}))
    X = sparse.csr_matrix(random.random((60, 5)) > 0.5, dtype=float)
    dense = ProbabilisticClassifierChain(LogisticRegression()).fit(X.toarray(), Y)
    np.testing.assert_array_equal(
        ProbabilisticClassifierChain(LogisticRegression()).fit(X, Y).predict(X), dense.predict(X.toarray())
    )


def test_a_pipeline_s_last_step_alone_sees_the_labels():
    X, Y = inputs()
    chain = ProbabilisticClassifierChain(make_pipeline(StandardScaler(), LogisticRegression())).fit(X, Y)
    peer = ClassifierChain(LogisticRegression()).fit(StandardScaler().fit_transform(X), Y)
    for link, theirs in zip(chain.members_[0].links, peer.estimators_, strict=True):
        np.testing.assert_allclose(link.classifier.coef_, theirs.coef_)


def test_tools_of_scikit_learn():
    X, Y = inputs()
    search = GridSearchCV(clone(LINEAR), {"estimator__C": [0.01, 1.0]}, cv=3).fit(X, Y)
    assert search.best_params_["estimator__C"] in (0.01, 1.0)
    fitted = ProbabilisticClassifierChain(DecisionTreeClassifier(max_depth=2), order="random", random_state=3)
    again = clone(fitted).fit(X, Y)
    np.testing.assert_array_equal(fitted.fit(X, Y).predict(X), again.predict(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))
    assert fitted.score(X, Y) == (fitted.predict(X) == Y).all(1).mean()


def test_a_refit_that_fails_leaves_what_was_learned():
    X, Y = inputs()
    chain = clone(LINEAR).fit(X, Y)
    expected = chain.predict(X)
    # Refused by the classifier, after the labels were read.
    chain.set_params(estimator=LogisticRegression(C=-1.0))
    with pytest.raises(ValueError, match="'C' parameter"):
        chain.fit(X[:, :2], Y[:, ::-1] + 1)
    np.testing.assert_array_equal(chain.predict(X), expected)


def test_what_is_strange_is_refused_by_name(tmp_path):
    X, Y = inputs()
    refusals: list[tuple[type[Exception], str, Any, Any]] = [
        (TypeError, "estimator: expected a classifier with predict_proba, got LinearSVC", LinearSVC(), {}),
        (ValueError, "The 'estimator' parameter", 3, {}),
        (TypeError, "estimator: expected a classifier like", LogisticRegression, {}),
        (ValueError, "order: expected a permutation", LogisticRegression(), {"order": [0, 1]}),
        (
            ValueError,
            "estimator: expected a classifier with sample_weight",
            KNeighborsClassifier(),
            {"class_weight": "balanced"},
        ),
        (ValueError, "class_weight: expected one setting", LogisticRegression(), {"class_weight": [None]}),
        (ValueError, "class_weight: expected 'balanced'", LogisticRegression(), {"class_weight": "even"}),
        (ValueError, "The 'search' parameter", LogisticRegression(), {"search": "random"}),
    ]
    for error, message, estimator, settings in refusals:
        with pytest.raises(error, match=message):
            ProbabilisticClassifierChain(estimator, **settings).fit(X, Y)
    for y, message in (
        (Y[:, 0], "y: expected shape"),
        (Y[:9], "y: expected 80 rows"),
        (Y + 0.5, "y: expected integers as classes"),
        (
            np.where(Y == 1, "one", Y.astype(object)),
            "y: expected classes of one type, got several types in label label_0",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            clone(LINEAR).set_params(order="index").fit(X, y)
    for wordless in (LogisticRegression(), make_pipeline(LogisticRegression())):
        with pytest.raises(ValueError, match=r"X: expected features|could not convert string|Expected 2D"):
            ProbabilisticClassifierChain(wordless).fit(["a", "b"], [[0, 1], [1, 0]])
    with pytest.raises(NotFittedError):
        clone(LINEAR).predict(X)
    fitted = clone(LINEAR).fit(X, Y)
    with pytest.raises(ValueError, match="Y: expected whole label vectors"):
        fitted.log_prob(X, np.where(Y == 0, np.nan, Y))
    words = ProbabilisticClassifierChain(LogisticRegression(), decoder="f1").fit(*mixed())
    with pytest.raises(ValueError, match="expected binary labels"):
        words.predict(X)
    with pytest.raises(TypeError, match="classifiers of other libraries"):
        save(fitted, tmp_path / "chain.safetensors")
