"""Labels from beliefs: right where the beliefs are, and worth what is said of them."""

from __future__ import annotations

from functools import partial

import torch
from hypothesis import given, settings
from strategies.bipartite import bipartite_energies, random_bipartite_energy

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.inference.messages.modes import joint_modes, marginal_modes


def path(seed: int) -> BipartiteEnergy:
    """Each hidden unit is coupled with two neighbouring visible ones: no cycle."""
    energy = random_bipartite_energy(seed, 5, 4, coupling=2.0)
    near = torch.arange(5)[:, None] - torch.arange(4)
    return BipartiteEnergy(
        energy.visible, energy.hidden, energy.coupling * ((near == 0) | (near == 1)).double()
    )


@settings(max_examples=20, deadline=None)
@given(bipartite_energies())
def test_marginal_modes_get_the_most_labels_right(energy):
    decoding = marginal_modes(energy, marginals=exact.marginals)
    probability = exact.marginals(energy).visible
    chosen = torch.where(decoding.labels == 1, probability, 1 - probability)
    assert (chosen >= 0.5).all()
    torch.testing.assert_close(decoding.objective, chosen.sum(-1))
    assert torch.equal(decoding.bound, decoding.objective)
    assert decoding.status.exact.all()


@settings(max_examples=20, deadline=None)
@given(bipartite_energies())
def test_joint_modes_are_worth_what_they_say(energy):
    decoding = joint_modes(energy)
    assert decoding.hidden is not None
    torch.testing.assert_close(decoding.objective, energy.score(decoding.labels, decoding.hidden))
    best = exact.decode(energy).objective
    assert (decoding.objective <= best + 1e-9).all()
    assert (decoding.bound >= best - 1e-9).all()
    assert torch.equal(decoding.status.exact, decoding.bound == decoding.objective)


def test_propagation_is_exact_without_cycles():
    for seed in range(5):
        energy = path(seed)
        modes = marginal_modes(energy, marginals=partial(matrix_bp.marginals, tol=1e-10))
        assert modes.status.exact.all()
        assert torch.equal(modes.labels, (exact.marginals(energy).visible > 0.5).long())
        joint = joint_modes(energy)
        assert joint.status.exact.all()
        torch.testing.assert_close(joint.objective, exact.decode(energy).objective)


def test_the_status_is_that_of_the_marginals():
    energy = random_bipartite_energy(0, 6, 5)
    assert not marginal_modes(energy, marginals=mean_field.marginals).status.exact.any()
    short = joint_modes(energy, max_marginals=partial(matrix_bp.max_marginals, num_iters=1))
    assert not short.status.converged.any()
    assert (short.status.num_iters == 1).all()
