"""Which features pull a label: weights in units that can be compared, or nothing where they mean nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems.small import NUM_FEATURES, NUM_LABELS, machine, network, small_data
from scipy.sparse import csr_array

from lmbm_torch.data.scaling import standardise, usual
from lmbm_torch.estimators import (
    IndependentLabelsClassifier,
    KernelLogisticRegression,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.prediction.findings import feature_pulls
from lmbm_torch.prediction.predictor import Predictor

DATA = small_data()
UNITS = np.array([1.0, 1000.0, 0.01, 1.0, 1.0])
X, Y = DATA.features * UNITS + 5 * UNITS, DATA.labels
NAMES = tuple("abcde")
TRUE = np.array([3, 9, 1, 5])


def expected(coef: np.ndarray, deviation: np.ndarray) -> list[dict[str, float]]:
    """Of each label of :data:`TRUE`, the most frequent first, all its pulls."""
    return [dict(zip(NAMES, coef[label] * deviation, strict=True)) for label in np.argsort(-TRUE)]


def assert_pulls(found: pulling.FeaturePulls | None, wanted: list[dict[str, float]]) -> None:
    assert found is not None
    assert found.labels == (1, 3, 0, 2)
    for towards, against, pulls in zip(found.towards, found.against, wanted, strict=True):
        largest = sorted(pulls, key=lambda name: -abs(pulls[name]))
        least = 0.01 * abs(pulls[largest[0]])
        above = [(name, pytest.approx(pulls[name])) for name in largest if pulls[name] > least][:4]
        below = [(name, pytest.approx(pulls[name])) for name in largest if pulls[name] < -least][:4]
        assert (list(towards), list(against)) == (above, below)


@pytest.mark.parametrize("kind", [LMSBNClassifier, LMBMClassifier])
def test_of_an_estimator_they_are_weights_times_deviations(kind):
    model = kind(C="scale", random_state=0).fit(X, Y)
    found = feature_pulls(Predictor.of(model), X, NAMES, TRUE)
    assert_pulls(found, expected(model.coef_, X.std(0)))
    # What moves a column by one deviation moves the fields by as much.
    moved = model.energy(X + X.std(0) * (np.arange(NUM_FEATURES) == 2)).unary - model.energy(X).unary
    pulls = dict([*found.towards[0], *found.against[0]])
    if "c" in pulls:
        assert moved[:, 1].numpy() == pytest.approx(pulls["c"])


@pytest.mark.parametrize("scaling", [standardise, usual])
@pytest.mark.parametrize("model", [network(), network(degree=3), machine()])
def test_of_a_trained_model_they_are_those_of_scaled_features(model, scaling):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    scaled = scaling(X)
    saved = Predictor.of_model(model.eval(), DATA.label_names, 1.0, scaled)
    deviation = scaled.transform(torch.from_numpy(X)).numpy().std(0)
    found = feature_pulls(saved, X, NAMES, TRUE)
    assert_pulls(found, expected(model.feature_weight.detach().numpy(), deviation))


def test_sparse_rows_have_the_deviations_of_dense_ones():
    model = LMSBNClassifier(random_state=0).fit(csr_array(DATA.features), Y)
    saved = Predictor.of(model)
    sparse = feature_pulls(saved, csr_array(DATA.features), NAMES, TRUE)
    assert_pulls(sparse, expected(model.coef_, DATA.features.std(0)))


def test_a_feature_that_does_not_vary_pulls_nothing():
    model = LMSBNClassifier(random_state=0).fit(X, Y)
    rows = X.copy()
    rows[:, 0] = 1 / 3
    for features in (rows, csr_array(rows)):
        found = feature_pulls(Predictor.of(model), features, NAMES, TRUE)
        assert "a" not in {name for side in found.towards + found.against for name, _ in side}
    # The mean of ten tenths is none.
    for features in (X[:1], np.full((10, NUM_FEATURES), 0.1), csr_array(np.full((10, NUM_FEATURES), 0.1))):
        alone = feature_pulls(Predictor.of(model), features, NAMES, TRUE)
        assert not any(alone.towards + alone.against)


def test_thresholds_leave_the_weights():
    tuned = ThresholdTunedClassifier(LMSBNClassifier(random_state=0)).fit(X, Y)
    found = feature_pulls(Predictor.of(tuned), X, NAMES, TRUE)
    assert_pulls(found, expected(tuned.network_.coef_, X.std(0)))


def test_many_labels_and_rows_are_cut(monkeypatch):
    monkeypatch.setattr("lmbm_torch.prediction.findings.MAX_DESCRIBED", 2)
    monkeypatch.setattr("lmbm_torch.prediction.findings.MAX_ROWS", 3)
    model = LMSBNClassifier(random_state=0).fit(X, Y)
    found = feature_pulls(Predictor.of(model), X, NAMES, TRUE)
    assert found.labels == (1, 3)
    deviation = X[[0, 39, 79]].std(0)
    largest = max(abs(model.coef_[1] * deviation))
    assert max(abs(pull) for _, pull in found.towards[0] + found.against[0]) == pytest.approx(largest)


@pytest.mark.parametrize(
    "model",
    [
        LMSBNClassifier(kernel="rbf", random_state=0),
        IndependentLabelsClassifier(KernelLogisticRegression()),
        LMSBNEnsembleClassifier(LMSBNClassifier(random_state=0), num_members=2, random_state=0),
    ],
)
def test_of_other_models_there_are_none(model):
    assert feature_pulls(Predictor.of(model.fit(X, Y)), X, NAMES, TRUE) is None


def test_of_an_encoder_there_are_none():
    model = network(encoder=torch.nn.Linear(NUM_FEATURES, NUM_FEATURES).double())
    assert feature_pulls(Predictor.of_model(model.eval(), DATA.label_names), X, NAMES, TRUE) is None
    assert len(TRUE) == NUM_LABELS
