"""The hinge and the exact likelihood of Boltzmann machines: definitions, Lemma 3.1, gradients, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.bipartite import random_bipartite_energy, random_known_visible
from strategies.directed import random_directed_energy, random_labels
from strategies.pairwise import (
    all_labellings,
    clique_energies,
    labels_of,
    pairwise_energies,
    random_clique_energy,
    random_pairwise_energy,
)

from lmbm_torch.energies import BipartiteEnergy, CliqueEnergy, PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import (
    exact_negative_log_likelihood,
    local_hinge,
    negative_log_likelihood,
    negative_pseudo_likelihood,
)

UNDIRECTED = st.one_of(pairwise_energies(), clique_energies())
SEEDS = st.integers(0, 2**32 - 1)
LOSSES = [local_hinge, exact_negative_log_likelihood]


@given(UNDIRECTED, SEEDS, st.sampled_from((0.5, 1.0, 4.0)))
def test_the_hinge_is_what_exact_decoding_minimises(energy, seed, margin):
    labels = labels_of(seed, energy)
    decoded = exact.decode_hinge(energy, margin, known=labels.double())
    torch.testing.assert_close(local_hinge(energy, labels, margin), decoded.objective)


@given(UNDIRECTED, SEEDS, st.sampled_from((0.25, 1.0, 3.0)))
def test_lemma_3_1_bounds_the_pseudo_likelihood_label_by_label(energy, seed, margin):
    margins = energy.local_margins(labels_of(seed, energy))
    constant = math.log1p(math.exp(-2 * margin))
    bound = margins + 2 * (margin - margins).clamp_min(0) + constant
    log_sum = torch.logaddexp(margins, -margins)
    assert (log_sum <= bound + 1e-9 * (1 + margins.abs())).all()
    # Subtracting m_i and summing: −log P(y_i | others) = log(e^m + e^−m) − m.
    hinge = local_hinge(energy, labels_of(seed, energy), margin)
    pseudo = negative_pseudo_likelihood(energy, labels_of(seed, energy))
    assert (pseudo <= 2 * hinge + energy.num_labels * constant + 1e-7 * (1 + pseudo)).all()


@pytest.mark.parametrize("margin", [0.25, 1.0, 3.0])
def test_lemma_3_1_is_tight_at_the_margin(margin):
    energy = PairwiseEnergy(torch.full((1, 4), margin).double(), torch.zeros(4, 4).double())
    constant = math.log1p(math.exp(-2 * margin))
    expected = torch.tensor([4 * constant]).double()
    assert local_hinge(energy, torch.ones(1, 4), margin).tolist() == [0]
    torch.testing.assert_close(negative_pseudo_likelihood(energy, torch.ones(1, 4)), expected)


@given(UNDIRECTED, SEEDS)
def test_the_exact_likelihood_is_normalised_and_the_scores(energy, seed):
    labels = labels_of(seed, energy)
    scores = energy.score(all_labellings(energy.num_labels))
    expected = scores.logsumexp(0) - energy.score(labels)
    torch.testing.assert_close(exact_negative_log_likelihood(energy, labels), expected, rtol=1e-6, atol=1e-6)


def test_missing_labels_are_summed_out():
    energy = random_pairwise_energy(0, 4)
    labels = labels_of(1, energy).double()
    labels[:, 2] = torch.nan
    both = torch.stack([-exact_negative_log_likelihood(energy, labels.nan_to_num(value)) for value in (0, 1)])
    torch.testing.assert_close(exact_negative_log_likelihood(energy, labels), -both.logsumexp(0))
    torch.testing.assert_close(
        exact_negative_log_likelihood(energy, torch.full((3, 4), torch.nan).double()),
        torch.zeros(3).double(),
    )


def test_hidden_units_are_summed_out():
    energy = random_bipartite_energy(0, 4, 3)
    known = random_known_visible(1, energy, 1.0)
    expected = energy.free_energy(known) + torch.logsumexp(-energy.free_energy(all_labellings(4)), 0)
    torch.testing.assert_close(exact_negative_log_likelihood(energy, known), expected)


def test_directed_models_agree_with_their_closed_form():
    energy = random_directed_energy(0, 5)
    labels = random_labels(1, energy)
    torch.testing.assert_close(
        exact_negative_log_likelihood(energy, labels), negative_log_likelihood(energy, labels)
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("per_example", [False, True], ids=["shared", "per example"])
def test_gradients(loss, per_example):
    pairs = random_pairwise_energy(0, 4, per_example=per_example)
    labels = labels_of(1, pairs)

    def of_pairs(unary, coupling):
        upper = coupling.triu(1)
        return loss(PairwiseEnergy(unary, upper + upper.mT), labels)

    assert torch.autograd.gradcheck(
        of_pairs, [t.clone().requires_grad_() for t in (pairs.unary, pairs.pairwise)]
    )
    cliques = random_clique_energy(2, 4, per_example=per_example)

    def of_cliques(weight):
        return loss(CliqueEnergy(cliques.cliques, weight, cliques.constant, 4), labels)

    assert torch.autograd.gradcheck(of_cliques, [cliques.weight.clone().requires_grad_()])


def test_gradients_with_missing_labels_and_hidden_units():
    energy = random_bipartite_energy(3, 4, 2)
    known = random_known_visible(4, energy)

    def loss(visible, hidden, coupling):
        return exact_negative_log_likelihood(BipartiteEnergy(visible, hidden, coupling), known)

    tensors = [t.clone().requires_grad_() for t in (energy.visible, energy.hidden, energy.coupling)]
    assert torch.autograd.gradcheck(loss, tensors)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "labels", [torch.zeros(2, 4), torch.zeros(3, 5), torch.full((3, 4), 2.0), torch.full((3, 4), -1)]
)
def test_strange_labels_are_refused(loss, labels):
    for energy in (random_pairwise_energy(0, 4), random_clique_energy(0, 4)):
        with pytest.raises(ValueError, match=r"^(labels|known): expected"):
            loss(energy, labels)


def test_the_hinge_of_an_undirected_model_needs_all_labels():
    labels = torch.ones(3, 4)
    labels[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"^labels: expected 0 or 1, got 1 other values such as \[nan\]"):
        local_hinge(random_pairwise_energy(0, 4), labels)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_broken_energy_is_refused(loss):
    energy = random_pairwise_energy(0, 4)
    with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
        loss(PairwiseEnergy(energy.unary, energy.pairwise.triu()), torch.zeros(3, 4))
