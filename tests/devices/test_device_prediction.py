"""Trained models and fitted estimators that predict on a device, from arrays to arrays."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from problems.small import NAMES, machine, network, small_data
from sklearn.base import clone

from devices.accelerator import DEVICE, Accelerator
from lmbm_torch.data.sequences.records import digit_numbers
from lmbm_torch.estimators import (
    ChainCRF,
    ChainSVM,
    ConditionalRBMClassifier,
    HiddenMarkovClassifier,
    KernelLogisticRegression,
    LMBMClassifier,
    LMSBNClassifier,
    MaximumEntropyMarkovClassifier,
    MultiClassSVM,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.prediction.answers import evaluate, predict
from lmbm_torch.prediction.findings import findings
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.tables import table_rows

DATA = small_data()
ROWS = DATA.test[:8]


def drawn(model):
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5, generator=generator)
    return model.eval()


def hidden():
    return ConditionalRBM(DATA.num_features, DATA.num_labels, 3).double()


MODELS = {
    "network": lambda: Predictor.of_model(drawn(network()), NAMES),
    "machine": lambda: Predictor.of_model(drawn(machine()), NAMES),
    "hidden units": lambda: Predictor.of_model(
        drawn(hidden()), NAMES, inference=MatchedInference(matrix_bp.marginals, num_iters=5)
    ),
}


def moved(saved):
    trained = saved.estimator
    return replace(saved, estimator=replace(trained, model=trained.model.to(DEVICE)))


@pytest.mark.parametrize("name", MODELS)
def test_evaluate_findings_and_tables(name):
    expected, found = MODELS[name](), findings(MODELS[name](), DATA, ROWS)
    scores = evaluate(expected, DATA, ROWS)
    table = list(table_rows(expected, predict(expected, DATA.features[ROWS])))
    with Accelerator() as gpu:
        saved = moved(MODELS[name]())
        assert evaluate(saved, DATA, ROWS) == pytest.approx(scores)
        came = findings(saved, DATA, ROWS)
        rows = list(table_rows(saved, predict(saved, DATA.features[ROWS])))
    assert gpu.violations == []
    # Numbers for reports and figures, which are made on the host.
    for values in (came, came.dependencies):
        tensors = [getattr(values, each.name) for each in fields(values)]
        assert {each.device.type for each in tensors if isinstance(each, torch.Tensor)} <= {"cpu"}
    for name, values in came.metrics().items():
        assert values == pytest.approx(found.metrics()[name])
    torch.testing.assert_close(came.probability, found.probability)
    assert [row[:3] for row in rows] == [row[:3] for row in table]
    assert is_dataclass(came.calibration())
    assert came.brier_score() == pytest.approx(found.brier_score())
    assert set(came.by_label()) == set(found.by_label())


CLASSES = DATA.train_labels[:, 0].astype(int) + DATA.train_labels[:, 1].astype(int)
EVERY = ("predict", "predict_proba", "decision_function")
ESTIMATORS = {
    "network": (LMSBNClassifier(random_state=0), DATA.train_labels, EVERY),
    "network, F measure": (LMSBNClassifier(decoder="f1", random_state=0), DATA.train_labels, EVERY),
    "network of kernels": (LMSBNClassifier(kernel="rbf", random_state=0), DATA.train_labels, EVERY),
    "network of classes": (LMSBNClassifier(random_state=0), CLASSES, EVERY),
    "machine": (LMBMClassifier(), DATA.train_labels, EVERY),
    "hidden units": (
        ConditionalRBMClassifier(num_hidden=2, max_iter=3, random_state=0, dtype="float64"),
        DATA.train_labels,
        EVERY,
    ),
    "hidden units, propagation": (
        ConditionalRBMClassifier(
            num_hidden=2, objective="mle_bp", max_iter=1, random_state=0, dtype="float64"
        ),
        DATA.train_labels,
        EVERY,
    ),
    "network, thresholds": (
        ThresholdTunedClassifier(LMSBNClassifier(random_state=0), cv=2),
        DATA.train_labels,
        EVERY,
    ),
    "structural SVM": (StructuralSVMClassifier(random_state=0), DATA.train_labels, EVERY),
    "multi-class SVM": (MultiClassSVM(kernel="rbf", random_state=0), CLASSES, EVERY),
    "kernel logistic regression": (KernelLogisticRegression(random_state=0, tol=1e-8), CLASSES, EVERY),
}


def answers(estimator, names):
    methods = [getattr(estimator, name) for name in names if hasattr(estimator, name)]
    return [method(DATA.features[ROWS]) for method in methods]


def on(device, estimator):
    """One like it that predicts there."""
    names = [name for name in estimator.get_params() if name.rpartition("__")[2] == "device"]
    return clone(estimator).set_params(**dict.fromkeys(names, str(device)))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name):
    estimator, labels, methods = ESTIMATORS[name]
    on_host = answers(estimator.fit(DATA.train_features, labels), methods)
    with Accelerator() as gpu:
        came = answers(on(DEVICE, estimator).fit(DATA.train_features, labels), methods)
    assert gpu.violations == []
    for array, expected in zip(came, on_host, strict=True):
        assert isinstance(array, np.ndarray)
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


CHAINS = {
    "conditional random field": ChainCRF(),
    "max-margin network": ChainSVM(random_state=0),
    "max-margin network of kernels": ChainSVM(kernel="rbf", random_state=0),
    "hidden Markov model": HiddenMarkovClassifier(),
    "maximum-entropy Markov model": MaximumEntropyMarkovClassifier(),
}


@pytest.mark.parametrize("name", CHAINS)
def test_estimators_of_sequences(name):
    numbers = digit_numbers(12)
    numbers = replace(numbers, features=numbers.features.astype(np.float64))
    train = numbers.within(0)
    chain = clone(CHAINS[name]).fit(*train)
    expected = evaluate(Predictor(chain, None), numbers, numbers.fold >= 0)
    with Accelerator() as gpu:
        placed = on(DEVICE, chain).fit(*train)
        predicted, energy = placed.predict(train.features), placed.energy(train.features)
        scores = evaluate(Predictor(placed, None), numbers, numbers.fold >= 0)
        chances = placed.predict_proba(train.features) if hasattr(placed, "predict_proba") else None
    assert gpu.violations == []
    assert energy.device == DEVICE
    assert scores == pytest.approx(expected)
    for found, labels in zip(predicted, chain.predict(train.features), strict=True):
        np.testing.assert_array_equal(found, labels)
    if chances is not None:
        np.testing.assert_allclose(
            np.concatenate(chances), np.concatenate(chain.predict_proba(train.features))
        )


@pytest.mark.parametrize("objective", ["mle", "mle_mf"])
def test_hidden_units_are_learnt_in_single_precision_on_a_device(objective):
    settings = {"num_hidden": 2, "objective": objective, "max_iter": 2, "random_state": 0}
    features, labels = DATA.train_features[:20], DATA.train_labels[:20]
    on_host = ConditionalRBMClassifier(**settings).fit(features, labels)
    assert {weight.dtype for weight in on_host.model_.parameters()} == {torch.float64}
    with Accelerator() as gpu:
        fitted = ConditionalRBMClassifier(**settings, device=str(DEVICE)).fit(features, labels)
        probabilities = fitted.predict_proba(DATA.features[ROWS])
    assert gpu.violations == []
    assert {weight.dtype for weight in fitted.model_.parameters()} == {torch.float32}
    single = ConditionalRBMClassifier(**settings, dtype="float32").fit(features, labels)
    np.testing.assert_allclose(probabilities, single.predict_proba(DATA.features[ROWS]), rtol=1e-4)
    np.testing.assert_allclose(probabilities, on_host.predict_proba(DATA.features[ROWS]), rtol=1e-3)
