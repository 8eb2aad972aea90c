"""Boltzmann machines by gradients: the paper's objective, likelihoods, exact resuming, reports of fits."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from problems.boltzmann import (
    CLIQUES,
    EPOCHS,
    assert_resumes_exactly,
    convex_optimum,
    decaying,
    every_form,
    fast,
)
from problems.small import (
    NAMES,
    NUM_FEATURES,
    C,
    gradient_module,
    last_checkpoint,
    machine,
    network,
    quiet_trainer,
    served,
    small_data,
)

from lmbm_torch import load
from lmbm_torch.data import MultilabelData
from lmbm_torch.data.features import numbered
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import decode
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import (
    exact_negative_log_likelihood,
    local_hinge,
    negative_pseudo_likelihood,
    structured_hinge,
)
from lmbm_torch.training.structured import quadratic

LOSSES = [local_hinge, exact_negative_log_likelihood, negative_pseudo_likelihood, structured_hinge]


@pytest.mark.parametrize("coupling_penalty", [0.5, 10.0])
def test_it_reaches_the_objective_of_the_paper(tmp_path, coupling_penalty):
    penalty = partial(quadratic, coupling_penalty=coupling_penalty)
    module = gradient_module(machine(), penalty=penalty, **fast())
    quiet_trainer(tmp_path, EPOCHS).fit(module, datamodule=served(small_data()))
    optimum = convex_optimum(coupling_penalty)
    assert optimum * (1 - 1e-6) <= module.fit_report["fit/objective"] <= optimum * (1 + 1e-2)


@pytest.mark.parametrize("loss", LOSSES)
def test_steps_follow_the_gradient_of_the_objective(tmp_path, loss):
    data = small_data()
    features, labels = torch.from_numpy(data.train_features), torch.from_numpy(data.train_labels)
    model = machine()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(1))
    before = model.weights().detach().clone()
    penalty = partial(quadratic, coupling_penalty=2.0)
    objective = penalty(model) + C * loss(model(features), labels).sum()
    gradient = torch.autograd.grad(objective, list(model.parameters()))
    module = gradient_module(model, loss=loss, penalty=penalty, optimizer=partial(torch.optim.SGD, lr=0.6))
    quiet_trainer(tmp_path, 1).fit(module, datamodule=served(data))
    step = torch.cat([part.flatten() for part in gradient]) * 0.6 / 60
    torch.testing.assert_close(model.weights(), before - step, rtol=0, atol=1e-12)


@pytest.mark.parametrize("build", [machine, network])
def test_the_penalty_is_the_papers(build):
    model = build()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(0))
    parameters = dict(model.named_parameters())
    alone = sum(parameters.pop(name).square().sum() for name in ("feature_weight", "bias"))
    if "parent_weight" in parameters:
        parameters["parent_weight"] = parameters["parent_weight"] * model.allowed_parents
    joining = sum(weight.square().sum() for weight in parameters.values())
    torch.testing.assert_close(quadratic(model), (alone + joining) / 2)
    torch.testing.assert_close(quadratic(model, 7.0), (alone + 7 * joining) / 2)
    with pytest.raises(ValueError, match="coupling_penalty"):
        quadratic(model, 0.0)


def planted_data(energy: PairwiseEnergy, instances: int) -> MultilabelData:
    """Labellings in proportion to their probability, features that say nothing."""
    labels = torch.arange(2**energy.num_labels)[:, None] >> torch.arange(energy.num_labels) & 1
    counts = (instances * energy.score(labels[:, None]).softmax(0)).round().long().squeeze(1)
    rows = labels.repeat_interleave(counts, 0).double().numpy()
    return MultilabelData(
        name="planted",
        features=np.ones((len(rows), 1)),
        labels=rows,
        label_names=numbered("label", energy.num_labels),
        feature_names=("one",),
        train=np.arange(len(rows)),
        test=np.arange(0),
    )


@pytest.mark.parametrize("loss", [exact_negative_log_likelihood, negative_pseudo_likelihood])
def test_maximum_likelihood_recovers_a_planted_distribution(tmp_path, loss):
    generator = torch.Generator().manual_seed(5)
    upper = torch.randn(4, 4, generator=generator).double().triu(1)
    planted = PairwiseEnergy(torch.randn(1, 4, generator=generator).double() / 2, upper + upper.mT)
    model = type(machine())(1, 4, bias=False).double()
    module = gradient_module(model, loss=loss, C=100.0, optimizer=partial(torch.optim.Adam, lr=0.1))
    quiet_trainer(tmp_path, 150).fit(module, datamodule=served(planted_data(planted, 2000), 2100))
    labels = torch.arange(16)[:, None] >> torch.arange(4) & 1
    logs = planted.score(labels[:, None]).log_softmax(0).squeeze(1)
    with torch.no_grad():
        found = model(torch.ones(1, 1).double()).score(labels[:, None]).log_softmax(0).squeeze(1)
    assert (logs.exp() * (logs - found)).sum() < 2e-3
    # What was there to be found: independent labels are far off.
    independent = exact.marginals(planted).labels.squeeze(0)
    product = (labels * independent.log() + (1 - labels) * (-independent).log1p()).sum(1)
    assert (logs.exp() * (logs - product)).sum() > 0.2


@pytest.mark.parametrize("loss", LOSSES)
def test_a_killed_gradient_run_goes_on_to_the_same_weights(tmp_path, loss):
    assert_resumes_exactly(tmp_path, lambda: gradient_module(machine(), loss=loss, scheduler=decaying), 4)


def test_the_report_bounds_the_training_error(tmp_path):
    data = small_data()
    module = gradient_module(machine(), penalty=partial(quadratic, coupling_penalty=100.0), **fast())
    quiet_trainer(tmp_path, EPOCHS).fit(module, datamodule=served(data))
    report = module.fit_report
    features, labels = torch.from_numpy(data.train_features), torch.from_numpy(data.train_labels)
    with torch.no_grad():
        energy = module(features)
    pull = energy.pairwise.abs().sum(1).max().item()
    assert 0 < pull < 0.9
    assert report["fit/threshold"] == pytest.approx(1 - pull)
    assert report["fit/mean_hinge"] == pytest.approx(local_hinge(energy, labels).mean().item())
    assert report["fit/error_bound"] == pytest.approx(min(1, report["fit/mean_hinge"] / (1 - pull)))
    hinge = local_hinge(energy, labels)
    for decoding in (module.decoder(energy), exact.decode(energy)):
        wrong = (decoding.labels != labels).any(1)
        assert wrong.any()
        assert (hinge[wrong] >= report["fit/threshold"] - 1e-9).all()


def test_strong_couplings_leave_no_bound(tmp_path):
    module = gradient_module(machine(), C=50.0, **fast())
    quiet_trainer(tmp_path, 100).fit(module, datamodule=served(small_data()))
    assert (module.fit_report["fit/threshold"], module.fit_report["fit/error_bound"]) == (0.0, 1.0)


def test_missing_labels_are_summed_out_and_leave_no_hinge(tmp_path):
    data = small_data(missing=40)
    module = gradient_module(machine(), loss=exact_negative_log_likelihood, decoder=decode, **fast())
    trainer = quiet_trainer(tmp_path, 100)
    trainer.fit(module, datamodule=served(data))
    assert set(module.fit_report) == {"fit/objective"}
    scores = trainer.test(module, datamodule=served(data), verbose=False)[0]
    assert module.fit_report["fit/objective"] < 0.8 * C * 200 * math.log(2)
    assert scores["test/proven_optimal"] == 1.0
    assert "test/mean_nodes" not in scores


@every_form
@pytest.mark.parametrize("encoded", [False, True])
def test_the_model_of_a_checkpoint_comes_back(tmp_path, cliques, encoded):
    def encoder():
        return torch.nn.Linear(NUM_FEATURES, NUM_FEATURES).double() if encoded else None

    module = gradient_module(machine(**CLIQUES[cliques], encoder=encoder()), label_names=NAMES)
    quiet_trainer(tmp_path, 2, last_checkpoint(tmp_path)).fit(module, datamodule=served(small_data()))
    saved = load(tmp_path / "last.ckpt", encoder=encoder())
    assert saved.estimator.model.cliques == module.model.cliques
    assert saved.num_inputs == NUM_FEATURES
    rows, labels = torch.from_numpy(small_data().test_features), torch.from_numpy(small_data().test_labels)
    assert torch.equal(saved.energies(rows)[0].score(labels), module(rows).score(labels))
