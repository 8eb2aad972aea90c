"""The joint head: its inputs and answers, its choice on folds, its file."""

from __future__ import annotations

import itertools
from copy import copy
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GroupKFold, KFold

from lmbm_torch import load
from lmbm_torch.estimators import JointHead
from lmbm_torch.estimators.common.measures import agreement
from lmbm_torch.estimators.joint import choosing, rules
from lmbm_torch.estimators.joint.choosing import METRICS, STRUCTURES

LABELS = 4
EVERY = np.array(list(itertools.product([0, 1], repeat=LABELS)))


def data(rows: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels of which the last two exclude each other."""
    random = np.random.default_rng(seed)
    fields = 2 * random.normal(size=(rows, LABELS)) - 0.5
    labels = (random.random((rows, LABELS)) < expit(fields)).astype(int)
    labels[:, 3] = np.where(labels[:, 2] == 1, 0, labels[:, 3])
    return expit(fields), labels


def unfitted(metric: str = "exact_match", **settings: Any) -> JointHead:
    return JointHead(metric, **{"cv": KFold(2), "random_state": 0, **settings})


@cache
def fitted(metric: str = "exact_match", structure: str = "auto") -> JointHead:
    return unfitted(metric, structure=structure).fit(*data())


def log_probabilities(head: JointHead, scores: np.ndarray) -> np.ndarray:
    """Of all labellings, (rows, labellings)."""
    return np.stack([head.log_prob(scores, np.tile(each, (len(scores), 1))) for each in EVERY], 1)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_probabilities_and_labels_are_those_of_enumeration(structure):
    head, scores = fitted("log_loss", structure), data(12, 1)[0]
    every = log_probabilities(head, scores)
    np.testing.assert_allclose(np.exp(every).sum(1), 1, rtol=1e-10)
    np.testing.assert_allclose(head.predict_proba(scores), np.exp(every) @ EVERY, atol=0.01)
    np.testing.assert_array_equal(head.predict(scores), EVERY[every.argmax(1)])
    found = head.decode(scores, top_k=3)
    assert found.status.exact.all()
    best = np.argsort(-every, 1)[:, :3]
    np.testing.assert_array_equal(found.labels.numpy(), EVERY[best])
    np.testing.assert_allclose(found.objective.numpy(), np.take_along_axis(every, best, 1), rtol=1e-9)


def test_all_labellings_in_parts_have_the_best_of_a_search(monkeypatch):
    head, scores = fitted("log_loss", "network"), data(50, 1)[0]
    monkeypatch.setattr(choosing, "CHUNK_BYTES", 2**16)
    found = head.predict(scores)
    monkeypatch.setattr(choosing, "ENUMERATED", 0)
    np.testing.assert_array_equal(head.predict(scores), found)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_known_labels_stay_and_the_others_are_best_beside_them(structure):
    head, scores = fitted("log_loss", structure), data(12, 1)[0]
    known = np.full((12, LABELS), np.nan)
    known[:, 2] = 1
    every = np.where(EVERY[:, 2] == 1, log_probabilities(head, scores), -np.inf)
    np.testing.assert_array_equal(head.decode(scores, known=known).labels, EVERY[every.argmax(1)])


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("metric", ["f1", "jaccard", "hamming"])
def test_the_answer_is_best_for_its_metric(metric, structure):
    head, scores = copy(fitted(metric, structure)), data(12, 1)[0]
    head.rule_ = None
    gains = np.stack([agreement(metric, np.broadcast_to(each, EVERY.shape), EVERY) for each in EVERY], 1)
    expected = np.exp(log_probabilities(head, scores)) @ gains
    own = [np.flatnonzero((each == EVERY).all(1))[0] for each in head.predict(scores)]
    # Of networks no labelling is proven to be better by more than 0.01.
    assert (
        expected[np.arange(12), own] >= expected.max(1) - (0.01 if structure == "network" else 1e-9)
    ).all()


@pytest.mark.parametrize("metric", ["exact_match", "f1", "jaccard", "hamming", *rules.OF_LABELS])
def test_on_the_folds_no_rule_is_better_than_the_choice(metric):
    head = fitted(metric)
    assert set(head.cross_validated_) == {head.structure_, *rules.RULES}
    assert head.structure_ == min(head.log_loss_, key=head.log_loss_.__getitem__)
    chosen = head.cross_validated_[head.rule_ or head.structure_]
    assert chosen == max(head.cross_validated_.values())


def test_many_labels_have_networks_on_demand_alone(monkeypatch):
    monkeypatch.setattr(choosing, "NETWORK_LABELS", LABELS - 1)
    assert set(unfitted().fit(*data(60)).log_loss_) == {"independent", "cardinality"}
    assert unfitted(structure="network").fit(*data(60)).structure_ == "network"


def test_a_rule_is_followed_where_the_folds_prefer_it(monkeypatch):
    scores, labels = data()
    monkeypatch.setattr(
        choosing, "predicted", lambda parameters, log_odds, *_: (1 - labels[: len(log_odds)], None)
    )
    head = unfitted().fit(scores, labels)
    assert head.rule_ in rules.RULES[:2]
    expected = (np.log(scores) - np.log1p(-scores) > head.thresholds_).astype(int)
    np.testing.assert_array_equal(head.predict(scores), expected)


def test_rows_of_one_label_are_answered_by_the_most_probable():
    random = np.random.default_rng(0)
    labels = np.eye(4, dtype=int)[random.integers(4, size=200)]
    scores = expit(labels + random.normal(size=labels.shape) - 3)
    found = unfitted(structure="cardinality").fit(scores, labels).predict(scores)
    np.testing.assert_array_equal(found.sum(1), 1)
    np.testing.assert_array_equal(found.argmax(1), scores.argmax(1))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_order_of_columns_changes_nothing(structure):
    scores, labels = data()
    order = np.array([2, 0, 3, 1])
    first = unfitted("log_loss", structure=structure).fit(scores, labels)
    other = unfitted("log_loss", structure=structure)
    other.fit(scores[:, order], labels[:, order])
    np.testing.assert_allclose(
        other.log_prob(scores[:, order], labels[:, order]), first.log_prob(scores, labels), atol=0.02
    )
    np.testing.assert_array_equal(other.predict(scores[:, order]), first.predict(scores)[:, order])


def test_forms_of_scores_are_the_same_scores():
    scores, labels = data()
    names = ["a", "b", "c", "d"]
    head = unfitted().fit(scores, labels)
    expected = head.predict_proba(scores)
    frames = unfitted().fit(pd.DataFrame(scores, columns=names), pd.DataFrame(labels, columns=names))
    assert frames.label_names_ == tuple(names)
    lists = unfitted().fit([np.stack([1 - each, each], 1) for each in scores.T], labels)
    logits = unfitted(scores="logits").fit(np.log(scores / (1 - scores)), labels)
    logs = unfitted(scores="log_probabilities").fit(np.log(scores), labels)
    for found, given in (
        (logs, np.log(scores)),
        (frames, pd.DataFrame(scores, columns=names)),
        (lists, [np.stack([1 - each, each], 1) for each in scores.T]),
        (logits, np.log(scores / (1 - scores))),
    ):
        np.testing.assert_allclose(found.predict_proba(given), expected, atol=1e-6)
    with pytest.raises(ValueError, match="expected columns in the order of fit"):
        frames.predict(pd.DataFrame(scores, columns=names[::-1]))
    with pytest.raises(ValueError, match="columns"):
        JointHead().fit(pd.DataFrame(scores, columns=names), pd.DataFrame(labels, columns=names[::-1]))


def test_other_values_of_labels_come_back():
    scores, labels = data()
    expected = unfitted().fit(scores, labels)
    head = unfitted().fit(scores, 2 * labels - 1)
    np.testing.assert_array_equal(head.predict(scores), 2 * expected.predict(scores) - 1)
    np.testing.assert_allclose(head.log_prob(scores, 2 * labels - 1), expected.log_prob(scores, labels))
    known = np.full(labels.shape, np.nan)
    known[:, 0] = -1
    assert (head.decode(scores, known=known).labels[:, 0] == 0).all()
    words = unfitted().fit(scores, np.where(labels == 1, "yes", "no"))
    np.testing.assert_array_equal(words.predict(scores) == "yes", expected.predict(scores) == 1)
    assert words.score(scores, np.where(labels == 1, "yes", "no")) == expected.score(scores, labels)


def test_one_label_may_be_a_class_for_each_row():
    scores, labels = data()
    head = unfitted().fit(scores[:, :1], np.where(labels[:, 0] == 1, "a", "b"))
    assert head.predict(scores[:5, :1]).shape == (5,)
    assert set(head.predict(scores[:, :1])) == {"a", "b"}


def test_weights_of_zero_leave_rows_out():
    scores, labels = data()
    weights = (np.arange(200) < 150).astype(float)
    other = labels.copy()
    other[150:] = 1 - other[150:]
    folds = [(np.arange(200) % 2 == 0, np.arange(200) % 2 == 1)]
    folds = [tuple(map(np.flatnonzero, each)) for each in folds]
    first, second = (unfitted("f1", cv=folds).fit(scores, each, weights) for each in (labels, other))
    np.testing.assert_allclose(first.slope_, second.slope_)
    assert first.cross_validated_ == pytest.approx(second.cross_validated_)


def test_groups_stay_in_one_fold(monkeypatch):
    scores, labels = data(60)
    groups = np.arange(60) // 6
    seen = []
    original = choosing.choose
    monkeypatch.setattr(choosing, "choose", lambda *given: seen.extend(given[2]) or original(*given))
    for cv in (3, GroupKFold(3)):
        unfitted(cv=cv).fit(scores, labels, groups=groups)
    assert len(seen) == 3 * choosing.DIVISIONS + 3
    for train, test in seen:
        assert not set(groups[train]) & set(groups[test])


@pytest.mark.parametrize("metric", ["exact_match", "f1", "hamming", "log_loss"])
def test_known_labels_teach_and_rows_without_any_do_not(metric):
    scores, labels = data(300)
    hidden = np.where(np.random.default_rng(5).random(labels.shape) < 0.3, np.nan, labels)
    hidden[:30] = np.nan
    head = unfitted(metric, structure="cardinality").fit(scores, hidden)
    assert head.score(*data(300, 7)) > 0.2
    other_folds = [(train[train >= 30] - 30, test[test >= 30] - 30) for train, test in KFold(2).split(scores)]
    without = unfitted(metric, structure="cardinality", cv=other_folds).fit(scores[30:], hidden[30:])
    np.testing.assert_allclose(head.log_prob(*data(20, 7)), without.log_prob(*data(20, 7)), atol=0.01)
    assert head.cross_validated_ == pytest.approx(without.cross_validated_, abs=0.02)


@pytest.mark.parametrize(
    ("metric", "structure"), [*((metric, "cardinality") for metric in METRICS), ("f1", "network")]
)
def test_rules_hold_in_all_answers(metric, structure):
    scores, labels = data(80)
    names, rule = list("abcd"), "a + b + c + d >= 2"
    frame = pd.DataFrame(labels, columns=names)
    head = unfitted(metric, structure=structure, constraints=[rule]).fit(scores, frame)
    some = data(10, 1)[0]
    assert (head.predict(some).sum(1) >= 2).all()
    allowed = EVERY[EVERY.sum(1) >= 2]
    every = np.stack([head.log_prob(some, np.tile(each, (10, 1))) for each in allowed], 1)
    np.testing.assert_allclose(np.exp(every).sum(1), 1, atol=0.02)
    np.testing.assert_allclose(head.predict_proba(some), np.exp(every) @ allowed, atol=0.03)
    assert (head.log_prob(some, np.zeros((10, 4))) == -np.inf).all()
    np.testing.assert_array_equal(head.decode(some).labels, allowed[every.argmax(1)])
    more = head.decode(some, constraints="not d")
    assert not more.labels[:, 3].any()
    assert (more.labels.sum(1) >= 2).all()
    with pytest.raises(ValueError, match="e"):
        unfitted(metric, constraints="a -> e").fit(scores, frame)


@pytest.mark.parametrize("metric", METRICS)
def test_known_labels_stay_in_predictions(metric):
    scores, labels = data()
    head, some = unfitted(metric).fit(scores, labels + 1), data(10, 1)[0]
    known = np.full((10, LABELS), np.nan)
    known[::2, 1], known[::2, 2] = 2, 1
    found = head.predict(some, known)
    assert (found[::2, 1:3] == [2, 1]).all()
    np.testing.assert_array_equal(found[1::2], head.predict(some)[1::2])


def test_an_explanation_says_what_a_held_label_changes():
    scores, labels = data()
    head = unfitted(structure="cardinality", constraints="label_2 -> not label_3").fit(
        scores, np.where(labels, "on", "off")
    )
    found = head.explain(scores[:1])
    assert [each.name for each in found.by_label] == ["label_0", "label_1", "label_2", "label_3"]
    assert {each.value for each in found.by_label} <= {"on", "off"}
    np.testing.assert_allclose([each.field for each in found.by_label], head.predict_proba(scores[:1])[0])


def test_macro_f1_has_thresholds_of_rare_labels():
    random = np.random.default_rng(0)
    truth = (random.random((600, 3)) < [0.5, 0.1, 0.05]).astype(int)
    scores = expit(2 * truth + random.normal(size=truth.shape) + [-1, -4, -5])
    macro, exact = (unfitted(metric).fit(scores[:400], truth[:400]) for metric in ("macro_f1", "exact_match"))
    value = [
        rules.value("macro_f1", head.predict(scores[400:]), truth[400:], np.ones(200))
        for head in (macro, exact)
    ]
    assert value[0] > value[1] + 0.05


def test_values_of_metrics_count_known_labels():
    truth = np.array([[1, 0, np.nan], [1, np.nan, 1]])
    answer = np.array([[1, 1, 1], [0, 0, 1]])
    weights = np.array([1.0, 3.0])
    assert rules.value("exact_match", answer, truth, weights) == 0
    assert rules.value("hamming", answer, truth, weights) == 0.5
    assert rules.value("f1", answer, truth, weights) == pytest.approx(2 / 3)
    assert rules.value("macro_f1", answer, truth, weights) == pytest.approx((2 / 5 + 0 + 1) / 3)
    assert rules.value("micro_f1", answer, truth, weights) == pytest.approx(2 * (1 + 3) / (5 + 7))


def test_a_common_threshold_of_probabilities_is_the_best_for_micro_f1():
    random = np.random.default_rng(0)
    marginals = random.random((30, 3))
    # Of expected hits alone, as all labels are missing.
    found = rules.of_marginals("micro_f1", marginals, np.full((30, 3), np.nan), np.ones(30))
    assert len({*found.tolist()}) == 1

    def expected(threshold: float) -> float:
        answer = marginals > threshold
        return 2 * (answer * marginals).sum() / (answer.sum() + marginals.sum())

    assert expected(found[0]) == pytest.approx(max(map(expected, marginals.ravel() - 1e-9)))


@pytest.mark.parametrize("metric", METRICS)
def test_a_file_keeps_all_answers(tmp_path, metric):
    head, scores = unfitted(metric, cv=2).fit(*data()), data(20, 1)[0]
    head.save(tmp_path / "head.safetensors")
    found = load(tmp_path / "head.safetensors")
    assert type(found) is JointHead
    np.testing.assert_array_equal(found.predict(scores), head.predict(scores))
    np.testing.assert_array_equal(found.predict_proba(scores), head.predict_proba(scores))
    assert found.cross_validated_ == head.cross_validated_


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        (
            {},
            lambda s, y: (s + 1, y),
            r"scores: expected probabilities in \[0, 1\], got \d+ other values such as",
        ),
        ({}, lambda s, y: (np.where(s > 0.5, np.nan, s), y), "scores: expected finite values"),
        ({"scores": "logits"}, lambda s, y: (s / 0, y), "scores: expected finite values"),
        (
            {"scores": "log_probabilities"},
            lambda s, y: (s, y),
            "scores: expected log-probabilities of at most 0",
        ),
        ({}, lambda s, y: (s[:, :3], y), r"scores: expected shape \(200, 4\), got \(200, 3\)"),
        ({}, lambda s, y: (s[:9], y), r"scores: expected shape \(200, 4\)"),
        ({}, lambda s, y: ([s[:, :1]] * 4, y), r"scores\[0\]: expected shape \(200, 2\)"),
        ({}, lambda s, y: (s, y.sum(1)), "y: expected labels"),
        ({}, lambda s, y: (s, None), "requires y to be passed"),
        ({}, lambda s, y: (s[:1], y[:1]), "2 rows or more"),
        ({"metric": "macro"}, lambda s, y: (s, y), "'metric' parameter of JointHead must be"),
        ({"clip": 0.5}, lambda s, y: (s, y), "'clip' parameter"),
        ({"structure": "tree"}, lambda s, y: (s, y), "'structure' parameter"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_does_not_fit_is_refused(settings, change, message):
    with pytest.raises(ValueError, match=message):
        JointHead(**settings).fit(*change(*data()))


def test_logits_that_look_like_probabilities_are_warned_of():
    with pytest.warns(UserWarning, match="expected logits, got only values in"):
        unfitted(scores="logits").fit(*data())


def test_an_unfitted_head_says_so():
    with pytest.raises(NotFittedError):
        JointHead().predict(data()[0])
