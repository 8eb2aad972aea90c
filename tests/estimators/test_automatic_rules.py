"""Beliefs and the rules that answer from them, against enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist, pdist
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from strategies.label_problems import random_inputs

from lmbm_torch.constraints import Constraints
from lmbm_torch.estimators import AutoLabelClassifier, LMSBNClassifier, ProbabilisticClassifierChain
from lmbm_torch.estimators.automatic import beliefs as module
from lmbm_torch.estimators.automatic import label_sets
from lmbm_torch.estimators.automatic.beliefs import beliefs, marginals, of_marginals
from lmbm_torch.estimators.automatic.blend import belief_weights, pooled
from lmbm_torch.estimators.automatic.label_sets import LabelSetForest, LabelSetRidge
from lmbm_torch.estimators.automatic.rules import (
    THRESHOLDS,
    Above,
    ExpectedF1,
    RuledClassifier,
    allowed_answer,
    best_thresholds,
    held_out_thresholds,
    rules_for,
)
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM
from lmbm_torch.estimators.common.measures import agreement, measure

LABELLINGS = np.array([*product([0, 1], repeat=4)])
X, Y = random_inputs(0, 60, 4, 3)
Y = Y.astype(np.int64)


def piped(model) -> Pipeline:
    return Pipeline([("scale", "passthrough"), ("model", model)])


def believed(pipeline: Pipeline) -> np.ndarray:
    found = beliefs(pipeline, X)
    assert found is not None
    return found


def of_distribution(probability: np.ndarray, labellings: np.ndarray = LABELLINGS) -> np.ndarray:
    """Σ_y P(y) y_i [|y| = s], (instances, labels, sizes), by a loop."""
    labels = labellings.shape[1]
    found = np.zeros((len(probability), labels, labels))
    for place, labelling in enumerate(labellings):
        for label in np.flatnonzero(labelling):
            found[:, label, labelling.sum() - 1] += probability[:, place]
    return found


def test_independent_labels_have_the_beliefs_of_their_product():
    single = np.random.default_rng(0).random((5, 4))
    joint = np.prod(np.where(LABELLINGS[None] == 1, single[:, None], 1 - single[:, None]), axis=2)
    np.testing.assert_allclose(of_marginals(single), of_distribution(joint), atol=1e-6)


def test_larger_labellings_count_as_the_largest_size(monkeypatch):
    single = np.random.default_rng(1).random((5, 4))
    whole = of_marginals(single)
    monkeypatch.setattr(module, "MAX_SIZE", 2)
    capped = of_marginals(single)
    np.testing.assert_allclose(capped[..., 0], whole[..., 0], atol=1e-6)
    np.testing.assert_allclose(capped[..., 1], whole[..., 1:].sum(-1), atol=1e-6)


def test_of_many_labels_the_probability_of_each_alone_is_believed(monkeypatch):
    single = np.random.default_rng(1).random((5, 4))
    monkeypatch.setattr(module, "MANY_LABELS", 3)
    found = of_marginals(single)
    assert found.shape == (5, 4, 1)
    np.testing.assert_allclose(marginals(found), single, atol=1e-6)
    network = piped(LMSBNClassifier(random_state=0)).fit(X, Y)
    np.testing.assert_allclose(marginals(believed(network)), network.predict_proba(X), atol=0.1)
    assert any(isinstance(rule, ExpectedF1) for rule in rules_for("sample_f1", 128))
    # Common thresholds instead, as fine as those of labels.
    assert [rule.thresholds[0] for rule in rules_for("sample_f1", 129)] == [*reversed(THRESHOLDS)]
    assert rules_for("hamming", 129) == rules_for("hamming", 128)
    assert rules_for("exact_match", 129) == ()


def test_the_answer_has_the_largest_expected_f1():
    random = np.random.default_rng(2)
    probability = random.dirichlet(np.full(len(LABELLINGS), 0.3), 40)
    probability[:5] = 0
    probability[:5, 0], probability[:5, 3] = 0.6, 0.4
    found = ExpectedF1().answer(of_distribution(probability).astype(np.float32))

    def expected(answers: np.ndarray) -> np.ndarray:
        each = [agreement("sample_f1", answers, np.tile(one, (40, 1))) for one in LABELLINGS]
        return (probability * np.stack(each, 1)).sum(1)

    best = np.max([expected(np.tile(one, (40, 1))) for one in LABELLINGS], axis=0)
    np.testing.assert_allclose(expected(found), best, atol=1e-6)
    assert not found[:5].any()


@pytest.mark.parametrize(
    "model",
    [
        LMSBNClassifier(random_state=0),
        ProbabilisticClassifierChain(LogisticRegression()),
        ExtraTreesClassifier(20, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_marginals_of_beliefs_are_the_models(model, monkeypatch):
    monkeypatch.setattr(module, "CHAIN_DRAWS", 2000)
    monkeypatch.setattr(module, "NETWORK_DRAWS", 2000)
    pipeline = piped(model).fit(X, Y)
    said = pipeline.predict_proba(X)
    said = np.stack([each[:, 1] for each in said], 1) if isinstance(said, list) else said
    np.testing.assert_allclose(marginals(believed(pipeline)), said, atol=0.06)


def test_labels_of_one_class_have_beliefs():
    constant = np.column_stack([Y, np.zeros(len(Y), int), np.ones(len(Y), int)])
    forest = piped(ExtraTreesClassifier(5, random_state=0)).fit(X, constant)
    np.testing.assert_allclose(marginals(believed(forest))[:, 3:], [[0, 1]] * len(X), atol=1e-6)


def test_those_without_probabilities_have_no_beliefs():
    assert beliefs(piped(LabelPowersetSVM()).fit(X, Y), X) is None


def test_a_forest_of_label_sets_has_their_probabilities():
    forest = LabelSetForest(20, min_samples_leaf=5, random_state=0).fit(X, Y)
    joint = forest.label_set_proba(X)
    expected = of_distribution(joint, forest.labellings_)
    np.testing.assert_allclose(believed(piped(forest)), expected, atol=1e-6)
    chosen = forest.predict(X)
    np.testing.assert_allclose(np.exp(forest.log_prob(X, chosen)), joint.max(1))
    some = Y.any(1)
    without_empty = LabelSetForest(5, random_state=0).fit(X[some], Y[some])
    assert np.isneginf(without_empty.log_prob(X, np.zeros_like(Y))).all()


def test_a_regression_of_label_sets_expects_what_it_would_of_instances_left_out(monkeypatch):
    monkeypatch.setattr(label_sets, "PENALTIES", (0.3,))
    monkeypatch.setattr(label_sets, "DECAYS", (1.0,))
    said = []
    monkeypatch.setattr(LabelSetRidge, "_quality", lambda self, scores, truths: said.append(scores) or 0.0)
    ridge = LabelSetRidge().fit(X, Y)
    (found,) = said
    squares = pdist(X, "sqeuclidean")
    kernel = np.exp(-3.0 * cdist(X, X, "sqeuclidean") / np.median(squares[squares > 0]))
    likeness = np.exp(-cdist(Y, ridge.labellings_, "cityblock"))
    for row in range(0, len(X), 7):
        rest = np.arange(len(X)) != row
        coefficients = np.linalg.solve(kernel[rest][:, rest] + 0.3 * np.eye(len(X) - 1), likeness[rest])
        np.testing.assert_allclose(found[row], kernel[row, rest] @ coefficients, atol=1e-5)


@pytest.mark.parametrize("metric", ["exact_match", "macro_f1"])
def test_a_regression_of_label_sets_chooses_by_its_metric(monkeypatch, metric):
    qualities = {}
    original = LabelSetRidge._quality
    monkeypatch.setattr(
        LabelSetRidge,
        "_quality",
        lambda self, scores, truths: qualities.setdefault(scores.tobytes(), original(self, scores, truths)),
    )
    ridge = LabelSetRidge(metric=metric).fit(X, Y)
    chosen = label_sets.PENALTIES.index(ridge.penalty_) * len(label_sets.DECAYS)
    chosen += label_sets.DECAYS.index(ridge.decay_)
    assert [*qualities.values()][chosen] == max(qualities.values())
    assert len({*qualities.values()}) > 1


def test_a_regression_of_label_sets_has_probabilities_that_mean_what_they_say():
    random = np.random.default_rng(6)
    features = random.normal(size=(600, 2))
    truth = (features + random.normal(0, 0.5, features.shape) > 0).astype(int)
    ridge = LabelSetRidge().fit(features[:300], truth[:300])
    joint = ridge.label_set_proba(features[300:])
    np.testing.assert_allclose(joint.sum(1), 1)
    right = (ridge.predict(features[300:]) == truth[300:]).all(1).mean()
    assert joint.max(1).mean() == pytest.approx(right, abs=0.06)
    assert ridge.log_prob(features[300:], truth[300:]).mean() > -0.9


def test_a_regression_of_label_sets_by_landmarks_is_close_to_that_of_all(monkeypatch):
    random = np.random.default_rng(7)
    features = random.normal(size=(400, 2))
    truth = (np.column_stack([features, features.sum(1)]) > 0).astype(int)
    whole = LabelSetRidge().fit(features[:300], truth[:300])
    monkeypatch.setattr(label_sets, "LANDMARKS", 80)
    monkeypatch.setattr(label_sets, "BATCH", 70)
    some = LabelSetRidge(random_state=0).fit(features[:300], truth[:300])
    assert some.landmarks_.shape == (80, 2)
    right = [(each.predict(features[300:]) == truth[300:]).all(1).mean() for each in (whole, some)]
    assert min(right) > 0.9
    sparse = LabelSetRidge(random_state=0).fit(csr_array(features[:300]), truth[:300])
    np.testing.assert_allclose(
        sparse.label_set_proba(csr_array(features[300:])), some.label_set_proba(features[300:]), atol=1e-6
    )


def test_a_regression_by_landmarks_expects_what_it_would_of_instances_left_out():
    random = np.random.default_rng(8)
    rows, sets, chosen = random.normal(size=(30, 2)), random.integers(0, 4, 30), np.arange(0, 30, 4)
    kernel = np.exp(-cdist(rows, rows[chosen], "sqeuclidean"))
    batches = iter([kernel[:11], kernel[11:]])
    _, found = label_sets._LandmarkRegression.of(kernel[chosen], batches, sets, chosen).solved(0.3)
    inverse = np.linalg.inv(np.linalg.cholesky(kernel[chosen] + label_sets.JITTER * np.eye(len(chosen))))
    features, targets = kernel @ inverse.T, np.eye(4)[sets]
    for place, row in enumerate(chosen):
        rest = np.arange(30) != row
        square = features[rest].T @ features[rest] + 0.3 * np.eye(len(chosen))
        weights = np.linalg.solve(square, features[rest].T @ targets[rest])
        np.testing.assert_allclose(found[place], features[row] @ weights, atol=1e-9)


def test_a_regression_of_label_sets_answers_with_frequent_ones(monkeypatch):
    monkeypatch.setattr(label_sets, "ANSWERS", 5)
    ridge = LabelSetRidge().fit(X, Y)
    sets, counts = np.unique(Y, axis=0, return_counts=True)
    rarest = sets[counts.argmin()]
    assert len(ridge.labellings_) == 5
    assert min(counts[(sets == each).all(1)][0] for each in ridge.labellings_) >= np.sort(counts)[-5]
    assert np.isneginf(ridge.log_prob(X[:1], rarest[None]))[0]
    assert np.isfinite(ridge.log_prob(X[:1], ridge.labellings_[:1]))[0]


def test_a_regression_of_label_sets_takes_equal_instances():
    ridge = LabelSetRidge().fit(np.ones((20, 3), np.float32), Y[:20])
    assert np.isfinite(ridge.label_set_proba(np.ones((1, 3), np.float32))).all()


def test_thresholds_have_the_largest_f1_of_each_label():
    random = np.random.default_rng(3)
    probabilities = random.random((80, 3))
    truth = (random.random((80, 3)) < probabilities**2).astype(int)
    rule = best_thresholds(probabilities, truth)
    values = [
        [
            measure("macro_f1", (probabilities[:, [label]] > each).astype(int), truth[:, [label]])
            for each in THRESHOLDS
        ]
        for label in range(3)
    ]
    for label, threshold in enumerate(rule.thresholds):
        best = np.flatnonzero(np.isclose(values[label], max(values[label])))
        assert threshold == pytest.approx(np.mean([THRESHOLDS[place] for place in best]))


def test_held_out_thresholds_do_not_know_their_fold():
    random = np.random.default_rng(4)
    parts = [random.random((20, 2)) for _ in range(3)]
    truths = [(part > 0.4).astype(int) for part in parts]
    before = held_out_thresholds(parts, truths)
    truths[1] = 1 - truths[1]
    after = held_out_thresholds(parts, truths)
    np.testing.assert_array_equal(before[1], after[1])
    assert (before[0] != after[0]).any()


def test_beliefs_that_err_apart_are_mixed():
    random = np.random.default_rng(5)
    truths = [random.integers(0, 2, (60, 4)) for _ in range(2)]
    noisy = [
        [of_marginals(np.clip(truth + random.normal(0, 0.7, truth.shape), 0.01, 0.99)) for truth in truths]
        for _ in range(2)
    ]
    useless = [np.zeros_like(each) for each in noisy[0]]
    weights, rule, value = belief_weights("hamming", [*noisy, useless], truths)
    assert (weights[:2] > 0).all()
    assert weights[2] == 0
    alone = [measure("hamming", rule.answer(np.concatenate(each)), np.concatenate(truths)) for each in noisy]
    assert value > max(alone)
    mixed = rule.answer(pooled(weights, [np.concatenate(each) for each in [*noisy, useless]]))
    assert measure("hamming", mixed, np.concatenate(truths)) == value


def test_a_ruled_classifier_answers_by_the_rule():
    pipeline = piped(ExtraTreesClassifier(20, min_samples_leaf=5, random_state=0))
    low = RuledClassifier(pipeline, Above((0.2,))).fit(X, Y)
    expected = np.stack([each[:, 1] for each in pipeline.fit(X, Y).predict_proba(X)], 1) > 0.2
    np.testing.assert_array_equal(low.predict(X), expected)


CONSTRAINTS = Constraints.of(
    ["label_0 -> not label_1", "at_least(1, label_2, label_3)"], [f"label_{label}" for label in range(4)]
)
ROWS, LABELS = random_inputs(1, 60, 4, 4)
ALLOWED = LABELLINGS[~CONSTRAINTS.violated(LABELLINGS).any(1)]


def test_answers_under_rules_are_the_best_allowed_ones():
    probability = np.random.default_rng(0).dirichlet(np.ones(len(LABELLINGS)) / 3, 20)
    own = of_distribution(probability)
    both = LABELLINGS.sum(1) + ALLOWED.sum(1)[:, None]
    f1 = np.where(both == 0, 1, 2 * ALLOWED @ LABELLINGS.T / np.maximum(both, 1))
    expected = probability @ f1.T
    found = ExpectedF1().allowed(own, CONSTRAINTS)
    places = [ALLOWED.tolist().index(labels) for labels in found.tolist()]
    np.testing.assert_allclose(expected[range(20), places], expected.max(1))
    thresholds = (0.5, 0.2, 0.7, 0.4)
    gains = (marginals(own) - thresholds) @ ALLOWED.T
    np.testing.assert_array_equal(Above(thresholds).allowed(own, CONSTRAINTS), ALLOWED[gains.argmax(1)])


def test_the_best_answer_under_rules_is_not_the_last_one_that_gains():
    """Three labels come together or not at all: the best answers of two labels are often worse."""
    rules = Constraints.of(
        ["label_0 <-> label_1", "label_1 <-> label_2", "label_3 -> not label_0"],
        [f"label_{label}" for label in range(4)],
    )
    allowed = LABELLINGS[~rules.violated(LABELLINGS).any(1)]
    probability = np.random.default_rng(0).dirichlet(np.ones(len(LABELLINGS)) / 3, 200)
    both = LABELLINGS.sum(1) + allowed.sum(1)[:, None]
    f1 = np.where(both == 0, 1, 2 * allowed @ LABELLINGS.T / np.maximum(both, 1))
    expected = probability @ f1.T
    found = ExpectedF1().allowed(of_distribution(probability), rules)
    places = [allowed.tolist().index(labels) for labels in found.tolist()]
    np.testing.assert_allclose(expected[range(200), places], expected.max(1))


def test_the_empty_answer_is_not_given_where_rules_forbid_it():
    rules = Constraints.of(["at_least(1, label_2, label_3)"], CONSTRAINTS.names)
    sure = np.eye(len(LABELLINGS))[:1]
    probability = np.concatenate([sure, 0.9 * sure + 0.1 / len(LABELLINGS)])
    found = ExpectedF1().allowed(of_distribution(probability), rules)
    assert not rules.violated(found).any()


def test_own_answers_under_rules_are_by_decoding_or_the_nearest():
    network = piped(LMSBNClassifier()).fit(ROWS, LABELS)
    found = allowed_answer(network, ROWS, CONSTRAINTS)
    assert CONSTRAINTS.violated(network.predict(ROWS)).any()
    right = network[-1].decode(ROWS, constraints=CONSTRAINTS).labels.numpy()
    np.testing.assert_array_equal(found, right)
    forest = piped(ExtraTreesClassifier(5, random_state=0)).fit(ROWS, LABELS)
    answers, found = forest.predict(ROWS), allowed_answer(forest, ROWS, CONSTRAINTS)
    assert not CONSTRAINTS.violated(found).any()
    distance = (answers[:, None] != ALLOWED).sum(-1).min(1)
    np.testing.assert_array_equal((answers != found).sum(1), distance)


@pytest.mark.parametrize("metric", ["exact_match", "sample_f1"])
def test_the_chosen_classifier_answers_under_its_rules(metric):
    model = AutoLabelClassifier(
        metric, time_budget=2, families=["network"], cv=2, random_state=0, constraints=CONSTRAINTS
    ).fit(ROWS, LABELS)
    assert not CONSTRAINTS.violated(model.predict(ROWS)).any()
    more = model.predict(ROWS, constraints="not label_3")
    assert not more[:, 3].any()
    assert not CONSTRAINTS.violated(more).any()
    with pytest.raises(ValueError, match="expected names of labels, got 'label_9'"):
        AutoLabelClassifier(constraints="label_9").fit(ROWS, LABELS)
