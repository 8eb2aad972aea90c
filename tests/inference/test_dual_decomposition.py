"""Dual decomposition: its bound holds, falls to the least that these parts can prove, and proves optima."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.optimize import linprog
from strategies.bipartite import all_states, bipartite_energies, bipartite_with_known, random_bipartite_energy

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import dual_decomposition
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.losses import marginal_structured_hinge


def least_bound(energy: BipartiteEnergy) -> float:
    """Of one example by linear programming: min Σ_j t_j with t_j ≥ what each v is worth to hidden unit j."""
    num_visible, num_hidden = energy.num_visible, energy.num_hidden
    labels = all_states(num_visible).double()
    worth = torch.nn.functional.softplus(energy.hidden[0, :, None] + energy.coupling.T @ labels.T)
    values = num_hidden, len(labels)
    # Variables: t, then the shares, hidden unit by hidden unit.
    above = np.zeros((*values, num_hidden + num_hidden * num_visible))
    for unit in range(num_hidden):
        above[unit, :, unit] = -1
        first = num_hidden + unit * num_visible
        above[unit, :, first : first + num_visible] = labels
    shared = np.hstack([np.zeros((num_visible, num_hidden)), np.tile(np.eye(num_visible), num_hidden)])
    found = linprog(
        np.r_[np.ones(num_hidden), np.zeros(num_hidden * num_visible)],
        A_ub=above.reshape(-1, above.shape[-1]),
        b_ub=-worth.numpy().ravel(),
        A_eq=shared,
        b_eq=energy.visible[0].numpy(),
        bounds=(None, None),
    )
    return found.fun


@given(bipartite_with_known(bipartite_energies(max_visible=8, couplings=(0.1, 1.0, 5.0))))
def test_the_bound_holds_whenever_it_stops(drawn):
    energy, known = drawn
    best = exact.marginal_map(energy, known=known).objective
    bounds = []
    for num_iters in (1, 10, 50):
        result = dual_decomposition.marginal_map(energy, num_iters=num_iters, known=known)
        assert (result.bound >= best - 1e-9).all()
        assert (result.objective <= best + 1e-9).all()
        assert ((result.labels == known) | known.isnan()).all()
        torch.testing.assert_close(result.objective, -energy.free_energy(result.labels.double()))
        torch.testing.assert_close(result.status.residual, result.bound - result.objective)
        bounds.append(result.bound)
    assert (bounds[0] >= bounds[1]).all()
    assert (bounds[1] >= bounds[2]).all()


@pytest.mark.parametrize("coupling", [0.3, 1.0, 3.0])
def test_the_bound_falls_to_the_least_that_such_parts_can_prove(coupling):
    for seed in range(6):
        energy = random_bipartite_energy(seed, 5, 4, 1, coupling=coupling)
        bound = dual_decomposition.marginal_map(energy, num_iters=1000).bound.item()
        least = least_bound(energy)
        assert least - 1e-9 <= bound <= least + 1e-3 * max(1.0, abs(least))


def test_weakly_coupled_labels_are_proved_best():
    for seed in range(20):
        energy = random_bipartite_energy(seed, 10, 6, 5, coupling=0.1)
        result = dual_decomposition.marginal_map(energy)
        assert result.status.exact.all()
        assert torch.equal(result.labels, exact.marginal_map(energy).labels)
        assert (result.status.num_iters < 100).all()


def test_most_strongly_coupled_labels_are_best():
    found = []
    for seed in range(20):
        energy = random_bipartite_energy(seed, 8, 5, 5, coupling=3.0)
        objective = dual_decomposition.marginal_map(energy).objective
        found.append(objective >= exact.marginal_map(energy).objective - 1e-9)
    assert torch.cat(found).double().mean() > 0.9


def test_the_marginal_hinge_learns_and_predicts_by_it():
    energy = random_bipartite_energy(0, 6, 4, 5, coupling=0.5)
    labels = torch.tensor([[0, 1, 0, 1, 1, 0]]).expand(5, -1)
    inference = MatchedInference(dual_decomposition.marginal_map, 200, tol=1e-9)
    by_enumeration = marginal_structured_hinge(energy, labels, inference=exact.marginal_map)
    torch.testing.assert_close(marginal_structured_hinge(energy, labels, inference=inference), by_enumeration)
    assert torch.equal(inference.decode(energy).labels, exact.marginal_map(energy).labels)
    assert (
        inference.stored_parts()["routine"] == "lmbm_torch.inference.messages.dual_decomposition.marginal_map"
    )
