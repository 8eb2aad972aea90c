"""The comparison of all methods: fair, repeatable, resumable, and with tests that hold what they promise."""

from __future__ import annotations

import csv
import io
import json
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer
from sklearn.multioutput import ClassifierChain
from sklearn.svm import LinearSVC

from lmbm_torch.compare import methods, trials
from lmbm_torch.compare.baselines import AnyClasses, BoostedRules, BoostedTrees, ChainEnsemble, MLkNN
from lmbm_torch.compare.comparing import compare
from lmbm_torch.compare.methods import METHODS, is_installed
from lmbm_torch.compare.trials import (
    corrected_t_test,
    holm,
    interval,
)
from lmbm_torch.data.dataset import MultilabelData, without_split
from lmbm_torch.data.features import numbered
from lmbm_torch.fitting import recipe

QUIET = Console(quiet=True)
SETTINGS = trials.Settings(splits=2, test_fraction=0.3, budget=2, folds=2, seed=0)
FEW = ["independent logistic regressions", "LMSBN", "10 LMSBNs"]
INSTALLED = list(filter(is_installed, METHODS))


def tiny_data(missing: int = 0) -> MultilabelData:
    """60 instances; a feature says whether the second label is the first one's opposite, a third is rare."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(60, 4))
    first = features[:, 0] + 0.1 * generator.normal(size=60) > 0
    labels = np.stack([first, first ^ (features[:, 1] > 0), np.arange(60) < 2], 1).astype(float)
    labels[:missing, 0] = np.nan
    return without_split("tiny", features, labels, numbered("label", 3), numbered("feature", 4))


@pytest.fixture(scope="module")
def rows_and_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    with warnings.catch_warnings():
        # The network with binary cross-entropy ends where its iterations do.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return compare(tiny_data(), INSTALLED, "LMSBN", SETTINGS, folder, QUIET), folder


@pytest.mark.slow
def test_every_method_gets_a_row_and_a_dot(rows_and_folder):
    rows, folder = rows_and_folder
    assert [row["method"] for row in rows] == INSTALLED
    table = list(csv.DictReader((folder / "table.csv").read_text(encoding="utf-8").splitlines()))
    for row, written in zip(rows, table, strict=True):
        assert 0 <= row["hamming_loss"] <= 1
        assert row["exact_match_low"] <= row["exact_match"] <= row["exact_match_high"]
        assert row["fit_seconds"] > 0
        assert float(written["exact_match"]) == row["exact_match"]
        assert (written["p_exact_match"] == "") == (row["method"] == "LMSBN")
    by_method = {row["method"]: row for row in rows}
    assert by_method["LMSBN"]["proven"] == 1
    assert by_method["random forest"]["proven"] is None
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in text for name in INSTALLED)
    assert (folder / "table.png").stat().st_size > 10_000


@pytest.mark.slow
def test_methods_see_the_same_splits_and_as_many_settings(rows_and_folder, monkeypatch, tmp_path):
    tests = {}
    monkeypatch.setattr(
        trials, "measured", lambda _, data: tests.setdefault(len(tests), tuple(data.test)) and {}
    )
    trials.tried(tiny_data(), FEW, SETTINGS, tmp_path, QUIET)
    # Single models come first, all methods of a split after each other.
    first, second = tests[0], tests[2]
    assert first != second
    assert [tests[place] for place in range(6)] == [first, first, second, second, first, second]
    base, ensemble = (
        json.loads((rows_and_folder[1] / "trials" / f"tiny_{name}_split_1.json").read_text(encoding="utf-8"))
        for name in ("lmsbn", "10_lmsbns")
    )
    assert ensemble["_parameters"] == base["_parameters"]
    assert ensemble["scaling"] == base["scaling"]


def test_trials_are_taken_up_again_and_splits_added(tmp_path, monkeypatch):
    first = compare(tiny_data(), FEW[:2], "LMSBN", SETTINGS, tmp_path, QUIET)
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "trials").iterdir()}
    assert compare(tiny_data(), FEW[:2], "LMSBN", SETTINGS, tmp_path, QUIET) == first
    more = trials.Settings(splits=3, test_fraction=0.3, budget=2, folds=2, seed=0)
    compare(tiny_data(), FEW[:2], "LMSBN", more, tmp_path, QUIET)
    assert {file: file.stat().st_mtime_ns for file in files} == files
    assert len(list((tmp_path / "trials").iterdir())) == 6
    other = trials.Settings(splits=2, test_fraction=0.3, budget=5, folds=2, seed=0)
    with pytest.raises(
        ValueError, match=r"without trials .* are of budget=2 instead of 5; choose another folder"
    ):
        compare(tiny_data(), FEW[:2], "LMSBN", other, tmp_path, QUIET)
    with pytest.raises(ValueError, match="whose trials are of other data; choose another folder"):
        compare(tiny_data(missing=3), FEW[:2], "LMSBN", SETTINGS, tmp_path, QUIET)
    monkeypatch.setattr(recipe, "SEARCHED_C", (1.0,))
    with pytest.raises(
        ValueError, match="whose trials are of another training recipe; choose another folder"
    ):
        compare(tiny_data(), FEW[:2], "LMSBN", SETTINGS, tmp_path, QUIET)


def test_every_trial_is_counted_in_a_log(tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "try_tuned", lambda *_: {})
    console = Console(width=60, record=True, file=io.StringIO())
    trials.tried(tiny_data(), FEW[1:2], SETTINGS, tmp_path, console)
    said = [line.strip() for line in console.export_text().splitlines() if ": " in line]
    assert said == ["1 of 2 trials: LMSBN, split 0", "2 of 2 trials: LMSBN, split 1"]


def test_a_failed_comparison_does_not_block_the_next_one(tmp_path, monkeypatch):
    compare(tiny_data(), FEW[:2], "LMSBN", SETTINGS, tmp_path, QUIET)
    whole = trials.try_tuned

    def failing(data, method, settings, seed):
        if seed and settings.seed:
            raise RuntimeError("a worker was lost")
        return whole(data, method, settings, seed)

    monkeypatch.setattr(trials, "try_tuned", failing)
    new, other = replace(SETTINGS, seed=1), replace(SETTINGS, seed=2)
    with pytest.raises(ValueError, match="output: expected a folder without trials of other settings"):
        compare(tiny_data(), FEW[:2], "LMSBN", new, tmp_path, QUIET)
    with pytest.raises(RuntimeError, match="a worker was lost"):
        compare(tiny_data(), FEW[:2], "LMSBN", new, tmp_path / "new", QUIET)
    assert (tmp_path / "new" / "failed.txt").read_text() == "RuntimeError: a worker was lost\n"
    monkeypatch.undo()
    rows = compare(tiny_data(), FEW[:2], "LMSBN", other, tmp_path / "new", QUIET)
    assert [row["method"] for row in rows] == FEW[:2]
    assert not (tmp_path / "new" / "failed.txt").exists()


def test_own_families_are_trained_by_the_recipe():
    own = ["LMSBN", "LMSBN, RBF kernel", "LMBM", "structural SVM", "conditional RBM"]
    every = {recipe.times_scale(C) for C in recipe.SEARCHED_C}
    for name in own:
        method = METHODS[name]
        assert not method.is_scaled
        assert {*method.space["C"]} <= every
        assert method.space.keys() <= {"C", "num_hidden"}
        assert method.model.C == recipe.C


@pytest.mark.parametrize(("space", "most", "count"), [({"C": [1, 2]}, 8, 2), ({"C": [1], "D": None}, 8, 8)])
def test_settings_of_a_space_are_counted(space, most, count):
    assert methods.num_settings({key: each or stats.uniform() for key, each in space.items()}, most) == count


def test_instances_that_lack_labels_are_left_out_and_counted(tmp_path):
    data, heard = tiny_data(missing=7), Console(record=True, quiet=False, file=io.StringIO(), width=400)
    rows = compare(data, FEW[:1], FEW[0], SETTINGS, tmp_path / "all", heard)
    said = "7 of 60 instances are left out: they lack labels."
    assert said in heard.export_text()
    assert said in (tmp_path / "all" / "table.md").read_text(encoding="utf-8")
    known = replace(data, features=data.features[7:], labels=data.labels[7:], train=np.arange(53))
    times = ("fit_seconds", "decode_seconds")
    for row in (again := compare(known, FEW[:1], FEW[0], SETTINGS, tmp_path / "known", QUIET)) + rows:
        for key in times:
            row.pop(key)
    assert again == rows
    assert "left out" not in (tmp_path / "known" / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("methods", "reference", "missing", "message"),
    [
        (["LMSBN", "perceptron"], "LMSBN", 0, "methods: expected some of .* got 'perceptron'"),
        (["10 LMSBNs", "LMSBN"], "LMSBN", 0, "methods: expected 'LMSBN' before '10 LMSBNs'"),
        (["LMSBN"], "label powerset", 0, r"reference: expected one of the methods \['LMSBN'\]"),
        (["LMSBN"], "LMSBN", 60, r"data\.labels: expected instances without missing labels, got none in 60"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    tmp_path, methods, reference, missing, message
):
    with pytest.raises(ValueError, match=message):
        compare(tiny_data(missing), methods, reference, SETTINGS, tmp_path / "new", QUIET)
    assert not (tmp_path / "new").exists()


def test_peers_that_are_not_installed_are_refused_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(methods, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'got \'BOOMER\'; pip install "lmbm-torch\[boomer\]" installs it'):
        compare(tiny_data(), ["LMSBN", "BOOMER"], "LMSBN", SETTINGS, tmp_path / "new", QUIET)
    for module in ("mlrl", "mlrl.boosting"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"lmbm-torch\[boomer\]"):
        BoostedRules().fit(np.eye(3), np.eye(3))


def test_sparse_features_are_for_those_that_take_them(tmp_path):
    data = tiny_data()
    sparse = replace(data, features=csr_array(data.features))
    with pytest.raises(ValueError, match=r"methods: expected methods that take .*got 'chain of"):
        compare(sparse, ["LMSBN", "chain of boosting"], "LMSBN", SETTINGS, tmp_path / "new", QUIET)
    for name, does in {"LMSBN": True, "chain of boosting": False, "10 chains of boosting": False}.items():
        assert methods.takes(name, sparse.features) == does
        assert methods.takes(name, data.features)


@pytest.mark.parametrize("is_joint", [False, True])
def test_boosted_rules_learn_label_vectors(is_joint):
    pytest.importorskip("mlrl.boosting", reason="BOOMER is an extra: boomer")
    data = tiny_data()
    model = BoostedRules(is_joint, num_rules=50, random_state=0).fit(data.features, data.labels)
    found = model.predict(data.features)
    assert (found == data.labels).all(1).mean() > 0.8
    assert hasattr(model, "predict_proba") != is_joint
    if not is_joint:
        np.testing.assert_array_equal(model.predict_proba(data.features) > 0.5, found)
    again = BoostedRules(is_joint, num_rules=50, random_state=0).fit(data.features, data.labels)
    np.testing.assert_array_equal(again.predict(data.features), found)
    # Few features have a use: among its own number of them the library finds none.
    rare = np.zeros((60, 400))
    rare[:, 7] = data.labels[:, 0]
    share = BoostedRules(is_joint, num_rules=50, feature_share=1.0, random_state=0).fit(rare, data.labels)
    np.testing.assert_array_equal(share.predict(rare)[:, 0], data.labels[:, 0])


@pytest.mark.parametrize("setting", [{"splits": 1}, {"folds": 1}, {"budget": 0}])
def test_settings_without_sense_are_refused(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        trials.Settings(**{"splits": 2, "test_fraction": 0.3, "budget": 2, "folds": 2, "seed": 0, **setting})


def test_without_overlap_the_test_is_the_paired_one():
    generator = np.random.default_rng(1)
    first, second = generator.normal(size=(2, 12))
    expected = stats.ttest_rel(first, second).pvalue
    assert corrected_t_test(first, second, 1e-12) == pytest.approx(expected)
    low, high = interval(first, 1e-12)
    assert (low, high) == pytest.approx(stats.ttest_1samp(first, 0).confidence_interval())


def test_the_correction_widens_and_ties_are_no_difference():
    first, second = np.array([0.7, 0.72, 0.69]), np.array([0.6, 0.61, 0.62])
    assert corrected_t_test(first, second, 0.5) > corrected_t_test(first, second, 0.1)
    assert corrected_t_test(first, first, 0.5) == 1
    # The same difference in every split leaves no doubt.
    assert corrected_t_test(np.array([2.0, 3.0]), np.array([1.0, 2.0]), 0.5) == 0
    with pytest.raises(ValueError, match="values: expected values of at least 2 splits, got 1"):
        corrected_t_test(first[:1], second[:1], 0.5)


def test_the_corrected_test_keeps_its_level_where_the_plain_one_does_not():
    """Of two rules that are equally good the plain test sees ghosts, since test parts share instances."""
    generator = np.random.default_rng(0)
    rejected = np.zeros(2)
    for _ in range(300):
        first, second = generator.random((2, 100)) < 0.6
        splits = [generator.permutation(100)[:30] for _ in range(10)]
        scores = [np.array([each[rows].mean() for rows in splits]) for each in (first, second)]
        plain, corrected = stats.ttest_rel(*scores).pvalue, corrected_t_test(*scores, 30 / 70)
        rejected += (plain < 0.05, corrected < 0.05)
    assert rejected[0] > 0.15 * 300
    assert rejected[1] < 0.15 * 300


def test_holm_by_hand():
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1, never falling.
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.9, 0.8])) == pytest.approx([1, 1])


@pytest.mark.parametrize("library", ["catboost", "xgboost", "lightgbm"])
def test_boosted_trees_of_other_libraries_know_constant_labels(library):
    pytest.importorskip(library, reason="a peer of benchmarks, of no extra")
    X = np.random.default_rng(0).normal(size=(60, 3))
    Y = np.column_stack([X[:, 0] > 0, np.zeros(60), X[:, 1] > 0]).astype(int)
    model = BoostedTrees(library, 20, random_state=0).fit(X, Y)
    assert (model.predict(X) == Y).mean() > 0.9
    assert (model.predict_proba(X)[:, 1] == 0).all()
    assert (BoostedTrees(library, 20).fit(X, Y[:, :2]).predict(X) == Y[:, :2]).mean() > 0.9
    sparse = BoostedTrees(library, 20, random_state=0).fit(csr_array(X), Y)
    assert (sparse.predict(csr_array(X)) == Y).mean() > 0.9


def test_a_label_that_never_occurs_is_predicted_so():
    features = np.random.default_rng(0).normal(size=(20, 2))
    labels = np.stack([features[:, 0] > 0, np.zeros(20, bool)], 1).astype(int)
    greedy = ClassifierChain(AnyClasses(LinearSVC()))
    chain = clone(greedy).fit(features, labels)
    assert not chain.predict(features)[:, 1].any()
    ensemble = ChainEnsemble(greedy, 3, random_state=0).fit(features, labels)
    assert (ensemble.predict(features)[:, 0] == labels[:, 0]).mean() > 0.8
    assert {tuple(member.order_) for member in ensemble.members_} <= {(0, 1), (1, 0)}
    assert AnyClasses(LinearSVC()).fit(features, labels[:, 1]).classes_.tolist() == [0, 1]


def test_neighbours_are_counted_as_in_the_paper():
    """ML-kNN's equations (Zhang, Zhou 2007, figure 1), one instance and label at a time."""
    generator = np.random.default_rng(3)
    X, queries = generator.normal(size=(30, 2)), generator.normal(size=(40, 2))
    Y = (X @ generator.normal(size=(2, 3)) + generator.normal(size=(30, 3)) > 0.5).astype(int)
    k, smoothing = 4, 0.5

    def counted(point, label, without=None):
        distance = ((X - point) ** 2).sum(1)
        if without is not None:
            distance[without] = np.inf
        return Y[np.argsort(distance)[:k], label].sum()

    def score(value, count, label):
        rows = [row for row in range(30) if Y[row, label] == value]
        prior = (smoothing + len(rows)) / (2 * smoothing + 30)
        like = sum(counted(X[row], label, row) == count for row in rows)
        return prior * (smoothing + like) / (smoothing * (k + 1) + len(rows))

    expected = [
        [
            score(1, count, label) > score(0, count, label)
            for label in range(3)
            for count in [counted(q, label)]
        ]
        for q in queries
    ]
    model = MLkNN(num_neighbors=k, smoothing=smoothing).fit(X, Y)
    found = model.predict(queries)
    np.testing.assert_array_equal(found, expected)
    assert get_scorer("accuracy")(model, queries, found) == 1
    assert 0 < found.mean() < 1
