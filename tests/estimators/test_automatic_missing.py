"""The automatic choice learns from incomplete labels, whatever its families take, and loses little by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from problems.dependent import problem
from sklearn.ensemble import ExtraTreesClassifier
from sweeps import slow

from lmbm_torch.compare.trials import part
from lmbm_torch.data import read_npz
from lmbm_torch.estimators import AutoLabelClassifier
from lmbm_torch.estimators.automatic import classifier
from lmbm_torch.estimators.automatic.candidates import (
    FAMILIES,
    CompletingPipeline,
    answers_of,
    candidates,
    completed,
    fitted,
)
from lmbm_torch.estimators.automatic.rules import THRESHOLDS, best_thresholds
from lmbm_torch.estimators.automatic.search import stratified_folds
from lmbm_torch.estimators.common.measures import MEASURES, measure
from lmbm_torch.estimators.label_chains.boosting import is_installed

# With XGBoost alone has label boosting candidates.
INSTALLED = [family for family in FAMILIES if family != "label boosting" or is_installed()]
QUICK = ["label powerset", "forest of label sets", "chain of logistic regressions"]


def hidden(labels: np.ndarray, share: float) -> np.ndarray:
    return np.where(np.random.default_rng(3).random(labels.shape) < share, np.nan, labels)


X, Y = problem(150, 1)
UNSEEN = problem(400, 2)
MISSING = hidden(Y, 0.3)
COMPLETE = ~np.isnan(MISSING).any(1)


@pytest.mark.parametrize("family", INSTALLED)
def test_every_family_learns_more_from_incomplete_instances_than_from_none(family):
    rows, truth = UNSEEN
    tried, *_ = candidates("exact_match", 5, is_sparse=False, families=[family], seed=0)
    whole, partly, dropped = (
        measure("exact_match", answers_of(fitted(tried.unfitted(), features, labels), rows), truth)
        for features, labels in ((X, Y), (X, MISSING), (X[COMPLETE], Y[COMPLETE]))
    )
    assert partly > dropped
    assert partly > whole - 0.1


def test_few_missing_labels_hardly_matter():
    rows, labels = problem(300, 1)
    few = hidden(labels, 0.03)
    complete = ~np.isnan(few).any(1)
    model = AutoLabelClassifier(families=QUICK[-1:], cv=3, time_budget=1e4, random_state=0)
    partly, dropped = (
        model.fit(*each).score(*UNSEEN) for each in ((rows, few), (rows[complete], labels[complete]))
    )
    assert abs(partly - dropped) < 0.03


@pytest.mark.parametrize("metric", MEASURES)
def test_every_measure_chooses_from_incomplete_labels(metric, monkeypatch):
    every = candidates(metric, 5, is_sparse=False, families=[*QUICK, "network"], seed=0)[:4]
    monkeypatch.setattr(classifier, "candidates", lambda *args, **kwargs: every)
    model = AutoLabelClassifier(metric, cv=2, time_budget=1e4, random_state=0).fit(X, MISSING)
    assert len({row["family"] for row in model.table_}) == 4
    assert np.isfinite([row["score"] for row in model.table_]).all()
    assert set(model.predict(X).ravel()) == {0, 1}
    if metric == "log_loss":
        assert measure(metric, model.predict_proba(UNSEEN[0]), UNSEEN[1]) > -0.5
    else:
        assert measure(metric, model.predict(UNSEEN[0]), UNSEEN[1]) > 0.6
    again = model.unfitted(0).fit(X, MISSING)
    assert answers_of(again, X).shape == Y.shape


@pytest.mark.parametrize("metric", MEASURES)
def test_measures_count_known_labels_alone(metric):
    random = np.random.default_rng(4)
    predicted, truth = random.integers(0, 2, (2, 40, 3))
    unknown = np.where(random.random(truth.shape) < 0.4, np.nan, truth)
    unknown[:2] = np.nan
    known = ~np.isnan(unknown)
    rows = np.flatnonzero(known.any(1))
    if metric in ("exact_match", "sample_f1", "jaccard"):
        # Each instance by itself, of its known labels only.
        of_each = [
            measure(metric, predicted[[row]][:, known[row]], truth[[row]][:, known[row]]) for row in rows
        ]
        expected = np.mean(of_each)
    elif metric == "macro_f1":
        of_each = [
            measure(metric, predicted[known[:, [k]][:, 0]][:, [k]], truth[known[:, k]][:, [k]])
            for k in range(3)
        ]
        expected = np.mean(of_each)
    else:
        expected = measure(metric, predicted[known][:, None], truth[known][:, None])
    assert measure(metric, predicted, unknown) == pytest.approx(expected)
    assert measure(metric, predicted, truth) == measure(metric, predicted, truth.astype(float))


def test_thresholds_are_those_of_the_instances_that_know_a_label():
    random = np.random.default_rng(5)
    probabilities, truth = random.random((30, 2)), hidden(random.integers(0, 2, (30, 2)), 0.5)
    found = best_thresholds(probabilities, truth).thresholds
    for label in range(2):
        known = ~np.isnan(truth[:, label])
        alone = best_thresholds(probabilities[known][:, [label]], truth[known][:, [label]])
        assert found[label] == alone.thresholds[0]
        assert THRESHOLDS[0] <= found[label] <= THRESHOLDS[-1]


def test_completed_labels_keep_what_is_known_and_mostly_hit_what_is_not():
    found = completed(X, MISSING)
    known = ~np.isnan(MISSING)
    np.testing.assert_array_equal(found[known], Y[known])
    assert (found == Y)[~known].mean() > 0.85
    # Without the labels that are known, the last ones follow from the features alone.
    assert (found == Y)[:, 3:][np.isnan(MISSING[:, 3:])].mean() > 0.9
    np.testing.assert_array_equal(completed(X, Y.astype(float)), Y)


def test_of_complete_labels_the_pipeline_is_an_ordinary_one():
    pipeline = CompletingPipeline([("model", ExtraTreesClassifier(10, random_state=0))]).fit(X, Y)
    alone = ExtraTreesClassifier(10, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(pipeline.predict(X), alone.predict(X))


def test_instances_without_any_known_label_teach_nothing():
    others = np.full((30, 5), np.nan)
    alone, beside = (
        AutoLabelClassifier(families=QUICK, cv=2, time_budget=1e4, random_state=0).fit(*data)
        for data in ((X, MISSING), (np.vstack([X, UNSEEN[0][:30]]), np.vstack([MISSING, others])))
    )
    assert alone.best_score_ == beside.best_score_
    np.testing.assert_array_equal(alone.predict(UNSEEN[0]), beside.predict(UNSEEN[0]))


@pytest.mark.parametrize("family", INSTALLED)
def test_a_label_of_which_a_part_knows_nothing_counts_as_one_that_never_occurs(family):
    unknown = MISSING.copy()
    unknown[:, 2] = np.nan
    tried, *_ = candidates("exact_match", 5, is_sparse=False, families=[family], seed=0)
    answers = answers_of(fitted(tried.unfitted(), X, unknown), X)
    assert not answers[:, 2].any()
    assert answers[:, 3].any()


def test_instances_with_the_same_known_labels_are_spread_over_folds():
    labels = np.array([[0, np.nan]] * 10 + [[0, 0]] * 10)
    for _, held in stratified_folds(labels, 5, 0):
        assert np.isnan(labels[held]).sum() == 2


def test_refuses_by_name():
    with pytest.raises(ValueError, match="y: expected at least one known label"):
        AutoLabelClassifier().fit(X, np.full(Y.shape, np.nan))
    few = np.full(Y.shape, np.nan)
    few[:4] = Y[:4]
    with pytest.raises(ValueError, match="cv: expected 2 folds to the 4 instances with known labels, got 5"):
        AutoLabelClassifier().fit(X, few)


@pytest.mark.data
@pytest.mark.parametrize("name", [slow("yeast"), "scene"])
def test_a_fifth_of_the_labels_hidden_costs_little_of_real_data(name, data_folder: Path):
    data = read_npz(data_folder / name / f"{name}.npz")
    rows, labels = part(data, data.train[:800])
    tests, truth = part(data, data.test)
    model = AutoLabelClassifier(
        families=["label powerset", "forest of label sets"],
        cv=2,
        mixture=False,
        time_budget=5,
        random_state=0,
    )
    whole, partly = (model.fit(rows, each).score(tests, truth) for each in (labels, hidden(labels, 0.2)))
    assert partly > whole - 0.04
