"""Estimators of sequences on handwritten numbers, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from lmbm_torch.data.sequences.records import digit_numbers
from lmbm_torch.estimators.chains.baselines import (
    IndependentPositions,
    MaximumEntropyMarkovClassifier,
)
from lmbm_torch.estimators.chains.classifiers import ChainCRF, ChainSVM
from lmbm_torch.estimators.chains.hidden_markov import HiddenMarkovClassifier
from lmbm_torch.estimators.classes import MultiClassSVM
from lmbm_torch.estimators.common import base
from lmbm_torch.estimators.common.baselines import independent_svm
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.solvers.chains import multi_class
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.structural import frank_wolfe, smoothing

JOINT = [ChainCRF(), ChainSVM(tol=1e-2), ChainSVM(kernel="poly", tol=1e-2), MaximumEntropyMarkovClassifier()]
APART = [
    IndependentPositions(MultiClassSVM(tol=1e-2)),
    IndependentPositions(independent_svm()),
    IndependentPositions(SVC(kernel="linear")),
]


@pytest.fixture(scope="module")
def numbers():
    data = digit_numbers(60)
    data = replace(data, features=data.features.astype(np.float64))
    return data.within(0), data.within(1)


TWO_WAYS = "two ways to one optimum end as far apart as the duality gap lets them"
EXPECTED = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
    TWO_WAYS,
)


@pytest.mark.slow
@parametrize_with_checks(
    [MultiClassSVM(max_iter=20), MultiClassSVM(kernel="rbf", max_iter=20)],
    expected_failed_checks=lambda estimator: EXPECTED,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_multi_class_svm_passes_scikit_learns_checks(estimator, check):
    check(estimator)


def test_chains_read_numbers_better_than_positions_alone(numbers):
    train, test = numbers
    joint = [clone(model).fit(*train).score(*test) for model in JOINT]
    apart = [clone(model).fit(*train).score(*test) for model in APART]
    assert min(joint) > 0.93
    assert min(apart) > 0.85
    assert np.mean(joint) > np.mean(apart) + 0.01
    assert min(joint) > np.mean(apart)


@pytest.mark.parametrize("model", [*JOINT, *APART], ids=lambda each: repr(each)[:40])
def test_predictions_have_the_form_of_the_targets(numbers, model):
    train, test = numbers
    names = np.array([f"digit {digit}" for digit in range(10)])
    model = clone(model).fit(train.features, [names[each] for each in train.labels])
    predicted = model.predict(test.features)
    assert [each.shape for each in predicted] == [each.shape for each in test.labels]
    assert set(np.concatenate(predicted)) <= set(names)
    right = [each == names[truth] for each, truth in zip(predicted, test.labels, strict=True)]
    share = np.concatenate(right).mean()
    assert model.score(test.features, [names[each] for each in test.labels]) == pytest.approx(share)
    decoding = model.decode(test.features, top_k=2)
    assert bool((decoding.objective[:, 0] >= decoding.objective[:, 1]).all())
    # A sequence is predicted alike on its own.
    np.testing.assert_array_equal(model.predict(test.features[:1])[0], predicted[0])


@pytest.mark.parametrize("model", [ChainCRF(), ChainSVM(), ChainSVM(kernel="rbf", gamma=0.1)])
def test_sparse_sequences_are_learnt_from_like_dense_ones(numbers, model):
    train, test = numbers
    dense = clone(model).set_params(tol=1e-4).fit(*train)
    rows = [sparse.csr_array(each.astype(np.float64)) for each in train.features]
    other = clone(model).set_params(tol=1e-4).fit(rows, train.labels)
    assert other.objective_ == pytest.approx(dense.objective_, rel=3e-4)
    apart = [sparse.csr_array(each) for each in test.features]
    assert other.score(apart, test.labels) == pytest.approx(dense.score(*test), abs=0.02)


def test_a_linear_kernel_in_the_dual_is_the_linear_machine(numbers):
    train, test = numbers
    primal = ChainSVM(0.3, tol=1e-4).fit(*train)
    dual = ChainSVM(0.3, kernel=lambda first, second: first @ second.T, tol=1e-4).fit(*train)
    assert dual.objective_ == pytest.approx(primal.objective_, rel=2e-4)
    np.testing.assert_allclose(dual.transition_, primal.transition_, atol=0.02)
    np.testing.assert_allclose(
        dual.energy(test.features).unary, primal.energy(test.features).unary, atol=0.05
    )
    assert max(primal.duality_gap_, dual.duality_gap_) <= 1e-4


@pytest.mark.parametrize("lengths", [[300, 5], [2] * 300])
def test_long_sequences_and_many_positions_are_trained_on_smoothed_hinges(lengths, monkeypatch):
    random = np.random.default_rng(0)
    y = [random.integers(0, 2, length) for length in lengths]
    X = [each[:, None] + random.normal(size=(len(each), 3)) for each in y]
    solvers, run = [], base.run

    def noted(solver, *given, **options):
        solvers.append(solver)
        return run(solver, *given, **options)

    monkeypatch.setattr(base, "run", noted)
    ChainSVM(0.3).fit([each[:2] for each in X[:20]], [each[:2] for each in y[:20]])
    model = ChainSVM(0.3).fit(X, y)
    # Whatever the columns' units, dense or sparse: a ConvergenceWarning is an error here.
    apart = np.array([1.0, 1.0, 100.0])
    ChainSVM(0.3).fit([each * apart for each in X], y)
    ChainSVM(0.3).fit([sparse.csr_array(each + 5) for each in X], y)
    assert solvers == [frank_wolfe, smoothing, smoothing, smoothing]
    assert model.duality_gap_ <= 1e-3
    other = run(
        frank_wolfe,
        chain_problem(
            np.concatenate(X), np.concatenate(y), np.append(0, np.cumsum(lengths)), num_states=2, C=0.3
        ),
        tol=1e-3,
    )
    assert model.objective_ == pytest.approx(other.primal, rel=2e-3)


def test_unlike_columns_and_steep_losses_are_trained_on_smoothed_hinges_where_few_positions_would_not_be(
    monkeypatch,
):
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 160)
    X = y[:, None] + random.normal(size=(160, 3))
    solvers, run = [], base.run

    def noted(solver, *given, **options):
        solvers.append(solver)
        return run(solver, *given, **options)

    monkeypatch.setattr(base, "run", noted)
    for rows in (X, X * np.array([1.0, 1.0, 100.0]), X + 10):
        MultiClassSVM(0.3).fit(rows, y)
        ChainSVM(0.3).fit(list(rows[:80].reshape(40, 2, 3)), list(y[:80].reshape(40, 2)))
    assert solvers == [multi_class, frank_wolfe, smoothing, smoothing, smoothing, smoothing]
    for C in (1.0, 1e3, 1e6):
        # By passes over the duals they would end with a ConvergenceWarning, an error here.
        MultiClassSVM(C).fit(X, y)
        ChainSVM(C).fit(list(X[:80].reshape(40, 2, 3)), list(y[:80].reshape(40, 2)))
    assert solvers[6:] == [multi_class, frank_wolfe, *[smoothing] * 4]


def test_crf_optimum_is_stationary_and_its_probabilities_are_marginals(numbers):
    train, test = numbers
    crf = ChainCRF(0.5, tol=1e-6).fit(*train)
    assert crf.relative_gradient_ <= 1e-6
    assert crf.duality_gap_ <= 1e-8
    weights = [
        torch.from_numpy(each).requires_grad_() for each in (crf.coef_, crf.intercept_, crf.transition_)
    ]
    value = 0.5 * sum(each.square().sum() for each in weights)
    for rows, labels in zip(*train, strict=True):
        unary = torch.from_numpy(rows.astype(np.float64)) @ weights[0].T + weights[1]
        energy = chain_dp.ChainEnergy(unary[None], weights[2])
        value = (
            value
            + 0.5 * (chain_dp.log_partition(energy) - energy.score(torch.from_numpy(labels)[None])).sum()
        )
    assert float(value.detach()) == pytest.approx(crf.objective_, rel=1e-9)
    square = sum(float(each.square().sum()) for each in torch.autograd.grad(value, weights))
    assert square / 2 <= 1e-7 * crf.objective_
    chances = crf.predict_proba(test.features[:3])
    assert [each.shape for each in chances] == [(len(each), 10) for each in test.features[:3]]
    np.testing.assert_allclose(np.concatenate(chances).sum(1), 1)


def observed(emission, generator, shape):
    """Sequences' features in the range of an emission."""
    normal = generator.normal(size=shape)
    return {"gaussian": normal, "bernoulli": (normal > 0) * 1.0, "multinomial": np.abs(normal).round()}[
        emission
    ]


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_the_markov_model_is_scikit_learns_logistic_regression(num_classes, kind):
    random = np.random.default_rng(num_classes)
    X = [random.normal(size=(length, 5)) for length in random.integers(1, 9, 60)]
    weights = random.normal(size=(5, num_classes))
    y = [(rows @ weights + random.gumbel(size=(len(rows), num_classes))).argmax(1) for rows in X]
    model = MaximumEntropyMarkovClassifier(0.5, tol=1e-8).fit([kind(rows) for rows in X], y)
    before = np.vstack([np.vstack([np.zeros(num_classes), np.eye(num_classes)[each[:-1]]]) for each in y])
    inputs = np.hstack([np.concatenate(X), np.ones((len(before), 1)), before])
    regression = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-8, max_iter=10_000)
    coef = regression.fit(inputs, np.concatenate(y)).coef_
    coef = np.vstack([-coef / 2, coef / 2]) if num_classes == 2 else coef
    np.testing.assert_allclose(model.coef_, coef[:, :5], atol=1e-4)
    np.testing.assert_allclose(model.intercept_, coef[:, 5], atol=1e-4)
    np.testing.assert_allclose(model.transition_, coef[:, 6:].T, atol=1e-4)


