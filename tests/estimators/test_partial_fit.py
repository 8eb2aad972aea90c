"""Streams of instances: near what the batch solver finds, whatever the calls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sweeps import slow

from lmbm_torch import load
from lmbm_torch.estimators import LMSBNClassifier

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

import long_streams


@pytest.fixture(scope="module")
def digits():
    """Which of eight properties a digit has, of its picture: labels that depend on each other."""
    X, digit = load_digits(return_X_y=True)
    codes = np.random.default_rng(0).integers(0, 2, (10, 8))
    return X[:600] / 16, codes[digit[:600]]


def objective(model, X, Y):
    """½‖w‖² + C Σ hinge by its definition, of the weights that the estimator shows."""
    spins = 2.0 * Y - 1
    fields = X @ model.coef_.T + model.intercept_ + spins @ model.parent_coef_.T
    square = sum(np.square(each).sum() for each in (model.coef_, model.intercept_, model.parent_coef_))
    return square / 2 + model.C * np.maximum(1 - spins * fields, 0).sum()


def streamed(X, Y, epochs, batch, **settings):
    model = LMSBNClassifier(C=0.05, ordering="index", random_state=0, **settings)
    for _ in range(epochs):
        for first in range(0, len(X), batch):
            rows = slice(first, first + batch)
            model.partial_fit(X[rows], Y[rows], epoch_size=len(X))
    return model


@pytest.mark.parametrize("batch", [600, 100])
def test_epochs_come_near_the_batch_solver(digits, batch):
    X, Y = digits
    best = LMSBNClassifier(C=0.05, ordering="index", tol=1e-4).fit(X, Y)
    least = objective(best, X, Y)
    assert least == pytest.approx(best.objective_, rel=1e-6)
    first, last = (objective(streamed(X, Y, epochs, batch), X, Y) for epochs in (1, 30))
    assert least <= last < 1.01 * least
    assert last < first


def test_the_same_calls_learn_the_same_and_saved_ones_predict_it(digits, tmp_path):
    X, Y = digits
    one, other = streamed(X, Y, 2, 100), streamed(X, Y, 2, 100)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    one.save(tmp_path / "model.safetensors")
    again: Any = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(X), one.predict(X))
    # A stream goes on from its file.
    np.testing.assert_array_equal(again.partial_fit(X, Y).coef_, one.partial_fit(X, Y).coef_)


def test_fit_forgets_the_stream(digits):
    X, Y = digits
    model = streamed(X, Y, 1, 600).fit(X, Y)
    fresh = streamed(X, Y, 1, 600)
    np.testing.assert_array_equal(model.partial_fit(X, Y, epoch_size=600).coef_, fresh.coef_)


def test_a_weight_of_two_is_two_instances_at_once(digits):
    X, Y = digits[0][:8], digits[1][:8]
    # Within a mini-batch all fields are those before it: two of an instance count as one of twice the weight.
    weighted = LMSBNClassifier(C=1.0, ordering="index").partial_fit(
        X, Y, sample_weight=np.full(8, 2.0), epoch_size=8
    )
    doubled = LMSBNClassifier(C=2.0, ordering="index").partial_fit(X, Y, epoch_size=8)
    np.testing.assert_allclose(weighted.coef_, doubled.coef_)


def test_classes_and_names_of_the_first_call_hold(digits):
    X, Y = digits
    model = LMSBNClassifier().partial_fit(X, Y, classes=list("abcdefgh"))
    assert model.label_names_ == tuple("abcdefgh")
    for wrong, message in (
        ((X, Y[:, :3]), "y: expected the labels of the first call, got 3 labels"),
        ((X[:, :5], Y), "5 features"),
        ((X, np.where(np.arange(8) == 2, np.nan, Y)), "y: "),
        ((X, np.arange(600) % 3), "y: expected a label matrix"),
    ):
        before = model.coef_.copy()
        with pytest.raises(ValueError, match=message):
            model.partial_fit(*wrong)
        np.testing.assert_array_equal(model.coef_, before)
    kinds = LMSBNClassifier().partial_fit(X, np.arange(600) % 3, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="expected the classes of the first call, got"):
        kinds.partial_fit(X, np.arange(600) % 4)
    with pytest.raises(ValueError, match="classes: expected all classes"):
        LMSBNClassifier().partial_fit(X, np.arange(600) % 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_parents": 2}, "max_parents"), ({"calibrate": True}, "calibrate")],
)
def test_what_a_stream_cannot_have_is_refused(digits, settings, message):
    with pytest.raises(ValueError, match=message):
        LMSBNClassifier(**settings).partial_fit(*digits)


def test_kernels_have_no_streams():
    assert hasattr(LMSBNClassifier(), "partial_fit")
    assert not hasattr(LMSBNClassifier(kernel="rbf"), "partial_fit")


@pytest.mark.parametrize("rows", [20_000, slow(1_000_000)])
def test_a_long_stream_keeps_its_memory_and_predicts_like_a_batch_fit(rows):
    batch = rows // 20
    # As many steps for the objective's curvature whatever the length.
    found, models = long_streams.streamed(rows, batch, 1e4 / rows)
    memory = [row["memory_mib"] for row in found]
    assert max(memory[2:]) - min(memory[2:]) < 2
    end = long_streams.compared(models[-1], rows, batch)
    assert end["wrong_labels_batch"] < 0.181
    assert abs(end["wrong_labels_stream"] - end["wrong_labels_batch"]) < 0.003
