"""The gradient route trains models with hidden units by every loss of theirs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from problems.small import NUM_FEATURES, NUM_LABELS, gradient_module, quiet_trainer, served, small_data
from strategies.pairwise import all_labellings

from lmbm_torch.data import MultilabelData
from lmbm_torch.data.features import numbered
from lmbm_torch.inference.messages import conditional_modes
from lmbm_torch.losses import (
    bethe_negative_log_likelihood,
    contrastive_divergence,
    contrastive_perceptron,
    exact_negative_log_likelihood,
    joint_structured_hinge,
    marginal_structured_hinge,
    mean_field_negative_log_likelihood,
)
from lmbm_torch.models import ConditionalRBM, RestrictedBoltzmannMachine

LOSSES = [
    bethe_negative_log_likelihood,
    contrastive_divergence,
    contrastive_perceptron,
    exact_negative_log_likelihood,
    joint_structured_hinge,
    marginal_structured_hinge,
    mean_field_negative_log_likelihood,
]


@pytest.mark.parametrize("loss", LOSSES)
def test_conditional_machines_learn_by_every_loss(tmp_path, loss):
    torch.manual_seed(0)
    model = ConditionalRBM(NUM_FEATURES, NUM_LABELS, 3, init_std=0.3).double()
    module = gradient_module(model, loss=loss, decoder=conditional_modes.marginal_map)
    trainer = quiet_trainer(tmp_path, 40)
    trainer.fit(module, datamodule=served(small_data()))
    assert set(module.fit_report) == {"fit/objective"}
    assert trainer.test(module, datamodule=served(small_data()), verbose=False)[0]["test/hamming_loss"] < 0.35


def test_frozen_weights_stay(tmp_path):
    model = ConditionalRBM.logistic_regression(NUM_FEATURES, NUM_LABELS).double()
    module = gradient_module(
        model, loss=exact_negative_log_likelihood, decoder=conditional_modes.marginal_map
    )
    quiet_trainer(tmp_path, 5).fit(module, datamodule=served(small_data()))
    assert not model.coupling.any()
    assert model.visible_weight.any()


@pytest.mark.slow
def test_maximum_likelihood_recovers_a_planted_distribution(tmp_path):
    torch.manual_seed(1)
    planted = RestrictedBoltzmannMachine(4, 2, init_std=5.0).double()
    labels = all_labellings(4)
    with torch.no_grad():
        logs = -planted(torch.ones(1, 1)).free_energy(labels).squeeze(1)
    logs = logs.log_softmax(0)
    counts = (2000 * logs.exp()).round().long()
    rows = labels.squeeze(1).repeat_interleave(counts, 0).double().numpy()
    data = MultilabelData(
        name="planted",
        features=np.ones((len(rows), 1)),
        labels=rows,
        label_names=numbered("label", 4),
        feature_names=("one",),
        train=np.arange(len(rows)),
        test=np.arange(0),
    )
    model = RestrictedBoltzmannMachine(4, 2, init_std=0.5).double()
    module = gradient_module(
        model,
        loss=exact_negative_log_likelihood,
        decoder=conditional_modes.marginal_map,
        C=100.0,
        optimizer=partial(torch.optim.Adam, lr=0.1),
    )
    quiet_trainer(tmp_path, 200).fit(module, datamodule=served(data, 2100))
    with torch.no_grad():
        found = (-model(torch.ones(1, 1)).free_energy(labels).squeeze(1)).log_softmax(0)
    probability = logs.exp()
    assert (probability * (logs - found)).sum() < 5e-3
    ones = probability @ labels.squeeze(1).double()
    independent = (labels.squeeze(1) * ones.log() + (1 - labels.squeeze(1)) * (-ones).log1p()).sum(1)
    assert (probability * (logs - independent)).sum() > 0.05
