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


RULES = Constraints.of(["at_most(2, a, b, c, d, e)", "a -> d"], ["a", "b", "c", "d", "e", "other"])


def ruled_graph(seed: int) -> FactorEnergy:
    return random_factor_energy(seed, num_states=(2, 2, 2, 2, 2, 3), num_factors=6)


@pytest.mark.parametrize("seed", range(4))
def test_rules_over_binary_labels_are_tables(seed):
    energy = ruled_graph(seed)
    every = every_labelling(energy)
    every = every[~RULES.violated(every[:, 0].numpy()).any(1)]
    scores = energy.score(every)
    known = torch.full((2, 6), torch.nan)
    known[1, 5] = 2
    for given in (None, known):
        possible = torch.ones_like(scores, dtype=torch.bool)
        if given is not None:
            possible[:, 1] = every[:, 0, 5] == 2
        values = scores.masked_fill(~possible, -torch.inf)
        settings = {"constraints": RULES, "known": given}
        best = inference.decode(energy, top_k=3, **settings)
        assert best.labels.shape == (2, 3, 6)
        torch.testing.assert_close(best.objective, values.topk(3, 0).values.T)
        chances = values.softmax(0)
        sums = inference.marginals(energy, **settings)
        torch.testing.assert_close(sums.log_partition, values.logsumexp(0))
        torch.testing.assert_close(inference.log_partition(energy, **settings), values.logsumexp(0))
        for state in range(3):
            expected = ((every == state) * chances[..., None]).sum(0)
            torch.testing.assert_close(sums.states[..., state], expected)
        margins = energy.local_margins(every.expand(-1, 2, -1))
        loss = (1.0 - margins).clamp(min=0).sum(-1).masked_fill(~possible, torch.inf).amin(0)
        torch.testing.assert_close(inference.decode_hinge(energy, **settings).objective, loss)
        drawn = inference.sample(energy, 5, generator=torch.Generator().manual_seed(0), **settings)
        assert not RULES.violated(drawn.flatten(0, 1).numpy()).any()


def test_rules_that_graphs_cannot_have_are_refused():
    energy = ruled_graph(0)
    with pytest.raises(ValueError, match=r"constraints: expected rules over labels of two states .* of 3$"):
        inference.decode(energy, constraints=Constraints.of(["other -> a"], RULES.names))
    with pytest.raises(ValueError, match="constraints: expected rules over 6 labels, got 2"):
        inference.decode(energy, constraints=Constraints.of(["a -> b"], ["a", "b"]))
    with pytest.raises(ValueError, match="energy: expected one graph under rules, got packed graphs"):
        inference.decode(packed_energy(0), constraints=RULES)
    known = torch.full((2, 6), torch.nan)
    known[1, :3] = 1
    with pytest.raises(ValueError, match=r"known\[1\]"):
        inference.decode(energy, constraints=RULES, known=known)
