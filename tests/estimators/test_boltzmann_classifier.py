"""The classifier against its model, its solver's certificate and what is proven of its training error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from strategies.label_problems import random_inputs

from lmbm_torch.compare.trials import part
from lmbm_torch.data import load, read_npz
from lmbm_torch.energies import Clause, TiedCliques
from lmbm_torch.estimators import LMBMClassifier, StructuralSVMClassifier
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import local_hinge
from lmbm_torch.metrics import functional as metrics

SETTINGS = {
    "default": {},
    "large": {"cliques": [(0, 1, 2), (2, 3)]},
    "mixed": {
        "C": 1.0,
        "cliques": [(0, 1), (0, 1), (2, 3)],
        "clique_features": [None, 0, 1],
        "groups": [0, 1, 1],
    },
    "coordinate": {"solver": "dual_coordinate", "random_state": 0},
}
every_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())


def fitted(**settings) -> tuple[LMBMClassifier, np.ndarray, np.ndarray]:
    X, Y = random_inputs(0, 60, 5, 4)
    return LMBMClassifier(**settings).fit(X, Y), X, Y


@every_setting
def test_predicts_the_labelling_of_least_hinge_loss(settings):
    machine, X, Y = fitted(**settings, margin=0.5)
    assert machine.duality_gap_ <= 1e-3
    energy = machine.energy(X)
    np.testing.assert_array_equal(machine.predict(X), exact.decode_hinge(energy, 0.5).labels)
    assert machine.decode(X).status.exact.all()
    assert machine.mean_loss_ == pytest.approx(local_hinge(energy, torch.from_numpy(Y), 0.5).mean().item())
    assert machine.score(X, Y) > 0.2


@every_setting
def test_probabilities_are_the_machine_s(settings):
    machine, X, Y = fitted(**settings)
    energy = machine.energy(X)
    np.testing.assert_allclose(machine.predict_proba(X), exact.marginals(energy).labels)
    expected = energy.score(torch.from_numpy(Y)) - exact.log_partition(energy)
    np.testing.assert_allclose(machine.log_prob(X, Y), expected)


@every_setting
@pytest.mark.parametrize(("C", "penalty"), [(0.003, 100.0), (0.1, 1000.0), (1.0, 1.0)])
def test_training_error_is_at_most_its_bound(settings, C, penalty):
    machine, X, Y = fitted(**{**settings, "C": C, "coupling_penalty": penalty})
    wrong = 1 - machine.score(X, Y)
    assert wrong <= machine.error_bound_ <= 1
    assert 0 <= machine.threshold_ <= 1
    if penalty == 1000:
        assert machine.threshold_ > 0.5


def test_error_bound_is_not_vacuous_where_labels_are_easy():
    X = np.random.default_rng(0).normal(size=(200, 3))
    machine = LMBMClassifier(C=10.0, coupling_penalty=100.0).fit(X, (X > 0).astype(int))
    assert 1 - machine.score(X, (X > 0).astype(int)) <= machine.error_bound_ < 0.5


def test_the_default_price_of_couplings_is_half_of_all_losses_weight():
    machine, X, Y = fitted(C=0.3)
    assert machine.coupling_penalty_ == pytest.approx(0.3 * len(X) / 2)
    number = LMBMClassifier(C=0.3, coupling_penalty=machine.coupling_penalty_).fit(X, Y)
    np.testing.assert_array_equal(number.clique_coef_, machine.clique_coef_)
    weight = np.random.default_rng(1).integers(0, 3, len(X))
    weighted = LMBMClassifier(C=0.3).fit(X, Y, weight)
    assert weighted.coupling_penalty_ == pytest.approx(0.3 * weight.sum() / 2)


@pytest.mark.data
@pytest.mark.parametrize(("name", "least"), [("scene", 0.63), ("yeast", 0.15), ("chd_49", 0.2)])
def test_defaults_price_couplings_by_the_instances(name, least, data_folder):
    """At a price of 10 the answers match .61, .07 and .17 of the instances."""
    data = read_npz(data_folder / name / f"{name}.npz")
    X, Y = part(data, np.random.default_rng(0).permutation(len(data.labels))[:900])
    some = min(500, 2 * len(Y) // 3)
    machine = LMBMClassifier().fit(X[:some], Y[:some])
    assert machine.score(X[some:], Y[some:]) > least


def test_decoders_agree_and_the_relaxation_bounds_them():
    machine, X, _ = fitted()
    best = machine.decode(X)
    programme = machine.set_params(decoder="integer_program").decode(X)
    torch.testing.assert_close(programme.objective, best.objective, atol=1e-5, rtol=1e-5)
    relaxed = machine.set_params(decoder="lp_relaxation").decode(X)
    assert (relaxed.bound <= best.objective + 1e-6).all()
    assert (relaxed.objective >= best.objective - 1e-6).all()
    rounded, _, _ = fitted(decoder="lp_relaxation")
    assert rounded.error_bound_ == 1


@pytest.mark.parametrize("model", [LMBMClassifier(), StructuralSVMClassifier()])
def test_a_decoder_that_is_set_afterwards_is_refused_by_name(model):
    X, Y = random_inputs(1, 20, 3, 3)
    fitted = model.fit(X, Y).set_params(decoder="f1")
    with pytest.raises(ValueError, match=r"decoder: expected one of .*, got 'f1'"):
        fitted.predict(X)


def test_more_labels_than_can_be_summed_have_approximate_marginals():
    X, Y = random_inputs(1, 8, 3, 23)
    machine = LMBMClassifier().fit(X, Y)
    assert machine.decode(X).status.exact.all()
    assert not machine.marginals(X).status.exact.any()
    assert machine.predict_proba(X).shape == (8, 23)


@pytest.mark.parametrize("cliques", [None, [(0, 1, 2)]])
def test_as_many_labels_as_can_be_summed_have_exact_marginals(cliques):
    X, Y = random_inputs(1, 8, 3, 21)
    machine = LMBMClassifier().set_params(**({"cliques": cliques} if cliques else {})).fit(X, Y)
    assert machine.marginals(X).status.exact.all()
    assert machine.predict_proba(X).shape == (8, 21)


def test_known_labels_are_kept():
    machine, X, Y = fitted()
    known = np.where(np.arange(4) == 2, 1 - Y, np.nan)
    np.testing.assert_array_equal(machine.predict(X, known=known)[:, 2], 1 - Y[:, 2])


def test_classes_are_chosen_among_their_codes():
    X = np.random.default_rng(0).normal(size=(90, 2))
    y = np.array(["a", "b", "c"])[(X @ [[1, 0, -1], [0, 1, -1]]).argmax(1)]
    # With cheaper couplings these alone meet every margin, for classes exclude each other.
    machine = LMBMClassifier(coupling_penalty=100, tol=1e-6).fit(X, y)
    assert machine.score(X, y) > 0.9
    assert machine.predict_proba(X).shape == (90, 3)
    np.testing.assert_allclose(machine.predict_proba(X).sum(1), 1)
    two = LMBMClassifier().fit(X, y == "a")
    assert two.score(X, y == "a") > 0.8


def test_csr_is_as_dense():
    machine, X, Y = fitted()
    other = LMBMClassifier().fit(sparse.csr_array(X), Y)
    np.testing.assert_allclose(other.coef_, machine.coef_, atol=1e-9)
    np.testing.assert_array_equal(other.predict(sparse.csr_array(X)), machine.predict(X))


def test_markov_logic_formulas_learn_one_weight_each():
    tied = TiedCliques.from_markov_logic([Clause((0,), (1,)), Clause((2,), (3,)), Clause((0, 2), (), 1)], 4)
    machine, X, Y = fitted(cliques=tied)
    assert machine.clique_coef_.shape == (2,)
    assert machine.score(X, Y) > 0.1


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        (
            "'C' parameter of LMBMClassifier must be .*'scale'.* or a multiple .* or a float",
            {"C": 0.0},
        ),
        (
            "'coupling_penalty' .* {'scale'} or a multiple .* or a float",
            {"coupling_penalty": 0},
        ),
        ("'margin' .* must be a float", {"margin": -1.0}),
        ("'solver' .* must be a str among", {"solver": "sgd"}),
        ("'decoder' .* must be a str among", {"decoder": "viterbi"}),
        ("decoder: expected 'exact'", {"decoder": "integer_program", "cliques": [(0, 1, 2)]}),
        ("'cliques' .* must be .*'pairwise'.* Got 'chain'", {"cliques": "chain"}),
        ("'tol' .* must be a float", {"tol": 0.0}),
        ("'max_iter' .* must be an int", {"max_iter": 0}),
        ("device: expected", {"device": "nowhere"}),
    ],
)
def test_bad_settings_are_refused_by_name(message, settings):
    with pytest.raises(ValueError, match=message):
        fitted(**settings)


@pytest.mark.data
@pytest.mark.usefixtures("data_folder")
def test_scene_is_learned_as_well_as_in_the_paper():
    data = load("scene")
    X, Y = data.features.astype(np.float64), data.labels
    machine = LMBMClassifier(C=0.1, coupling_penalty=10.0).fit(X[data.train], Y[data.train])
    predicted = torch.from_numpy(machine.predict(X[data.test]))
    assert metrics.jaccard_index(predicted, torch.from_numpy(Y[data.test])) >= 0.682
