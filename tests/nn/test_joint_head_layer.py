"""The joint head as a layer, held to enumeration, to finite differences and to the estimator."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from lmbm_torch.estimators.joint.likelihood import CountModel
from lmbm_torch.nn import JointHeadLayer

LABELS = 4
EVERY = torch.tensor(list(itertools.product([0, 1], repeat=LABELS)))


def drawn(largest: int | None) -> tuple[JointHeadLayer, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    head = JointHeadLayer(LABELS, largest).double()
    for parameter in head.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return head, torch.randn(6, LABELS, generator=generator, dtype=torch.float64)


def every_log_prob(head: JointHeadLayer, logits: torch.Tensor) -> torch.Tensor:
    return torch.stack([head.log_prob(logits, each.expand(len(logits), -1)) for each in EVERY], 1)


@pytest.mark.parametrize("largest", [None, 1, 2])
def test_sums_marginals_and_labels_are_those_of_enumeration(largest):
    head, logits = drawn(largest)
    log_prob = every_log_prob(head, logits)
    torch.testing.assert_close(log_prob.exp().sum(1), torch.ones(6).double())
    torch.testing.assert_close(head.marginals(logits), log_prob.exp() @ EVERY.double())
    assert torch.equal(head.decode(logits), EVERY[log_prob.argmax(1)])
    model = CountModel(
        (logits * head.slope + head.offset).detach().numpy(), head.count_weight.detach().numpy()
    )
    np.testing.assert_allclose(log_prob[:, 5].detach(), model.log_prob(np.tile(EVERY[5], (6, 1))))


@pytest.mark.parametrize("largest", [None, 2])
def test_known_labels_stay_and_missing_labels_are_summed_over(largest):
    head, logits = drawn(largest)
    known = torch.full((6, LABELS), torch.nan).double()
    known[:, 1], known[::2, 3] = 1, 0
    fits = ((known[:, None] == EVERY) | known.isnan()[:, None]).all(2)
    log_prob = every_log_prob(head, logits).masked_fill(~fits, -torch.inf)
    torch.testing.assert_close(head.log_prob(logits, known), log_prob.logsumexp(1))
    assert torch.equal(head.decode(logits, known), EVERY[log_prob.argmax(1)])


def test_gradients_are_those_of_finite_differences():
    head, logits = drawn(2)
    labels = EVERY[3:9].double()
    labels[2, 1] = torch.nan
    torch.autograd.gradcheck(lambda *_: head(logits, labels), (*head.parameters(), logits.requires_grad_()))


def test_an_encoder_is_trained_with_the_layer():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(300, 3, generator=generator)
    labels = torch.nn.functional.one_hot(inputs.argmax(1), 3)
    encoder, head = torch.nn.Linear(3, 3), JointHeadLayer(3)
    with torch.no_grad():
        encoder.weight.copy_(0.1 * torch.eye(3))
        encoder.bias.fill_(-1.0)
    before = head(encoder(inputs), labels).item()
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], 0.1)
    for _ in range(30):
        optimizer.zero_grad()
        loss = head(encoder(inputs), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < before / 3
    assert (head.decode(encoder(inputs)) == labels).all(1).float().mean() > 0.9
    assert head.count_weight[1] > head.count_weight[[0, 2]].max()


@pytest.mark.usefixtures("no_shape_checks")
def test_what_does_not_fit_is_refused():
    head = JointHeadLayer(3)
    with pytest.raises(ValueError, match=r"logits: expected shape \(at least 1, 3\)"):
        head.decode(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="logits: expected finite values"):
        head.marginals(torch.full((1, 3), torch.nan))
    with pytest.raises(ValueError, match="labels: expected 0, 1 or NaN"):
        head(torch.zeros(1, 3), torch.full((1, 3), 2))
    with pytest.raises(ValueError, match="largest: expected an integer of at least 1"):
        JointHeadLayer(3, 0)


def test_no_scikit_learn_is_needed():
    program = "import sys, lmbm_torch.nn; assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
