"""Linear models of graphs whose nodes have any number of states, as rows of features for the solvers.

Each node and each edge is a row. A node's row has the node's features and an output for each state; an edge's
row has the edge's features and an output for each pair of states (unordered if edges have no direction). The
score of a labelling is the sum of the outputs at the labels (max_margin_markov_networks_survey_2003, §3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import minimize

from lmbm_torch.energies import FactorEnergy, FactorScopes
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.graphs import belief_propagation, dual_ascent, elimination
from lmbm_torch.kernels.threads import share
from lmbm_torch.memory import limit_bytes
from lmbm_torch.solvers.structural.problems import CuttingPlanes, Maximisers, StructuralProblem

# Loss-augmented decoding by dual ascent ends after ORACLE_SWEEPS pairs of sweeps, or once the relative gain
# of a pair is below ORACLE_GAIN (scripts/bench/snakes.py).
ORACLE_SWEEPS, ORACLE_GAIN = 30, 1e-4


@dataclass(frozen=True)
class GraphRows:
    """Nodes and edges of graphs as rows of features.

    Args:
        features: (rows, node features + edge features), CSR; for each graph the nodes first, then the edges.
        start: (graphs + 1,), the first row of each graph.
        edges: for each graph, the numbers of the two nodes of each edge, (edges, 2).
        num_states: the number of states of each node.
        directed: whether (r, s) and (s, r) are different outputs of an edge.
    """

    features: sparse.csr_array
    start: np.ndarray
    edges: tuple[np.ndarray, ...]
    num_states: int
    directed: bool

    @classmethod
    def of(
        cls,
        nodes: Sequence[np.ndarray],
        edges: Sequence[np.ndarray],
        edge_features: Sequence[np.ndarray],
        num_states: int,
        directed: bool,
    ) -> GraphRows:
        """Build the rows from each graph's node features, edges and edge features."""
        blocks, sizes = [], []
        for own, of_edges in zip(nodes, edge_features, strict=True):
            blocks.append(sparse.block_diag([own, of_edges], format="csr"))
            sizes.append(len(own) + len(of_edges))
        features = sparse.csr_array(sparse.vstack(blocks, format="csr"))
        start = np.concatenate([[0], np.cumsum(sizes)])
        return cls(features, start, tuple(edges), num_states, directed)

    @property
    def num_outputs(self) -> int:
        return self.num_states + int(self.pair.max()) + 1

    @cached_property
    def pair(self) -> np.ndarray:
        """Return for each pair of states (r, s) the number of the edge output, (states · states,)."""
        first, second = np.divmod(np.arange(self.num_states**2), self.num_states)
        if self.directed:
            return first * self.num_states + second
        low, high = np.minimum(first, second), np.maximum(first, second)
        return low * self.num_states - low * (low - 1) // 2 + high - low

    @cached_property
    def structures(self) -> tuple[FactorScopes, ...]:
        """Return the factor scopes of each graph; graphs with equal edges share one object."""
        known: dict[tuple[int, bytes], FactorScopes] = {}
        found = []
        for number, edges in enumerate(self.edges):
            nodes = self.num_nodes(number)
            key = nodes, np.ascontiguousarray(edges).tobytes()
            if key not in known:
                scopes = tuple(map(tuple, edges.tolist()))
                known[key] = FactorScopes((self.num_states,) * nodes, scopes)
            found.append(known[key])
        return tuple(found)

    def num_nodes(self, graph: int) -> int:
        return int(self.start[graph + 1] - self.start[graph]) - len(self.edges[graph])

    def tables(self, scores: np.ndarray, graph: int) -> np.ndarray:
        """Arrange one graph's scores (rows, outputs) as the entries of the graph's energy."""
        nodes = self.num_nodes(graph)
        unary = scores[:nodes, : self.num_states]
        tables = scores[nodes:, self.num_states + self.pair]
        return np.concatenate([unary.ravel(), tables.ravel()])

    def energies(self, scores: np.ndarray) -> FactorEnergy:
        """Return one packed energy with all graphs, from the scores (rows, outputs)."""
        tables = [
            self.tables(scores[low:high], graph) for graph, (low, high) in enumerate(pairwise(self.start))
        ]
        each = zip(tables, self.structures, strict=True)
        return FactorEnergy.packed(
            [FactorEnergy(torch.from_numpy(table)[None], structure) for table, structure in each]
        )

    def known(self, labels: Sequence[np.ndarray]) -> torch.Tensor:
        """Return labels (graphs, most nodes) for :meth:`FactorEnergy.given`, NaN where missing (−1)."""
        found = np.full((len(labels), max(map(len, labels))), np.nan)
        for row, each in enumerate(labels):
            found[row, : len(each)] = np.where(each < 0, np.nan, each)
        return torch.from_numpy(found)

    @cached_property
    def is_narrow(self) -> bool:
        """Return whether exact variable elimination for all graphs fits into memory."""
        zero = self.energies(np.zeros((cast(Any, self.features).shape[0], self.num_outputs)))
        return elimination.fits(zero, "marginals", limit_bytes(LIMITS.graph_bytes))

    def outputs(self, labels: np.ndarray, graph: int) -> np.ndarray:
        """Return for each row of a graph the output that the labels (nodes,) select."""
        first, second = labels[self.edges[graph]].reshape(-1, 2).T
        pairs = self.num_states + self.pair[first * self.num_states + second]
        return np.concatenate([labels, pairs])


