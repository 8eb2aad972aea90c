"""Remark 3, Theorem 4 and Remark 6 as inequalities that hold on random models, and where they are tight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import directed_energies, random_directed_energy, random_labels
from strategies.pairwise import clique_energies, labels_of, pairwise_energies

from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import (
    error_bound,
    exact_negative_log_likelihood,
    local_hinge,
    log_loss_bound,
    negative_log_likelihood,
    undirected_log_loss_bound,
)
from lmbm_torch.losses.bounds import directed_threshold, undirected_threshold

DOUBLE = directed_energies(max_batch=8, dtypes=(torch.float64,))
MARGINS = st.sampled_from((0.25, 1.0, 3.0))


@given(DOUBLE, st.integers(0, 2**32 - 1), MARGINS)
def test_the_hinge_bounds_the_log_loss(energy, seed, margin):
    labels = random_labels(seed, energy)
    bound = log_loss_bound(local_hinge(energy, labels, margin), energy.num_labels, margin)
    assert (negative_log_likelihood(energy, labels) <= bound + 1e-7).all()


@pytest.mark.parametrize("margin", [0.25, 1.0, 3.0])
def test_the_log_loss_bound_is_tight_and_needs_its_constant(margin):
    energy = DirectedEnergy(torch.full((1, 4), margin).double(), torch.zeros(4, 4).double(), torch.arange(4))
    labels = torch.ones(1, 4)
    hinge, log_loss = local_hinge(energy, labels, margin), negative_log_likelihood(energy, labels)
    torch.testing.assert_close(log_loss_bound(hinge, 4, margin), log_loss)
    assert log_loss > 2 * hinge


def test_the_log_loss_bound_counts_observed_labels():
    energy = random_directed_energy(0, 4)
    labels = random_labels(1, energy).double()
    labels[:, 2] = torch.nan
    hinge, observed = local_hinge(energy, labels), (~labels.isnan()).sum(-1)
    bound = log_loss_bound(hinge, observed)
    torch.testing.assert_close(bound, log_loss_bound(hinge, 3))
    assert (negative_log_likelihood(energy, labels) <= bound).all()


@given(DOUBLE, st.integers(0, 2**32 - 1), MARGINS)
def test_a_wrongly_decoded_example_pays_the_threshold(energy, seed, margin):
    labels = random_labels(seed, energy)
    wrong = (exact.decode_hinge(energy, margin).labels != labels).any(1)
    loss = local_hinge(energy, labels, margin)
    assert (loss[wrong] >= directed_threshold(margin) - 1e-9).all()
    assert wrong.double().mean() <= error_bound(loss.mean().item(), directed_threshold(margin)) + 1e-9


def test_the_threshold_is_met():
    # Field 0: the truth pays γ, and so does the other value, which comes first.
    energy = DirectedEnergy(torch.zeros(1, 1), torch.zeros(1, 1), torch.arange(1))
    assert exact.decode_hinge(energy, 2.0).labels.tolist() == [[0]]
    assert local_hinge(energy, torch.ones(1, 1), 2.0).tolist() == [directed_threshold(2.0)]


UNDIRECTED = st.one_of(pairwise_energies(), clique_energies(max_order=6))


@given(UNDIRECTED, st.floats(0.01, 1), st.integers(0, 2**32 - 1), MARGINS)
def test_a_wrongly_decoded_example_of_an_undirected_model_pays_the_threshold(energy, scale, seed, margin):
    # Weights of every size up to those drawn, for thresholds above zero.
    cliques = energy if isinstance(energy, CliqueEnergy) else CliqueEnergy.from_pairwise(energy)
    energy = CliqueEnergy(cliques.cliques, scale * cliques.weight, cliques.constant, cliques.num_labels)
    labels = labels_of(seed, energy)
    loss, threshold = local_hinge(energy, labels, margin), undirected_threshold(energy, margin)
    for decoding in (exact.decode_hinge(energy, margin), exact.decode(energy)):
        wrong = (decoding.labels != labels).any(1)
        assert (loss[wrong] >= threshold[wrong] - 1e-9).all()
        bound = error_bound(loss.mean().item(), threshold.min().item())
        assert wrong.double().mean() <= bound + 1e-9


def test_the_undirected_threshold_is_the_weakest_label_s():
    pairwise = torch.tensor([[0.0, 0.25, 0.0], [0.25, 0.0, -0.5], [0.0, -0.5, 0.0]])
    energy = PairwiseEnergy(torch.ones(2, 3), pairwise)
    assert undirected_threshold(energy, 2.0).tolist() == [1.25, 1.25]
    assert undirected_threshold(energy, 0.5).tolist() == [0.0, 0.0]
    cliques = CliqueEnergy(((0,), (0, 1, 2), (1, 2)), torch.tensor([[9.0, 0.25, -0.5], [9.0, 0.0, 0.125]]))
    assert undirected_threshold(cliques).tolist() == [0.25, 0.875]


def met_margins(
    energy: CliqueEnergy, labels: torch.Tensor, margin: float, slack: torch.Tensor
) -> CliqueEnergy:
    """The energy whose unary log-potentials are such that each margin is ``margin`` + ``slack``, hinges 0."""
    margins = energy.local_margins(labels)
    return energy.add_unary(2 * to_spins(labels, energy.dtype) * (margin + slack - margins))


@given(
    UNDIRECTED,
    st.integers(0, 2**32 - 1),
    MARGINS,
    st.sampled_from((None, 0.0, 1.0)),
    st.sampled_from((0.01, 1.0, 100.0)),
)
def test_the_hinge_bounds_the_log_loss_of_an_undirected_model(energy, seed, margin, spread, scale):
    # Where unaries make up for cliques that agree with the labels no hinge is paid, however strong these are.
    labels = labels_of(seed, energy)
    if spread is not None:
        cliques = energy if isinstance(energy, CliqueEnergy) else CliqueEnergy.from_pairwise(energy)
        cliques = CliqueEnergy(cliques.cliques, scale * cliques.weight, cliques.constant, cliques.num_labels)
        labels = exact.decode(cliques).labels
        noise = torch.randn(labels.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        energy = met_margins(cliques, labels, margin, spread * noise)
    loss = exact_negative_log_likelihood(energy, labels)
    bound = undirected_log_loss_bound(local_hinge(energy, labels, margin), energy, margin)
    assert (loss <= bound + 1e-6 * bound.abs()).all()


@pytest.mark.parametrize("order", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_bound_of_an_undirected_model_is_nearly_met_by_a_clique_of_any_order(order, sign):
    # The log loss is that of the labels against the best of those flipped in an even number.
    weight = torch.tensor([100.0 * sign]).double()
    clique = CliqueEnergy((tuple(range(order)),), weight)
    # Labels with which the clique agrees.
    labels = torch.ones(1, order).long()
    labels[:, 0] = int(sign > 0)
    energy = met_margins(clique, labels, 1.0, torch.zeros(1, order).double())
    loss = exact_negative_log_likelihood(energy, labels)
    bound = undirected_log_loss_bound(local_hinge(energy, labels), energy)
    assert (bound - 3 * order <= loss).all()
    assert (loss <= bound).all()


def test_the_bound_of_an_undirected_model_counts_couplings_alone():
    energy = CliqueEnergy(((0,), (0, 1), (0, 1, 2, 3, 4)), torch.tensor([5.0, -0.5, 0.25]).double())
    bound = undirected_log_loss_bound(torch.zeros(1).double(), energy)
    expected = 5 * torch.tensor(1 + torch.e**-2).log() + 4 * (0.5 + 2 * 0.25)
    torch.testing.assert_close(bound, expected.double()[None])


def test_error_bound():
    assert error_bound(0.0, 2.0) == 0.0
    assert error_bound(0.5, 2.0) == 0.25
    assert error_bound(3.0, 2.0) == 1.0
    assert error_bound(0.0, 0.0) == 1.0


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_error_bound_refuses(bad):
    with pytest.raises(ValueError, match=r"^mean_loss: expected"):
        error_bound(bad, 1.0)
    with pytest.raises(ValueError, match=r"^threshold: expected"):
        error_bound(0.5, bad)


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_margins_that_are_not_positive_are_refused(margin):
    for call in (lambda: log_loss_bound(torch.zeros(1), 1, margin), lambda: directed_threshold(margin)):
        with pytest.raises(ValueError, match=r"^margin: expected"):
            call()
