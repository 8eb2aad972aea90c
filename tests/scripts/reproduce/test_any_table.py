"""The table of the automatic choice and its peers: its cells, its searches and its summary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from strategies.label_problems import random_inputs

from lmbm_torch.compare import methods
from lmbm_torch.compare.baselines import AnyClasses, MLkNN
from lmbm_torch.compare.methods import METHODS
from lmbm_torch.compare.significance import corrected_t_test
from lmbm_torch.compare.trials import scores
from lmbm_torch.data.dataset import MultilabelData
from reproduce import any_table, budgets
from reproduce.budgets import Setting, answers_of, pipeline, search, try_within

X, Y = random_inputs(0, 90, 4, 3)
Y = Y.astype(float)
PEER, CHAIN, CHAINS = "ML-kNN", "chain of logistic regressions", "10 chains of logistic regressions"


def small(name: str = "small") -> MultilabelData:
    names = tuple("abc"), tuple("wxyz")
    return MultilabelData(name, X, Y, *names, np.arange(60), np.arange(60, 90))


def trial(data: str, name: str, split: int, value: float) -> dict:
    values = dict.fromkeys(any_table.METRICS, value)
    extra = {"_test_per_train": 0.5} if name == any_table.AUTO else {}
    return {"data": data, "method": f"{name}, split {split}", "name": name, **values, **extra, "seconds": 1.0}


def test_labels_of_one_class_have_probabilities_in_chains_and_apart():
    constant = np.column_stack([Y, np.zeros(len(Y)), np.ones(len(Y))]).astype(int)
    for several in (ClassifierChain, MultiOutputClassifier):
        model = several(AnyClasses(LogisticRegression())).fit(X, constant)
        found = model.predict_proba(X)
        found = np.stack([each[:, 1] for each in found], 1) if isinstance(found, list) else found
        np.testing.assert_allclose(found[:, 3:], [[0, 1]] * len(X))
        np.testing.assert_array_equal(found > 0.5, model.predict(X))


def test_votes_and_neighbours_have_probabilities_that_they_answer_by():
    for name in (PEER, CHAINS):
        model = pipeline(METHODS[name], Setting("unit variance", {}), X).fit(X, Y.astype(int))
        np.testing.assert_array_equal(answers_of(model, X)[0.5], model.predict(X))
    assert MLkNN().fit(X, Y).predict_proba(X).shape == Y.shape


def test_a_low_threshold_is_chosen_for_f1_and_not_for_exact_match():
    random = np.random.default_rng(0)
    features = random.normal(size=(300, 1))
    labels = (random.random((300, 3)) < 0.35).astype(int)
    settings = iter([Setting("unit variance", {})])
    found, tried = search(
        METHODS["independent logistic regressions"],
        settings,
        features,
        labels,
        ["exact_match", "sample_f1"],
        9.0,
        0,
    )
    assert tried == 1
    assert (found["sample_f1"].threshold or 1) < 0.35 < (found["exact_match"].threshold or 0)


def test_no_setting_is_begun_after_the_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(budgets.time, "process_time", lambda: now[0])
    settings = (Setting(None, {"num_neighbors": count}) for count in range(2, 20))

    def slow(*args):
        now[0] += 1.0
        return pipeline(*args)

    monkeypatch.setattr(budgets, "pipeline", slow)
    _, tried = search(METHODS[PEER], settings, X, Y.astype(int), ["exact_match"], 4.0, 0)
    # Three folds each.
    assert tried == 2


def test_the_test_part_is_seen_by_the_last_scores_alone():
    before = try_within(small(), PEER, list(any_table.METRICS), 60.0, 0)
    noisy = Y.copy()
    noisy[60:] = 1 - noisy[60:]
    after = try_within(replace(small(), labels=noisy), PEER, list(any_table.METRICS), 60.0, 0)
    assert before["_chosen"] == after["_chosen"]
    assert before["exact_match"] != after["exact_match"]


def test_an_ensemble_tries_what_its_base_has_chosen():
    base = try_within(small(), CHAIN, list(any_table.METRICS), 0.0, 0)
    found = try_within(small(), CHAINS, list(any_table.METRICS), 60.0, 0, base)
    chosen = [choice["setting"] for choice in base["_chosen"].values()]
    assert all(choice["setting"] in chosen for choice in found["_chosen"].values())


def test_all_sets_of_a_split_come_before_the_next_split(monkeypatch):
    monkeypatch.setattr(any_table, "load", lambda name, folder: small(name))
    methods = [any_table.AUTO, CHAIN, CHAINS]
    cells = list(any_table.cells(["p", "q"], methods, 2, 1.0, 1.0, ""))
    assert [(cell.data, cell.method) for cell in cells][:4] == [
        ("p", f"{any_table.AUTO}, split 0"),
        ("p", f"{CHAIN}, split 0"),
        ("p", f"{CHAINS}, split 0"),
        ("q", f"{any_table.AUTO}, split 0"),
    ]
    assert cells[2].after == cells[1].method
    assert cells[6].method == f"{any_table.AUTO}, split 1"
    with pytest.raises(ValueError, match=r"methods: expected some of .*, got 'magic'"):
        list(any_table.cells(["p"], ["magic"], 1, 1.0, 1.0, ""))


def test_splits_are_of_all_instances_or_as_many_as_a_set_may_have(monkeypatch):
    parts = any_table.with_split(small(), 0)
    assert (len(parts.train), len(parts.test)) == (60, 30)
    monkeypatch.setitem(any_table.MOST, "small", (20, 10))
    fewer = any_table.with_split(small(), 0)
    assert (len(fewer.train), len(fewer.test)) == (20, 10)
    assert set(fewer.train) <= set(parts.train)
    assert set(fewer.test) <= set(parts.test)


def test_the_automatic_choice_is_asked_for_each_metric(monkeypatch):
    asked = []

    class Chosen:
        best_score_, table_ = 0.5, [{"weight": 1.0}, {"weight": 0.0}]

        def __init__(self, metric, **settings):
            asked.append((metric, settings["time_budget"], settings["random_state"]))

        def fit(self, X, Y):
            assert len(X) == 60
            return self

        def predict(self, X):
            return np.ones((len(X), 3), int)

    monkeypatch.setattr(any_table, "AutoLabelClassifier", Chosen)
    found = any_table.try_automatic(small(), 7.0, 3)
    assert asked == [(metric, 7.0, 3) for metric in any_table.METRICS]
    expected = scores(np.ones((30, 3)), Y[60:].astype(int), list(any_table.METRICS))
    assert {metric: found[metric] for metric in any_table.METRICS} == expected


def test_rows_are_means_over_complete_splits_with_tests_against_the_best_peer():
    ours, theirs, worse = [0.5, 0.6, 0.9], [0.3, 0.5, 0.1], [0.1, 0.2]
    results = [
        *(trial("p", any_table.AUTO, split, value) for split, value in enumerate(ours)),
        *(trial("p", "good", split, value) for split, value in enumerate(theirs)),
        # The third split is not complete.
        *(trial("p", "bad", split, value) for split, value in enumerate(worse)),
        *(trial("q", name, split, 0.4) for name in (any_table.AUTO, "good") for split in range(2)),
    ]
    rows = {(row["data"], row["method"]): row for row in any_table.summary(results)}
    own = rows["p", any_table.AUTO]
    assert own["exact_match"] == pytest.approx(0.55)
    assert own["best_peer_exact_match"] == "good"
    assert own["margin_exact_match"] == pytest.approx(0.15)
    p_value = corrected_t_test(np.array(ours[:2]), np.array(theirs[:2]), 0.5)
    # Holm's, over the two sets.
    assert own["p_exact_match"] == pytest.approx(min(2 * p_value, 1))
    assert rows["q", any_table.AUTO]["p_exact_match"] == 1
    whole = rows[any_table.ALL, any_table.AUTO]
    assert (whole["sets"], whole["splits"]) == (2, 2)
    assert whole["exact_match_rank"] == pytest.approx((1 + 1.5) / 2)
    assert whole["exact_match"] == pytest.approx((0.55 + 0.4) / 2)
    assert rows[any_table.ALL, "bad"]["sets"] == 1
    # Over one set and over two signed ranks tell nothing.
    assert rows[any_table.ALL, "bad"]["ranks_p_exact_match"] == 1
    assert "ranks_p_exact_match" not in whole
    text = any_table.note(results, methods=METHODS, seconds=5, peer_seconds=1)
    assert "exact match: average rank 1.25" in text
    assert "do not tell it from good" in text
    assert "+0.075 beside the best single peer (good)" in text


def test_a_table_without_the_automatic_choice_is_no_failure():
    results = [trial("p", "good", 0, 0.5)]
    assert any_table.summary(results)[0]["exact_match"] == 0.5
    assert "beside" not in any_table.note(results, methods=METHODS, seconds=5, peer_seconds=1)


def test_peers_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr(methods, "find_spec", lambda name: None)
    asked = ["ML-kNN", "BOOMER"]
    cells = any_table.cells(["seven_segment"], asked, 1, 1.0, 1.0, "")
    assert [cell.method for cell in cells] == ["ML-kNN, split 0"]
    assert "Not installed: BOOMER." in any_table.note([], asked, 1.0, 1.0)
