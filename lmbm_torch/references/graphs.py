"""The dual of max-margin Markov networks on graphs, in marginals of the cliques of a triangulation.

Source: max_margin_markov_networks_survey_2003, sections 6.3 and 7.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product

from lmbm_torch.extras import naming_extras
from lmbm_torch.references.programmes import solve

with naming_extras():
    import cvxpy as cp
    import numpy as np

__all__ = ["TinyGraph", "factored_graph_dual"]


@dataclass(frozen=True)
class TinyGraph:
    """A graph with the true labels of the nodes.

    Args:
        nodes: the features of the nodes, (nodes, features); for a kernel, a matrix R for which R Rᵀ is the
            kernel matrix.
        edges: pairs of nodes.
        edge_features: the features of the edges, (edges, features), or a matrix R.
        labels: (nodes,), the true states.
        cliques: the maximal cliques of a triangulation. If only the edges are given, the dual belongs to the
            relaxation to the local polytope.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references.graphs import TinyGraph
        >>> pair = TinyGraph(np.ones((2, 1)), [(0, 1)], np.ones((1, 1)), np.array([0, 1]), [(0, 1)])
        >>> pair.labels.tolist()
        [0, 1]
    """

    nodes: np.ndarray
    edges: list[tuple[int, int]]
    edge_features: np.ndarray
    labels: np.ndarray
    cliques: list[tuple[int, ...]]


def factored_graph_dual(
    graphs: list[TinyGraph], num_states: int, C: float, *, directed: bool = True
) -> float:
    """Return the optimum of the dual, max Σ_x Σ_i (C − μ_i(truth)) − ½‖w‖², over clique marginals μ.

    Marginals sum to C, and agree on nodes that cliques share. The weights w of nodes are Σ (C e_truth − μ_i)
    ⊗ φ_i; weights of edges are the same sum with pairs of states, which are ordered pairs if ``directed``.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references.graphs import TinyGraph, factored_graph_dual
        >>> pair = TinyGraph(np.zeros((2, 1)), [(0, 1)], np.zeros((1, 1)), np.array([0, 1]), [(0, 1)])
        >>> round(factored_graph_dual([pair], 2, 0.5), 6)
        1.0
    """
    pairs = [*product(range(num_states), repeat=2)]
    names = {pair: pairs.index(pair if directed else (min(pair), max(pair))) for pair in pairs}
    merge = np.zeros((len(pairs), len(pairs)))
    merge[range(len(pairs)), list(names.values())] = 1
    gain, unary, pairwise, constraints = 0, 0, 0, []
    for graph in graphs:
        tables = [cp.Variable(num_states ** len(clique), nonneg=True) for clique in graph.cliques]

        def marginal(clique: int, scope: tuple[int, ...], graph=graph, tables=tables):
            """Sum the marginals of a clique over the nodes outside of ``scope``."""
            places = [graph.cliques[clique].index(node) for node in scope]
            every = np.array([*product(range(num_states), repeat=len(graph.cliques[clique]))])
            index = every[:, places] @ num_states ** np.arange(len(scope))[::-1]
            return np.eye(num_states ** len(scope))[:, index] @ tables[clique]

        constraints += [cp.sum(table) == C for table in tables]
        for one, other in combinations(range(len(tables)), 2):
            shared = tuple(sorted({*graph.cliques[one]} & {*graph.cliques[other]}))
            if shared:
                constraints.append(marginal(one, shared) == marginal(other, shared))

        def home(scope: tuple[int, ...], graph=graph) -> int:
            return next(at for at, clique in enumerate(graph.cliques) if {*scope} <= {*clique})

        own = np.eye(num_states)[graph.labels]
        for node, features in enumerate(graph.nodes):
            mass = marginal(home((node,)), (node,))
            gain = gain + C - own[node] @ mass
            unary = unary + cp.outer(C * own[node] - mass, features)
        for scope, features in zip(graph.edges, graph.edge_features, strict=True):
            truth = np.outer(*own[[*scope]]).ravel()
            pairwise = pairwise + cp.outer(merge.T @ (C * truth - marginal(home(scope), scope)), features)
    square = cp.sum_squares(unary) + cp.sum_squares(pairwise)
    return solve(cp.Maximize(gain - 0.5 * square), constraints)
