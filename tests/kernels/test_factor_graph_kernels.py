"""Compiled sweeps over graphs of tables, held to the plain functions."""

from __future__ import annotations

import numpy as np
import pytest
from strategies.factor import random_factor_energy

from lmbm_torch.inference.graphs.arrays import example_of
from lmbm_torch.kernels.installed import compiled
from lmbm_torch.kernels.search.plain import factor_graphs as plain

fast = compiled("search.factor_graphs", "inference in graphs of tables")
pytestmark = pytest.mark.skipif(fast is None, reason="numba is not installed")


def example(seed: int):
    energy = random_factor_energy(seed, batch=1, num_states=(2, 3, 2, 3), forbidden=0.2 * (seed % 2))
    return example_of(energy)


def ascended(kernel, one):
    graph, unary, entries = one.graph, one.unary.copy(), one.entries.copy()
    order, bounds, labels = np.arange(len(graph.states)), np.empty(2), np.zeros(len(graph.states), np.int64)
    made = kernel.ascend(graph, unary, entries, order, order, 6, 1e-9, bounds)
    kernel.rounded(graph, unary, entries, order, labels)
    kernel.improved(graph, one.unary, one.entries, labels)
    score = kernel.score_of(graph, one.unary, one.entries, labels)
    return made, bounds[1], score, labels, unary, entries


def propagated(kernel, one, schedule, is_max):
    graph, values = one.graph, np.exp(one.entries)
    widths = np.diff(graph.slot)
    messages = np.repeat(1.0 / widths, widths)
    sums, belief = np.empty_like(messages), np.empty_like(one.unary)
    with np.errstate(divide="ignore"):
        state = graph, one.unary, values, messages, sums, belief
        made = kernel.propagate(*state, schedule, is_max, 0.1, 1e-9, 5)
        return (*made, kernel.bethe(*state), messages, belief)


def looped(kernel, one):
    graph, values = one.graph, np.exp(one.entries)
    widths = np.diff(graph.slot)
    messages = np.repeat(1.0 / widths, widths)
    sums, belief = np.empty_like(messages), np.empty_like(one.unary)
    with np.errstate(divide="ignore"):
        made = kernel.double_loop(graph, one.unary, values, messages, sums, belief, 1e-9, 5)
    return (*made, messages, belief)


def averaged(kernel, one):
    graph = one.graph
    belief = np.repeat(1.0 / graph.states, graph.states)
    return (*kernel.mean_field(graph, one.unary, one.entries, belief, 5, 1e-9), belief)


@pytest.mark.parametrize("seed", range(4))
def test_compiled_sweeps_equal_the_plain_ones(seed):
    one = example(seed)
    pairs = [(ascended(plain, one), ascended(fast, one))]
    pairs += [
        (propagated(plain, one, schedule, is_max), propagated(fast, one, schedule, is_max))
        for schedule in range(3)
        for is_max in (False, True)
    ]
    pairs.append((looped(plain, one), looped(fast, one)))
    if seed % 2 == 0:
        pairs.append((averaged(plain, one), averaged(fast, one)))
    for expected, found in pairs:
        for own, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(other, own, rtol=1e-10, atol=1e-12)


def test_a_reparametrisation_keeps_every_score():
    one = example(0)
    *_, labels, unary, entries = ascended(plain, one)
    for labels in np.ndindex(*one.graph.states):
        given = np.array(labels)
        before = plain.score_of(one.graph, one.unary, one.entries, given)
        assert plain.score_of(one.graph, unary, entries, given) == pytest.approx(before)
