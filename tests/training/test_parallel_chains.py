"""Machines without input: what a step is, where chains go, and that training raises the likelihood."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from problems.latent import conditional_machine
from problems.small import (
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

from lmbm_torch.data import MultilabelData
from lmbm_torch.data.images import BinaryImages, alone
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.training.callbacks.display import SeededEpochs
from lmbm_torch.training.callbacks.latent import CentredGradients
from lmbm_torch.training.parallel_chains import ParallelChainsModule
from lmbm_torch.training.runs import fit_and_measure

LABELS = torch.from_numpy(small_data().labels[:60])
KINDS = [{"num_replicas": 1}, {"num_replicas": 1, "num_steps": 3}, {"num_replicas": 3}]


def machine(init_std: float = 0.3, num_hidden: int = 3) -> RestrictedBoltzmannMachine:
    generator = torch.Generator().manual_seed(0)
    return RestrictedBoltzmannMachine(NUM_LABELS, num_hidden, init_std, generator).double()


def chains_module(model: RestrictedBoltzmannMachine | None = None, **options: Any) -> ParallelChainsModule:
    defaults = {"C": 1.0, "num_chains": 40, "optimizer": partial(torch.optim.SGD, lr=0.2)}
    return ParallelChainsModule(model or machine(), **{**defaults, **options})


def bars() -> MultilabelData:
    """Two columns of 4 × 4 pixels, in one of three places; one pixel in ten is flipped."""
    pixels = torch.zeros(150, 4, 4, dtype=torch.uint8)
    for number, image in enumerate(pixels):
        image[:, number % 3 : number % 3 + 2] = 1
    pixels ^= (torch.rand(pixels.shape, generator=torch.Generator().manual_seed(0)) < 0.1).to(torch.uint8)
    rows = np.arange(150)
    return alone(BinaryImages("bars", pixels.numpy(), rows, rows[:0], rows[:0]))


def likelihood(model: RestrictedBoltzmannMachine) -> float:
    labels = torch.from_numpy(bars().labels)
    with torch.no_grad():
        energy = model(labels[:1])
        return float((-energy.free_energy(labels) - exact.log_partition(energy)).mean())


@pytest.mark.parametrize("options", [{}, {"num_replicas": 3}])
def test_the_likelihood_of_the_labels_is_raised(tmp_path, options):
    model = RestrictedBoltzmannMachine(16, 6, 0.1, torch.Generator().manual_seed(0)).double()
    module = chains_module(model, num_chains=100, **options)
    trainer = quiet_trainer(tmp_path, 40, SeededEpochs(0), CentredGradients(hidden_rate=0.2))
    trainer.fit(module, datamodule=served(bars(), 50))
    # By the pixels' frequencies alone it is −10.5; what drew the images has −6.3.
    assert -8 < likelihood(model) < -6


def test_several_steps_for_a_batch_are_as_many_batches_that_leave_the_machine_alone(tmp_path):
    reached = []
    for num_steps, batch_size in ((1, 20), (3, 60)):
        module = chains_module(machine(2.0), num_steps=num_steps, optimizer=partial(torch.optim.SGD, lr=0.0))
        quiet_trainer(tmp_path, 1, SeededEpochs(0)).fit(module, datamodule=served(small_data(), batch_size))
        reached.append(module.chains)
    assert torch.equal(*reached)


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_a_step_takes_the_difference_of_both_sides_statistics(tmp_path, num_replicas):
    model = machine()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    module = chains_module(
        model, num_replicas=num_replicas, optimizer=partial(torch.optim.SGD, lr=1.0), C=0.5
    )
    started = []

    class Watch(SeededEpochs):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            started.append((pl_module.chains.double(), pl_module.model.visible_bias.detach().clone()))

    quiet_trainer(tmp_path, 1, Watch(0)).fit(module, datamodule=served(small_data(), 60))
    chains, visible_bias = started[0]
    assert chains.shape == (40 * num_replicas, NUM_LABELS)
    frequencies = (LABELS.sum(0) + 1) / 62
    torch.testing.assert_close(visible_bias, frequencies.logit())
    own = chains[-40:]

    def hidden(visible):
        return torch.sigmoid(start["hidden_bias"] + visible @ start["coupling"])

    expected = {
        "visible_bias": visible_bias + 0.5 * (LABELS.mean(0) - own.mean(0)),
        "hidden_bias": start["hidden_bias"] + 0.5 * (hidden(LABELS).mean(0) - hidden(own).mean(0)),
        "coupling": start["coupling"] + 0.5 * (LABELS.T @ hidden(LABELS) / 60 - own.T @ hidden(own) / 40),
    }
    for name, value in expected.items():
        torch.testing.assert_close(model.get_parameter(name).detach(), value, msg=name)


@pytest.mark.parametrize("options", KINDS)
def test_chains_reach_the_machine_s_distribution_wherever_they_start(tmp_path, options):
    """All replicas that of their own temperature, with steps of 0."""
    model = machine(2.0)
    module = chains_module(model, num_chains=2000, optimizer=partial(torch.optim.SGD, lr=0.0), **options)
    quiet_trainer(tmp_path, 60, SeededEpochs(0)).fit(module, datamodule=served(small_data(), 60))
    energy = model(LABELS[:1])
    states = exact.marginals(energy).visible
    assert module.chains is not None
    visited = module.chains[-2000:].double().mean(0)
    assert ((visited - states).abs() < 5 * (states * (1 - states) / 2000).sqrt()).all()
    # The first replica is that of the frequencies alone.
    if module.num_replicas > 1:
        first = module.chains[:2000].double().mean(0)
        frequencies = (LABELS.sum(0) + 1) / 62
        assert (first - frequencies).abs().max() < 5 * 0.5 / 2000**0.5
        assert (first - states).abs().max() > 0.1


def test_trained_biases_are_left_where_they_are(tmp_path):
    model = machine()
    torch.nn.init.constant_(model.visible_bias, 0.3)
    module = chains_module(model, optimizer=partial(torch.optim.SGD, lr=0.0))
    quiet_trainer(tmp_path, 1).fit(module, datamodule=served(small_data(), 60))
    assert (model.visible_bias == 0.3).all()


def test_centred_steps_follow_from_plain_ones(tmp_path):
    """At the labels' mean by default, and the hidden units' of the last batches."""
    hidden_mean, label_mean = torch.tensor([0.2, 0.5, 0.9]).double(), LABELS.mean(0)
    ends = []
    for centred in (False, True):
        callback = CentredGradients(hidden_rate=0.5)
        callback.load_state_dict({"hidden_mean": hidden_mean.clone()})
        module = chains_module(optimizer=partial(torch.optim.SGD, lr=1.0))
        torch.nn.init.constant_(module.model.visible_bias, 0.3)
        before = {name: value.clone() for name, value in weights_of(module).items()}
        trainer = quiet_trainer(tmp_path, 1, SeededEpochs(0), *([callback] if centred else []))
        trainer.fit(module, datamodule=served(small_data(), 60))
        ends.append({name: value - before[name] for name, value in weights_of(module).items()})
        reached = torch.sigmoid(before["hidden_bias"] + LABELS @ before["coupling"]).mean(0)
    plain, ours = ends
    coupling = (
        plain["coupling"]
        - plain["visible_bias"][:, None] * hidden_mean
        - label_mean[:, None] * plain["hidden_bias"]
    )
    torch.testing.assert_close(ours["coupling"], coupling)
    torch.testing.assert_close(ours["visible_bias"], plain["visible_bias"] - coupling @ hidden_mean)
    torch.testing.assert_close(ours["hidden_bias"], plain["hidden_bias"] - label_mean @ coupling)
    assert callback.hidden_mean is not None
    torch.testing.assert_close(callback.hidden_mean, (hidden_mean + reached) / 2)


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_resuming_is_exact(tmp_path, num_replicas):
    def fit(folder, *callbacks, module=None):
        module = module or chains_module(num_replicas=num_replicas)
        callbacks = SeededEpochs(0), CentredGradients(), *callbacks
        trainer = quiet_trainer(tmp_path / folder, 4, *callbacks)
        fit_and_measure(tmp_path, trainer, module, served(small_data(), 20))
        assert module.chains is not None
        return {**weights_of(module), "chains": module.chains}

    whole = fit("whole")
    with pytest.raises(KilledError):
        fit("killed", last_checkpoint(tmp_path), KillInEpoch(2))
    assert_bitwise_equal(whole, fit("resumed", last_checkpoint(tmp_path)))


@pytest.mark.slow
def test_each_of_two_processes_has_chains_of_its_own(tmp_path):
    model = RestrictedBoltzmannMachine(16, 6, 0.1, torch.Generator().manual_seed(0)).double()
    callbacks = SeededEpochs(0), CentredGradients(hidden_rate=0.2), last_checkpoint(tmp_path)
    trainer = quiet_trainer(tmp_path, 40, *callbacks, devices=2, strategy="ddp_spawn")
    trainer.fit(chains_module(model), datamodule=served(bars(), 25))
    chains = torch.load(tmp_path / "last.ckpt", weights_only=True)["chains"]
    assert chains.shape == (2, 40, 16)
    assert not torch.equal(*chains)
    assert likelihood(model) > -9


@pytest.mark.usefixtures("no_shape_checks")
def test_refusals(tmp_path):
    with pytest.raises(TypeError, match="model: expected a machine without input, got ConditionalRBM"):
        chains_module(conditional_machine())
    for name in ("num_chains", "num_steps", "num_replicas"):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            chains_module(**{name: 0})
    with pytest.raises(ValueError, match="labels: expected"):
        quiet_trainer(tmp_path, 1).fit(chains_module(), datamodule=served(small_data(missing=5), 60))
    with pytest.raises(ValueError, match="feature_mean: expected None for a machine without input"):
        quiet_trainer(tmp_path, 1, CentredGradients(torch.zeros(5))).fit(
            chains_module(), datamodule=served(small_data(), 60)
        )