def hinge_problem(
    rows: GraphRows,
    labels: Sequence[np.ndarray],
    *,
    C: float,
    known: Sequence[np.ndarray],
    node_limit: int = 1,
    sample_weight: np.ndarray | None = None,
) -> StructuralProblem:
    """Return min ½‖w‖² + C Σ max_y [Hamming(y_l, y) + score(x_l, y) − score(x_l, y_l)] with its oracle.

    The oracle decodes by dual ascent; to compute the duality gap of all examples, by branch and bound. The
    labelling found gives a cutting plane, and the proven bound is used as the hinge. So the duality gap is an
    upper bound even if the relaxation is not tight (the survey's section 4.1) or the search ends early.

    Args:
        labels: the true labels of each graph, (nodes,).
        C: the weight of the losses.
        known: for each graph, whether a node enters the Hamming loss, (nodes,).
        node_limit: the largest number of nodes of the search tree of an example.
        sample_weight: (graphs,), multiplies C.
    """
    truths = [rows.outputs(each, graph) for graph, each in enumerate(labels)]

    def oracle(scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray) -> Maximisers:
        sizes = np.diff(rows.start)[examples]
        first = np.concatenate([[0], np.cumsum(sizes)])
        found: list[tuple[float, float, np.ndarray, np.ndarray]] = [None] * len(examples)  # pyright: ignore

        def work(at: int) -> None:
            graph = int(examples[at])
            own = scores[first[at] : first[at + 1]]
            # Search by branch and bound only if all examples are decoded, which serves the duality gap.
            nodes = node_limit if len(examples) == len(labels) else 1
            found[at] = _most_violating(rows, own, labels[graph], known[graph], truths[graph], graph, nodes)

        share(range(len(examples)), work)
        index = [each[2] for each in found]
        start = np.concatenate([[0], np.cumsum([len(each) for each in index])]).astype(np.int64)
        planes = CuttingPlanes(
            np.asarray(examples),
            np.array([each[0] for each in found]),
            start,
            np.concatenate(index).astype(np.int32),
            np.concatenate([each[3] for each in found]),
        )
        return Maximisers(planes, np.array([each[1] for each in found]))

    return StructuralProblem.from_rows(
        rows.features,
        oracle,
        num_outputs=rows.num_outputs,
        num_couplings=0,
        start=rows.start,
        C=C,
        sample_weight=sample_weight,
    )


def _most_violating(
    rows: GraphRows,
    scores: np.ndarray,
    truth: np.ndarray,
    known: np.ndarray,
    true: np.ndarray,
    graph: int,
    node_limit: int,
) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Decode a graph; return the labelling's loss, a bound on max loss − ⟨w, ψ⟩, and ψ (index, values)."""
    nodes, states = len(truth), rows.num_states
    table = rows.tables(scores, graph)
    augmented = table[: nodes * states] + np.repeat(known, states)
    augmented[np.arange(nodes) * states + truth] -= known
    limits: dict[str, Any] = {"num_iters": ORACLE_SWEEPS, "tol": ORACLE_GAIN, "node_limit": node_limit}
    answer = dual_ascent.searched_tables(rows.structures[graph], augmented, table[nodes * states :], **limits)
    best = answer.labels
    found = rows.outputs(best, graph)
    (changed,) = np.nonzero(found != true)
    own = scores[np.arange(len(true)), true].sum()
    at = changed * rows.num_outputs
    index = np.concatenate([at + true[changed], at + found[changed]])
    values = np.concatenate([np.ones(len(changed)), -np.ones(len(changed))])
    return float((best != truth)[known].sum()), float(answer.bound - own), index, values


