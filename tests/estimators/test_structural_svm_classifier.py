"""The structural SVM's estimator against its solver, its energy and enumeration, and what it refuses."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from strategies.label_problems import random_inputs
from sweeps import slow

from lmbm_torch.data import load, read_npz
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.estimators import StructuralSVMClassifier
from lmbm_torch.estimators.machines import structural_svm
from lmbm_torch.fitting.dual import Path
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import structured_hinge
from lmbm_torch.metrics import functional as metrics
from lmbm_torch.solvers.structural.frank_wolfe import FrankWolfeState
from lmbm_torch.solvers.structural.label_vectors import Decoder
from lmbm_torch.solvers.structural.smoothing import SmoothedState

X, Y = random_inputs(0, 60, 4, 4)


@pytest.mark.parametrize(("graph", "coupled"), [("full", 6), ("chain", 3), ([(0, 3), (1, 2)], 2), ([], 0)])
def test_objective_is_that_of_its_energy(graph, coupled):
    svm = StructuralSVMClassifier(0.7, graph=graph, coupling_penalty=2.0, random_state=0).fit(X, Y)
    assert svm.duality_gap_ <= 1e-3
    energy = svm.energy(X)
    hinge = structured_hinge(energy, torch.from_numpy(Y)).sum().item()
    square = (svm.coef_**2).sum() + (svm.intercept_**2).sum() + (svm.pair_coef_**2).sum()
    assert svm.objective_ == pytest.approx(square / 2 + 0.7 * hinge)
    np.testing.assert_allclose(energy.unary.numpy(), X @ svm.coef_.T + svm.intercept_)
    np.testing.assert_allclose(energy.pairwise.numpy(), svm.pair_coef_)
    assert np.count_nonzero(np.triu(svm.pair_coef_)) == coupled


@pytest.mark.parametrize("graph", ["full", "chain"])
def test_prediction_is_the_labelling_of_largest_score(graph):
    svm = StructuralSVMClassifier(graph=graph, random_state=0).fit(X, Y)
    best = exact.decode(svm.energy(X))
    found = svm.decode(X)
    np.testing.assert_allclose(found.objective, best.objective)
    np.testing.assert_array_equal(svm.predict(X), best.labels)
    assert 0.3 < svm.score(X, Y) == (svm.predict(X) == Y).all(1).mean()


@pytest.mark.parametrize(
    ("graph", "decoder"),
    [("full", "exact"), ("full", "integer_program"), ("full", "lp_relaxation"), ("chain", "viterbi")],
)
def test_known_labels_are_kept_by_every_decoder(graph, decoder):
    svm = StructuralSVMClassifier(graph=graph, decoder=decoder, tol=0.05, random_state=0).fit(X[:20], Y[:20])
    known = np.full(Y.shape, np.nan)
    known[:, 1] = 1 - svm.predict(X)[:, 1]
    predicted = svm.predict(X, known=known)
    np.testing.assert_array_equal(predicted[:, 1], known[:, 1])
    best = exact.decode(svm.energy(X), known=torch.from_numpy(known))
    if decoder == "lp_relaxation":
        assert (svm.decode(X, known=known).bound >= best.objective - 1e-6).all()
    else:
        np.testing.assert_array_equal(predicted, best.labels)


def test_decoders_are_chosen_by_graph_and_size():
    random = np.random.default_rng(0)
    many = random.integers(0, 2, (8, 25))
    inputs = random.normal(size=(8, 2))
    settings = {"C": 0.01, "random_state": 0}
    searched = StructuralSVMClassifier(**settings).fit(inputs, many).decode(inputs)
    assert searched.relaxed is None
    assert searched.status.exact.all()
    relaxed = StructuralSVMClassifier(decoder="lp_relaxation", **settings).fit(inputs, many).decode(inputs)
    assert relaxed.relaxed is not None
    chain = StructuralSVMClassifier(graph="chain", **settings).fit(inputs, many).decode(inputs)
    assert chain.status.exact.all()


def test_sparse_features_give_the_same_model():
    dense = StructuralSVMClassifier(0.1, tol=1e-6, max_iter=1000, random_state=0).fit(X, Y)
    rows = sparse.csr_array(X)
    csr = StructuralSVMClassifier(0.1, tol=1e-6, max_iter=1000, random_state=0).fit(rows, Y)
    np.testing.assert_allclose(csr.coef_, dense.coef_, atol=5e-3)
    np.testing.assert_array_equal(csr.predict(rows), dense.predict(X))


def test_classes_are_predicted_by_their_code_of_largest_score():
    names = np.array(["b", "a", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0)]
    svm = StructuralSVMClassifier(10.0, random_state=0).fit(X, names)
    scores = [svm.energy(X).score(torch.eye(3, dtype=torch.int64)[c].expand(60, 3)) for c in range(3)]
    expected = svm.classes_[torch.stack(scores).argmax(0).numpy()]
    np.testing.assert_array_equal(svm.predict(X), expected)
    assert svm.score(X, names) > 0.6
    two = StructuralSVMClassifier(10.0, random_state=0).fit(X, names == "a")
    assert set(two.predict(X)) <= {False, True}


@dataclass(frozen=True)
class IteratedModes:
    """A user's own decoder: label by label, from a few starts; its bound is every term at its best."""

    sweeps: int = 5

    def __call__(self, energy: PairwiseEnergy) -> Decoding:
        couplings = energy.pairwise.expand(energy.batch_size, -1, -1)
        starts = [energy.unary.sign(), torch.ones_like(energy.unary), -torch.ones_like(energy.unary)]
        tried = []
        for spins in starts:
            for _ in range(self.sweeps):
                for i in range(energy.num_labels):
                    field = energy.unary[:, i] + (couplings[:, i] * spins).sum(1)
                    spins[:, i] = torch.where(field >= 0, 1.0, -1.0)
            tried.append(((spins + 1) / 2).long())
        scores = torch.stack([energy.score(labels) for labels in tried])
        best, which = scores.max(0)
        labels = torch.stack(tried)[which, torch.arange(energy.batch_size)]
        bound = energy.constant + energy.unary.abs().sum(1) + couplings.abs().sum((1, 2)) / 2
        proven = best >= bound
        return Decoding(labels, best, bound, Status(proven, proven | True, proven * 0, bound - best))


