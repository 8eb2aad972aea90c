"""One predictor stands for models and estimators, by a declared protocol alone."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from problems.small import NAMES, NUM_FEATURES, network

import lmbm_torch
from lmbm_torch import load, save
from lmbm_torch.estimators import (
    ChainCRF,
    ChainSVM,
    HiddenMarkovClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    MultiClassSVM,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.protocol import LabelClassifier

ROOT = Path(lmbm_torch.__file__).parent
generator = np.random.default_rng(0)
X = generator.normal(size=(40, 3))
Y = (X @ generator.normal(size=(3, 2)) > 0).astype(int)
SEQUENCES = [X[:20], X[20:]], [Y[:20, 0], Y[20:, 0]]


@pytest.mark.parametrize("room", ["prediction", "reports"])
def test_no_module_looks_for_attributes(room):
    found = [
        f"{path.name}:{node.lineno}"
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id in ("getattr", "hasattr")
    ]
    assert found == []


@pytest.mark.parametrize(
    "estimator",
    [
        LMSBNClassifier(random_state=0),
        LMBMClassifier(),
        StructuralSVMClassifier(random_state=0),
        ThresholdTunedClassifier(LMSBNClassifier(random_state=0), cv=2, max_cycles=1),
    ],
)
def test_protocol_of_estimators(estimator):
    predictor = Predictor.of(estimator.fit(X, Y))
    assert isinstance(predictor.estimator, LabelClassifier)
    _, decoding = predictor.answer(X)
    np.testing.assert_array_equal(decoding.labels.numpy(), estimator.predict(X))
    assert predictor.estimator.field_weights().shape == (2, 3)


def test_protocol_of_trained_models():
    predictor = Predictor.of_model(network().eval(), NAMES)
    assert isinstance(predictor.estimator, LabelClassifier)
    rows = generator.normal(size=(3, NUM_FEATURES))
    (energy,), decoding = predictor.answer(rows)
    assert np.array_equal(decoding.labels, predictor.estimator.predict_decoding(rows).labels)
    assert np.array_equal(decoding.labels, predictor.deciding()(energy).labels)


@pytest.mark.parametrize("estimator", [MultiClassSVM(random_state=0), LMSBNClassifier(random_state=0)])
def test_estimators_of_classes_are_refused(estimator):
    with pytest.raises(ValueError, match="model: expected an estimator of label matrices, got"):
        Predictor.of(estimator.fit(X, Y[:, 0]))


@pytest.mark.parametrize("estimator", [ChainCRF(), ChainSVM(random_state=0), HiddenMarkovClassifier()])
def test_predictors_of_sequences_come_back(tmp_path, estimator):
    with pytest.raises(ValueError, match="for classes or sequences"):
        Predictor.of(estimator.fit(*SEQUENCES))
    save(Predictor(estimator), tmp_path / "file")
    found = load(tmp_path / "file")
    _, decoding = found.answer(SEQUENCES[0])
    assert found.is_sequential
    assert found.has_probabilities == hasattr(estimator, "predict_proba")
    assert np.array_equal(decoding.labels.numpy().ravel(), np.concatenate(estimator.predict(SEQUENCES[0])))


def test_parts_of_other_classes_are_refused(tmp_path):
    save(Predictor(ChainCRF().fit(*SEQUENCES), schema="columns"), tmp_path / "file")  # pyright: ignore
    with pytest.raises(ValueError, match="file: schema: expected a schema, got str"):
        load(tmp_path / "file")
