"""Thresholds raise the measure that they are chosen for, on fields of instances that were held out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import KFold, cross_val_score
from strategies.label_problems import random_inputs
from sweeps import slow

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators import LMSBNClassifier, ThresholdTunedClassifier
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.metrics import functional

X, Y = random_inputs(0, 120, 4, 3)
RARE = (Y * (np.random.default_rng(0).random(Y.shape) < 0.3)).astype(int)
SETTINGS: dict[str, Any] = {"ordering": "index", "tol": 1e-4, "random_state": 0}
GRID = (torch.arange(-5, 6).double() / 6).tolist()
BASE = LMSBNClassifier(**SETTINGS)
ALONE = LMSBNClassifier(degree=1, **SETTINGS)


def held_out_fields(labels: np.ndarray) -> np.ndarray:
    fields = np.empty(labels.shape)
    for train, held_out in KFold(5).split(X):
        network = LMSBNClassifier(degree=1, **SETTINGS).fit(X[train], labels[train])
        fields[held_out] = X[held_out] @ network.coef_.T + network.intercept_
    return fields


def test_macro_f1_of_independent_labels_is_the_best_of_each_label():
    tuned = ThresholdTunedClassifier(ALONE, measure="macro_f1").fit(X, RARE)
    fields, grid = held_out_fields(RARE), np.arange(-19, 20) / 20
    best = [max(f1_score(RARE[:, k], fields[:, k] >= t) for t in grid) for k in range(3)]
    assert tuned.cross_validated_ == pytest.approx(np.mean(best))
    untuned = f1_score(RARE, fields >= 0, average="macro")
    assert tuned.cross_validated_ > untuned + 0.03
    assert (tuned.thresholds_ < 0).any()


@pytest.mark.parametrize("measure", ["exact_match", "sample_f1", "micro_f1"])
@pytest.mark.parametrize("base", [slow(ALONE), BASE], ids=["independent", "parents"])
def test_no_single_threshold_is_better(measure, base):
    tuned = ThresholdTunedClassifier(base, measure=measure, num_steps=6, max_cycles=20).fit(X, RARE)
    values = {}
    energies = [
        LMSBNClassifier(**base.get_params()).fit(X[train], RARE[train]).energy(X[held_out])
        for train, held_out in KFold(5).split(X)
    ]
    truth = torch.from_numpy(RARE)
    for label, threshold in itertools.product(range(3), GRID):
        thresholds = tuned.thresholds_.copy()
        thresholds[label] = threshold
        found = []
        for energy in energies:
            fields = type(energy)(
                energy.unary - torch.from_numpy(thresholds), energy.parents, energy.ordering
            )
            found.append(exact.decode_hinge(fields).labels)
        values[label, threshold] = float(getattr(functional, measure)(torch.cat(found), truth))
    assert tuned.cross_validated_ == pytest.approx(max(values.values()))


def test_prediction_is_the_network_s_with_its_fields_shifted():
    tuned = ThresholdTunedClassifier(BASE, measure="micro_f1").fit(X, RARE)
    plain = LMSBNClassifier(**SETTINGS).fit(X, RARE)
    ours, theirs = tuned.energy(X), plain.energy(X)
    np.testing.assert_allclose(ours.unary, theirs.unary.numpy() - tuned.thresholds_)
    np.testing.assert_array_equal(tuned.predict(X), exact.decode_hinge(ours).labels)
    known = np.where(np.random.default_rng(1).random(Y.shape) < 0.4, RARE, np.nan)
    expected = exact.decode_hinge(ours, known=torch.from_numpy(known)).labels
    np.testing.assert_array_equal(tuned.predict(X, known=known), expected)
    assert tuned.predict_proba(X).shape == RARE.shape


def test_kernels_weights_and_classes():
    weight = np.random.default_rng(1).random(120)
    settings: dict[str, Any] = {"C": 1.0, "kernel": "rbf", "gamma": 0.3, "ordering": "index", "tol": 1e-8}
    named = ThresholdTunedClassifier(LMSBNClassifier(**settings)).fit(X, Y, weight)
    matrix = rbf_kernel(X, gamma=0.3)
    given = ThresholdTunedClassifier(LMSBNClassifier(**{**settings, "kernel": "precomputed"}))
    np.testing.assert_array_equal(given.fit(matrix, Y, weight).thresholds_, named.thresholds_)
    assert cross_val_score(given, matrix, Y, cv=3).mean() > 0.3
    y = np.array(["a", "b", "c"])[np.digitize(X @ np.ones(4), [-0.7, 0.7])]
    assert ThresholdTunedClassifier(LMSBNClassifier(10.0)).fit(X, y).score(X, y) > 0.7


@pytest.mark.parametrize(
    ("error", "message", "settings"),
    [
        (
            TypeError,
            "'base' .* must be an instance of .*LMSBNClassifier' or None",
            {"base": LabelPowersetSVM()},
        ),
        (ValueError, "'measure' .* must be a str among .* Got 'accuracy'", {"measure": "accuracy"}),
        (ValueError, "'num_steps' .* must be an int", {"num_steps": 0}),
        (ValueError, "'max_cycles' .* must be an int", {"max_cycles": 0}),
    ],
)
def test_bad_settings_are_refused_by_name(error, message, settings):
    with pytest.raises(error, match=message):
        ThresholdTunedClassifier(**settings).fit(X, Y)


@pytest.mark.parametrize("margin", [0.3, 2.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_of_equally_good_thresholds_the_nearest_to_none_is_taken(margin, sign):
    """All thresholds beyond the fields, a third of the margin, are right of all instances."""
    network = LMSBNClassifier(margin=margin)
    model = ThresholdTunedClassifier(network, measure="hamming", num_steps=6)
    fields = torch.tensor([[0.33], [-0.33]], dtype=torch.float64) * margin
    energy = DirectedEnergy(fields, torch.zeros(1, 1, dtype=torch.float64), torch.arange(1))
    truth = torch.full((2, 1), float(sign < 0), dtype=torch.float64)
    model._tune(network, [energy], truth)
    assert model.thresholds_ == pytest.approx([sign * margin / 3])
    assert model.cross_validated_ == 1.0