def test_a_decoder_of_the_user_s_own_trains_and_predicts():
    settings: dict = {"C": 0.3, "max_iter": 60, "random_state": 0}
    with pytest.warns(ConvergenceWarning, match="max_iter=60"):
        own = clone(StructuralSVMClassifier(**settings, decoder=IteratedModes())).fit(X, Y)
    exactly = StructuralSVMClassifier(**settings).fit(X, Y)
    assert own.decoder == IteratedModes()
    # What its loose bound proves of the objective is true, and no more than it says.
    assert own.objective_ >= exactly.objective_ * (1 - exactly.duality_gap_)
    assert own.objective_ * (1 - own.duality_gap_) <= exactly.objective_
    assert (own.predict(X) == exactly.predict(X)).mean() > 0.95
    loaded = pickle.loads(pickle.dumps(own))
    np.testing.assert_array_equal(loaded.predict(X), own.predict(X))
    with pytest.raises(ValueError, match="known: expected None"):
        own.predict(X, known=Y)


def test_a_function_that_decodes_exactly_is_as_good_as_its_name():
    named = StructuralSVMClassifier(decoder="exact", random_state=0).fit(X, Y)
    own = clone(StructuralSVMClassifier(decoder=exact.decode, random_state=0)).fit(X, Y)
    np.testing.assert_array_equal(own.coef_, named.coef_)
    known = np.where(np.arange(4) == 1, 1 - Y, np.nan)
    np.testing.assert_array_equal(own.predict(X, known=known), named.predict(X, known=known))


def spoiled(**changes) -> Decoder:
    def decode(energy: PairwiseEnergy) -> Decoding:
        found = exact.decode(energy)
        for name, change in changes.items():
            # Past the shapes that the tests enforce when one is made.
            object.__setattr__(found, name, change(getattr(found, name)))
        return found

    return decode