@pytest.mark.parametrize("emission", ["gaussian", "bernoulli", "multinomial"])
def test_a_hidden_markov_model_reads_by_the_posterior_of_its_counts(emission):
    generator = np.random.default_rng(0)
    X = [observed(emission, generator, (length, 2)) for length in (3, 4, 1, 2)]
    y = [generator.integers(2, size=len(each)) for each in X]
    model = HiddenMarkovClassifier(emission, smoothing=0.5).fit(X, y)
    # Smoothed relative frequencies.
    first = np.bincount([each[0] for each in y], minlength=2) + 0.5
    np.testing.assert_allclose(model.model_.log_start.exp(), first / first.sum())
    steps = np.full((2, 2), 0.5)
    for each in y:
        np.add.at(steps, (each[:-1], each[1:]), 1)
    np.testing.assert_allclose(model.model_.log_transition.exp(), steps / steps.sum(1, keepdims=True))
    # Bayes' rule over all paths of a sequence.
    paths = np.array(list(product((0, 1), repeat=3)))
    emitted = model.model_.emission.log_prob(torch.from_numpy(X[0])).numpy()
    log_start, log_step = model.model_.log_start.numpy(), model.model_.log_transition.numpy()
    joint = np.array(
        [
            log_start[path[0]] + log_step[path[:-1], path[1:]].sum() + emitted[np.arange(3), path].sum()
            for path in paths
        ]
    )
    chances = np.exp(joint) / np.exp(joint).sum()
    np.testing.assert_allclose(model.predict_proba(X)[0][:, 1], chances @ paths)
    np.testing.assert_array_equal(model.predict(X)[0], paths[np.argmax(joint)])


