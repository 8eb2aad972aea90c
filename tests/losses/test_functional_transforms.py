"""Losses in closed form within the transforms of torch.func: gradients of each example, and of gradients."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, vmap

from lmbm_torch.losses import local_hinge, negative_log_likelihood, negative_pseudo_likelihood
from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork

FEATURES, LABELS, ROWS = 3, 4, 6
NETWORK, MACHINE = (SigmoidBeliefNetwork(FEATURES, LABELS), BoltzmannMachine(FEATURES, LABELS))
CASES = {
    "network, hinge": (NETWORK, local_hinge),
    "network, likelihood": (NETWORK, negative_log_likelihood),
    "machine, hinge": (MACHINE, local_hinge),
    "machine, pseudo-likelihood": (MACHINE, negative_pseudo_likelihood),
}


@pytest.fixture(params=CASES, name="case")
def _case(request):
    model, loss = CASES[request.param]
    generator = torch.Generator().manual_seed(0)
    model = model.double()
    parameters = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in model.named_parameters()
    }
    features = torch.randn(ROWS, FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.randint(2, (ROWS, LABELS), generator=generator).double()

    def losses(parameters, features, labels):
        return loss(functional_call(model, parameters, (features,)), labels)

    return losses, parameters, features, labels


def by_autograd(function, parameters):
    """The gradient of a function of parameters by name."""
    learnt = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    gradients = torch.autograd.grad(function(learnt), list(learnt.values()), materialize_grads=True)
    return dict(zip(learnt, gradients, strict=True))


def test_gradients_of_each_example_are_those_of_one_after_another(case):
    losses, parameters, features, labels = case

    def loss(parameters, row, its):
        return losses(parameters, row[None], its[None]).sum()

    found = vmap(grad(loss), (None, 0, 0))(parameters, features, labels)
    for row in range(ROWS):
        expected = by_autograd(lambda learnt, row=row: loss(learnt, features[row], labels[row]), parameters)
        for name, value in expected.items():
            torch.testing.assert_close(found[name][row], value)


def test_gradients_of_a_batch_and_of_these_are_torchs(case):
    losses, parameters, features, labels = case

    def total(parameters):
        return losses(parameters, features, labels).square().sum()

    def steepness(parameters):
        return sum(value.square().sum() for value in grad(total)(parameters).values())

    def by_graph(learnt):
        gradients = torch.autograd.grad(
            total(learnt), list(learnt.values()), create_graph=True, materialize_grads=True
        )
        return sum(value.square().sum() for value in gradients)

    for function, same in ((total, total), (steepness, by_graph)):
        found = grad(function)(parameters)
        for name, value in by_autograd(same, parameters).items():
            torch.testing.assert_close(found[name], value)


def test_a_missing_label_makes_no_number(case):
    losses, parameters, features, labels = case
    labels[0, 1] = torch.nan

    def loss(row, its):
        return losses(parameters, row[None], its[None]).sum()

    found = vmap(loss)(features, labels)
    assert found[0].isnan()
    assert found[1:].isfinite().all()


def test_labels_of_another_shape_are_refused_there_too(case):
    losses, parameters, features, labels = case
    with pytest.raises(ValueError, match=r"labels: expected shape \(6, 4\), got \(6, 1\)"):
        grad(lambda parameters: losses(parameters, features, labels[:, :1]).sum())(parameters)