@pytest.mark.parametrize(
    ("decoder", "error", "message"),
    [
        (3, TypeError, "'decoder' .* must be a str among .* or a callable. Got"),
        (None, TypeError, "'decoder' .* must be a str among .* or a callable. Got"),
        (lambda energy: energy.unary > 0, TypeError, "decoder: expected it to return a Decoding, got Tensor"),
        (spoiled(labels=lambda labels: labels[:, :2]), ValueError, "decoder: labels: expected shape"),
        (spoiled(labels=lambda labels: 2 * labels - 1), ValueError, "decoder: labels: expected 0 or 1"),
        (spoiled(bound=lambda bound: bound[:1]), ValueError, "decoder: bound: expected shape"),
        (spoiled(bound=lambda bound: bound / 0), ValueError, "decoder: bound: expected finite"),
        (
            spoiled(bound=lambda bound: bound - 0.1),
            ValueError,
            "decoder: expected bounds on every",
        ),
        (spoiled(relaxed=lambda _: torch.full((60, 4), 1.5)), ValueError, "decoder: expected relaxed labels"),
        (spoiled(relaxed=lambda _: torch.ones(60)), ValueError, "decoder: relaxed: expected shape"),
    ],
)
def test_decoders_and_their_answers_are_checked(decoder, error, message):
    with pytest.raises(error, match=message):
        StructuralSVMClassifier(decoder=decoder).fit(X, Y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"graph": "ring"}, "'graph' .* must be a str among .* Got 'ring'"),
        ({"graph": [(0, 9)]}, "cliques: expected distinct labels below 4"),
        ({"graph": [(0, 1), (1, 0)]}, "pairs: expected different pairs of labels below 4"),
        ({"decoder": "magic"}, "'decoder' .* must be a str among .* Got 'magic'"),
        ({"graph": "full", "decoder": "viterbi"}, "path: expected"),
        ({"C": 0}, "'C' .* must be a str among {'scale'} or a multiple .* or a float"),
        ({"tol": 0}, "'tol' .* must be a float"),
        ({"coupling_penalty": 0}, "'coupling_penalty' .* must be a float"),
        ({"device": "nowhere"}, "device: expected"),
    ],
)
def test_refusals_of_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        StructuralSVMClassifier(**settings).fit(X, Y)


def test_refusals_of_inputs():
    svm = StructuralSVMClassifier(random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match="known: expected shape"):
        svm.predict(X, known=np.zeros((60, 2)))
    classes = StructuralSVMClassifier(random_state=0).fit(X, Y[:, 0].astype(int))
    with pytest.raises(ValueError, match="known: expected None"):
        classes.predict(X, known=np.zeros((60, 1)))


@pytest.mark.data
def test_scene_reaches_the_papers_figures(data_folder):
    data = load("scene", data_folder)
    inputs = data.features.astype(np.float64)
    inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    svm = StructuralSVMClassifier(1.0, random_state=0).fit(inputs[data.train], data.labels[data.train])
    assert svm.duality_gap_ <= 1e-3
    predicted = torch.from_numpy(svm.predict(inputs[data.test]))
    target = torch.from_numpy(data.labels[data.test]).long()
    assert metrics.hamming_loss(predicted, target) <= 0.105
    assert metrics.jaccard_index(predicted, target) >= 0.61


def test_searches_that_prove_little_are_not_repeated(monkeypatch):
    """Training ends after one pass with labellings by flips, without searches of more nodes."""
    features, labels = random_inputs(0, 20, 3, structural_svm.PROVEN + 2)
    passes = []

    def unproven(energy, **options):
        passes.append((energy.batch_size, "node_limit" in options))
        return structural_svm.decode_by_flips(energy)

    monkeypatch.setattr(structural_svm, "is_narrow", lambda energy: False)
    monkeypatch.setattr(structural_svm, "decode", unproven)
    with pytest.warns(ConvergenceWarning):
        svm = StructuralSVMClassifier(random_state=0).fit(features, labels)
    assert passes == [(20, False), (20, False)]
    assert svm.duality_gap_ > svm.tol


@pytest.mark.slow
@pytest.mark.data
def test_genbase_is_trained_to_a_certificate(data_folder):
    data = read_npz(data_folder / "genbase" / "genbase.npz")
    # Of its 27 labels some searches take more nodes than the limit that predictions have.
    svm = StructuralSVMClassifier(C=1.0, random_state=0)
    svm.fit(data.features[data.train].astype(np.float64), data.labels[data.train])
    assert svm.duality_gap_ <= 1e-3


@pytest.mark.parametrize("C", [100.0, 1e4])
def test_steep_losses_are_trained_on_sums_of_labellings(C):
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 4))
    Y = (X @ random.normal(size=(4, 5)) + random.normal(size=(150, 5)) > 0).astype(float)
    # Frank–Wolfe would end with a ConvergenceWarning, an error here.
    assert StructuralSVMClassifier(C, max_iter=30).fit(X, Y).duality_gap_ <= 1e-3
    with pytest.warns(ConvergenceWarning):
        StructuralSVMClassifier(C, max_iter=30, decoder=exact.decode).fit(X, Y)


def test_a_path_goes_on_where_another_solver_takes_over():
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 6))
    Y = (X @ random.normal(size=(6, 3)) + random.normal(size=(150, 3)) > 0).astype(float)
    path, states = Path(), []
    for C in (0.01, 100.0, 0.01):
        model = StructuralSVMClassifier(C)._fit_along(path, X, Y)
        states.append(type(path.state))
        assert model.objective_ == pytest.approx(StructuralSVMClassifier(C).fit(X, Y).objective_, rel=2e-3)
    assert states == [FrankWolfeState, SmoothedState, FrankWolfeState]


