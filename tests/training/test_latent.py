"""Machines with hidden units: matched inference, its record, persistent chains, exact resuming."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from problems.latent import SAMPLED, conditional_machine, latent_module, persistent_module
from problems.small import (
    NUM_FEATURES,
    NUM_LABELS,
    KilledError,
    KillInEpoch,
    assert_bitwise_equal,
    last_checkpoint,
    network,
    quiet_trainer,
    served,
    small_data,
    weights_of,
)
from sweeps import thorough

from lmbm_torch import load
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.losses import bethe_negative_log_likelihood, exact_negative_log_likelihood
from lmbm_torch.losses.latent import METHODS
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.persistence.stored import Given
from lmbm_torch.prediction import answers
from lmbm_torch.training.callbacks.display import SeededEpochs
from lmbm_torch.training.callbacks.latent import BestWeights, IterationSchedule
from lmbm_torch.training.latent import PersistentModule
from lmbm_torch.training.runs import fit_and_measure
from lmbm_torch.training.structured import frobenius


def likelihood(model):
    data = small_data()
    features, labels = torch.from_numpy(data.features), torch.from_numpy(data.labels)
    with torch.no_grad():
        return float(exact_negative_log_likelihood(model(features), labels).mean())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_tells_what_converged(tmp_path, method):
    module = latent_module(method)
    before = likelihood(module.model)
    trainer = quiet_trainer(tmp_path, 30, SeededEpochs(0))
    trainer.fit(module, datamodule=served(small_data(), 20))
    assert ("train/converged" in trainer.callback_metrics) == (method not in SAMPLED)
    if method in ("mle_bp", "mle_mf", "cd"):
        assert likelihood(module.model) < before - 0.3
    assert trainer.test(module, datamodule=served(small_data()), verbose=False)[0]["test/hamming_loss"] < 0.35


@pytest.mark.parametrize("method", thorough([*METHODS], 3))
def test_missing_labels_are_hidden(tmp_path, method):
    module = latent_module(method)
    before = likelihood(module.model)
    data = small_data(missing=60)
    assert np.isnan(data.labels).sum() == 60
    trainer = quiet_trainer(tmp_path, 30, SeededEpochs(0))
    trainer.fit(module, datamodule=served(data, 20))
    if method in ("lssvm", "mssvm", "cd_percloss"):
        complete = served(small_data())
        assert trainer.test(module, datamodule=complete, verbose=False)[0]["test/hamming_loss"] < 0.35
    else:
        assert likelihood(module.model) < before - 0.3


def scores(energy, found):
    """The score of the found labels, hidden units summed out."""
    return -energy.free_energy((found.visible > 0.5).to(energy.dtype))


def test_a_loss_of_one_s_own_is_given_the_inference_that_predicts(tmp_path):
    given = []

    def loss(energy, labels, *, inference=exact.marginals):
        given.append(inference(energy))
        return energy.free_energy(labels) + scores(energy, given[-1])

    module = latent_module("mle_mf", loss=loss, inference={"num_iters": 3, "tol": 0.0})
    trainer = quiet_trainer(tmp_path, 1)
    trainer.fit(module, datamodule=served(small_data(), 20))
    assert {int(count) for found in given for count in found.status.num_iters} == {3}
    assert "train/converged" in trainer.callback_metrics
    assert module.inference.num_iters == 3


def test_a_loss_that_takes_no_inference_is_refused(tmp_path):
    def loss(energy, labels, *, marginals=matrix_bp.marginals):
        return energy.free_energy(labels) + scores(energy, marginals(energy))

    with pytest.raises(TypeError, match="inference") as refused:
        quiet_trainer(tmp_path, 1).fit(latent_module(loss=loss), datamodule=served(small_data(), 20))
    assert refused.value.__notes__ == [
        "The loss of a LatentModule is called as loss(energy, labels, inference=…)."
    ]
    with pytest.raises(ValueError, match="loss: expected a function without a fixed inference"):
        latent_module(loss=partial(bethe_negative_log_likelihood, inference=exact.marginals))


@pytest.mark.parametrize("method", ["mle_bp", "mssvm"])
def test_an_encoder_is_trained_along(tmp_path, method):
    torch.manual_seed(0)
    layer = torch.nn.Linear(NUM_FEATURES, 6)
    module = latent_module(method, model=conditional_machine(torch.nn.Sequential(layer, torch.nn.Tanh())))
    start = layer.weight.detach().clone()
    quiet_trainer(tmp_path, 2).fit(module, datamodule=served(small_data()))
    assert not torch.equal(layer.weight, start)
    assert layer.weight.isfinite().all()


@pytest.mark.parametrize("make", [latent_module, persistent_module])
def test_resuming_is_exact(tmp_path, make):
    def trainer(folder, *callbacks):
        return quiet_trainer(tmp_path / folder, 6, SeededEpochs(0), IterationSchedule(2), *callbacks)

    whole = make()
    trainer("whole").fit(whole, datamodule=served(small_data(), 20))
    last = last_checkpoint(tmp_path)
    with pytest.raises(KilledError):
        trainer("killed", last, KillInEpoch(3)).fit(make(), datamodule=served(small_data(), 20))
    resumed = make()
    # Reports the fit as well: the folder is the run's own.
    fit_and_measure(
        tmp_path, trainer("resumed", last_checkpoint(tmp_path)), resumed, served(small_data(), 20)
    )
    assert_bitwise_equal(weights_of(whole), weights_of(resumed))
    assert resumed.inference.num_iters == whole.inference.num_iters == 7


def test_chains_persist_and_mix(tmp_path):
    """At the model's own distribution the chains' labels have its marginals, wherever they started."""
    module = persistent_module(
        model=conditional_machine(seed=3), optimizer=partial(torch.optim.SGD, lr=0.0), num_steps=2
    )
    data = served(small_data(), 60)
    expected = exact.marginals(module.model(torch.from_numpy(small_data().features[:60]))).visible
    visited = torch.zeros_like(expected)
    seen = 0

    class Visits(SeededEpochs):
        def on_train_epoch_end(self, trainer, pl_module):
            nonlocal seen
            if trainer.current_epoch >= 10:
                assert isinstance(pl_module, PersistentModule)
                assert pl_module.chains is not None
                visited.add_(pl_module.chains)
                seen += 1

    quiet_trainer(tmp_path, 250, Visits(0)).fit(module, datamodule=data)
    torch.testing.assert_close(visited / seen, expected.detach(), atol=0.15, rtol=0)
    assert (visited / seen - expected).mean().abs() < 0.01


def test_checkpoints_carry_the_inference_and_a_mismatch_warns(tmp_path):
    module = latent_module("mssvm")
    trainer = quiet_trainer(tmp_path, 3, last_checkpoint(tmp_path), IterationSchedule(4))
    trainer.fit(module, datamodule=served(small_data()))
    saved = load(tmp_path / "last.ckpt")
    assert saved.inference is not None
    assert saved.inference.stored_parts() == {
        "routine": "lmbm_torch.inference.messages.matrix_bp.marginal_map",
        "num_iters": 6,
        "settings": {"tol": 1e-3},
    }
    features = small_data().features[60:]
    with torch.no_grad():
        expected = module.decoder(module.model(torch.from_numpy(features)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = next(answers.decode(saved, features))
    assert torch.equal(found.labels, expected.labels)
    with pytest.warns(UserWarning, match="matched inference"):
        next(answers.decode(saved, features, MatchedInference(matrix_bp.marginal_map, num_iters=20)))
    with pytest.warns(UserWarning, match="matched inference"):
        latent_module("mssvm", decoder=MatchedInference(mean_field.marginals))
    other = latent_module("mssvm", inference=MatchedInference(matrix_bp.marginal_map, damping=0.5))
    with pytest.warns(UserWarning, match="matched inference"):
        quiet_trainer(tmp_path, 3, last_checkpoint(tmp_path)).test(
            other, datamodule=served(small_data()), ckpt_path=tmp_path / "last.ckpt", verbose=False
        )
    assert other.inference.num_iters == 6


def test_messages_are_kept_as_the_settings_say():
    energy = BipartiteEnergy(*(torch.randn(size).double() for size in ((2, 4), (2, 3), (4, 3))))
    for dtype in (torch.float32, "float32"):
        matched = MatchedInference(matrix_bp.marginals, 5, backend="plain", message_dtype=dtype)
        assert (
            MatchedInference.from_parts(Given(), **matched.stored_parts()).stored_parts()
            == matched.stored_parts()
        )
        expected = matrix_bp.marginals(
            energy, num_iters=5, tol=1e-3, backend="plain", message_dtype=torch.float32
        )
        for found in (matched(energy), matched.marginals(energy)):
            assert torch.equal(found.visible, expected.visible)
    assert MatchedInference(matrix_bp.marginals, backend=None, message_dtype=None).settings == {"tol": 1e-3}


def test_machines_without_input_are_saved_too(tmp_path):
    model = RestrictedBoltzmannMachine(NUM_LABELS, 2).double()
    module = latent_module(model=model)
    quiet_trainer(tmp_path, 1, last_checkpoint(tmp_path)).fit(module, datamodule=served(small_data()))
    saved = load(tmp_path / "last.ckpt")
    assert saved.num_inputs == NUM_FEATURES
    assert_bitwise_equal(dict(saved.estimator.model.state_dict()), dict(model.state_dict()))


def test_the_best_epoch_is_what_is_measured(tmp_path):
    best = ModelCheckpoint(tmp_path, monitor="val/hamming_loss", save_on_train_epoch_end=True)
    module = latent_module(optimizer=partial(torch.optim.SGD, lr=4.0))
    trainer = quiet_trainer(tmp_path, 8, best, BestWeights(), IterationSchedule(2))
    data = served(small_data(), 5, validation_fraction=0.5)
    trainer.fit(module, datamodule=data)
    assert module.inference.num_iters < 9
    score = trainer.validate(module, datamodule=data, verbose=False)[0]["val/hamming_loss"]
    assert best.best_model_score is not None
    assert score == pytest.approx(best.best_model_score.item(), abs=1e-6)


def test_frobenius_spares_the_biases():
    model = conditional_machine()
    with torch.no_grad():
        model.visible_bias.fill_(3.0)
    penalty = frobenius(model, 0.5)
    matrices = (model.coupling, model.visible_weight, model.hidden_weight)
    assert penalty.item() == pytest.approx(0.25 * sum(matrix.square().sum().item() for matrix in matrices))
    penalty.backward()
    assert model.visible_bias.grad is None
    with pytest.raises(ValueError, match="strength"):
        frobenius(model, 0.0)


def test_other_models_and_routines_are_refused():
    with pytest.raises(TypeError, match="restricted Boltzmann machine, got SigmoidBeliefNetwork"):
        latent_module(model=network())
    with pytest.raises(ValueError, match=r"routine: expected one of .*marginals"):
        MatchedInference(exact.marginals)
    with pytest.raises(ValueError, match="num_iters"):
        MatchedInference(matrix_bp.marginals, num_iters=0)
    with pytest.raises(ValueError, match=r"damping: expected None for .*mean_field.marginals, got"):
        MatchedInference(mean_field.marginals, damping=0.5)
    for dtype in (torch.int8, "int8", "single", torch.bfloat16):
        with pytest.raises(ValueError, match="message_dtype: expected None or one of"):
            MatchedInference(matrix_bp.marginals, message_dtype=dtype)
    for options in (
        {"num_steps": 2},
        {"method": "cd", "num_steps": 2, "loss": bethe_negative_log_likelihood},
        {"method": "pcd", "num_steps": 0},
    ):
        with pytest.raises(ValueError, match="num_steps: expected"):
            latent_module(**options)
    with pytest.raises(ValueError, match=r"method: expected one of \['mle_bp', .*got 'svm'"):
        latent_module("svm")
    with pytest.raises(ValueError, match="loss: expected None for pcd"):
        latent_module("pcd", loss=bethe_negative_log_likelihood)


@pytest.mark.parametrize("build", [latent_module, persistent_module])
def test_a_run_that_was_killed_after_its_last_epoch_reports_the_same(tmp_path, build):
    whole, resumed = build(), build()
    quiet_trainer(tmp_path, 2, last_checkpoint(tmp_path)).fit(whole, datamodule=served(small_data(), 16))
    again = quiet_trainer(tmp_path, 2, last_checkpoint(tmp_path))
    fit_and_measure(tmp_path, again, resumed, served(small_data(), 16))
    assert resumed.fit_report == whole.fit_report
    assert resumed.fit_report.keys() == {"fit/objective"}
