"""The network as a classifier: predictions by its own energy, certified training, every kind of target."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from strategies.label_problems import random_inputs

from lmbm_torch.data.seven_segment import SevenSegment
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.estimators.common.baselines import independent_svm
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems

X, Y = random_inputs(0, 60, 4, 3)
FITTED = LMSBNClassifier(1.0, random_state=0).fit(X, Y)


def some_known(seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.integers(2, size=Y.shape).astype(float)
    values[random.random(Y.shape) < 0.5] = np.nan
    return values


def test_energy_is_made_of_the_fitted_coefficients():
    energy = DirectedEnergy(
        unary=torch.from_numpy(X @ FITTED.coef_.T + FITTED.intercept_),
        parents=torch.from_numpy(FITTED.parent_coef_),
        ordering=torch.from_numpy(FITTED.ordering_),
    )
    energy.check_values()
    assert FITTED.parent_coef_.any()
    ours = FITTED.energy(X)
    labels = torch.from_numpy(Y)
    torch.testing.assert_close(ours.local_fields(labels), energy.local_fields(labels))


def test_fit_solves_the_problem_to_its_gap():
    problems = LabelProblems.from_labels(X, Y, ordering=FITTED.ordering_, C=1.0)
    best = run(dual_coordinate, problems, tol=1e-8).primal.sum()
    energy = FITTED.energy(X)
    hinge = (1 - energy.local_margins(torch.from_numpy(Y))).clamp(min=0).sum(-1)
    weights = [FITTED.coef_, FITTED.intercept_, FITTED.parent_coef_]
    primal = sum(np.square(part).sum() for part in weights) / 2 + float(hinge.sum())
    assert FITTED.duality_gap_ <= 1e-3
    assert best * (1 - 1e-7) <= primal <= best * 1.001
    assert FITTED.mean_loss_ == pytest.approx(float(hinge.mean()))
    assert FITTED.n_iter_ >= 1


@pytest.mark.parametrize("known", [None, some_known()], ids=["free", "known"])
@pytest.mark.parametrize("margin", [0.2, 1.0, 2.0])
@pytest.mark.parametrize("name", ["margin", "decoding_margin"])
def test_prediction_is_the_least_hinge_of_enumeration(known, name, margin):
    network = LMSBNClassifier(degree=3, random_state=0, **{name: margin}).fit(X, Y)
    known_tensor = None if known is None else torch.from_numpy(known)
    best = exact.decode_hinge(network.energy(X), margin, known=known_tensor)
    found = network.decode(X, known=known)
    torch.testing.assert_close(found.objective, best.objective)
    torch.testing.assert_close(found.labels, best.labels)
    assert found.status.exact.all()
    np.testing.assert_array_equal(network.predict(X, known=known), best.labels.numpy())
    if known is not None:
        given_labels = ~np.isnan(known)
        np.testing.assert_array_equal(network.predict(X, known=known)[given_labels], known[given_labels])


def test_decode_gives_the_best_few():
    found = FITTED.decode(X, top_k=3)
    best = exact.decode_hinge(FITTED.energy(X), top_k=3)
    assert found.labels.shape == (60, 3, 3)
    torch.testing.assert_close(found.objective, best.objective)


def test_probabilities_are_those_of_the_network():
    energy = FITTED.energy(X)
    np.testing.assert_allclose(FITTED.predict_proba(X), exact.marginals(energy).labels.numpy())
    every = np.array(list(itertools.product([0, 1], repeat=3)), dtype=float)
    total = sum(np.exp(FITTED.log_prob(X, np.tile(labels, (60, 1)))) for labels in every)
    np.testing.assert_allclose(total, 1)
    np.testing.assert_allclose(FITTED.log_prob(X, Y), energy.log_prob(torch.from_numpy(Y)).numpy())
    np.testing.assert_allclose(FITTED.log_prob(X, sparse.csr_array(Y)), FITTED.log_prob(X, Y))


def test_many_labels_have_sampled_probabilities_with_their_error():
    features, labels = random_inputs(1, 40, 3, 21)
    network = LMSBNClassifier(ordering="random", random_state=3).fit(features, labels)
    sampled = network.predict_proba(features)
    np.testing.assert_array_equal(sampled, network.predict_proba(features))
    marginals = network.marginals(features)
    assert marginals.standard_error is not None
    # The labels after the first six do not change what these are.
    energy = network.energy(features)
    first = energy.ordering[:6]
    six = DirectedEnergy(energy.unary[:, first], energy.parents[first][:, first], torch.arange(6))
    truth = exact.marginals(six).labels
    error = (torch.from_numpy(sampled)[:, first] - truth).abs()
    assert 0 < float(error.max()) < 0.1
    assert (error <= 5 * marginals.standard_error[:, first] + 1e-9).all()
    assert not np.array_equal(sampled, network.set_params(random_state=4).predict_proba(features))


def test_search_limits_reach_the_search():
    network = LMSBNClassifier(node_limit=3, random_state=0).fit(X, Y)
    limited = network.decode(X)
    ended = int((~limited.status.converged).sum())
    assert ended
    with pytest.warns(ConvergenceWarning, match=f"{ended} of {len(X)} searches were ended by node_limit=3;"):
        assert np.array_equal(network.predict(X), limited.labels.numpy())
    network.set_params(decoder="exact_match")
    likely = network.predict_decoding(X)
    assert not likely.status.exact.all()
    with pytest.warns(ConvergenceWarning, match=r"searches were ended by node_limit=3;"):
        assert np.array_equal(network.predict(X), likely.labels.numpy())
    network.set_params(node_limit=None).predict(X)
    pruned = LMSBNClassifier(cutoff=0.5, random_state=0).fit(X, Y).decode(X)
    assert not pruned.status.exact.all()
    assert pruned.status.exact.any()


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_csr_and_single_precision_learn_the_same(degree):
    features = X.astype(np.float32)
    fits = [
        LMSBNClassifier(degree=degree, ordering="index", tol=1e-8).fit(rows, Y)
        for rows in (features, sparse.csr_matrix(features), sparse.csr_array(features.astype(np.float64)))
    ]
    for other in fits[1:]:
        np.testing.assert_allclose(other.coef_, fits[0].coef_, atol=1e-3)
    np.testing.assert_array_equal(
        fits[0].predict(sparse.csr_array(features)), fits[0].predict(features.astype(np.float64))
    )


def test_pegasos_comes_near_the_same_network():
    settings = {"ordering": "index", "C": 0.05, "random_state": 0}
    fast = LMSBNClassifier(tol=1e-6, **settings).fit(X, Y)
    slow = LMSBNClassifier(solver="pegasos", tol=1e-2, **settings).fit(X, Y)
    assert slow.duality_gap_ <= 1e-2
    np.testing.assert_allclose(slow.coef_, fast.coef_, atol=0.1)


def test_exponentiated_gradient_finds_the_same_network():
    settings = {"ordering": "index", "C": 0.05, "random_state": 0}
    fast = LMSBNClassifier(tol=1e-8, **settings).fit(X, Y)
    slow = LMSBNClassifier(solver="exponentiated_gradient", tol=1e-6, **settings).fit(X, Y)
    assert slow.duality_gap_ <= 1e-6
    np.testing.assert_allclose(slow.coef_, fast.coef_, atol=1e-2)


def test_orderings_are_as_asked():
    assert LMSBNClassifier(ordering="index").fit(X, Y).ordering_.tolist() == [0, 1, 2]
    assert LMSBNClassifier(ordering=[2, 0, 1]).fit(X, Y).ordering_.tolist() == [2, 0, 1]
    drawn = [LMSBNClassifier(ordering="random", random_state=seed).fit(X, Y) for seed in (0, 0, 1, 2, 3)]
    orders = [tuple(network.ordering_) for network in drawn]
    assert orders[0] == orders[1]
    assert len(set(orders)) > 1
    seed = int(np.random.RandomState(0).randint(2**31))
    assert FITTED.ordering_.tolist() == orderings.f_score(X, Y, C=FITTED.C, seed=seed).tolist()


def test_same_random_state_same_network():
    again = LMSBNClassifier(1.0, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(again.coef_, FITTED.coef_)
    np.testing.assert_array_equal(again.parent_coef_, FITTED.parent_coef_)


def test_weight_two_is_an_instance_twice():
    times = np.random.default_rng(0).integers(0, 3, len(X))
    exactly = LMSBNClassifier(ordering="index", tol=1e-12)
    weighted = exactly.fit(X, Y, sample_weight=times).coef_
    repeated = exactly.fit(np.repeat(X, times, 0), np.repeat(Y, times, 0)).coef_
    np.testing.assert_allclose(weighted, repeated, atol=1e-6)


@given(
    seed=st.integers(0, 1000),
    num_labels=st.integers(1, 5),
    degree=st.integers(1, 3),
    margin=st.sampled_from((0.5, 1.0)),
    cutoff=st.sampled_from((None, 0.5, 1.0)),
    C=st.sampled_from((0.1, 1.0, 10.0)),
    missing=st.sampled_from((0.0, 0.3)),
    share=st.sampled_from((None, 0.3, 1.0, 2.0)),
)
def test_error_bound_holds(seed, num_labels, degree, margin, cutoff, C, missing, share):
    features, labels = random_inputs(seed, 40, 5, num_labels, missing=missing)
    settings = {"margin": margin, "decoding_margin": share and share * margin, "cutoff": cutoff}
    network = LMSBNClassifier(C, ordering="random", degree=degree, random_state=seed, **settings)
    network.fit(features, labels)
    known = ~np.isnan(labels)
    wrong = ((network.predict(features) != labels) & known).any(1).mean()
    assert network.threshold_ == margin * (share or 1)
    is_larger = share is not None and share > 1
    assert network.error_bound_ == (1 if is_larger else min(1, network.mean_loss_ / network.threshold_))
    assert wrong <= network.error_bound_


def test_error_bound_counts_the_loss_of_imputed_labels():
    # The first label is known in one row without weight, so its weights are zero and its imputed values pay
    # the margin.
    labels, weight = Y.copy(), np.ones(len(Y))
    labels[1:, 0], weight[0] = np.nan, 0
    network = LMSBNClassifier(C=10.0, ordering="index").fit(X, labels, weight)
    observed = LMSBNClassifier(C=10.0, ordering="index").fit(X, labels[:, 1:], weight)
    assert not network.coef_[0].any()
    assert network.mean_loss_ == pytest.approx(observed.mean_loss_ + 1, abs=0.02)
    assert network.error_bound_ == 1


def test_missing_labels_take_part_with_what_is_known():
    features, complete = random_inputs(2, 200, 4, 3)
    labels = complete.copy()
    labels[np.random.default_rng(0).random(labels.shape) < 0.2] = np.nan
    network = LMSBNClassifier(1.0, random_state=0).fit(features, labels)
    few = ~np.isnan(labels).any(1)
    smaller = LMSBNClassifier(1.0, random_state=0).fit(features[few], labels[few])
    assert network.score(features, complete) >= smaller.score(features, complete) - 0.03
    problems = LabelProblems.from_labels(features, labels, ordering=network.ordering_)
    state = run(dual_coordinate, problems, tol=1e-6)
    np.testing.assert_allclose(problems.network(state.weights).features, network.coef_, atol=0.1)


@pytest.mark.parametrize("names", [["no", "yes"], ["a", "b", "c"]], ids=["two", "three"])
def test_classes_may_be_strings(names):
    scores = np.stack([X @ np.random.default_rng(k).normal(size=4) for k in range(len(names))])
    y = np.array(names)[scores.argmax(0)]
    network = LMSBNClassifier(C=10.0, random_state=0).fit(X, y)
    assert network.classes_.tolist() == names
    assert set(network.predict(X)) <= set(names)
    assert network.score(X, y) > 0.85
    probability = network.predict_proba(X)
    assert probability.shape == (60, len(names))
    np.testing.assert_allclose(probability.sum(1), 1)
    assert (np.array(names)[probability.argmax(1)] == y).mean() > 0.85
    with pytest.raises(ValueError, match="known: expected None, because fit was given classes"):
        network.predict(X, known=np.zeros((60, 1)))


def test_three_classes_keep_the_error_bound():
    y = np.digitize(X @ np.ones(4), [-0.7, 0.7])
    network = LMSBNClassifier(C=10.0, random_state=0).fit(X, y)
    assert 1 - network.score(X, y) <= network.error_bound_


def test_one_class_is_always_predicted():
    network = LMSBNClassifier().fit(X, ["only"] * 60)
    assert set(network.predict(-1e4 * X)) == {"only"}
    np.testing.assert_array_equal(network.predict_proba(X), np.ones((60, 1)))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_label_of_one_class_is_always_predicted(value):
    labels = Y.copy()
    labels[:, 1] = value
    network = LMSBNClassifier().fit(X, labels)
    assert (network.predict(X)[:, 1] == value).all()


def test_one_column_stays_a_column():
    network = LMSBNClassifier().fit(X, Y[:, :1])
    assert network.predict(X).shape == (60, 1)
    assert network.predict_proba(X).shape == (60, 1)
    assert 0 < network.score(X, Y[:, :1]) <= 1


def test_lists_and_sparse_labels_are_as_arrays():
    expected = LMSBNClassifier(random_state=0).fit(X, Y).coef_
    for features, labels in ((X.tolist(), Y.tolist()), (X, sparse.csr_array(Y)), (X, Y.astype(bool))):
        np.testing.assert_array_equal(LMSBNClassifier(random_state=0).fit(features, labels).coef_, expected)


@pytest.mark.parametrize(
    ("error", "message", "settings"),
    [
        (
            ValueError,
            r"'C' .* LMSBNClassifier must be a str .* or a float in the range \(0.0, inf\). Got 0 ",
            {"C": 0},
        ),
        (
            ValueError,
            r"'C' .* {'scale'} or a multiple .* or a float in the range \(0.0, inf\). Got 'large'",
            {"C": "large"},
        ),
        (ValueError, "'C' .* or a float .* Got nan", {"C": np.nan}),
        (ValueError, "'C' .* or a float .* Got inf", {"C": np.inf}),
        (ValueError, "'C' .* or a float .* Got True", {"C": True}),
        (ValueError, "'ordering' .* must be a str among .*'f_score'.* Got 'best'", {"ordering": "best"}),
        (ValueError, "ordering: expected a permutation", {"ordering": [0, 1, 1]}),
        (ValueError, r"'degree' .* must be an int in the range \[1, inf\). Got 1.5", {"degree": 1.5}),
        (ValueError, r"'margin' .* must be a float in the range \(0.0, inf\). Got -1.0", {"margin": -1.0}),
        (ValueError, "'solver' .* must be a str among .*'pegasos'.* Got 'sgd'", {"solver": "sgd"}),
        (ValueError, "'decoder' .* must be a str among .*'hinge'.* Got 'map'", {"decoder": "map"}),
        (ValueError, r"'tol' .* must be a float in the range \(0.0, inf\). Got 0.0", {"tol": 0.0}),
        (ValueError, r"'max_iter' .* must be an int in the range \[1, inf\). Got 0", {"max_iter": 0}),
        (ValueError, "device: expected a device that torch can use, got 'abacus'", {"device": "abacus"}),
    ],
)
def test_bad_settings_are_refused_by_name(error, message, settings):
    with pytest.raises(error, match=message):
        LMSBNClassifier(**settings).fit(X, Y)


@pytest.mark.parametrize(
    ("message", "features", "targets"),
    [
        ("Input X contains NaN", X * np.nan, Y),
        ("Input X contains infinity", X + np.inf, Y),
        ("0 sample", X[:0], Y[:0]),
        ("0 feature", X[:, :0], Y),
        ("Found array with dim 3", X[..., None], Y),
        ("y: expected 0, 1 or NaN", X, Y + Y[:, :1]),
        (r"y: expected shape \(60, at least 1\), got \(60, 0\)", X, Y[:, :0]),
        (r"y: expected shape \(60, at least 1\), got \(10, 3\)", X, Y[:10]),
        ("y: expected finite values, got 1 NaN", X, np.where(np.arange(60) == 3, np.nan, Y[:, 0])),
        ("Unknown label type: continuous", X, X[:, 0]),
        ("requires y to be passed", X, None),
    ],
)
def test_bad_data_are_refused_by_name(message, features, targets):
    with pytest.raises(ValueError, match=message):
        LMSBNClassifier().fit(features, targets)


@pytest.mark.parametrize("strange", [Y.astype(str), np.where(Y > 0, "yes", None)], ids=["str", "object"])
def test_labels_that_are_neither_numbers_nor_texts_are_refused_by_name(strange):
    mixed = np.where(Y > 0, "yes", None)
    mixed[0, 0] = 3.5
    for bad in (Y.astype(complex), mixed):
        with pytest.raises(TypeError, match="y: expected numbers"):
            LMSBNClassifier().fit(X, bad)
    with pytest.raises(TypeError, match="known: expected numbers"):
        FITTED.predict(X, known=strange)
    # A single text beside missing labels is the only answer.
    assert (LMSBNClassifier().fit(X, np.where(Y > 0, "yes", None)).predict(X) == "yes").all()


@pytest.mark.usefixtures("no_shape_checks")
def test_bad_requests_are_refused_by_name():
    refusals = {
        "X has 2 features, but LMSBNClassifier is expecting 4": lambda: FITTED.predict(X[:, :2]),
        "Input X contains NaN": lambda: FITTED.predict_proba(X * np.nan),
        "0 sample": lambda: FITTED.decode(X[:0]),
        "known: expected shape": lambda: FITTED.predict(X, known=Y[:3]),
        "known: expected 0, 1 or NaN": lambda: FITTED.predict(X, known=Y + 1),
        "top_k: expected at most": lambda: FITTED.decode(X, top_k=9),
        "Y: expected 0 or 1": lambda: FITTED.log_prob(X, Y * np.nan),
        "Y: expected shape": lambda: FITTED.log_prob(X, Y[:, :2]),
        "problems: expected no missing labels": lambda: LMSBNClassifier(solver="pegasos").fit(
            X, some_known()
        ),
        "'cutoff' .* must be a float .* or None. Got 0": lambda: (
            LMSBNClassifier(cutoff=0).fit(X, Y).predict(X)
        ),
        "'node_limit' .* must be an int .* or None. Got 0": lambda: (
            LMSBNClassifier(node_limit=0).fit(X, Y).predict(X)
        ),
        "[Nn]egative values": lambda: LMSBNClassifier().fit(X, Y, sample_weight=-np.ones(60)),
        "sample_weight contains NaN": lambda: LMSBNClassifier().fit(X, Y, sample_weight=np.full(60, np.nan)),
        "sample_weight: expected the shape": lambda: LMSBNClassifier().fit(X, Y, sample_weight=np.ones(3)),
    }
    for message, call in refusals.items():
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_predicts_as_the_cpu():
    network = LMSBNClassifier(1.0, device="cuda", random_state=0).fit(X, Y)
    np.testing.assert_array_equal(network.predict(X), FITTED.predict(X))
    np.testing.assert_array_equal(network.predict(sparse.csr_array(X)), FITTED.predict(X))
    np.testing.assert_array_equal(
        network.predict(X, known=some_known()), FITTED.predict(X, known=some_known())
    )
    np.testing.assert_allclose(network.predict_proba(X), FITTED.predict_proba(X))
    assert network.decode(X).labels.device.type == "cuda"


def test_seven_segments_are_read_jointly():
    data = SevenSegment()
    images, lit = data.features[data.train], data.labels[data.train]
    tests, truth = data.features[data.test], data.labels[data.test]
    grid = [0.1, 0.3, 1.0, 3.0]
    search = GridSearchCV(LMSBNClassifier(random_state=0), {"C": grid}, cv=3).fit(images, lit)
    network = search.best_estimator_
    assert network.score(tests, truth) >= 0.92
    assert network.decode(tests).status.exact.all()
    assert 1 - network.score(images, lit) <= network.error_bound_ < 1

    peer = GridSearchCV(independent_svm(), {"estimator__C": grid}, cv=3).fit(images, lit)
    assert 0.70 <= (peer.predict(tests) == truth).all(1).mean() <= 0.80


@pytest.mark.data
def test_scene_is_recognised_jointly(data_folder: Path):
    with np.load(data_folder / "scene" / "scene.npz", allow_pickle=False) as scene:
        images, labels = scene["x_train"], scene["y_train"]
        tests, truth = scene["x_test"], scene["y_test"]
    images, tests = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (images, tests))
    network = LMSBNClassifier(C=3.0, random_state=0).fit(images, labels)
    assert network.score(tests, truth) >= 0.66
    assert network.decode(tests).status.exact.all()
    assert 1 - network.score(images, labels) <= network.error_bound_


def test_no_error_bound_is_given_for_decoders_that_it_does_not_hold_for():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(30, 3))
    labels = (X > 0).astype(int)
    bounds = {
        decoder: LMSBNClassifier(C=10, decoder=decoder, random_state=0).fit(X, labels).error_bound_
        for decoder in ("hinge", "exact_match", "hamming", "f1", "jaccard")
    }
    assert bounds.pop("hinge") < 0.5
    assert {*bounds.values()} == {1.0}
    # Classes are decoded by the hinge loss whatever the decoder.
    assert LMSBNClassifier(C=10, decoder="f1", random_state=0).fit(X, labels[:, 0]).error_bound_ < 0.5