class Likelihood(NamedTuple):
    """The weights that maximise the penalised likelihood.

    Args:
        weights: (outputs, features + 1); the last column belongs to the constant feature 1.
        objective: ½‖w‖² − C Σ log p, by the Bethe approximation if inference is not exact.
        excess: an upper bound of the objective's distance from the optimum: ½‖gradient‖², as the objective is
            1-strongly convex; infinite if inference is not exact or labels are missing.
        num_iters: iterations of L-BFGS.
        exact: whether the log-partition functions of all graphs are exact.
    """

    weights: np.ndarray
    objective: float
    excess: float
    num_iters: int
    exact: bool


def most_likely(
    rows: GraphRows,
    labels: Sequence[np.ndarray],
    *,
    C: float,
    tol: float,
    max_iter: int,
    sample_weight: np.ndarray | None = None,
) -> Likelihood:
    """Minimise ½‖w‖² − C Σ log p(y_l | x_l) by L-BFGS, with exact or approximate log-partition functions.

    If the tables of variable elimination fit into :data:`~lmbm_torch.inference.common.limits.LIMITS`, sums
    are exact; otherwise belief propagation computes the Bethe approximation, and nothing is certified.
    Missing labels (−1) are summed out: then the objective is not convex, and the excess is infinite.
    """
    given: Any = rows.features
    features: Any = sparse.hstack([given, np.ones((given.shape[0], 1))], format="csr")
    weight = np.ones(len(labels)) if sample_weight is None else sample_weight
    size, columns = rows.num_outputs, features.shape[1]
    known = rows.known(labels) if any((each < 0).any() for each in labels) else None
    # Replace missing labels (−1) by state 0: these outputs are never read.
    truths = np.concatenate([rows.outputs(np.maximum(each, 0), graph) for graph, each in enumerate(labels)])
    of_row = np.repeat(np.arange(len(labels)), np.diff(rows.start))
    exact = rows.is_narrow

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(size, columns)
        scores = features @ w.T
        log_sums, chances = _expected(rows, scores, exact)
        if known is None:
            own = scores[np.arange(len(truths)), truths]
            loss = weight @ log_sums - weight[of_row] @ own
            chances[np.arange(len(truths)), truths] -= 1.0
        else:
            given, chances_given = _expected(rows, scores, exact, known)
            loss = weight @ (log_sums - given)
            chances = chances - chances_given
        gradient = w + C * (features.T @ (weight[of_row, None] * chances)).T
        return float(0.5 * flat @ flat + C * loss), gradient.ravel()

    start = np.zeros(size * columns)
    scale = np.linalg.norm(objective(start)[1])
    found = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "gtol": tol * scale / np.sqrt(len(start)), "ftol": 0.0, "maxls": 40},
    )
    slope = float(np.linalg.norm(found.jac))
    excess = 0.5 * slope**2 if exact and known is None else np.inf
    return Likelihood(found.x.reshape(size, columns), float(found.fun), excess, int(found.nit), exact)


def _expected(
    rows: GraphRows, scores: np.ndarray, exact: bool, known: torch.Tensor | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return each graph's log-partition function, and the probabilities of the outputs, (rows, outputs)."""
    energy = rows.energies(scores)
    if exact:
        table = energy.table.requires_grad_()
        log_sums = elimination.log_partition(FactorEnergy(table, energy.structure).given(known))
        (chances,) = torch.autograd.grad(log_sums.sum(), table)
        by_entry = chances.numpy()
    else:
        log_sums, by_entry = belief_propagation.entries(energy)
    # Split the entries at ``nodes``: entries of all nodes come before entries of all edges.
    states, found = rows.num_states, np.zeros_like(scores)
    is_node = np.concatenate(
        [
            np.arange(high - low) < rows.num_nodes(graph)
            for graph, (low, high) in enumerate(pairwise(rows.start))
        ]
    )
    nodes = int(is_node.sum()) * states
    found[is_node, :states] = by_entry[:nodes].reshape(-1, states)
    pairs = by_entry[nodes:].reshape(-1, states**2)
    summed = np.zeros((len(pairs), rows.num_outputs - states))
    for number, output in enumerate(rows.pair):
        summed[:, output] += pairs[:, number]
    found[~is_node, states:] = summed
    return log_sums.detach().numpy(), found
