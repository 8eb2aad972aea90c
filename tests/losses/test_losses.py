"""Hinge and log loss against their definitions, with and without missing labels, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import (
    directed_energies,
    energies_with_known,
    random_directed_energy,
    random_known,
    random_labels,
)

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.search import beam_search
from lmbm_torch.losses import local_hinge, negative_log_likelihood

DOUBLE = directed_energies(dtypes=(torch.float64,))
LOSSES = [local_hinge, negative_log_likelihood]


@given(DOUBLE, st.integers(0, 2**32 - 1), st.sampled_from((0.5, 1.0, 4.0)))
def test_local_hinge_is_what_exact_decoding_minimises(energy, seed, margin):
    labels = random_labels(seed, energy)
    decoded = exact.decode_hinge(energy, margin, known=labels)
    torch.testing.assert_close(local_hinge(energy, labels, margin), decoded.objective)
    torch.testing.assert_close(local_hinge(energy, labels.double(), margin), decoded.objective)


@given(DOUBLE, st.integers(0, 2**32 - 1))
def test_negative_log_likelihood_of_complete_labels(energy, seed):
    labels = random_labels(seed, energy)
    torch.testing.assert_close(negative_log_likelihood(energy, labels), -energy.log_prob(labels))


@given(energies_with_known(DOUBLE))
def test_a_missing_label_pays_nothing_and_counts_as_predicted(drawn):
    energy, labels = drawn
    greedy = beam_search.decode_hinge(energy, known=labels).labels
    margins = energy.local_margins(greedy)
    hinge, log_loss = local_hinge(energy, labels), negative_log_likelihood(energy, labels)
    for example, row in enumerate(labels.isnan().tolist()):
        observed = [float(m) for m, missing in zip(margins[example], row, strict=True) if not missing]
        assert hinge[example].item() == pytest.approx(sum(max(0.0, 1 - m) for m in observed), abs=1e-9)
        expected = sum(math.log1p(math.exp(-2 * m)) if m > -300 else -2 * m for m in observed)
        assert log_loss[example].item() == pytest.approx(expected, abs=1e-7)


def test_a_missing_parent_is_imputed_from_its_own_prediction():
    # Label 0 is missing and predicted 1; label 1 observes 1 and has the field 0.25 + 0.5 · (+1).
    energy = DirectedEnergy(
        torch.tensor([[2.0, 0.25]]), torch.tensor([[0.0, 0.0], [0.5, 0.0]]), torch.arange(2)
    )
    labels = torch.tensor([[torch.nan, 1.0]])
    torch.testing.assert_close(local_hinge(energy, labels), torch.tensor([0.25]))
    torch.testing.assert_close(
        negative_log_likelihood(energy, labels), torch.tensor([math.log1p(math.exp(-1.5))])
    )


def test_nothing_observed_costs_nothing():
    energy = random_directed_energy(0, 3)
    for loss in LOSSES:
        assert loss(energy, torch.full((3, 3), torch.nan)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("per_example", [False, True], ids=["shared", "per example"])
@pytest.mark.parametrize("share", [1.0, 0.6], ids=["complete", "missing"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients(loss, share, per_example):
    energy = random_directed_energy(4, 4, 2, num_cliques=3, per_example=per_example)
    labels = random_known(5, energy, share)
    assert energy.clique_weight is not None
    earlier = energy.parents != 0

    def value(unary, parents, clique_weight):
        changed = DirectedEnergy(unary, parents * earlier, energy.ordering, energy.cliques, clique_weight)
        return loss(changed, labels)

    tensors = [energy.unary, energy.parents, energy.clique_weight]
    assert torch.autograd.gradcheck(value, [t.clone().requires_grad_() for t in tensors])


def test_no_gradient_flows_through_an_imputed_value():
    # The only observed label is a child of the missing one, which itself pays nothing.
    unary = torch.tensor([[0.3, 0.1]], requires_grad=True)
    energy = DirectedEnergy(unary, torch.tensor([[0.0, 0.0], [0.5, 0.0]]), torch.arange(2))
    for loss in LOSSES:
        (gradient,) = torch.autograd.grad(loss(energy, torch.tensor([[torch.nan, 1.0]])).sum(), unary)
        assert gradient[0, 0] == 0
        assert gradient[0, 1] < 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_energy_decides_the_dtype(loss, dtype):
    energy = random_directed_energy(0, 3, dtype=dtype)
    for labels in (torch.ones(3, 3, dtype=torch.int64), torch.ones(3, 3).double(), torch.ones(3, 3).bool()):
        assert loss(energy, labels).dtype == dtype


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "labels",
    [
        torch.zeros(3, 4),
        torch.zeros(2, 3),
        torch.full((3, 3), 0.5),
        torch.full((3, 3), -1),
        torch.full((3, 3), torch.inf),
        torch.zeros(3, 3, device="meta"),
    ],
    ids=["wide", "short", "fraction", "spin", "infinite", "elsewhere"],
)
def test_labels_are_refused(loss, labels):
    with pytest.raises(ValueError, match=r"^labels: expected"):
        loss(random_directed_energy(0, 3), labels)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_broken_energy_is_refused(loss):
    energy = random_directed_energy(0, 3)
    energy.unary[1, 1] = torch.nan
    with pytest.raises(ValueError, match=r"^unary: expected finite values"):
        loss(energy, torch.ones(3, 3))


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_a_margin_that_is_not_positive_is_refused(margin):
    with pytest.raises(ValueError, match=r"^margin: expected"):
        local_hinge(random_directed_energy(0, 3), torch.ones(3, 3), margin)
