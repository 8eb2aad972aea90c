"""``calibrate="joint"``: every probability is that of two scales in equal mixture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from annotate.completions import Completer
from lmbm_torch import load, save
from lmbm_torch.compare.trials import part
from lmbm_torch.data import read_npz
from lmbm_torch.estimators import (
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.prediction import answers
from lmbm_torch.prediction.predictor import Predictor

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(200, 4))
# Of the instances each second one is hard in all of its labels.
Y = (X + np.where(np.arange(200) % 2, 2.0, 0.2)[:, None] * RANDOM.normal(size=X.shape) > 0).astype(float)


def network(**settings) -> LMSBNClassifier:
    return LMSBNClassifier(random_state=0, **{"calibrate": "joint", **settings})


@pytest.fixture(scope="module")
def fitted() -> LMSBNClassifier:
    return network().fit(X, Y)


def test_probabilities_are_those_of_the_mixture(fitted):
    first, second = fitted.calibrated([fitted.energy(X)])
    assert not torch.allclose(first.unary, second.unary, rtol=0.2)
    members = [exact.marginals(each).labels.numpy() for each in (first, second)]
    np.testing.assert_allclose(fitted.predict_proba(X), np.mean(members, 0))
    each = [member.log_prob(torch.from_numpy(Y)).exp().numpy() for member in (first, second)]
    np.testing.assert_allclose(fitted.log_prob(X, Y), np.log(np.mean(each, 0)))


def test_answers_of_the_hinge_are_what_they_were(fitted):
    plain = network(calibrate=False).fit(X, Y)
    np.testing.assert_array_equal(fitted.predict(X), plain.predict(X))


@pytest.mark.parametrize("decoder", ["exact_match", "hamming", "f1", "jaccard"])
def test_other_decoders_answer_by_the_mixture(fitted, decoder):
    other = network(decoder=decoder).fit(X, Y)
    found = other.predict(X)
    if decoder == "hamming":
        np.testing.assert_array_equal(found, other.predict_proba(X) >= 0.5)
    if decoder == "exact_match":
        every = np.array(np.meshgrid(*[[0, 1]] * 4)).reshape(4, -1).T
        values = np.array([other.log_prob(X, np.tile(each, (len(X), 1))) for each in every])
        np.testing.assert_allclose(other.log_prob(X, found), values.max(0))
    assert found.shape == Y.shape


def test_files_ensembles_and_tuned_thresholds_keep_it(fitted, tmp_path):
    save(fitted, tmp_path / "model.safetensors")
    again: Any = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    ensemble = LMSBNEnsembleClassifier(network(), num_members=2, random_state=0).fit(X, Y)
    mean = np.mean([member.predict_proba(X) for member in ensemble.members_], 0)
    np.testing.assert_allclose(ensemble.predict_proba(X), mean)
    tuned = ThresholdTunedClassifier(network()).fit(X, Y)
    members = [exact.marginals(each).labels for each in tuned.network_.calibrated([tuned.energy(X)])]
    np.testing.assert_allclose(tuned.predict_proba(X), torch.stack(members).mean(0))


EVERY = np.array(np.meshgrid(*[[0, 1]] * 4)).reshape(4, -1).T


@pytest.fixture(
    scope="module",
    params=[LMSBNClassifier, LMBMClassifier, StructuralSVMClassifier],
    ids=["network", "machine", "structural"],
)
def any_fitted(request) -> Any:
    return request.param(calibrate="joint", random_state=0).fit(X, Y)


def test_all_models_have_it(any_fitted, tmp_path):
    members = any_fitted.calibrated([any_fitted.energy(X)])
    assert len(members) == 2
    log_prob = np.array([any_fitted.log_prob(X, np.tile(each, (len(X), 1))) for each in EVERY])
    np.testing.assert_allclose(np.exp(log_prob).sum(0), 1)
    np.testing.assert_allclose(any_fitted.predict_proba(X), np.exp(log_prob).T @ EVERY, atol=1e-7)
    expected = np.mean([each.score(torch.from_numpy(Y)).exp().numpy() for each in members], 0)
    if not isinstance(any_fitted, LMSBNClassifier):
        np.testing.assert_allclose(any_fitted.log_prob(X, Y), np.log(expected))
    save(any_fitted, tmp_path / "model.safetensors")
    again: Any = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), any_fitted.predict_proba(X))


def test_predictions_and_completions_have_it(any_fitted):
    saved = Predictor.of(any_fitted)
    predictions = list(answers.predict(saved, X))
    found = torch.cat([each.probabilities.labels for each in cast(Any, predictions)])
    np.testing.assert_allclose(found, any_fitted.predict_proba(X))
    said = torch.cat([each.log_prob for each in predictions])
    np.testing.assert_allclose(said, any_fitted.log_prob(X, any_fitted.predict(X)), atol=1e-9)
    free: Any = Completer(saved).complete(X[:1], np.full(4, np.nan))
    np.testing.assert_allclose(free.probabilities, any_fitted.predict_proba(X[:1])[0])
    known = np.array([1, np.nan, np.nan, np.nan])
    given: Any = Completer(saved).complete(X[:1], known)
    every = EVERY[EVERY[:, 0] == 1]
    weights = np.exp([any_fitted.log_prob(X[:1], each[None])[0] for each in every])
    np.testing.assert_allclose(given.probabilities, weights @ every / weights.sum())
    best = given.best[0]
    of_best = any_fitted.log_prob(X[:1], np.array([best.labels]))[0]
    assert best.log_prob == pytest.approx(of_best - np.log(weights.sum()))


def test_rules_hold_for_the_mixture_of_machines():
    """Of the same members: rules make no other scales of fewer labellings."""
    model: Any = LMBMClassifier(calibrate="joint", random_state=0).fit(X, Y)
    rules = LMBMClassifier(calibrate="joint", random_state=0, constraints="label_0 -> label_1").fit(X, Y)
    rules.calibration_ = model.calibration_
    log_prob = np.array([model.log_prob(X, np.tile(each, (len(X), 1))) for each in EVERY])
    allowed = EVERY[:, 0] <= EVERY[:, 1]
    weights = np.exp(log_prob) * allowed[:, None]
    np.testing.assert_allclose(rules.predict_proba(X), (weights / weights.sum(0)).T @ EVERY, atol=1e-7)


@pytest.mark.data
def test_joint_confidence_is_the_share_of_right_answers_of_yeast(data_folder):
    data = read_npz(data_folder / "yeast" / "yeast.npz")
    (rows, labels), (tests, truth) = (part(data, each) for each in (data.train, data.test))
    rows, tests = ((each - rows.mean(0)) / rows.std(0) for each in (rows, tests))
    rows, tests = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (rows, tests))
    joint, plain = (network(calibrate=calibrate).fit(rows, labels) for calibrate in (True, "labels"))
    found = joint.predict(tests)
    right = (found == truth).all(1).mean()
    assert abs(np.exp(joint.log_prob(tests, found)).mean() - right) < 0.03
    assert np.exp(plain.log_prob(tests, found)).mean() < right - 0.05
    assert joint.log_prob(tests, truth).mean() > plain.log_prob(tests, truth).mean()
