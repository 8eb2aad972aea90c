"""Queries of graphs of tables, by the table of routes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from strategies.factor import every_labelling, packed_energy, random_factor_energy

import lmbm_torch
from lmbm_torch import inference
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import FactorEnergy
from lmbm_torch.inference.graphs import elimination, programming
from lmbm_torch.inference.routes.table import Query, route_of


def a_grid(seed: int, side: int, states: int, *, batch: int = 1, scale: float = 1.0) -> FactorEnergy:
    random = np.random.default_rng(seed)
    cells = np.arange(side * side).reshape(side, side)
    right, down = (
        np.stack([a.ravel(), b.ravel()], 1)
        for a, b in ((cells[:, :-1], cells[:, 1:]), (cells[:-1], cells[1:]))
    )
    edges = torch.from_numpy(np.concatenate([right, down]))
    unary = torch.from_numpy(random.normal(size=(batch, side * side, states)))
    return FactorEnergy.from_edges(unary, edges, scale * torch.eye(states, dtype=torch.float64))


@pytest.mark.parametrize("make", [random_factor_energy, packed_energy])
def test_every_quantity_has_a_route(make):
    energy = make(0)
    best, sums = inference.decode(energy), inference.marginals(energy)
    assert best.status.exact.all()
    assert sums.method == "exact, by a junction tree"
    torch.testing.assert_close(sums.log_partition, inference.log_partition(energy))
    torch.testing.assert_close(inference.decode(energy, top_k=2).objective[:, 0], best.objective)
    assert inference.sample(energy, 3).shape == (3, energy.batch_size, energy.num_labels)
    assert inference.decode_hinge(energy).status.exact.all()


def test_wide_graphs_are_searched_and_proven():
    energy = a_grid(1, 8, 5, batch=2)
    query = Query(quantity="decode", energy=energy)
    assert route_of(query).routine == "routes.answers.ascended_then_eliminated"
    with lmbm_torch.memory_budget("1 MiB"):
        assert route_of(query).routine == "routes.answers.ascended_then_cut"
        assert inference.decode(energy).status.exact.all()
        many = a_grid(1, 12, 7)
        assert route_of(replace(query, energy=many)).routine == "graphs.dual_ascent.branch_and_bound"
        assert inference.decode(many).status.exact.all()
        found = inference.marginals(energy)
    assert found.method == "approximate, by belief propagation"
    assert not found.status.exact.any()
    with lmbm_torch.memory_budget("1 MiB"), pytest.raises(ValueError, match="expected tables of at most"):
        inference.log_partition(energy)


def test_cutting_planes_prove_a_frustrated_torus():
    random = np.random.default_rng(0)
    cells = np.arange(81).reshape(9, 9)
    edges = np.concatenate(
        [np.stack([cells, np.roll(cells, -1, axis)], -1).reshape(-1, 2) for axis in (0, 1)]
    )
    tables = 2 * torch.from_numpy(random.normal(size=(2, len(edges), 2, 2)))
    unary = torch.from_numpy(random.normal(size=(2, 81, 2)))
    energy = FactorEnergy.from_edges(unary, torch.from_numpy(edges), tables)
    with lmbm_torch.memory_budget("1 MiB"):
        assert route_of(Query(quantity="decode", energy=energy)).routine == "routes.answers.ascended_then_cut"
        found = inference.decode(energy)
        packed = FactorEnergy.packed([energy, a_grid(0, 3, 2)])
        both = inference.decode(packed, known=torch.full((3, 81), torch.nan).double())
    assert found.status.exact.all()
    torch.testing.assert_close(found.objective, energy.score(found.labels))
    exact = elimination.decode(energy)
    torch.testing.assert_close(found.objective, exact.objective)
    torch.testing.assert_close(both.objective[:2], exact.objective)
    assert (both.labels[2, :9] >= 0).all()
    # Without cycle inequalities nothing is proven.
    assert not programming.decode_relaxed(energy).status.exact.any()


def test_elimination_answers_where_the_ascent_has_no_proof():
    easy, hard = (
        a_grid(0, 3, 2),
        random_factor_energy(6, batch=1, num_states=(3,) * 8, num_factors=14, scale=3.0),
    )
    packed = FactorEnergy.packed([easy, hard])
    query = Query(quantity="decode", energy=packed)
    from lmbm_torch.inference.graphs import dual_ascent
    from lmbm_torch.inference.routes.answers import ascended_then_eliminated

    assert dual_ascent.decode(packed).status.exact.tolist() == [True, False]
    found = ascended_then_eliminated(query)
    labels = every_labelling(hard)
    assert found.status.exact.all()
    torch.testing.assert_close(found.objective[1], hard.score(labels).max())
    assert (found.labels[0, :9] >= 0).all()


def test_rules_are_refused():
    rules = Constraints.of(["a -> b"], ["a", "b", "c", "d"])
    with pytest.raises(TypeError, match=r"energy: expected a kind with labels in \{0, 1\}, got FactorEnergy"):
        inference.decode(random_factor_energy(0), constraints=rules)
