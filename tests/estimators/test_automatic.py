"""The automatic choice: its parts against brute force, and the whole on candidates whose worth is known."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, jaccard_score, log_loss
from sklearn.pipeline import Pipeline
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import AutoLabelClassifier, JointClassifier
from lmbm_torch.estimators.automatic import beliefs, blend, classifier, label_sets, search
from lmbm_torch.estimators.automatic.blend import choose, chosen, mixture_weights, standard_error, worth
from lmbm_torch.estimators.automatic.candidates import FAMILIES, Candidate, UnitMeanSquare, candidates
from lmbm_torch.estimators.automatic.search import Search, stratified_folds
from lmbm_torch.estimators.common.measures import MEASURES, agreement, measure
from lmbm_torch.fitting import recipe

X, Y = random_inputs(0, 60, 4, 3)
Y = Y.astype(np.int64)


class Oracle(ClassifierMixin, BaseEstimator):
    """Knows the labels, from its first feature, and gets a share of them wrong."""

    fits = 0

    def __init__(self, wrong=0.0, seconds=0.0, refuses=False):
        self.wrong = wrong
        self.seconds = seconds
        self.refuses = refuses

    def fit(self, X, y):
        if self.refuses:
            raise ValueError("y: expected something else")
        Oracle.fits += 1
        time.sleep(self.seconds)
        self.classes_ = [np.array([0, 1])] * y.shape[1]
        return self

    def predict(self, X):
        rows = X[:, 0].astype(int)
        flip = np.random.default_rng(0).random(len(Y)) < self.wrong
        return np.where(flip[rows, None], 1 - Y[rows], Y[rows])


def oracle(name: str, **settings) -> Candidate:
    return Candidate(name, str(settings), Pipeline([("model", Oracle(**settings))]), (None,))


def searched(
    *tried: Candidate, seconds: float = 60, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[search.Trial], list[str]]:
    told: list[str] = []
    rows = np.arange(len(Y), dtype=float)[:, None]
    found = Search(
        rows,
        Y,
        stratified_folds(Y, 3, 0),
        "exact_match",
        clock() + seconds,
        lambda trial: told.append(trial.candidate.family),
        clock,
    )
    return found.run(tried), told


@pytest.mark.parametrize("name", ["exact_match", "hamming", "sample_f1", "jaccard"])
def test_measures_of_instances_have_the_mean_of_the_whole(name):
    random = np.random.default_rng(1)
    first, second = random.integers(0, 2, (2, 50, 4))
    first[:5] = second[:5] = 0
    assert agreement(name, first, second).mean() == pytest.approx(measure(name, first, second))


def test_the_answer_of_largest_mixed_worth_is_chosen():
    random = np.random.default_rng(2)
    worths, answers = random.random((3, 3, 20)), list(random.integers(0, 2, (3, 20, 4)))
    weights = np.array([0.5, 0.0, 0.5])
    found = chosen(weights, worths, answers)
    for row in range(20):
        mixed = [weights @ worths[:, a, row] if weights[a] else -1 for a in range(3)]
        np.testing.assert_array_equal(found[row], answers[int(np.argmax(mixed))][row])


def test_ties_go_to_the_heavier_member():
    answers = [np.zeros((1, 2)), np.ones((1, 2))]
    worths = np.array([[[1.0], [0.5]], [[0.5], [1.0]]])
    np.testing.assert_array_equal(chosen(np.array([0.5, 0.5]), worths, answers), answers[0])
    nearly = np.array([0.4, 0.6])
    np.testing.assert_array_equal(chosen(nearly, worths, answers), answers[1])


def test_three_that_err_apart_are_mixed_and_worse_ones_are_not():
    truth = np.random.default_rng(3).integers(0, 2, (30, 4))
    answers = []
    for member in range(4):
        answer = truth.copy()
        wrong = slice(10 * member, 10 * member + 10) if member < 3 else slice(None)
        answer[wrong] = 1 - answer[wrong]
        answers.append(answer)
    worths = worth("hamming", [None] * 4, answers, None, [0.75] * 4)
    weights, best = mixture_weights("hamming", [worths], [answers], [truth])
    assert best == 1
    assert weights[3] == 0
    assert (weights[:3] > 0).all()
    assert weights.sum() == pytest.approx(1)


def test_one_that_is_always_right_stays_alone():
    truth = np.random.default_rng(4).integers(0, 2, (30, 4))
    answers = [1 - truth, truth]
    worths = worth("exact_match", [Pipeline([("model", Oracle())])] * 2, answers, None, [0.0, 1.0])
    weights, best = mixture_weights("exact_match", [worths], [answers], [truth])
    np.testing.assert_array_equal(weights, [0, 1])
    assert best == 1


def test_those_that_are_hardly_worse_than_the_best_are_mixed_with_it():
    def value(weights: np.ndarray) -> float:
        return 0.6 if weights[0] == 1 else 0.3 if weights[3] else 0.59

    # With 400 instances a standard error is .024, with 40,000 it is .0024.
    weights, best = blend._ascended(value, 4, 400)
    np.testing.assert_allclose(weights, [1 / 3, 1 / 3, 1 / 3, 0])
    assert best == 0.59
    weights, best = blend._ascended(value, 4, 40_000)
    np.testing.assert_array_equal(weights, [1, 0, 0, 0])
    assert best == 0.6


def test_worth_of_exact_match_is_probability():
    tried = candidates("exact_match", 3, is_sparse=False, families=["network"], seed=0)[:2]
    models = [each.unfitted().fit(X, Y) for each in tried]
    answers = [model.predict(X) for model in models]
    found = worth("exact_match", models, answers, X, [0.5, 0.5])
    for (m, model), (a, answer) in product(enumerate(models), enumerate(answers)):
        log_prob = model[-1].log_prob(model[:-1].transform(X), answer)
        np.testing.assert_allclose(found[m, a], np.exp(log_prob))


def test_worth_without_probabilities_is_the_share_of_right_answers():
    (tried,) = candidates("exact_match", 3, is_sparse=False, families=["network"], seed=0)[:1]
    network = tried.unfitted().fit(X, Y)
    answers = [network.predict(X), 1 - network.predict(X)]
    found = worth("exact_match", [network, Pipeline([("model", Oracle())])], answers, X, [0.5, 0.7])
    assert 0 < found[0].max() < 1
    np.testing.assert_array_equal(found[1], [np.zeros(len(X)), np.full(len(X), 0.7)])


@pytest.mark.parametrize("count", [2, 5])
def test_folds_part_the_instances_and_hold_every_frequent_set(count):
    labels = np.array([[0, 0]] * 20 + [[0, 1]] * 12 + [[1, 0]] * 2 + [[1, 1]])
    folds = stratified_folds(labels, count, 0)
    held = np.concatenate([held for _, held in folds])
    np.testing.assert_array_equal(np.sort(held), np.arange(len(labels)))
    for train, held in folds:
        assert not set(train) & set(held)
        assert len(train) + len(held) == len(labels)
        shares = [(labels[held] == some).all(1).sum() for some in ([0, 0], [0, 1])]
        assert shares[0] >= 20 // count - 1
        assert shares[1] >= 12 // count


def test_the_best_is_found_and_knows_every_fold():
    tried = [oracle(f"{wrong}", wrong=wrong) for wrong in (0.5, 0.3, 0.0, 0.9, 0.8, 0.7, 0.6, 0.95)]
    trials, told = searched(*tried)
    assert trials[0].candidate.family == "0.0"
    assert trials[0].score == 1
    assert len(trials[0].models) == 3
    assert len(trials) == len(tried)
    # The worst ones are dropped after the first fold.
    assert told.count("0.95") == 1
    assert told.count("0.0") == 2


def test_small_parts_come_first(monkeypatch):
    monkeypatch.setattr(search, "FIRST_SIZE", 10)
    monkeypatch.setattr(search, "GROWTH", 2)
    trials, _ = searched(oracle("a"), oracle("b", wrong=0.5))
    assert trials[0].size == 40
    sizes: list[int] = []
    original = search._fitted

    def noted(table, candidate, part):
        sizes.append(part.size)
        return original(table, candidate, part)

    monkeypatch.setattr(search, "_fitted", noted)
    searched(oracle("a"))
    assert sizes == [search.WARM_UP, 10, 20, 40, 40, 40]


def test_slow_ones_do_not_exceed_the_time():
    started = time.perf_counter()
    trials, told = searched(oracle("quick", wrong=0.2), oracle("slow", seconds=0.7), seconds=1.0)
    assert time.perf_counter() - started < 1.5
    assert told.count("slow") == 1
    assert trials[0].candidate.family == "quick"
    assert len(trials[0].models) == 3


@pytest.fixture
def clock(monkeypatch) -> Callable[[], float]:
    """Of the seconds that oracles sleep, which do not pass."""
    now = [0.0]
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return lambda: now[0]


def test_time_that_is_left_goes_to_those_that_were_not_reached(clock, monkeypatch):
    monkeypatch.setattr(search, "FINALISTS", 1)
    monkeypatch.setattr(search, "KEPT", 0.1)
    monkeypatch.setattr(search, "ROUND_SHARE", 0.4)
    wrong = {"a": 0.5, "b": 0.3, "c": 0.4, "d": 0.0}
    tried = [oracle(name, seconds=1.0, wrong=share) for name, share in wrong.items()]
    trials, told = searched(*tried, seconds=10.5, clock=clock)
    # A second to warm up; of 9.5 the first round has 3.8, and the second one is for the best: 4.5 are left.
    assert told == ["a", "b", "c", "b", "d", "d"]
    assert trials[0].candidate.family == "d"
    assert clock() <= 10.5


def test_quick_families_try_more_settings_than_dear_ones_in_the_same_time(clock):
    quick = [oracle("quick", seconds=1 / 8, wrong=0.5 + share / 100) for share in range(30)]
    dear = [oracle("dear", seconds=1.0, wrong=0.5 + share / 100) for share in range(30)]
    _, told = searched(*[each for pair in zip(quick, dear, strict=True) for each in pair], clock=clock)
    # The dear one's second setting comes when quick ones have had as much time as it will have had with it.
    assert told[:17] == ["quick", "dear"] + ["quick"] * 14 + ["dear"]


def test_none_is_begun_whose_folds_would_not_all_be_done(clock, monkeypatch):
    monkeypatch.setattr(search, "ROUND_SHARE", 0.5)
    tried = oracle("first", seconds=1.0, wrong=0.2), oracle("second", seconds=1.0, wrong=0.4)
    trials, told = searched(*tried, seconds=6.0, clock=clock)
    # A second to warm up, two for the first fold, two for the first one's other folds, and one that is left.
    assert clock() == 5.0
    assert told == ["first", "second", "first"]
    assert [len(trial.models) for trial in trials] == [3, 1]


@pytest.mark.parametrize(("first", "compared"), [(10, 40), (5, 20)])
def test_where_a_further_round_has_no_time_for_two_this_one_has_all_families(
    first, compared, clock, monkeypatch
):
    monkeypatch.setattr(search, "FIRST_SIZE", first)
    monkeypatch.setattr(search, "ROUND_SHARE", 0.31)
    settings = {"a": (0.0, 0.05), "b": (0.4,), "c": (0.5,)}
    tried = [oracle(name, seconds=1.0, wrong=share) for name, shares in settings.items() for share in shares]
    trials, told = searched(*tried, seconds=14, clock=clock)
    # A second to warm up and four for the first round leave nine. Two by three folds of four times as many
    # instances would take 24, and two folds of eight times as many 16.
    assert told[:8] == list("abcaabca")
    assert all(trial.size >= compared for trial in trials)


def test_those_that_know_the_same_fold_are_mixed(clock, monkeypatch):
    folds = stratified_folds(Y, 3, 0)
    rows = np.arange(len(Y), dtype=float)[:, None]
    tried = [search.Trial(oracle(name, wrong=0.2)) for name in ("a", "b")]
    found = Search(rows, Y, folds, "exact_match", 1.0, lambda trial: None, clock)
    table = search.Table(
        X=rows, labels=Y, folds=folds, metric="exact_match", clock=clock, first=tried[0].candidate, process=0
    )
    for trial in tried:
        trial.take(0, 40, search._fitted(table, trial.candidate, search.Part(0, 40)))
        found._rank(trial)
    assert [weight for _, weight in choose(found, tried).members] == [0.5, 0.5]
    automatic = AutoLabelClassifier()
    assert automatic._affordable(tried, 9.0, 60) == tried
    tried[1].take(1, 40, search._fitted(table, tried[1].candidate, search.Part(1, 40)))
    assert automatic._affordable(tried, 9.0, 60) == tried[:1]


@pytest.mark.parametrize("metric", ["exact_match", "sample_f1", "hamming"])
@pytest.mark.parametrize("model", [Oracle(wrong=0.2), RandomForestClassifier(5, random_state=0)])
def test_those_that_know_a_part_of_a_fold_are_mixed(clock, metric, model):
    """The time of a small budget on a large table ends there: fewer are held out than the fold has."""
    rows, folds = np.arange(len(Y), dtype=float)[:, None], stratified_folds(Y, 3, 0)
    steps = [("scaling", "passthrough"), ("model", model)]
    candidate = Candidate("one", "", Pipeline(steps), (None,))
    tried = [search.Trial(candidate), search.Trial(candidate)]
    found = Search(rows, Y, folds, metric, 1.0, lambda trial: None, clock)
    table = search.Table(
        X=rows, labels=Y, folds=folds, metric=metric, clock=clock, first=candidate, process=0
    )
    for trial in tried:
        trial.take(0, 12, search._fitted(table, candidate, search.Part(0, 12)))
        found._rank(trial)
    choice = choose(found, tried)
    assert choice.score >= tried[0].score
    np.testing.assert_array_equal(found.held_out(tried[0], 0), folds[0][1][:12])
    assert len(tried[0].answers[0, None]) == 12


class Costly(ClassifierMixin, BaseEstimator):
    """Takes a time that grows with rows and labels, and answers by what the first features say."""

    widths: ClassVar[list[int]] = []

    def __init__(self, seconds=1e-6, power=2):
        self.seconds = seconds
        self.power = power

    def fit(self, X, y):
        self.widths.append(y.shape[1])
        time.sleep(self.seconds * len(X) * y.shape[1] ** self.power)
        self.width_ = y.shape[1]
        self.classes_ = np.tile([0, 1], (self.width_, 1))
        return self

    def predict_proba(self, X):
        return np.tile(X[:, :1] > 0, self.width_) * 0.8

    def predict(self, X):
        return (self.predict_proba(X) > 0.5).astype(np.int64)


@pytest.mark.parametrize(("seconds", "power"), [(1e-2, 1), (1e-4, 2), (1e-6, 3)])
def test_a_budget_is_kept_with_many_labels(clock, seconds, power):
    random = np.random.default_rng(0)
    rows = random.normal(size=(60, 2))
    labels = (rows[:, :1] + random.normal(size=(60, 120)) > 1).astype(int)
    folds, ends = stratified_folds(labels, 3, 0), clock() + 20
    tried = [
        Candidate(name, "", Pipeline([("none", "passthrough"), ("model", Costly(*settings))]), (None,))
        for name, settings in (("cheap", (1e-6, 1)), ("costly", (seconds, power)))
    ]
    Costly.widths.clear()
    trials = Search(rows, labels, folds, "hamming", ends, lambda trial: None, clock).run(tried)
    # A first fit to all labels takes from 48 to 69 seconds: only the small fits are made.
    assert clock() <= 20
    assert [trial.candidate.family for trial in trials] == ["cheap"]
    assert {4, 16} < set(Costly.widths)


def test_the_last_training_is_one_that_the_time_allows(clock):
    model = AutoLabelClassifier(clock=clock, time_budget=10)
    slow, quick = (search.Trial(oracle(name)) for name in ("slow", "quick"))
    slow.timed(6.0, 20)
    quick.timed(1.0, 20)
    assert model._affordable([slow, quick], 10.0, 60) == [quick]
    assert model._affordable([slow, quick], 1.0, 60) == [quick]
    assert model._affordable([slow, quick], 18.0, 60) == [slow]
    assert model._affordable([slow, quick], 30.0, 60) == [slow, quick]


def test_classifiers_of_the_user_are_families_with_joint_heads():
    Costly.widths.clear()
    given = [("mine", LogisticRegression(C=0.5)), ("other", Costly())]
    settings = {"families": ["forest"], "candidates": given, "cv": 2, "time_budget": 30, "random_state": 0}
    model = AutoLabelClassifier("macro_f1", **settings).fit(X, Y)
    tried = {each["family"] for each in model.table_}
    assert tried >= {"mine", "other", "joint head over mine", "joint head over other", "forest"}
    assert model.predict(X).shape == Y.shape
    row = next(at for at, each in enumerate(model.table_) if each["family"] == "joint head over mine")
    assert isinstance(model.unfitted(row)[-1], JointClassifier)
    with pytest.raises(ValueError, match="candidates: expected names of their own, got 'forest' twice"):
        AutoLabelClassifier(candidates=[("forest", LogisticRegression())]).fit(X, Y)


def test_finalists_are_of_several_families(monkeypatch):
    monkeypatch.setattr(search, "FINALISTS", 2)
    tried = [oracle("a", wrong=wrong) for wrong in (0.1, 0.2, 0.3)] + [oracle("b", wrong=0.5)]
    trials, _ = searched(*tried)
    assert [trial.candidate.family for trial in trials if len(trial.models) == 3] == ["a", "b"]


def test_a_bar_is_told_each_trial(monkeypatch):
    told: list[tuple[float, str]] = []

    @contextmanager
    def bar(name, verbose):
        assert (name, verbose) == ("AutoLabelClassifier", 1)
        yield lambda share, text: told.append((share, text))

    monkeypatch.setattr(classifier, "bar", bar)
    model = AutoLabelClassifier(families=["label powerset"], cv=2, time_budget=1e4, verbose=1, random_state=0)
    model.fit(X, Y)
    assert all(0 <= share <= 1 for share, _ in told)
    assert {text.split(" ", 1)[1] for _, text in told} == {
        f"{row['family']}, {row['settings']}" for row in model.table_
    }


def test_one_that_refuses_the_data_is_left_out():
    trials, _ = searched(oracle("refuses", refuses=True), oracle("learns", wrong=0.5))
    assert [trial.candidate.family for trial in trials] == ["learns"]
    with pytest.raises(
        ValueError, match=r"families: expected a family for these data.*y: expected something else"
    ):
        searched(oracle("refuses", refuses=True))


@pytest.mark.parametrize("metric", MEASURES)
def test_every_family_is_tried_and_the_choice_predicts(metric, monkeypatch):
    every = candidates(metric, 3, is_sparse=False, families=None, seed=0)
    quick = {"network", "Boltzmann machine", "label powerset"}
    tried = [each for each in every if each.family in quick][:4]
    monkeypatch.setattr(classifier, "candidates", lambda *args, **kwargs: tried)
    model = AutoLabelClassifier(metric, cv=2, time_budget=1e4, random_state=0).fit(X, Y)
    assert {row["family"] for row in model.table_} == quick
    assert model.predict(X).shape == Y.shape
    assert model.weights_.sum() == pytest.approx(1)
    assert len(model.weights_) == len(model.members_)
    scores = [row["score"] for row in model.table_ if row["folds"] == 2]
    assert model.best_score_ >= max(scores) - standard_error(max(scores), len(Y))
    if model.rule_ is None and len(model.members_) == 1:
        first = model.unfitted(0).fit(X, Y)
        np.testing.assert_array_equal(first.predict(X), model.members_[0].predict(X))


@pytest.mark.parametrize("metric", ["exact_match", "sample_f1"])
def test_a_single_label_is_learned_by_every_family(metric, monkeypatch):
    monkeypatch.setattr(classifier, "BATCH", 7)
    every = candidates(metric, 1, is_sparse=False, families=None, seed=0)
    first = [*{each.family: each for each in reversed(every)}.values()]
    monkeypatch.setattr(classifier, "candidates", lambda *args, **kwargs: first)
    model = AutoLabelClassifier(metric, cv=2, time_budget=1e4, random_state=0).fit(X, Y[:, :1])
    assert {row["family"] for row in model.table_} == {each.family for each in first}
    assert model.predict(X).shape == (len(X), 1)
    assert model.score(X, Y[:, :1]) > 0.6
    values = np.where(Y[:, 0] == 1, "yes", "no")
    model.fit(X, values)
    assert set(model.predict(X)) <= {"yes", "no"}


def test_as_many_label_sets_as_instances_are_no_reason_to_warn():
    sets = np.array([*product([0, 1], repeat=6)])[: len(X)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoLabelClassifier(
            families=["label powerset", "forest of label sets"], cv=2, time_budget=2, random_state=0
        ).fit(X, sets)


def test_the_same_seed_chooses_the_same():
    found = [
        AutoLabelClassifier(
            families=["label powerset", "forest of label sets"], cv=2, time_budget=1e4, random_state=3
        ).fit(X, Y)
        for _ in range(2)
    ]
    first, second = ([{**row, "seconds": None} for row in model.table_] for model in found)
    assert first == second
    np.testing.assert_array_equal(found[0].predict(X), found[1].predict(X))


def test_mixture_can_be_left_out():
    model = AutoLabelClassifier(families=["label powerset"], cv=2, mixture=False, random_state=0).fit(X, Y)
    assert len(model.members_) == 1
    assert model.best_score_ == model.table_[0]["score"]


def test_classes_are_classified():
    classes = np.array(["a", "b", "c"])[Y.sum(1).clip(max=2)]
    model = AutoLabelClassifier(families=["label powerset"], cv=2, random_state=0).fit(X, classes)
    assert set(model.predict(X)) <= {"a", "b", "c"}
    assert model.score(X, classes) > 0.5


def test_scale_of_the_features_is_learned_from_the_training_rows():
    scaled = UnitMeanSquare().fit_transform(X)
    assert (scaled**2).sum(1).mean() == pytest.approx(1)
    np.testing.assert_array_equal(UnitMeanSquare().fit_transform(0 * X), 0 * X)


def test_refuses_by_name():
    with pytest.raises(ValueError, match="The 'metric' parameter of AutoLabelClassifier"):
        AutoLabelClassifier("accuracy").fit(X, Y)
    with pytest.raises(ValueError, match=r"families: expected some of .* got 'trees'"):
        AutoLabelClassifier(families=["trees"]).fit(X, Y)
    with pytest.raises(ValueError, match=r"families: expected a family for dense features .* got \[\]"):
        AutoLabelClassifier(families=[]).fit(X, Y)
    with pytest.raises(ValueError, match=r"families: expected a family for sparse features and"):
        AutoLabelClassifier(families=["chain of boosting"]).fit(csr_array(X), Y)
    with pytest.raises(ValueError, match=r"cv: expected 2 folds to the 60 instances .*, got 61"):
        AutoLabelClassifier(cv=61).fit(X, Y)
    with pytest.raises(ValueError, match="time_budget"):
        AutoLabelClassifier(time_budget=0).fit(X, Y)
    with pytest.raises(ValueError, match="time_budget: expected time for a first candidate"):
        AutoLabelClassifier(time_budget=1e-9).fit(X, Y)


def test_what_first_calls_compile_leaves_a_short_budget_its_half(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(search, "_warm_up", lambda table: now.__setitem__(0, 5.0))
    model = AutoLabelClassifier(cv=2, time_budget=1, clock=lambda: now[0], random_state=0)
    assert len(model.fit(X, Y).table_) > 1


def test_measures_are_those_of_the_metrics():
    predicted = np.random.default_rng(5).integers(0, 2, Y.shape)
    same = predicted == Y
    expected = {
        "exact_match": same.all(1).mean(),
        "hamming": same.mean(),
        **{
            f"{average.replace('samples', 'sample')}_f1": f1_score(
                Y, predicted, average=average, zero_division=1
            )
            for average in ("samples", "macro", "micro")
        },
        "jaccard": jaccard_score(Y, predicted, average="samples", zero_division=1),
    }
    of_labels = [name for name in MEASURES if name != "log_loss"]
    assert {name: measure(name, predicted, Y) for name in of_labels} == pytest.approx(expected)
    likely = np.random.default_rng(6).random(Y.shape)
    losses = [log_loss(truth, own) for truth, own in zip(Y.T, likely.T, strict=True)]
    assert measure("log_loss", likely, Y) == pytest.approx(-np.mean(losses))


def test_choice_for_log_loss_mixes_probabilities():
    families = ["network", "logistic regressions"]
    model = AutoLabelClassifier("log_loss", families=families, cv=2, time_budget=1e4, random_state=0)
    model.fit(X, Y)
    found = model.predict_proba(X)
    np.testing.assert_array_equal(model.predict(X), found > 0.5)
    # Held-out probabilities are better than one half, and sure wrong labels do not win.
    assert -np.log(2) < model.best_score_ < 0
    own = [row["score"] for row in model.table_ if row["decoder"] == "hinge"]
    assert all(score < model.best_score_ for score in own)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_labellings_larger_than_counted_are_of_the_largest_size(most, monkeypatch):
    monkeypatch.setattr(beliefs, "MAX_SIZE", most)
    probabilities = np.random.default_rng(0).uniform(size=(3, 5))
    expected = np.zeros((3, 5, most))
    for labels in product((0, 1), repeat=5):
        own = np.array(labels)
        share = np.where(own, probabilities, 1 - probabilities).prod(1)
        if own.any():
            expected[:, :, min(own.sum(), most) - 1] += share[:, None] * own
    np.testing.assert_allclose(beliefs.of_marginals(probabilities), expected, atol=1e-6)


def test_a_label_set_that_training_has_not_has_no_probability():
    random = np.random.default_rng(0)
    X, Y = random.normal(size=(40, 3)), np.repeat([[0, 1], [1, 0]], 20, axis=0)
    model = label_sets.LabelSetForest(10, random_state=0).fit(X, Y)
    # Of the first one the last label set is probable.
    values = model.log_prob(X[[30, 1]], np.array([[1, 1], [0, 1]]))
    assert values[0] == -np.inf
    assert values[1] == pytest.approx(np.log(model.label_set_proba(X[1:2])[0, 0]))


def test_the_recipe_holds_searched_settings_of_every_family():
    assert recipe.SEARCHED.keys() == FAMILIES.keys()
    assert all(recipe.SEARCHED.values())
    assert {*recipe.SEARCHED_UNITS["dense"]} >= {recipe.SEARCHED_UNITS["sparse"][0]}
