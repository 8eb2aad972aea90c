"""Conditional random fields over graphs, whose unary and pairwise terms depend on an encoder's features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_counts, check_shape
from lmbm_torch.energies import FactorEnergy
from lmbm_torch.models.base import StoredModule
from lmbm_torch.shapes import Float, Int


class FactorGraph(StoredModule):
    """A conditional random field or max-margin Markov network of any graph, x → factor energy.

    With f = encoder(x), one row of features for each node,

        score(y) = Σ_i ⟨feature_weight_{y_i}, f_i⟩ + bias_{y_i} + Σ_{(i, j)} pairwise_{y_i y_j}

    and with features of edges g_ij, + Σ_{(i, j)} ⟨edge_weight_{y_i y_j}, g_ij⟩
    (max_margin_markov_networks_survey_2003, section 3). All weights start at zero: without a trained encoder,
    large-margin and likelihood training are convex. Graphs of different sizes are joined by
    :meth:`~lmbm_torch.energies.FactorEnergy.packed`.

    Args:
        num_features: the number of features of a node that the encoder returns.
        num_states: the number S of states of each label.
        num_edge_features: the number of features of an edge; 0 if all edges have the same table.
        directed: whether pairs of states (r, s) and (s, r) have different weights; if not, tables are
            symmetric.
        encoder: maps inputs to features, (batch, nodes, features); the identity by default.

    Raises:
        ValueError: a number of features or states is below one, or the number of edge features is negative.

    Examples:
        >>> import torch
        >>> from lmbm_torch.inference import log_partition
        >>> from lmbm_torch.models import FactorGraph
        >>> model = FactorGraph(num_features=4, num_states=3)
        >>> energy = model(torch.zeros(2, 3, 4), torch.tensor([[0, 1], [1, 2], [2, 0]]))
        >>> (log_partition(energy) - energy.score(torch.tensor([[0, 1, 2]]))).mean()
        tensor(3.2958, grad_fn=<MeanBackward0>)
    """

    HEAD = ("feature_weight", "bias", "pairwise", "edge_weight")
    edge_weight: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        num_states: int,
        num_edge_features: int = 0,
        directed: bool = False,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_counts(num_features=num_features, num_states=num_states)
        if num_edge_features != 0:
            check_counts(num_edge_features=num_edge_features)
        self.num_features, self.num_states = num_features, num_states
        self.num_edge_features, self.directed = num_edge_features, directed
        self.encoder = nn.Identity() if encoder is None else encoder
        self.feature_weight = nn.Parameter(torch.zeros(num_states, num_features))
        self.bias = nn.Parameter(torch.zeros(num_states))
        self.pairwise = nn.Parameter(torch.zeros(num_states, num_states))
        of_edges = nn.Parameter(torch.zeros(num_states, num_states, num_edge_features))
        self.register_parameter("edge_weight", of_edges if num_edge_features else None)

    def forward(
        self, x: Tensor, edges: Int[Tensor, "edges 2"], edge_features: Tensor | None = None
    ) -> FactorEnergy:
        """Return the energy of a batch of examples that share one graph.

        Args:
            x: input of the encoder, by default features (batch, nodes, features).
            edges: the numbers of the two nodes of each edge.
            edge_features: (batch, edges, features), for a model with features of edges.

        Raises:
            ValueError: features have another width, or features of edges are missing or superfluous.
        """
        return self.energy(self.encoder(x), edges, edge_features)

    def energy(self, features: Tensor, edges: Tensor, edge_features: Tensor | None = None) -> FactorEnergy:
        """Return the energy for the encoder's features; see :meth:`forward`."""
        check_shape("x", features, None, None, self.num_features)
        if (edge_features is None) != (self.edge_weight is None):
            wanted = "None" if self.edge_weight is None else f"(batch, edges, {self.num_edge_features})"
            raise ValueError(f"edge_features: expected {wanted}, got {type(edge_features).__name__}")
        unary = features @ self.feature_weight.mT + self.bias
        tables = self._both_ways(self.pairwise)
        if edge_features is not None and self.edge_weight is not None:
            check_shape("edge_features", edge_features, len(features), len(edges), self.num_edge_features)
            weight = self._both_ways(self.edge_weight.permute(2, 0, 1))
            tables = tables + torch.einsum("bef,frs->bers", edge_features, weight)
        return FactorEnergy.from_edges(unary, edges, tables)

    def _both_ways(self, tables: Tensor) -> Tensor:
        """Make tables (…, states, states) symmetric, unless edges have directions."""
        return tables if self.directed else (tables + tables.mT) / 2

    def weights(self) -> Float[Tensor, " weights"]:
        """Return the regularised weights as one flat vector, the bias included."""
        return self.flat()

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, except for the encoder."""
        sizes = {"num_features": self.num_features, "num_states": self.num_states}
        return {**sizes, "num_edge_features": self.num_edge_features, "directed": self.directed}
