"""Centred gradients take the steps of a machine that is written in deviations from means."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from problems.latent import conditional_machine, latent_module
from problems.small import (
    NUM_FEATURES,
    NUM_LABELS,
    KilledError,
    KillInEpoch,
    assert_bitwise_equal,
    last_checkpoint,
    quiet_trainer,
    served,
    small_data,
    weights_of,
)

from lmbm_torch.cli import jobs
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.training.callbacks.display import SeededEpochs
from lmbm_torch.training.callbacks.latent import CentredGradients
from lmbm_torch.training.runs import fit_and_measure

FEATURE_MEAN = torch.linspace(-1, 1, NUM_FEATURES)
LABEL_MEAN = torch.linspace(0.1, 0.9, NUM_LABELS)
HIDDEN_MEAN = torch.tensor([0.2, 0.5, 0.9])


class CentredMachine(ConditionalRBM):
    """The same energies from other biases."""

    def energy(self, features):
        features = features - FEATURE_MEAN.to(features)
        energy = super().energy(features)
        return BipartiteEnergy(
            energy.visible - self.coupling @ HIDDEN_MEAN.to(features),
            energy.hidden - LABEL_MEAN.to(features) @ self.coupling,
            energy.coupling,
        )


def centred(model):
    """A machine of the same energies, written in deviations."""
    twin = CentredMachine(model.num_features, model.num_labels, model.num_hidden).double()
    twin.load_state_dict(model.state_dict())
    feature_mean, label_mean = FEATURE_MEAN.double(), LABEL_MEAN.double()
    with torch.no_grad():
        twin.visible_bias += twin.visible_weight @ feature_mean + twin.coupling @ HIDDEN_MEAN.double()
        twin.hidden_bias += twin.hidden_weight @ feature_mean + label_mean @ twin.coupling
    return twin


def at_means():
    """Of which that of the hidden units stays."""
    callback = CentredGradients(FEATURE_MEAN, LABEL_MEAN, hidden_rate=0)
    callback.load_state_dict({"hidden_mean": HIDDEN_MEAN})
    return callback


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("objective", ["mle_bp", "mssvm", "lssvm"])
def test_steps_are_those_of_the_centred_machine(tmp_path, objective, momentum):
    features = torch.randn(20, NUM_FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    start, ends = conditional_machine(), []
    for model, callbacks in (
        (conditional_machine(), [at_means()]),
        (centred(start), []),
        (conditional_machine(), []),
    ):
        optimizer = partial(torch.optim.SGD, lr=0.05, momentum=momentum)
        module = latent_module(objective, model=model, optimizer=optimizer)
        quiet_trainer(tmp_path / str(len(ends)), 3, *callbacks).fit(module, datamodule=served(small_data()))
        ends.append(module.model(features))
    ours, expected, plain = ends
    for name in ("visible", "hidden", "coupling"):
        torch.testing.assert_close(getattr(ours, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(ours.visible, plain.visible, atol=1e-3)


def test_what_is_held_fixed_stays_and_takes_nothing_with_it(tmp_path):
    """Of a logistic regression the hidden unit, of given log-odds their weights."""
    for model in (
        ConditionalRBM.logistic_regression(NUM_FEATURES, NUM_LABELS).double(),
        ConditionalRBM.of_log_odds(
            NUM_LABELS, 3, encoder=torch.nn.Linear(NUM_FEATURES, NUM_LABELS), init_std=0.3
        ).double(),
    ):
        fixed = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
        width = model.num_features
        module = latent_module(model=model)
        callback = CentredGradients(torch.full((width,), 0.5), LABEL_MEAN)
        place = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        quiet_trainer(place, 1, callback).fit(module, datamodule=served(small_data()))
        assert fixed
        for name, before in fixed.items():
            assert torch.equal(model.get_parameter(name), before)
        assert model.visible_bias.abs().max() > 0


def test_the_hidden_units_mean_is_that_of_the_data(tmp_path):
    """Missing labels are taken at their means, and with steps of 0 the model stays what it is."""
    data = small_data(missing=30)
    callback = CentredGradients(FEATURE_MEAN, LABEL_MEAN, hidden_rate=0.5)
    module = latent_module(optimizer=partial(torch.optim.SGD, lr=0.0))
    quiet_trainer(tmp_path, 60, callback).fit(module, datamodule=served(data))
    rows = data.train
    features, labels = torch.from_numpy(data.features[rows]), torch.from_numpy(data.labels[rows])
    labels = torch.where(labels.isnan(), LABEL_MEAN.double(), labels)
    with torch.no_grad():
        expected = module.model(features).hidden_given_visible(labels).mean(0)
    torch.testing.assert_close(callback.hidden_mean, expected)
    assert not module.model._forward_hooks


ENCODER = torch.nn.Sequential(torch.nn.Linear(NUM_FEATURES, 4), torch.nn.Dropout()).double()


@pytest.mark.parametrize("encoder", [None, ENCODER], ids=["none", "dropout"])
def test_the_features_mean_is_that_of_the_training_part(tmp_path, encoder):
    data = small_data()
    model = ConditionalRBM(NUM_FEATURES if encoder is None else 4, NUM_LABELS, 3, encoder=encoder).double()
    with torch.no_grad():
        expected = model.eval().features(torch.from_numpy(data.features[data.train])).mean(0)
    callback, start = CentredGradients(), copy.deepcopy(model.train())
    ends = []
    for machine, each in ((model, callback), (start, CentredGradients(expected))):
        torch.manual_seed(0)
        trainer = quiet_trainer(tmp_path / str(len(ends)), 3, SeededEpochs(0), each)
        trainer.fit(module := latent_module(model=machine), datamodule=served(data))
        ends.append(weights_of(module))
    torch.testing.assert_close(callback.feature_mean, expected)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-10, atol=1e-12)
    # As after an interruption, when the encoder has learned.
    again = CentredGradients()
    again.load_state_dict(callback.state_dict())
    assert torch.equal(again.feature_mean, callback.feature_mean)


def test_the_command_line_trains_in_centred_coordinates(tmp_path):
    ends = []
    for callbacks in ("default", "[default,centred]"):
        run = tmp_path / str(len(ends))
        overrides = [
            *("experiment=noisy_digits_mle_bp", f"callbacks={callbacks}", f"paths.run={run}", "logger=none"),
            *("trainer.max_epochs=2", "model.num_hidden=8", "~callbacks.restored_images"),
            "~callbacks.weight_filters",
        ]
        with initialize_config_dir(CONFIGURATION, version_base="1.3"):
            metrics = jobs.start(compose("train", overrides=overrides))
        assert np.isfinite(metrics["test/hamming_loss"])
        ends.append(torch.load(run / "last.ckpt", weights_only=True))
    plain, centred = (each["state_dict"]["model.coupling"] for each in ends)
    assert not torch.allclose(plain, centred)
    (kept,) = (state for name, state in ends[1]["callbacks"].items() if "CentredGradients" in name)
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        module = instantiate(compose("train", overrides=overrides).data)
    expected = torch.as_tensor(module.train_set.features).mean(0)
    torch.testing.assert_close(kept["feature_mean"], expected)


def test_resuming_is_exact(tmp_path):
    def fit(folder, *callbacks, module=None):
        module = module or latent_module()
        trainer = quiet_trainer(
            tmp_path / folder, 4, SeededEpochs(0), CentredGradients(FEATURE_MEAN, LABEL_MEAN), *callbacks
        )
        fit_and_measure(tmp_path, trainer, module, served(small_data(), 20))
        return weights_of(module)

    whole = fit("whole")
    killed = latent_module()
    with pytest.raises(KilledError):
        fit("killed", last_checkpoint(tmp_path), KillInEpoch(2), module=killed)
    assert not killed.model._forward_hooks
    assert_bitwise_equal(whole, fit("resumed", last_checkpoint(tmp_path)))


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path):
    weights = []
    for options in ({}, {"devices": 2, "strategy": "ddp_spawn"}):
        module = latent_module()
        trainer = quiet_trainer(tmp_path, 3, CentredGradients(FEATURE_MEAN, LABEL_MEAN), **options)
        trainer.fit(module, datamodule=served(small_data(), 60 // trainer.world_size))
        weights.append(module.model.weights())
    torch.testing.assert_close(weights[0], weights[1])


def test_means_of_another_shape_are_refused(tmp_path):
    with pytest.raises(ValueError, match="label_mean"):
        quiet_trainer(tmp_path, 1, CentredGradients(FEATURE_MEAN, LABEL_MEAN[1:])).fit(
            latent_module(), datamodule=served(small_data())
        )
    with pytest.raises(ValueError, match="feature_mean"):
        CentredGradients(torch.tensor([float("nan")]), LABEL_MEAN)
    with pytest.raises(ValueError, match="hidden_rate"):
        CentredGradients(FEATURE_MEAN, LABEL_MEAN, hidden_rate=1.5)