def test_a_hidden_markov_model_refuses_what_its_emission_has_not(numbers):
    X, y = [np.array([[0.0, 2.0]])], [np.array([1])]
    with pytest.raises(ValueError, match="bits, 0 or 1"):
        HiddenMarkovClassifier("bernoulli").fit(X, y)
    with pytest.raises(ValueError, match="'emission' parameter of HiddenMarkovClassifier"):
        HiddenMarkovClassifier("poisson").fit(X, y)
    with pytest.raises(ValueError, match="'smoothing' parameter"):
        HiddenMarkovClassifier(smoothing=0).fit(X, y)


@pytest.mark.parametrize(
    "model",
    [
        ChainCRF(tol=1e-8),
        ChainSVM(tol=1e-6, random_state=0),
        ChainSVM(kernel="rbf", tol=1e-6, random_state=0),
        MaximumEntropyMarkovClassifier(),
        HiddenMarkovClassifier(),
    ],
    ids=lambda each: repr(each)[:25],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_weight_is_how_often_a_sequence_counts(model):
    random = np.random.default_rng(0)
    X = [random.normal(size=(length, 2)) for length in random.integers(1, 5, 12)]
    y = [random.integers(2, size=len(each)) for each in X]
    weights = np.array([2, 0, 1] * 4)
    fitted = clone(model).fit(X, y, sample_weight=weights)
    plain = clone(model).set_params(**({"gamma": fitted.kernel_.gamma} if hasattr(fitted, "kernel_") else {}))
    often = [number for number, weight in enumerate(weights) for _ in range(weight)]
    repeated = plain.fit([X[number] for number in often], [y[number] for number in often])
    found, expected = fitted.energy(X), repeated.energy(X)
    torch.testing.assert_close(found.unary, expected.unary, rtol=0, atol=3e-3)
    torch.testing.assert_close(found.transition, expected.transition, rtol=0, atol=3e-3)
    assert not torch.allclose(found.unary, clone(model).fit(X, y).energy(X).unary, atol=3e-3)
    with pytest.raises(ValueError, match="sample_weight"):
        clone(model).fit(X, y, sample_weight=weights[1:])


def test_two_classes_and_single_positions_are_sequences_too():
    random = np.random.default_rng(0)
    X = [random.normal(size=(length, 2)) for length in random.integers(1, 4, 30)]
    y = [np.where(each[:, 0] > 0, "yes", "no") for each in X]
    for model in (*JOINT, *APART, HiddenMarkovClassifier()):
        assert clone(model).fit(X, y).score(X, y) > 0.8


@pytest.mark.parametrize("model", [ChainCRF(), MaximumEntropyMarkovClassifier(), HiddenMarkovClassifier()])
def test_sequences_are_padded_to_similar_ones(monkeypatch, model):
    """One of 300 positions among 200 of at most five: all together would be 60,000 positions."""
    random = np.random.default_rng(0)
    X = [random.normal(size=(length, 2)) for length in (*random.integers(1, 6, 200), 300)]
    random.shuffle(X)
    y = [(each[:, 0] > 0).astype(int) for each in X]
    model = clone(model).fit(X, y)
    sizes, energy = [], type(model)._energy

    def noted(self, rows):
        found = energy(self, rows)
        sizes.append(found.inside.numel())
        return found

    alone = [model.predict([each])[0] for each in X]
    marginals = [model.predict_proba([each])[0] for each in X]
    monkeypatch.setattr(type(model), "_energy", noted)
    for find, expected in ((model.predict, alone), (model.predict_proba, marginals)):
        came = find(X)
        assert sum(sizes) <= 2 * sum(len(each) for each in X)
        sizes.clear()
        for one, other in zip(came, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, bool])
