"""Boltzmann machines in the dual: the certified optimum, that of gradients, exact resuming, refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from problems.boltzmann import CLIQUES, EPOCHS, assert_resumes_exactly, convex_optimum, every_form, fast
from problems.small import (
    NUM_FEATURES,
    ORDERING,
    C,
    dual_module,
    gradient_module,
    machine,
    network,
    quiet_trainer,
    served,
    small_data,
    stop_at,
)

from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier
from lmbm_torch.fitting.completion import completed_labels
from lmbm_torch.training.dual import DualModule
from lmbm_torch.training.structured import quadratic


@pytest.mark.parametrize("coupling_penalty", [0.5, 10.0])
def test_it_certifies_the_objective_of_the_paper(tmp_path, coupling_penalty):
    module = dual_module(machine(), coupling_penalty=coupling_penalty)
    trainer = quiet_trainer(tmp_path, 500, stop_at(1e-4))
    trainer.fit(module, datamodule=served(small_data(), 7))
    assert module.fit_report["fit/objective"] == pytest.approx(convex_optimum(coupling_penalty), rel=2e-4)
    assert 0 <= module.fit_report["fit/gap"] <= 1e-4
    assert trainer.callback_metrics["train/gap"] == pytest.approx(module.fit_report["fit/gap"])


@every_form
def test_gradients_reach_its_objective_whatever_the_cliques(tmp_path, cliques):
    data = small_data(sparse=True)
    dual = dual_module(machine(**CLIQUES[cliques]), coupling_penalty=3.0)
    quiet_trainer(tmp_path, 500, stop_at(1e-4)).fit(dual, datamodule=served(data))
    penalty = partial(quadratic, coupling_penalty=3.0)
    gradient = gradient_module(machine(**CLIQUES[cliques]), penalty=penalty, **fast())
    quiet_trainer(tmp_path, EPOCHS).fit(gradient, datamodule=served(data))
    objectives = [module.fit_report["fit/objective"] for module in (dual, gradient)]
    assert objectives[0] * (1 - 1e-4) <= objectives[1] <= objectives[0] * (1 + 1e-2)


def test_a_killed_dual_run_goes_on_to_the_same_weights(tmp_path):
    assert_resumes_exactly(tmp_path, lambda: dual_module(machine(), coupling_penalty=10.0, tol=1e-9), 5)


def test_an_encoder_to_train_needs_the_gradient_route():
    with pytest.raises(ValueError, match=r"encoder .*GradientModule"):
        dual_module(machine(encoder=torch.nn.Linear(NUM_FEATURES, NUM_FEATURES).double()))


def test_the_dual_route_of_belief_networks_knows_one_penalty():
    with pytest.raises(ValueError, match=r"coupling_penalty: expected 1.*GradientModule"):
        dual_module(network(), coupling_penalty=10.0)
    with pytest.raises(ValueError, match="coupling_penalty: expected a number above 0, 'scale' or"):
        dual_module(machine(), coupling_penalty="some")


def test_missing_labels_cost_nothing_and_are_completed_as_by_the_estimator(tmp_path):
    data = small_data(missing=40)
    module = dual_module(machine(), tol=1e-8)
    quiet_trainer(tmp_path, 300, stop_at(1e-8)).fit(module, datamodule=served(data))
    features, labels = data.features[data.train], data.labels[data.train]
    known = ~np.isnan(labels)
    first = completed_labels(features, labels, C=module.C, seed=module.seed)
    complete = module.optimizers().complete
    assert (complete == labels)[known].all()
    # What the machine itself predicts is not what the network did.
    assert (complete != first).any()
    assert module.optimizers().rounds > 1
    estimator = LMBMClassifier(module.C, coupling_penalty=1.0, tol=1e-8, random_state=module.seed)
    estimator.fit(features, labels)
    np.testing.assert_allclose(module.model.feature_weight.detach(), estimator.coef_, atol=1e-3)
    margins = module.model(torch.from_numpy(features)).local_margins(torch.from_numpy(complete))
    hinge = (1 - margins).clamp(min=0).detach().numpy()[known].sum()
    squares = sum(float(weight.detach().square().sum()) for weight in module.model.parameters())
    assert module.fit_report["fit/objective"] == pytest.approx(squares / 2 + module.C * hinge, rel=1e-5)
    assert module.calibration is not None


@pytest.mark.parametrize("C", ["scale", "0.3*scale", 0.3])
def test_C_counts_in_the_units_of_the_estimators(tmp_path, C):
    data = small_data()
    if isinstance(C, str):
        data = replace(data, features=data.features * [1e-3, *[1.0] * (NUM_FEATURES - 2), 1e3] + 5)
    common: dict[str, Any] = {"tol": 1e-8, "random_state": 0}
    estimators = [LMSBNClassifier(C, ordering=ORDERING, **common), LMBMClassifier(C, **common)]
    for model, estimator in zip((network(), machine()), estimators, strict=True):
        penalty = 1.0 if estimator is estimators[0] else "scale"
        module = DualModule(model, C=C, coupling_penalty=penalty, tol=1e-8, calibrate=False)
        quiet_trainer(tmp_path, 500, stop_at(1e-8)).fit(module, datamodule=served(data))
        estimator.fit(data.features[data.train], data.labels[data.train])
        found = model.feature_weight.detach().numpy() * np.ravel(estimator.feature_scale_)
        np.testing.assert_allclose(found, estimator.coef_ * estimator.feature_scale_, rtol=0.01, atol=1e-3)
        assert module.fit_report["fit/objective"] == pytest.approx(estimator.objective_, rel=1e-6)


def test_a_completion_goes_on_where_a_checkpoint_left_it(tmp_path):
    data = small_data(missing=40)
    whole, first, second = (dual_module(machine(), tol=1e-8, calibrate=False) for _ in range(3))
    quiet_trainer(tmp_path / "whole", 300, stop_at(1e-8)).fit(whole, datamodule=served(data))
    passes = whole.optimizers().solver_state.num_iters
    trainer = quiet_trainer(tmp_path / "first", passes - 1)
    trainer.fit(first, datamodule=served(data))
    assert first.optimizers().rounds > 1
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    rest = quiet_trainer(tmp_path / "second", 300, stop_at(1e-8))
    rest.fit(second, datamodule=served(data), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert second.optimizers().solver_state.num_iters == passes
    for ours, others in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, others)


def test_couplings_are_penalised_by_half_of_the_losses_weight(tmp_path):
    """As the estimator has it by default."""
    data, reports = small_data(), []
    for penalty in ("scale", C * len(data.train_labels) / 2, 1.0):
        module = dual_module(machine(), coupling_penalty=penalty, tol=1e-6)
        quiet_trainer(tmp_path, 200, stop_at(1e-6)).fit(module, datamodule=served(data))
        reports.append(module.fit_report)
    assert reports[0] == reports[1]
    assert reports[0]["fit/objective"] > reports[2]["fit/objective"]
