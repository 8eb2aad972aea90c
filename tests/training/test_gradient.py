"""The gradient route: unbiased steps, the objective of the dual, any loss and encoder, exact resuming."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from problems.small import (
    NUM_FEATURES,
    C,
    KilledError,
    KillInEpoch,
    assert_bitwise_equal,
    dual_module,
    gradient_module,
    last_checkpoint,
    network,
    quiet_trainer,
    served,
    small_data,
    stop_at,
    weights_of,
)
from sweeps import slow

from lmbm_torch.losses import local_hinge, negative_log_likelihood
from lmbm_torch.training.callbacks.display import SeededEpochs
from lmbm_torch.training.runs import fit_and_measure


def decaying(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)


@pytest.fixture
def fitted_dual(tmp_path):
    module = dual_module()
    quiet_trainer(tmp_path, 500, stop_at(1e-4)).fit(module, datamodule=served(small_data()))
    return module


@pytest.mark.parametrize("sparse", [True, slow(False)])
def test_it_reaches_the_objective_of_the_dual(tmp_path, fitted_dual, sparse):
    module = gradient_module(optimizer=partial(torch.optim.Adam, lr=0.1), scheduler=decaying)
    quiet_trainer(tmp_path, 400).fit(module, datamodule=served(small_data(sparse=sparse)))
    optimum = fitted_dual.fit_report["fit/objective"]
    assert optimum * (1 - 1e-4) <= module.fit_report["fit/objective"] <= optimum * (1 + 1e-2)
    assert module.fit_report["fit/mean_hinge"] == pytest.approx(
        fitted_dual.fit_report["fit/mean_hinge"], rel=0.05
    )


class StepsTaken(Callback):
    """Gradients and objectives of all steps."""

    def __init__(self):
        self.gradients, self.objectives = [], []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        weights = pl_module.model.parameters()
        self.gradients.append(torch.cat([weight.grad.flatten() for weight in weights]))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.objectives.append(outputs["loss"])


@pytest.mark.parametrize("loss", [local_hinge, negative_log_likelihood])
def test_steps_average_to_the_gradient_of_the_objective(tmp_path, loss):
    data = small_data()
    model = network(degree=3)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(1))
    features, labels = torch.from_numpy(data.train_features), torch.from_numpy(data.train_labels)
    weights = model.weights()
    objective = weights @ weights / 2 + C * loss(model(features), labels).sum()
    gradient = torch.cat(
        [part.flatten() for part in torch.autograd.grad(objective, list(model.parameters()))]
    )

    steps = StepsTaken()
    module = gradient_module(model, loss=loss, optimizer=partial(torch.optim.SGD, lr=0.0))
    trainer = quiet_trainer(tmp_path, 1, steps)
    trainer.fit(module, datamodule=served(data, batch_size=12))
    assert len(steps.gradients) == 5
    torch.testing.assert_close(60 * torch.stack(steps.gradients).mean(0), gradient, rtol=0, atol=1e-11)
    torch.testing.assert_close(60 * torch.stack(steps.objectives).mean(), objective.detach())
    assert trainer.callback_metrics["train/objective"] == pytest.approx(objective.item())
    assert module.fit_report["fit/objective"] == pytest.approx(objective.item(), rel=1e-12)


def test_gradients_agree_with_finite_differences():
    data = small_data(missing=5)
    features = torch.from_numpy(data.train_features[:6])
    labels = torch.from_numpy(data.train_labels[:6])
    model = network(degree=3)
    names = [name for name, _ in model.named_parameters()]

    def loss(*weights):
        parameters = dict(zip(names, weights, strict=True))
        energy = torch.func.functional_call(model, parameters, features)
        return negative_log_likelihood(energy, labels).mean()

    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(weight.shape, generator=generator, dtype=weight.dtype, requires_grad=True)
        for weight in model.parameters()
    ]
    assert torch.autograd.gradcheck(loss, weights)


def test_missing_labels_are_left_out_of_the_loss(tmp_path):
    data = small_data(missing=40)
    module = gradient_module(scheduler=decaying)
    quiet_trainer(tmp_path, 100).fit(module, datamodule=served(data))
    report = module.fit_report
    with torch.no_grad():
        energy = module(torch.from_numpy(data.train_features))
        hinge = local_hinge(energy, torch.from_numpy(data.train_labels)).mean().item()
    assert report["fit/mean_hinge"] == pytest.approx(hinge, rel=1e-12)
    assert report["fit/mean_hinge"] < 2
    assert "fit/error_bound" not in report


def test_an_encoder_is_trained_along(tmp_path):
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Linear(NUM_FEATURES, NUM_FEATURES), torch.nn.Tanh()).double()
    before = [weight.detach().clone() for weight in encoder.parameters()]
    objectives = []

    class Objectives(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            objectives.append(trainer.callback_metrics["train/objective"].item())

    module = gradient_module(network(encoder=encoder))
    quiet_trainer(tmp_path, 60, Objectives()).fit(module, datamodule=served(small_data()))
    assert module.fit_report["fit/objective"] < 0.7 * objectives[0]
    for old, new in zip(before, encoder.parameters(), strict=True):
        assert not torch.equal(old, new)


def test_weight_decay_is_the_encoders_alone():
    encoder = torch.nn.Linear(NUM_FEATURES, NUM_FEATURES)
    encoder.bias.requires_grad_(False)
    module = gradient_module(network(encoder=encoder), optimizer=partial(torch.optim.AdamW, weight_decay=0.1))
    head, body = module.configure_optimizers().param_groups
    assert (head["weight_decay"], body["weight_decay"]) == (0.0, 0.1)
    assert {id(weight) for weight in body["params"]} == {id(encoder.weight)}
    expected = (module.model.feature_weight, module.model.bias, module.model.parent_weight)
    assert {id(weight) for weight in (*expected, module.model.clique_weight)} == set(map(id, head["params"]))


class LearningRates(Callback):
    def __init__(self):
        self.rates = []

    def on_train_epoch_start(self, trainer, pl_module):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def test_the_scheduler_steps_once_an_epoch(tmp_path):
    rates = LearningRates()
    module = gradient_module(
        optimizer=partial(torch.optim.SGD, lr=1e-3),
        scheduler=partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5),
    )
    quiet_trainer(tmp_path, 3, rates).fit(module, datamodule=served(small_data(), batch_size=12))
    assert rates.rates == [1e-3, 5e-4, 2.5e-4]


def noisy_module():
    """Adam and a schedule have a state, and dropout draws random numbers: all is to be taken up again."""
    torch.manual_seed(3)
    encoder = torch.nn.Sequential(torch.nn.Linear(NUM_FEATURES, NUM_FEATURES), torch.nn.Dropout(0.3))
    return gradient_module(network(encoder=encoder), scheduler=decaying)


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path):
    whole = noisy_module()
    quiet_trainer(tmp_path, 6, SeededEpochs(1)).fit(whole, datamodule=served(small_data(), 16))

    trainer = quiet_trainer(tmp_path, 6, SeededEpochs(1), last_checkpoint(tmp_path), KillInEpoch(4))
    with pytest.raises(KilledError):
        trainer.fit(noisy_module(), datamodule=served(small_data(), 16))
    resumed = noisy_module()
    torch.manual_seed(99)
    again = quiet_trainer(tmp_path, 6, SeededEpochs(1), last_checkpoint(tmp_path))
    fit_and_measure(tmp_path, again, resumed, served(small_data(), 16))
    assert_bitwise_equal(weights_of(whole), weights_of(resumed))
    assert whole.fit_report == resumed.fit_report


def test_validation_and_test_decode_exactly(tmp_path):
    data = served(small_data(), batch_size=7, validation_fraction=0.25)
    module = gradient_module()
    trainer = quiet_trainer(tmp_path, 20)
    trainer.fit(module, datamodule=data)
    assert trainer.callback_metrics["val/proven_optimal"] == 1.0
    scores = trainer.test(module, datamodule=data, verbose=False)[0]
    with torch.no_grad():
        energy = module(torch.from_numpy(data.test_set.features))
    decoding = module.decoder(energy)
    right = (decoding.labels == data.test_set.labels).all(-1).double().mean().item()
    assert scores["test/exact_match"] == pytest.approx(right)
    assert scores["test/mean_nodes"] == pytest.approx(decoding.nodes.double().mean().item())
    assert scores["test/proven_optimal"] == 1.0
    predicted = trainer.predict(module, datamodule=data)
    assert torch.equal(torch.cat(predicted), decoding.labels)
