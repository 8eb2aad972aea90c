"""Sweeps over graphs of tables: a reparametrisation keeps every score and bounds the best."""

from __future__ import annotations

import numpy as np
import pytest
from strategies.factor import random_factor_energy

from lmbm_torch.inference.graphs.arrays import example_of
from lmbm_torch.kernels.search import factor_graphs


@pytest.mark.parametrize("seed", range(4))
def test_a_reparametrisation_keeps_every_score(seed):
    one = example_of(random_factor_energy(seed, batch=1, num_states=(2, 3, 2, 3), forbidden=0.2 * (seed % 2)))
    graph, unary, entries = one.graph, one.unary.copy(), one.entries.copy()
    order, bounds = np.arange(len(graph.states)), np.empty(2)
    factor_graphs.ascend(graph, unary, entries, order, order, 6, 1e-9, bounds)
    scores = []
    for labels in np.ndindex(*graph.states):
        given = np.array(labels)
        scores.append(factor_graphs.score_of(graph, one.unary, one.entries, given))
        assert factor_graphs.score_of(graph, unary, entries, given) == pytest.approx(scores[-1])
    assert max(scores) <= bounds[1] + 1e-9
