"""Estimators without an order to impute in learn from incomplete labels, and lose little by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems.dependent import problem
from sklearn.base import clone
from strategies.pairwise import all_labellings

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.fitting import completion
from lmbm_torch.fitting.completion import completed_labels, observed_weights
from lmbm_torch.inference.enumeration import exact

# Instances with no missing label are one in six.
SHARE = 0.3
ESTIMATORS = {
    "machine": LMBMClassifier(random_state=0),
    "structural": StructuralSVMClassifier(random_state=0),
    "thresholds": ThresholdTunedClassifier(LMSBNClassifier(random_state=0)),
    **{
        name: ConditionalRBMClassifier(objective=name, num_hidden=3, max_iter=40, random_state=0)
        for name in ("lssvm", "mssvm", "cd_percloss")
    },
}


X, Y = problem(150, 1)
UNSEEN = problem(400, 2)
MISSING = np.where(np.random.default_rng(3).random(Y.shape) < SHARE, np.nan, Y)
COMPLETE = ~np.isnan(MISSING).any(1)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_incomplete_instances_are_worth_more_than_none(name):
    estimator = ESTIMATORS[name]
    whole, partly, dropped = (
        clone(estimator).fit(features, labels).score(*UNSEEN)
        for features, labels in ((X, Y), (X, MISSING), (X[COMPLETE], MISSING[COMPLETE]))
    )
    assert partly > dropped + 0.02
    assert partly > whole - {"cd_percloss": 0.2, "thresholds": 0.15}.get(name, 0.1)


def hinges(energy: PairwiseEnergy, labels: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Of the labels that are known."""
    return ((1 - energy.local_margins(labels)).clamp(min=0) * known).sum()


def structured_hinges(energy: PairwiseEnergy, labels: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Where only the labels that are known cost, over all labellings."""
    every = all_labellings(5)
    costs = ((every != labels) * known).sum(-1)
    return ((costs + energy.score(every)).amax(0) - energy.score(labels)).sum()


@pytest.mark.parametrize(
    ("estimator", "loss"), [(LMBMClassifier, hinges), (StructuralSVMClassifier, structured_hinges)]
)
def test_known_labels_alone_cost_and_others_are_what_the_model_predicts(estimator, loss, monkeypatch):
    # Enough that predictions stay.
    monkeypatch.setattr(completion, "ROUNDS", 8)
    model = estimator(C=0.1, coupling_penalty=1.0, random_state=0, tol=1e-6).fit(X, MISSING)
    completed = model.decode(X, known=MISSING).labels
    known = torch.from_numpy(~np.isnan(MISSING))
    assert (completed.numpy() == MISSING)[known].all()
    with torch.no_grad():
        squares = sum(weight.square().sum() for weight in model.model_.parameters())
        expected = squares / 2 + 0.1 * loss(model.energy(X), completed, known)
    assert model.objective_ == pytest.approx(float(expected), rel=1e-4)


def test_weights_of_missing_labels_are_0():
    labels = np.array([[0, np.nan], [1, 0]])
    assert observed_weights(None, labels[1:]) is None
    assert observed_weights(np.array([2.0, 3.0]), labels).tolist() == [[2, 0], [3, 3]]
    weights = observed_weights(np.array([[2.0, 1.0], [3.0, 4.0]]), labels)
    assert weights.tolist() == [[2, 0], [3, 4]]


def test_no_more_fits_are_made_than_said(monkeypatch):
    made = []
    learn = LMBMClassifier._learn

    def counted(self, *arguments):
        made.append(arguments[-1].copy())
        learn(self, *arguments)

    monkeypatch.setattr(LMBMClassifier, "_learn", counted)
    model = LMBMClassifier(C=1.0, random_state=0).fit(X, MISSING)
    assert 1 <= len(made) <= completion.ROUNDS
    np.testing.assert_array_equal(made[0], completed_labels(X, MISSING, C=1.0, seed=model._seed()))


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(ValueError, match=r"solver: expected 'proximal_newton' .* missing labels"):
        LMBMClassifier(solver="dual_coordinate").fit(X, MISSING)

    with pytest.raises(ValueError, match="y: expected no missing labels"):
        StructuralSVMClassifier(decoder=lambda energy: exact.decode(energy)).fit(X, MISSING)
    never = np.where(np.arange(5) == np.arange(150)[:, None] % 5, np.nan, Y)
    with pytest.raises(ValueError, match="expected instances without missing labels"):
        LMBMClassifier(calibrate="joint", random_state=0).fit(X, never)
