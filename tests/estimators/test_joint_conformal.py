"""Sets of whole labellings are complete, cover the truth, and obey rules; risks stay below their level."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from strategies.label_problems import random_inputs
from test_conformal import Guess, drawn

from lmbm_torch import load, save
from lmbm_torch.estimators import (
    JointConformalClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    ProbabilisticClassifierChain,
    RiskControlledClassifier,
)
from lmbm_torch.inference.search import mixture

X, Y = random_inputs(3, 240, 5, 6)
Y = Y.astype(int)
EVERY = np.array([*itertools.product((0, 1), repeat=6)])
ESTIMATORS = {
    "network": LMSBNClassifier(random_state=0),
    "ensemble": LMSBNEnsembleClassifier(LMSBNClassifier(), num_members=3, random_state=0),
    "chain": ProbabilisticClassifierChain(LogisticRegression(), random_state=0),
}


def of_energies(model, row):
    """The log-probability of every labelling of a row."""
    energies = model.estimator_.energies(X[row : row + 1])
    if hasattr(model.estimator_, "calibrated"):
        energies = model.estimator_.calibrated(energies)
    every = [energy.select(torch.zeros(len(EVERY), dtype=torch.int64)) for energy in energies]
    return mixture.log_prob(every, torch.from_numpy(EVERY)).numpy()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_set_holds_every_labelling_above_the_threshold(name):
    model = JointConformalClassifier(ESTIMATORS[name], coverage=0.8, random_state=0).fit(X, Y)
    found = model.predict_labellings(X[:20])
    sizes = set()
    for row, each in enumerate(found):
        log_prob = of_energies(model, row)
        wanted = EVERY[log_prob >= model.threshold_]
        assert each.is_complete
        assert {*map(tuple, each.labellings.astype(int))} == {*map(tuple, wanted)}
        np.testing.assert_allclose(each.log_prob, np.sort(log_prob)[::-1][: len(wanted)], rtol=1e-6)
        sizes.add(len(wanted))
    assert len(sizes) > 2
    certain, possible = model.predict_set(X[:20])
    np.testing.assert_array_equal(certain, [each.labellings.all(0) for each in found])
    np.testing.assert_array_equal(possible, [each.labellings.any(0) for each in found])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_set_that_is_listed_in_part_has_an_upper_bound_of_its_size(name):
    model = JointConformalClassifier(ESTIMATORS[name], coverage=0.95, random_state=0).fit(X, Y)
    whole = model.predict_labellings(X[:20])
    model.max_labellings = 2
    part = model.predict_labellings(X[:20])
    sizes = np.array([len(each.labellings) for each in whole])
    assert (sizes > 2).sum() > 5
    for size, each in zip(sizes, part, strict=True):
        assert len(each.labellings) <= 2 * 3
        assert each.most >= size
        assert each.is_complete or size > 1
        assert each.most < 2**6 * 10
    in_part = np.array([not each.is_complete for each in part])
    certain, possible = model.predict_set(X[:20])
    assert not certain[in_part].any()
    assert possible[in_part].all()


@pytest.mark.parametrize("coverage", [0.7, 0.9])
def test_the_truth_is_in_the_set_as_often_as_asked(coverage):
    shares, sizes = [], []
    for seed in range(12):
        inputs, labels = random_inputs(100 + seed, 320, 4, 4)
        labels = labels.astype(int)
        model = JointConformalClassifier(LMSBNClassifier(), coverage=coverage, random_state=seed)
        model.set_params(calibration_size=0.4).fit(inputs[:200], labels[:200])
        found = model.predict_labellings(inputs[200:])
        held = [
            (each.labellings == truth).all(1).any() for each, truth in zip(found, labels[200:], strict=True)
        ]
        shares.append(np.mean(held))
        sizes.append(np.mean([len(each.labellings) for each in found]))
    error = np.std(shares) / len(shares) ** 0.5
    assert coverage - 3 * error <= np.mean(shares) <= coverage + 1 / 81 + 3 * error
    assert np.mean(sizes) < 2**4


def test_rules_leave_out_labellings_and_are_kept_in_every_set():
    obeying = np.where(Y[:, :1] == 1, Y, np.concatenate([Y[:, :1], 0 * Y[:, 1:2], Y[:, 2:]], 1))
    rule = "label_1 -> label_0"
    model = JointConformalClassifier(LMSBNClassifier(), random_state=0, constraints=rule).fit(X, obeying)
    free = JointConformalClassifier(LMSBNClassifier(), random_state=0).fit(X, obeying)
    assert model.threshold_ == free.threshold_
    smaller = 0
    for with_rule, without in zip(model.predict_labellings(X), free.predict_labellings(X), strict=True):
        obeys = without.labellings[:, 0] | ~without.labellings[:, 1]
        if obeys.any():
            np.testing.assert_array_equal(with_rule.labellings, without.labellings[obeys])
        smaller += not obeys.all()
    assert smaller > 10


def test_no_threshold_leaves_every_labelling():
    with pytest.warns(UserWarning, match="nothing is excluded"):
        model = JointConformalClassifier(LMSBNClassifier(), coverage=0.999, random_state=0).fit(X, Y)
    assert model.threshold_ == -np.inf
    (found,) = model.predict_labellings(X[:1])
    assert len(found.labellings) == 2**6
    model.max_labellings = 5
    (found,) = model.predict_labellings(X[:1])
    assert found.most == np.inf


def test_estimators_without_directed_models_are_refused():
    for estimator in (RandomForestClassifier(5), LMBMClassifier()):
        with pytest.raises(ValueError, match="estimator: expected belief networks or label chains"):
            JointConformalClassifier(estimator, random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match="'max_labellings' parameter"):
        JointConformalClassifier(LMSBNClassifier(), max_labellings=0).fit(X, Y)


def risks(model, inputs, labels, risk):
    wrong = model.predict(inputs) != labels
    counted = labels == (1 if risk == "false_negatives" else 0)
    return ((wrong & counted).sum(1) / np.maximum(counted.sum(1), 1)).mean()


@pytest.mark.parametrize("risk", ["false_negatives", "false_positives"])
@pytest.mark.parametrize("overconfident", [0.2, 1.0])
def test_the_expected_risk_is_near_and_below_the_level(risk, overconfident):
    found = []
    for seed in range(150):
        inputs, labels = drawn(seed, 80, overconfident)
        model = RiskControlledClassifier(Guess(), risk=risk, level=0.15, random_state=seed)
        model.set_params(calibration_size=59 / 80).fit(inputs, labels)
        found.append(risks(model, *drawn(1000 + seed, 60, overconfident), risk))
    error = np.std(found) / len(found) ** 0.5
    assert 0.15 - 2 / 60 - 3 * error <= np.mean(found) <= 0.15 + 3 * error


@pytest.mark.parametrize("risk", ["false_negatives", "false_positives"])
def test_no_better_threshold_keeps_the_bound_of_the_risk(risk):
    for seed in range(30):
        inputs, labels = drawn(seed, 24, 1.0)
        # Ties among the probabilities.
        inputs = inputs.round(1)
        model = RiskControlledClassifier(Guess(), risk=risk, level=0.3, random_state=0).fit(inputs, labels)
        model.threshold_ = model._threshold(inputs, labels)
        misses = risk == "false_negatives"
        better = [each for each in np.unique(inputs) if (each > model.threshold_) == misses]
        bounds = []
        for threshold in (model.threshold_, *better):
            model.threshold_ = threshold
            bounds.append((24 * risks(model, inputs, labels, risk) + 1) / 25)
        assert bounds[0] <= 0.3 + 1e-12
        changed = [bound for bound in bounds[1:] if bound > bounds[0]]
        assert len(changed) > 1
        assert min(changed) > 0.3


@pytest.mark.parametrize(("risk", "every"), [("false_negatives", 1), ("false_positives", 0)])
def test_too_few_instances_for_a_level_predict_what_has_no_risk(risk, every):
    inputs, labels = drawn(0, 40, 1.0)
    model = RiskControlledClassifier(Guess(), risk=risk, level=0.01, random_state=0).fit(inputs, labels)
    assert (model.predict(inputs) == every).all()


def test_risk_control_speaks_the_values_of_fit():
    words = np.where(Y == 1, "yes", "no")
    model = RiskControlledClassifier(LMSBNClassifier(random_state=0), random_state=0).fit(X, words)
    assert {*model.predict(X).ravel()} == {"yes", "no"}
    plain = RiskControlledClassifier(LMSBNClassifier(random_state=0), random_state=0).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X) == "yes", plain.predict(X) == 1)


def test_saved_classifiers_give_the_same_sets(tmp_path):
    joint = JointConformalClassifier(LMSBNClassifier(), random_state=0).fit(X, Y)
    risk = RiskControlledClassifier(LMSBNClassifier(), random_state=0).fit(X, Y)
    for model in (joint, risk):
        save(model, tmp_path / f"{type(model).__name__}.safetensors")
    loaded = load(tmp_path / "JointConformalClassifier.safetensors")
    for own, other in zip(joint.predict_labellings(X[:9]), loaded.predict_labellings(X[:9]), strict=True):
        np.testing.assert_array_equal(own.labellings, other.labellings)
        np.testing.assert_array_equal(own.log_prob, other.log_prob)
    again = load(tmp_path / "RiskControlledClassifier.safetensors")
    np.testing.assert_array_equal(risk.predict(X), again.predict(X))
