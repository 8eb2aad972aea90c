"""The table of the automatic choice and its peers: its cells, its searches and its summary."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from strategies.label_problems import random_inputs

from lmbm_torch.compare import methods
from lmbm_torch.compare.baselines import AnyClasses, MLkNN
from lmbm_torch.compare.methods import METHODS
from lmbm_torch.compare.trials import corrected_t_test, scores
from lmbm_torch.data.dataset import MultilabelData
from reproduce import any_table, budgets
from reproduce.budgets import LOSS, Setting, answers_of, pipeline, search, try_within
from reproduce.peers import BoostedLabelSets, TabMNetwork

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


def test_methods_are_left_out_of_a_set_and_named(monkeypatch):
    monkeypatch.setattr(any_table, "load", lambda name, folder: small(name))
    left_out = {"p": [CHAIN]}
    cells = any_table.cells(["p", "q"], [PEER, CHAIN], 1, 1.0, 1.0, "", left_out)
    assert [(cell.data, cell.method) for cell in cells] == [
        ("p", f"{PEER}, split 0"),
        ("q", f"{PEER}, split 0"),
        ("q", f"{CHAIN}, split 0"),
    ]
    assert f"Left out of p: {CHAIN}." in any_table.note([], [PEER], 1.0, 1.0, left_out)


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

        def predict_proba(self, X):
            return np.full((len(X), 3), 0.25)

    monkeypatch.setattr(any_table, "AutoLabelClassifier", Chosen)
    found = any_table.try_automatic(small(), 7.0, 3)
    of_labels = ["exact_match", "sample_f1", "macro_f1"]
    assert asked == [(metric, 7.0, 3) for metric in (*of_labels, "log_loss")]
    expected = scores(np.ones((30, 3)), Y[60:].astype(int), of_labels)
    assert {metric: found[metric] for metric in of_labels} == expected
    assert found[LOSS] == pytest.approx(np.log(np.where(Y[60:] == 1, 0.25, 0.75)).mean())


def test_probabilities_alone_have_log_losses_in_a_search():
    settings = iter([Setting("unit variance", {})])
    found, _ = search(METHODS[PEER], settings, X, Y.astype(int), [*any_table.METRICS], 9.0, 0)
    assert found[LOSS].threshold == LOSS
    assert found[LOSS].value < 0 < found["exact_match"].value
    settings = iter([Setting("unit variance", {})])
    without = METHODS["label powerset, RBF kernel"]
    assert LOSS not in search(without, settings, X, Y.astype(int), [*any_table.METRICS], 9.0, 0)[0]


def test_methods_without_log_loss_have_no_rank_in_it():
    results = [
        trial("p", name, split, 0.5) for name in (any_table.AUTO, "good", "bare") for split in range(2)
    ]
    results = [
        {key: value for key, value in each.items() if (each["name"], key) != ("bare", LOSS)}
        for each in results
    ]
    rows = {row["method"]: row for row in any_table.summary(results) if row["data"] == any_table.ALL}
    assert (rows["good"][f"{LOSS}_rank"], rows["good"]["exact_match_rank"]) == (1.5, 2.0)
    assert not {LOSS, f"{LOSS}_rank", f"ranks_p_{LOSS}"} & rows["bare"].keys()


def test_boosted_label_sets_answer_by_a_training_label_set():
    pytest.importorskip("xgboost")
    model = BoostedLabelSets(num_rounds=100, learning_rate=0.3, random_state=0).fit(X, Y)
    assert {tuple(each) for each in model.predict(X)} <= {tuple(each) for each in Y.astype(int)}
    assert (model.predict(X) == Y).all(1).mean() > 0.9
    assert ((model.predict_proba(X) > 0.5) == Y).mean() > 0.95
    single = BoostedLabelSets().fit(X, np.ones_like(Y))
    np.testing.assert_array_equal(single.predict_proba(X), np.ones_like(Y))


class _SeveralLines(torch.nn.Module):
    """A stand-in for TabM: linear networks (instances, networks, labels)."""

    def __init__(self, n_num_features, d_out, k, **sizes):
        super().__init__()
        self.lines, self.shape = torch.nn.Linear(n_num_features, k * d_out), (k, d_out)

    @classmethod
    def make(cls, **options):
        return cls(**options)

    def forward(self, rows):
        return self.lines(rows).unflatten(-1, self.shape)


def test_tabm_is_trained_to_its_best_epoch_and_the_same_twice(monkeypatch):
    monkeypatch.setitem(sys.modules, "tabm", SimpleNamespace(TabM=_SeveralLines))
    rows = np.random.default_rng(1).normal(size=(400, 4))
    labels = (rows @ np.random.default_rng(2).normal(size=(4, 3)) > 0).astype(float)
    first, second = (
        TabMNetwork(learning_rate=0.05, random_state=3).fit(each(rows), labels).predict_proba(rows)
        for each in (np.asarray, csr_array)
    )
    np.testing.assert_array_equal(first, second)
    assert ((first > 0.5) == labels).mean() > 0.95


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


def test_tests_over_sets_by_hand():
    # All five ranks on one side: two of 2⁵ signs.
    first = np.array([0.5, 0.6, 0.7, 0.8, 0.9])
    assert any_table.signed_ranks(first, first - [0.1, 0.2, 0.05, 0.15, 0.25]) == pytest.approx(2 / 32)
    assert any_table.signed_ranks(first, first) == 1
    # The example of Demšar (2006), section 3.2.4.
    assert any_table.critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