def test_arrays_are_looked_at_together_as_lists_are_one_by_one(numbers, kind):
    X, y = numbers[0]
    X = [(8 * rows).astype(kind) for rows in X]
    model = ChainCRF(tol=0.9).fit(X, y)
    expected = model.energy([rows.tolist() for rows in X]).unary
    assert torch.equal(model.energy(X).unary, expected)
    assert torch.equal(model.energy([X[0].tolist(), *X[1:]]).unary, expected)
    assert torch.equal(model.energy([X[0].astype(np.float64), *X[1:]]).unary, expected)


def test_one_array_of_equally_long_sequences_is_a_list_of_arrays():
    random = np.random.default_rng(0)
    X = random.normal(size=(20, 4, 3))
    y = (X[..., 0] > 0).astype(int)
    model, by_list = ChainCRF().fit(X, y), ChainCRF().fit([*X], [*y])
    np.testing.assert_array_equal(model.coef_, by_list.coef_)
    assert [row.tolist() for row in model.predict(X)] == [row.tolist() for row in by_list.predict([*X])]
    assert model.score(X, y) == by_list.score([*X], [*y])
    with pytest.raises(ValueError, match="X: each sequence"):
        model.predict(X[..., 1:])


def test_refusals(numbers):
    X, y = numbers[0]
    unknown = [each.astype(object) for each in y]
    unknown[3][0] = None
    unlabelled = [np.full(len(each), np.nan) for each in y]
    for sequences, labels, message in (
        (np.ones((4, 2)), y, r"X: expected a list of arrays \(length, features\), got .* \(4, 2\)"),
        ([], [], "X: expected at least one sequence"),
        (X, None, "y: expected an array of labels for each sequence, got None"),
        ([X[0], X[1][:, 1:]], y[:2], "X: expected as many features"),
        ([X[0], sparse.csr_array(X[1])], y[:2], "X: expected all sequences dense"),
        (X, y[1:], "y: expected 30 arrays"),
        (X[:2], [y[0], y[1][1:]], "y: expected .* labels for sequence 1"),
        (X, unlabelled, "y: expected at least one tag, got none"),
        (X, [each[:, 0] + 0.5 for each in X], "Unknown label type: continuous"),
        ([X[0], X[1] * np.nan], y[:2], "X contains NaN"),
        ([X[0], X[1][:0]], [y[0], y[1][:0]], r"X: expected at least one position .* got none in \[1\]"),
        ([X[0], X[1][0]], y[:2], "Expected 2D array"),
        ([each + 1j for each in X], y, "Complex data"),
        ([sparse.csr_array(X[0]), sparse.csr_array(X[1] + np.inf)], y[:2], "X contains infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            ChainCRF().fit(sequences, labels)
    for model in (ChainSVM(), MaximumEntropyMarkovClassifier(), HiddenMarkovClassifier()):
        with pytest.raises(ValueError, match="y: expected a class at every position"):
            model.fit(X, unknown)
    with pytest.raises(ValueError, match="X: each sequence"):
        ChainCRF(tol=0.9).fit(X, y).predict([X[0][:, 1:]])
    with pytest.raises(ValueError, match=r"'kernel' parameter of ChainSVM must be .* Got 'cosine'"):
        ChainSVM(kernel="cosine").fit(X, y)
    with pytest.raises(ValueError, match=r"'kernel' parameter of ChainSVM must be .* Got 'precomputed'"):
        ChainSVM(kernel="precomputed").fit(X, y)
    for setting in ("C", "tol"):
        for model in (ChainCRF(), ChainSVM(), ChainSVM(kernel="rbf")):
            with pytest.raises(
                ValueError, match=f"'{setting}' parameter of {type(model).__name__} must be a .*float"
            ):
                clone(model).set_params(**{setting: 0.0}).fit(X, y)
