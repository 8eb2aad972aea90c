"""The dual route reaches the certified optimum, takes what it is given as it is, and goes on where it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from problems.small import (
    NUM_FEATURES,
    NUM_LABELS,
    ORDERING,
    C,
    KilledError,
    KillInEpoch,
    assert_bitwise_equal,
    dual_module,
    last_checkpoint,
    network,
    quiet_trainer,
    served,
    small_data,
    stop_at,
    weights_of,
)
from scipy.sparse import csr_array, issparse

from lmbm_torch.energies.base import cliques_up_to
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems
from lmbm_torch.training.runs import fit_and_measure


def optimum(features, degree=2, tol=1e-6):
    """The primal value to a tight gap, by the solver on its own."""
    problems = LabelProblems.from_labels(
        features,
        small_data().train_labels,
        ordering=ORDERING,
        parents=degree > 1,
        cliques=cliques_up_to(NUM_LABELS, degree),
        C=C,
    )
    return run(dual_coordinate, problems, tol=tol).primal.sum()


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [60, 7])
def test_it_stops_at_the_gap_and_at_the_optimum(tmp_path, degree, batch_size):
    data = small_data()
    module = dual_module(network(degree))
    trainer = quiet_trainer(tmp_path, 500, stop_at(1e-4))
    trainer.fit(module, datamodule=served(data, batch_size))
    assert trainer.current_epoch < 500
    assert trainer.global_step == trainer.current_epoch
    assert 0 <= module.fit_report["fit/gap"] < 1e-4
    assert trainer.callback_metrics["train/gap"] == pytest.approx(module.fit_report["fit/gap"], rel=1e-4)
    assert module.fit_report["fit/objective"] == pytest.approx(optimum(data.train_features, degree), rel=2e-4)


def test_the_report_is_of_the_model_that_predicts(tmp_path):
    data = small_data()
    module = dual_module()
    quiet_trainer(tmp_path, 500, stop_at(1e-4)).fit(module, datamodule=served(data, 7))
    with torch.no_grad():
        energy = module(torch.from_numpy(data.train_features))
    labels = torch.from_numpy(data.train_labels)
    hinge = (1 - energy.local_margins(labels)).clamp_min(0).sum(-1)
    weights = module.model.weights().detach()
    report = module.fit_report
    assert report["fit/mean_hinge"] == pytest.approx(hinge.mean().item(), rel=1e-12)
    assert report["fit/objective"] == pytest.approx(
        (weights @ weights / 2 + C * hinge.sum()).item(), rel=1e-12
    )
    assert report["fit/threshold"] == 1.0
    wrong = (branch_and_bound.decode_hinge(energy).labels != labels).any(-1).double().mean().item()
    assert 0 < wrong <= report["fit/error_bound"] == pytest.approx(min(1, hinge.mean().item()), rel=1e-12)


def test_the_margin_scales_the_solution(tmp_path):
    one, two = dual_module(tol=1e-8), dual_module(tol=1e-8, margin=2.0)
    for module in (one, two):
        quiet_trainer(tmp_path, 500, stop_at(1e-8)).fit(module, datamodule=served(small_data()))
    assert two.fit_report["fit/threshold"] == 2.0
    # Losses grow like γ and the regulariser like γ², so twice the margin is half the C at the old scale.
    with_half = dual_module(tol=1e-8, C=C / 2)
    quiet_trainer(tmp_path, 500, stop_at(1e-8)).fit(with_half, datamodule=served(small_data()))
    objective = two.fit_report["fit/objective"]
    assert objective == pytest.approx(4 * with_half.fit_report["fit/objective"], rel=1e-6)
    assert objective != pytest.approx(4 * one.fit_report["fit/objective"], rel=1e-2)


def test_sparse_features_stay_sparse_and_give_the_same(tmp_path):
    data = small_data()
    features = np.where(np.abs(data.features) < 0.8, 0.0, data.features)
    dense, sparse = dual_module(tol=1e-8), dual_module(tol=1e-8)
    for module, given in ((dense, features), (sparse, csr_array(features))):
        quiet_trainer(tmp_path, 500, stop_at(1e-8)).fit(
            module, datamodule=served(replace(data, features=given), 7)
        )
    kept = sparse.optimizers().problem.problem.features
    assert issparse(kept)
    assert np.array_equal(csr_array(kept).toarray(), features[data.train])
    assert sparse.fit_report["fit/objective"] == pytest.approx(dense.fit_report["fit/objective"], rel=1e-7)


def test_a_frozen_encoder_is_taken_in_evaluation_mode(tmp_path):
    encoder = torch.nn.Sequential(
        torch.nn.Linear(NUM_FEATURES, NUM_FEATURES), torch.nn.ReLU(), torch.nn.Dropout()
    )
    module = dual_module(network(encoder=encoder.double().requires_grad_(False)))
    quiet_trainer(tmp_path, 500, stop_at(1e-4)).fit(module, datamodule=served(small_data(), 7))
    encoded = encoder[:2](torch.from_numpy(small_data().train_features)).numpy()
    assert module.fit_report["fit/objective"] == pytest.approx(optimum(encoded), rel=2e-4)


def test_an_encoder_to_train_is_refused():
    with pytest.raises(ValueError, match=r"encoder.*got 30; .*GradientModule \(training=gradient\)"):
        dual_module(network(encoder=torch.nn.Linear(NUM_FEATURES, NUM_FEATURES)))


def test_missing_labels_are_imputed_by_the_labels_before_as_in_the_estimators(tmp_path):
    data = small_data(missing=60)
    module = dual_module(tol=1e-6)
    trainer = quiet_trainer(tmp_path, 500, stop_at(1e-6))
    trainer.fit(module, datamodule=served(data))
    estimator = LMSBNClassifier(C=C, ordering=ORDERING, tol=1e-7, max_iter=10_000)
    estimator.fit(data.train_features, data.train_labels)
    assert trainer.current_epoch < 500
    assert module.optimizers().stages_done == NUM_LABELS - 1
    for name, value in weights_of(module).items():
        torch.testing.assert_close(value, estimator.model_.state_dict()[name], rtol=1e-3, atol=1e-3)
    assert module.fit_report["fit/gap"] < 1e-6


@pytest.mark.parametrize("missing", [0, 1])
def test_whole_labellings_are_calibrated_where_some_are_known(tmp_path, missing):
    data = small_data()
    labels = data.labels.copy()
    labels[range(60 * missing), np.arange(60 * missing) % NUM_LABELS] = np.nan
    module = dual_module(tol=1e-2)
    trainer = quiet_trainer(tmp_path, 500, stop_at(1e-2))
    trainer.fit(module, datamodule=served(replace(data, labels=labels)))
    assert module.calibration is not None
    assert len(module.calibration.factors) == (1 if missing else 2)


@pytest.mark.parametrize(("calibrate", "members"), [("scale", 1), ("labels", 1), ("joint", 2)])
def test_probabilities_are_calibrated_as_asked_for(tmp_path, calibrate, members):
    module = dual_module(tol=1e-2, calibrate=calibrate)
    quiet_trainer(tmp_path, 500, stop_at(1e-2)).fit(module, datamodule=served(small_data()))
    assert module.calibration is not None
    assert len(module.calibration.factors) == members
    assert bool(module.calibration.shift.any()) == (calibrate != "scale")


def test_an_unknown_calibration_is_refused():
    with pytest.raises(ValueError, match=r"calibrate: expected true, false or one of .* got 'isotonic'"):
        dual_module(calibrate="isotonic")


def test_the_gap_counts_labels_that_wait(tmp_path):
    """None of them is learned while labels before them lack values."""
    module = dual_module(tol=1e-4)
    trainer = quiet_trainer(tmp_path, 1)
    trainer.fit(module, datamodule=served(small_data(missing=60)))
    optimizer = module.optimizers()
    assert optimizer.solver_state.stage == range(1)
    assert trainer.callback_metrics["train/gap"] == 1
    assert not optimizer.solver_state.dual_coef[1:].any()


def test_several_processes_are_refused(tmp_path, monkeypatch):
    trainer = quiet_trainer(tmp_path, 1)
    monkeypatch.setattr(type(trainer), "world_size", 2)
    with pytest.raises(ValueError, match=r"one process.*got 2; .*GradientModule"):
        trainer.fit(dual_module(), datamodule=served(small_data()))


@pytest.mark.parametrize("option", [{"C": 0.0}, {"margin": -1.0}, {"tol": 0.0}, {"label_names": ["one"]}])
def test_bad_arguments_are_named(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        dual_module(**option)


@pytest.mark.parametrize(("missing", "tol", "epochs"), [(0, 1e-9, 12), (30, 1e-4, 6)])
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, missing, tol, epochs):
    whole, data = dual_module(tol=tol), small_data(missing=missing)
    quiet_trainer(tmp_path, epochs).fit(whole, datamodule=served(data, 7))

    killed = quiet_trainer(tmp_path, epochs, last_checkpoint(tmp_path), KillInEpoch(epochs // 2))
    interrupted = dual_module(tol=tol)
    with pytest.raises(KilledError):
        killed.fit(interrupted, datamodule=served(data, 7))
    # With missing labels, in the midst of the stages.
    assert (0 < interrupted.optimizers().stages_done < NUM_LABELS - 1) == bool(missing)
    resumed = dual_module(tol=tol)
    trainer = quiet_trainer(tmp_path, epochs, last_checkpoint(tmp_path))
    fit_and_measure(tmp_path, trainer, resumed, served(data, 7))
    assert trainer.global_step == epochs
    assert_bitwise_equal(weights_of(whole), weights_of(resumed))
    state, other = whole.optimizers().solver_state, resumed.optimizers().solver_state
    assert np.array_equal(state.dual_coef, other.dual_coef)
    assert (state.num_iters, state.gap) == (other.num_iters, other.gap)
    assert whole.fit_report == resumed.fit_report


def test_a_run_that_had_stopped_is_not_trained_further(tmp_path):
    stopped = dual_module()
    trainer = quiet_trainer(tmp_path, 500, stop_at(1e-2), last_checkpoint(tmp_path))
    trainer.fit(stopped, datamodule=served(small_data()))

    resumed = dual_module()
    again = quiet_trainer(tmp_path, 500, stop_at(1e-2), last_checkpoint(tmp_path))
    fit_and_measure(tmp_path, again, resumed, served(small_data()))
    assert again.global_step == trainer.global_step
    assert_bitwise_equal(weights_of(stopped), weights_of(resumed))
    assert resumed.fit_report == stopped.fit_report


def test_duals_of_another_problem_are_refused(tmp_path):
    module = dual_module()
    quiet_trainer(tmp_path, 3).fit(module, datamodule=served(small_data()))
    optimizer = module.optimizers()
    saved = optimizer.state_dict()
    with pytest.raises(ValueError, match="dual_coef"):
        optimizer.load_state_dict({**saved, "dual_coef": saved["dual_coef"][:, :-1]})
    with pytest.raises(ValueError, match="dual_coef"):
        optimizer.load_state_dict({**saved, "dual_coef": saved["dual_coef"] + C})
