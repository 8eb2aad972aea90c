"""Learners of restricted Boltzmann machines with deterministic inference, against enumeration."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.bipartite import random_bipartite_energy, random_known_visible, random_units
from strategies.pairwise import all_labellings
from sweeps import slow

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.common.results import BipartiteMarginals
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.losses import (
    bethe_negative_log_likelihood,
    exact_negative_log_likelihood,
    joint_structured_hinge,
    marginal_structured_hinge,
    mean_field_negative_log_likelihood,
)

SEEDS = st.integers(0, 2**32 - 1)
LOSSES = [
    bethe_negative_log_likelihood,
    mean_field_negative_log_likelihood,
    joint_structured_hinge,
    marginal_structured_hinge,
]


def forest(seed=0):
    """Every hidden unit between two visible ones of a chain."""
    energy = random_bipartite_energy(seed, 4, 3)
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]])
    return BipartiteEnergy(energy.visible, energy.hidden, energy.coupling * mask), mask


def exact_marginals(energy, known=None):
    """Enumeration in the place of an approximation."""
    found = exact.marginals(energy, known=known)
    log_partition = exact.log_partition(energy, known=known)
    return BipartiteMarginals(found.visible, found.hidden, log_partition, found.status)


def exact_max_marginals(energy, known=None):
    """Enumeration in the place of max-product, where the best labelling is unique."""
    found = exact.decode(energy, known=known)
    assert found.hidden is not None
    visible, hidden = found.labels.to(energy.dtype), found.hidden.to(energy.dtype)
    return BipartiteMarginals(visible, hidden, found.objective, found.status)


def tensors_of(energy):
    return [t.clone().requires_grad_() for t in (energy.visible, energy.hidden, energy.coupling)]


def gradients(loss, energy, labels):
    tensors = tensors_of(energy)
    return torch.autograd.grad(loss(BipartiteEnergy(*tensors), labels).sum(), tensors)


@pytest.mark.parametrize("missing", [False, True])
def test_appendix_a_is_the_gradient_of_the_likelihood(missing):
    energy = random_bipartite_energy(0, 4, 3)
    labels = random_known_visible(1, energy, 0.5 if missing else 1.0)
    given, free = exact.marginals(energy, known=labels), exact.marginals(energy)
    pairs = exact.pairwise_marginals(energy) - exact.pairwise_marginals(energy, known=labels)
    expected = (free.visible - given.visible, free.hidden - given.hidden, pairs.sum(0))
    with_exact = partial(bethe_negative_log_likelihood, inference=exact_marginals)
    for loss in (exact_negative_log_likelihood, with_exact):
        for found, term in zip(gradients(loss, energy, labels), expected, strict=True):
            torch.testing.assert_close(found, term)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_bethe_is_exact_on_forests(share):
    energy, mask = forest()
    labels = random_known_visible(1, energy, share)
    loss = bethe_negative_log_likelihood
    torch.testing.assert_close(loss(energy, labels), exact_negative_log_likelihood(energy, labels))
    found = gradients(loss, energy, labels)
    expected = gradients(exact_negative_log_likelihood, energy, labels)
    for one, other, where in zip(found, expected, (1, 1, mask), strict=True):
        torch.testing.assert_close(one * where, other * where)


def test_bethe_follows_the_beliefs_where_it_is_not_exact():
    energy = random_bipartite_energy(3, 5, 4, coupling=0.5)
    labels, _ = random_units(4, energy)
    beliefs = matrix_bp.marginals(energy, num_iters=10, tol=0.0, keep_messages=True)
    loss = partial(
        bethe_negative_log_likelihood, inference=partial(matrix_bp.marginals, num_iters=10, tol=0.0)
    )
    given = energy.hidden_given_visible(labels)
    visible, hidden, coupling = gradients(loss, energy, labels)
    torch.testing.assert_close(visible, beliefs.visible - labels)
    torch.testing.assert_close(hidden, beliefs.hidden - given)
    expected = beliefs.pairwise() - labels[:, :, None] * given[:, None, :]
    torch.testing.assert_close(coupling, expected.sum(0))


@given(SEEDS, st.sampled_from((0.3, 1.0, 3.0)), st.sampled_from((0.5, 1.0)))
def test_mean_field_never_exceeds_the_likelihood_of_complete_labels(seed, coupling, share):
    energy = random_bipartite_energy(seed, 4, 3, coupling=coupling)
    labels = random_known_visible(seed, energy, share)
    found, exactly = mean_field_negative_log_likelihood(energy, labels), exact.log_partition(energy)
    if share == 1.0:
        assert (found <= exact_negative_log_likelihood(energy, labels) + 1e-9).all()
    bounds = [mean_field.marginals(energy, known=known).log_partition for known in (None, labels)]
    torch.testing.assert_close(found, bounds[0] - (bounds[1] if share < 1 else -energy.free_energy(labels)))
    assert (bounds[0] <= exactly + 1e-9).all()


@pytest.mark.parametrize("share", [slow(1.0), 0.5])
def test_mean_field_has_the_gradient_of_its_bound(share):
    energy = random_bipartite_energy(5, 3, 2, batch_size=2, coupling=0.7)
    labels = random_known_visible(6, energy, share)
    settled = partial(mean_field.marginals, num_iters=2000, tol=1e-13)

    def loss(*tensors):
        return mean_field_negative_log_likelihood(BipartiteEnergy(*tensors), labels, inference=settled)

    assert torch.autograd.gradcheck(loss, tensors_of(energy))
    q = settled(energy)
    visible, _, _ = gradients(lambda e, _: loss(e.visible, e.hidden, e.coupling), energy, labels)
    given = labels if share == 1.0 else settled(energy, known=labels).visible
    torch.testing.assert_close(visible, q.visible - given)


@given(SEEDS, st.sampled_from((0.3, 1.0)), st.sampled_from((0.5, 2.0)))
def test_both_hinges_are_the_largest_violations(seed, coupling, slope):
    energy = random_bipartite_energy(seed, 4, 3, coupling=coupling)
    labels, _ = random_units(seed, energy)
    every = all_labellings(4)
    task_loss = slope * (every != labels).sum(-1)
    marginal = (task_loss - energy.free_energy(every)).amax(0) + energy.free_energy(labels)
    found = marginal_structured_hinge(energy, labels, slope=slope, inference=exact.marginal_map)
    torch.testing.assert_close(found, marginal)
    best = torch.stack([energy.score(every, h.expand(16, 1, 3)) for h in all_labellings(3)]).amax(0)
    truth = torch.stack([energy.score(labels, h) for h in all_labellings(3)]).amax(0)
    joint = joint_structured_hinge(energy, labels, slope=slope, inference=exact_max_marginals)
    torch.testing.assert_close(joint, (task_loss + best).amax(0) - truth)
    assert (joint >= 0).all()
    assert (found >= 0).all()


@given(SEEDS, st.sampled_from((0.3, 1.0)), st.sampled_from((0.5, 2.0)))
def test_hinges_complete_missing_labels_as_the_model_likes_best(seed, coupling, slope):
    energy = random_bipartite_energy(seed, 4, 3, coupling=coupling)
    labels = random_known_visible(seed, energy)
    every = all_labellings(4)
    differs = (every != labels) & ~labels.isnan()
    task_loss, agrees = slope * differs.sum(-1), ~differs.any(-1)
    score = -energy.free_energy(every)
    marginal = (task_loss + score).amax(0) - score.masked_fill(~agrees, -torch.inf).amax(0)
    found = marginal_structured_hinge(energy, labels, slope=slope, inference=exact.marginal_map)
    torch.testing.assert_close(found, marginal)
    best = torch.stack([energy.score(every, h.expand(16, 1, 3)) for h in all_labellings(3)]).amax(0)
    expected = (task_loss + best).amax(0) - best.masked_fill(~agrees, -torch.inf).amax(0)
    joint = joint_structured_hinge(energy, labels, slope=slope, inference=exact_max_marginals)
    torch.testing.assert_close(joint, expected)


@pytest.mark.parametrize(
    "loss",
    [
        partial(marginal_structured_hinge, inference=exact.marginal_map),
        partial(joint_structured_hinge, inference=exact_max_marginals),
    ],
    ids=["marginal", "joint"],
)
def test_hinges_agree_with_finite_differences(loss):
    energy = random_bipartite_energy(7, 4, 3)
    labels, _ = random_units(8, energy)
    assert (loss(energy, labels) > 0).any()
    assert torch.autograd.gradcheck(lambda *t: loss(BipartiteEnergy(*t), labels), tensors_of(energy))


def test_the_marginal_hinge_has_the_gradient_of_equation_7():
    energy = random_bipartite_energy(7, 4, 3)
    labels, _ = random_units(8, energy)
    worst = exact.marginal_map(energy.add_unary(1 - 2 * labels.double())).labels.double()
    assert (worst != labels).any()
    sides = [
        side[:, :, None] * energy.hidden_given_visible(side)[:, None] for side in (worst, labels.double())
    ]
    loss = partial(marginal_structured_hinge, inference=exact.marginal_map)
    coupling = gradients(loss, energy, labels)[2]
    torch.testing.assert_close(coupling, (sides[0] - sides[1]).sum(0))


def test_propagation_finds_the_violations_of_forests():
    energy, _ = forest(2)
    labels, _ = random_units(1, energy)
    torch.testing.assert_close(
        joint_structured_hinge(energy, labels),
        joint_structured_hinge(energy, labels, inference=exact_max_marginals),
    )
    # Mixed-product is a parallel ascent even here: what it finds is no more than the largest.
    found = marginal_structured_hinge(energy, labels)
    assert (found <= marginal_structured_hinge(energy, labels, inference=exact.marginal_map) + 1e-9).all()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("labels", [torch.zeros(2, 4), torch.zeros(3, 5), torch.full((3, 4), 2.0)])
def test_strange_labels_are_refused(loss, labels):
    with pytest.raises(ValueError, match=r"^labels: expected"):
        loss(random_bipartite_energy(0, 4, 3), labels)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_broken_energy_is_refused(loss):
    energy = random_bipartite_energy(0, 4, 3)
    energy.visible[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"^visible: expected finite values"):
        loss(energy, torch.zeros(3, 4))


def test_the_mean_field_gradient_is_not_differentiated_in_its_turn():
    visible, coupling = torch.randn(2, 3).requires_grad_(), torch.randn(3, 2)
    energy = BipartiteEnergy(visible, torch.zeros(2, 2), coupling)
    loss = mean_field_negative_log_likelihood(energy, torch.ones(2, 3)).sum()
    (gradient,) = torch.autograd.grad(loss, visible, create_graph=True)
    with pytest.raises(
        RuntimeError, match=r"^mean_field_negative_log_likelihood: expected only first derivatives"
    ):
        gradient.square().sum().backward()