@pytest.mark.data
def test_labellings_one_by_one_take_over_where_sums_of_them_do_not_get_near(data_folder):
    scene = load("scene", data_folder)
    # Smoothed hinges alone end at a gap of .7, with a ConvergenceWarning, an error here.
    model = StructuralSVMClassifier(C=10.0, max_iter=40, random_state=0)
    assert model.fit(scene.train_features[:400], scene.train_labels[:400]).duality_gap_ <= 1e-3


@pytest.mark.parametrize("is_sparse", [slow(False), True])
def test_columns_in_unlike_units_are_trained_on_sums_of_labellings(is_sparse):
    random = np.random.default_rng(0)
    # Of so many columns for the rows, a large C alone would not do.
    X = random.normal(size=(150, 12))
    Y = (X @ random.normal(size=(12, 5)) + random.normal(size=(150, 5)) > 0).astype(float)
    X = X * np.array([*[1.0] * 11, 100.0]) + 1.0
    rows = sparse.csr_array(X) if is_sparse else X
    # Frank–Wolfe would end with a ConvergenceWarning, an error here.
    model = StructuralSVMClassifier(C=1.0).fit(rows, Y)
    assert model.duality_gap_ <= 1e-3
    with pytest.warns(ConvergenceWarning):
        other = StructuralSVMClassifier(C=1.0, decoder=exact.decode).fit(rows, Y)
    assert other.duality_gap_ > 1e-3
    assert model.objective_ < other.objective_ < model.objective_ / (1 - other.duality_gap_)
    path = Path()
    along = StructuralSVMClassifier(C=0.5)._fit_along(path, rows, Y)
    along = clone(along).set_params(C=1.0)._fit_along(path, rows, Y)
    assert along.objective_ == pytest.approx(model.objective_, rel=2e-3)
    missing = np.where(random.random(Y.shape) < 0.1, np.nan, Y)
    assert StructuralSVMClassifier(C=1.0).fit(rows, missing).score(rows, Y) > 0.2


@pytest.mark.parametrize("loss", ["zero_one", "f1", [3.0, 1.0, 0.2]], ids=str)
@pytest.mark.parametrize("rescaling", ["margin", "slack"])
def test_other_losses_and_slack_rescaling_are_trained_to_the_gap(loss, rescaling):
    features, labels = random_inputs(0, 40, 3, 3)
    svm = StructuralSVMClassifier(C=1.0, loss=loss, rescaling=rescaling, random_state=0).fit(features, labels)
    assert svm.duality_gap_ <= 1e-3
    energy, truth = svm.energy(features), torch.from_numpy(labels)
    worst = torch.full((40,), -torch.inf, dtype=torch.float64)
    for other in itertools.product((0.0, 1.0), repeat=3):
        guess = torch.tensor([other] * 40, dtype=torch.float64)
        wrong = (guess != truth).double()
        if loss == "f1":
            sizes = (guess + truth).sum(1)
            delta = torch.where(sizes == 0, 0, 1 - 2 * (guess * truth).sum(1) / sizes.clamp(min=1))
        else:
            delta = wrong.amax(1) if loss == "zero_one" else wrong @ torch.tensor(loss, dtype=torch.float64)
        excess = energy.score(guess) - energy.score(truth)
        worst = worst.maximum(delta + excess if rescaling == "margin" else delta * (1 + excess))
    square = sum(np.square(part).sum() for part in (svm.coef_, svm.intercept_, np.triu(svm.pair_coef_)))
    assert svm.objective_ == pytest.approx(square / 2 + float(worst.sum()), rel=1e-6)


def test_many_labels_are_trained_for_the_zero_one_loss():
    features, labels = random_inputs(0, 20, 3, 16)
    svm = StructuralSVMClassifier(C=0.1, loss="zero_one", graph="chain", max_iter=15, tol=0.1).fit(
        features, labels
    )
    assert svm.duality_gap_ <= 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": [1.0, 2.0]}, "loss: expected shape"),
        ({"loss": [1.0, 2.0, -1.0]}, "loss: least cost: expected a finite number of at least 0"),
        ({"loss": "f1", "class_weight": "balanced"}, "loss: expected 'hamming' for class_weight"),
        ({"rescaling": "slack", "constraints": "label_0 -> label_1"}, "constraints: expected None with"),
    ],
)
def test_losses_that_do_not_fit_are_refused(settings, message):
    features, labels = random_inputs(0, 20, 3, 3)
    with pytest.raises(ValueError, match=message):
        StructuralSVMClassifier(**settings).fit(features, labels)
