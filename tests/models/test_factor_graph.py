"""FactorGraph: its score by definition, symmetric pairs, training in a plain loop, and its file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lmbm_torch
from lmbm_torch.inference import decode, log_partition
from lmbm_torch.models import FactorGraph

EDGES = torch.tensor([[0, 1], [1, 2], [2, 0]])


def drawn(model: FactorGraph, seed: int = 0) -> FactorGraph:
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.data = torch.randn(weight.shape, generator=generator)
    return model


@pytest.mark.parametrize("directed", [False, True])
def test_scores_sum_nodes_and_edges(directed):
    model = drawn(FactorGraph(2, 3, num_edge_features=2, directed=directed))
    generator = torch.Generator().manual_seed(1)
    x, g = torch.randn(2, 3, 2, generator=generator), torch.randn(2, 3, 2, generator=generator)
    labels = torch.tensor([[0, 2, 1], [1, 1, 0]])
    found = model(x, EDGES, g).score(labels)
    for row in range(2):
        y, total = labels[row], 0.0
        for node in range(3):
            total += model.feature_weight[y[node]] @ x[row, node] + model.bias[y[node]]
        for number, (i, j) in enumerate(EDGES.tolist()):
            table = model.pairwise + model.edge_weight @ g[row, number]
            table = table if directed else (table + table.mT) / 2
            total += table[y[i], y[j]]
        torch.testing.assert_close(found[row], total)


def test_an_encoder_and_the_graph_learn_in_a_plain_loop():
    generator = torch.Generator().manual_seed(0)
    model = FactorGraph(1, 2, encoder=nn.Sequential(nn.Linear(3, 3), nn.Unflatten(1, (3, 1))))
    nn.init.eye_(model.encoder[0].weight)
    nn.init.zeros_(model.encoder[0].bias)
    # Nodes of a triangle mostly agree; single inputs are noisy.
    y = torch.randint(2, (64, 1), generator=generator).expand(-1, 3)
    x = 2.0 * y - 1 + 1.5 * torch.randn(64, 3, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses = []
    for _ in range(40):
        energy = model(x, EDGES)
        loss = (log_partition(energy) - energy.score(y)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]
    assert (decode(model(x, EDGES)).labels == y).float().mean() > 0.85


def test_a_file_keeps_the_model(tmp_path):
    model = drawn(FactorGraph(2, 3, num_edge_features=1, directed=True))
    lmbm_torch.save(model, tmp_path / "graph.safetensors")
    again = lmbm_torch.load(tmp_path / "graph.safetensors")
    x, g = torch.ones(1, 3, 2), torch.ones(1, 3, 1)
    torch.testing.assert_close(again(x, EDGES, g).table, model(x, EDGES, g).table)


def test_other_features_are_refused():
    with pytest.raises(ValueError, match="edge_features: expected None, got Tensor"):
        FactorGraph(2, 3)(torch.zeros(1, 3, 2), EDGES, torch.zeros(1, 3, 1))
    with pytest.raises(ValueError, match=r"edge_features: expected \(batch, edges, 1\), got NoneType"):
        FactorGraph(2, 3, 1)(torch.zeros(1, 3, 2), EDGES)
    with pytest.raises(ValueError, match="x: expected shape"):
        FactorGraph(2, 3)(torch.zeros(1, 3, 4), EDGES)
    with pytest.raises(ValueError, match="num_states: expected"):
        FactorGraph(2, 0)
