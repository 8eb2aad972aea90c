"""Joint classifiers of the nodes of graphs: max-margin Markov networks and conditional random fields."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor

from lmbm_torch.checks import is_missing
from lmbm_torch.energies import FactorEnergy
from lmbm_torch.estimators.common.base import TrainedEstimator
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.kernels import Kernel, KernelMap
from lmbm_torch.estimators.common.settings import KERNELS, SHARED, Constraints, StrOptions, check_parameters
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.graphs import dual_ascent
from lmbm_torch.inference.routes.quantities import marginals
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.structural import frank_wolfe
from lmbm_torch.solvers.structural.graphs import GraphRows, hinge_problem, most_likely

OBJECTIVES = ("hinge", "likelihood")
# Number of graphs decoded with the same weights before the solver changes weights (scripts/bench/snakes.py).
BATCH = 10
# Largest number of rounds, each of training and prediction of missing classes; most end earlier.
COMPLETIONS = 5
# From this relative duality gap on, searches prove better bounds than relaxations (scripts/bench/snakes.py).
RELAXED_GAP = 0.2


class Graphs(NamedTuple):
    """Validated graphs: lists with each graph's node features, edges and edge features, as arrays."""

    nodes: list[np.ndarray]
    edges: list[np.ndarray]
    edge_features: list[np.ndarray]


class GraphClassifier(TrainedEstimator):
    """A joint classifier of the nodes of graphs (max_margin_markov_networks_survey_2003, sections 3 and 4).

    The score of a labelling is Σ_i ⟨u_{y_i}, x_i⟩ + Σ_{(i, j)} ⟨v_{y_i y_j}, x_ij⟩, with a constant feature 1
    for nodes and edges. An example is a pair: node features (nodes, features), and edges (edges, 2) of node
    numbers; a tree may have its parents (nodes,) in place of edges, −1 for a root, and an edge from each
    parent to each child in the children's order. Edge features (edges, features) may be the third of a
    triple. ``y`` is a list of arrays (nodes,) of classes, NaN or None for a missing one.

    * ``"hinge"`` minimises ½‖w‖² + C Σ max_y [Hamming(y_l, y) + score(x_l, y) − score(x_l, y_l)] by
      block-coordinate Frank–Wolfe. The labellings come from dual ascent, near the optimum from branch and
      bound. The gap is certified: a hinge that is not proven enters the gap with an upper bound, such as the
      bound of the local polytope of a graph with cycles.
    * ``"likelihood"`` minimises ½‖w‖² − C Σ log p(y_l | x_l) by L-BFGS. Narrow graphs have exact log
      partitions and a certified distance from the optimum; wide graphs have the Bethe approximation.

    Kernels take the place of inner products of node features and of edge features: scores are then
    Σ_j c_j k(x_i, x_j), with all training nodes or edges x_j, and a constant 1 is added to a kernel. Both
    solvers run on features with the kernel's inner products. The hinge has the optimum of the factored dual
    in the marginals of a junction tree's cliques (the survey's section 7.3), the likelihood the optimum of
    the dual of dual_optimization_conditional_models_2006, on graphs of any form.

    Missing classes of narrow graphs are summed out of the likelihood. Otherwise training alternates with the
    best completion by the last weights (Yu and Joachims, Learning structural SVMs with latent variables,
    2009), without a Hamming loss of missing nodes. The gap is then that of the last completion.

    Args:
        C: weight of the losses.
        objective: ``"hinge"`` or ``"likelihood"``.
        edge_features: whether the examples have features of edges; otherwise edges only have the constant.
        directed: whether classes (r, s) of an edge from i to j have a different score than (s, r).
        kernel: kernel of node features: ``"linear"``, ``"poly"``, ``"rbf"``, or a function of two feature
            matrices that returns the kernel values; all but the linear kernel need memory for the values of
            all pairs of nodes.
        edge_kernel: kernel of edge features, given like ``kernel``.
        gamma, kernel_degree, coef0: parameters of both kernels, see
            :class:`~lmbm_torch.estimators.LMSBNClassifier`.
        node_limit: largest number of search nodes when decoding a graph.
        tol: relative duality gap at which training by the hinge ends; for the likelihood, norm of the
            gradient, relative to the norm at zero weights.
        max_iter: number of passes, or iterations, after which training ends with a warning.
        device: device of the energies in predictions.
        verbose: 1 for a progress bar with the gap (needs rich), 0 for none.
        random_state: seed of the order in which the solver visits graphs.

    Attributes:
        classes_: the classes; n_features_in_, n_edge_features_: numbers of features of a node and of an edge.
        coef_: (classes, features), weights of node features; intercept_: (classes,).
        edge_coef_: (classes, classes, edge features + 1), weights of edge features by the classes of first
            and second node; the last weight belongs to the constant.
        node_map_, edge_map_: maps from features to the inputs of ``coef_`` and ``edge_coef_``, see
            :class:`~lmbm_torch.estimators.common.kernels.KernelMap`; None for linear kernels.
        objective_: the value of the training objective; n_iter_: number of passes or iterations.
        duality_gap_: the duality gap relative to the objective; infinite (unknown) for the likelihood of wide
            graphs; is_exact_: whether log partition functions in the likelihood are exact.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.estimators import GraphClassifier
        >>> triangle = np.array([[0, 1], [1, 2], [2, 0]])
        >>> X = [(np.array([[2.0], [-0.1], [1.0]]), triangle), (np.array([[-2.0], [0.1], [-1.0]]), triangle)]
        >>> model = GraphClassifier(random_state=0).fit(X, [[1, 1, 1], [0, 0, 0]])
        >>> model.predict(X)
        [array([1, 1, 1]), array([0, 0, 0])]
    """

    # Do not read texts in ``y`` as sets of names: these are classes of nodes.
    encodes_frames: ClassVar[bool] = False
    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "objective": [StrOptions(OBJECTIVES)],
        "edge_features": ["boolean"],
        "directed": ["boolean"],
        "kernel": [StrOptions(KERNELS), callable],
        "edge_kernel": [StrOptions(KERNELS), callable],
    }

    def __init__(
        self,
        C: float = 1.0,
        *,
        objective="hinge",
        edge_features=False,
        directed=False,
        kernel="linear",
        edge_kernel="linear",
        gamma="scale",
        kernel_degree=3,
        coef0=0.0,
        node_limit=100,
        tol=1e-2,
        max_iter=200,
        device="cpu",
        verbose=0,
        random_state=None,
    ):
        self.C = C
        self.objective = objective
        self.edge_features = edge_features
        self.directed = directed
        self.kernel = kernel
        self.edge_kernel = edge_kernel
        self.gamma = gamma
        self.kernel_degree = kernel_degree
        self.coef0 = coef0
        self.node_limit = node_limit
        self.tol = tol
        self.max_iter = max_iter
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        # Skip scikit-learn's estimator checks, which cannot create graphs as instances.
        tags.no_validation = True
        tags.target_tags.required = True
        return tags

    @fit_call
    def fit(self, X, y, sample_weight=None):
        """Train on graphs and the classes of nodes, in the forms that the class describes.

        Args:
            sample_weight: (graphs,), factors of C.

        Raises:
            ValueError: a parameter or input is invalid; the message names it.
        """
        check_parameters(self)
        graphs = self._validated(X)
        shapes = self._shapes(X, graphs)
        flat = np.concatenate(_labels(y, shapes))
        missing = is_missing(flat)
        if missing.all():
            raise ValueError("y: expected the class of at least one node, got missing ones alone")
        check_classification_targets(flat[~missing])
        self.classes_, known = np.unique(flat[~missing].tolist(), return_inverse=True)
        codes = np.full(len(flat), -1)
        codes[~missing] = known
        sizes = [len(each) for each in graphs.nodes]
        labels = np.split(codes, np.cumsum(sizes)[:-1])
        self.n_features_in_ = graphs.nodes[0].shape[1]
        self.n_edge_features_ = graphs.edge_features[0].shape[1]
        weights = self._weights(sample_weight, sizes)
        self.node_map_ = self._map(self.kernel, graphs.nodes)
        self.edge_map_ = self._map(self.edge_kernel, graphs.edge_features)
        rows = self._rows(graphs)
        if not missing.any() or (self.objective == "likelihood" and rows.is_narrow):
            self._train(rows, labels, labels, weights)
        else:
            self._complete(graphs, rows, labels, weights)
        return self

    def _complete(self, graphs: Graphs, rows: GraphRows, labels: list[np.ndarray], weights: Any) -> None:
        """Train with missing classes: first on known nodes only, then with predicted missing classes."""
        some = [number for number, each in enumerate(labels) if (each >= 0).any()]
        kept = [labels[number][labels[number] >= 0] for number in some]
        own_weights = None if weights is None else weights[some]
        self._train(self._rows(_known_part(graphs, labels, some)), kept, kept, own_weights)
        last: list[np.ndarray] = []
        for _ in range(COMPLETIONS):
            found = self._decoded(rows, rows.known(labels)).labels.numpy()
            completed = [row[: len(each)] for row, each in zip(found, labels, strict=True)]
            if last and all(map(np.array_equal, completed, last)):
                return
            last = completed
            self._train(rows, completed, labels, weights)

    def _train(
        self, rows: GraphRows, labels: list[np.ndarray], given: list[np.ndarray], weights: np.ndarray | None
    ) -> None:
        """Train on complete ``labels``; nodes whose class is missing in ``given`` have no Hamming loss."""
        if self.objective == "hinge":
            state = self._least_hinge(rows, labels, [each >= 0 for each in given], weights)
            flat_weights, self.is_exact_ = state.weights.features, False
            self._report(state)
        else:
            found = most_likely(
                rows, labels, C=self.C, tol=self.tol, max_iter=self.max_iter, sample_weight=weights
            )
            flat_weights, self.is_exact_ = found.weights, found.exact
            self.objective_, self.n_iter_ = found.objective, found.num_iters
            self.duality_gap_ = found.excess / max(found.objective, np.finfo(float).tiny)
            if found.num_iters >= self.max_iter:
                self._warn_unless_reached(np.inf, "relative gradient")
        self._set_weights(rows, flat_weights)

    def _least_hinge(
        self, rows: GraphRows, labels: list[np.ndarray], known: list[np.ndarray], weights: np.ndarray | None
    ) -> Any:
        """Minimise the hinge by relaxations, and near the optimum by searches; return the last state."""
        seed, tol = self._seed(), max(self.tol, RELAXED_GAP)
        problem = hinge_problem(rows, labels, C=self.C, known=known, sample_weight=weights)
        with self._progress() as tell:
            settings: dict[str, Any] = {"seed": seed, "batch_size": BATCH, "progress": tell}
            state = run(frank_wolfe, problem, tol=tol, max_iter=self.max_iter, **settings)
            left = self.max_iter - state.num_iters
            if state.gap <= self.tol or state.gap > tol or left < 1:
                return state
            limits: dict[str, Any] = {"node_limit": self.node_limit, "sample_weight": weights}
            searched = hinge_problem(rows, labels, C=self.C, known=known, **limits)
            return run(frank_wolfe, searched, tol=self.tol, max_iter=left, start=state, **settings)

    @answer_call
    def predict(self, X, known=None) -> list[np.ndarray]:
        """Predict the classes of each graph's nodes.

        Args:
            known: known classes in the form of ``y``; missing classes are predicted.
        """
        graphs = self._validated(X, fitted=True)
        shapes, rows = self._shapes(X, graphs), self._rows(graphs)
        found = self._decoded(rows, self._known(rows, known, shapes)).labels.numpy()
        return [
            self.classes_[row[: prod(shape)]].reshape(shape) for row, shape in zip(found, shapes, strict=True)
        ]

    @answer_call
    def decode(self, X) -> Decoding:
        """Return each graph's classes with the largest score, as indices into ``classes_``, with a bound."""
        return self._decoded(self._rows(self._validated(X, fitted=True)), None)

    @available_if(lambda classifier: classifier.objective == "likelihood")
    @answer_call
    def predict_proba(self, X, known=None) -> list[np.ndarray]:
        """Return P(class | known) of each graph's nodes, (nodes, classes): exact, or by belief propagation.

        The method only exists for ``objective="likelihood"``, because hinge scores are no log-probabilities.
        """
        graphs = self._validated(X, fitted=True)
        shapes, rows = self._shapes(X, graphs), self._rows(graphs)
        given = self._known(rows, known, shapes)
        energy = self._energy(rows)
        states = marginals(energy, known=None if given is None else given.to(energy.device)).states
        each = zip(states.cpu().numpy(), shapes, strict=True)
        return [row[: prod(shape)].reshape(*shape, -1) for row, shape in each]

    def energy(self, X) -> FactorEnergy:
        """Return a single energy for all graphs, in float64, on ``device``."""
        return self._energy(self._rows(self._validated(X, fitted=True)))

    def score(self, X, y) -> float:
        """Return the share of nodes whose class is predicted right."""
        predicted = self.predict(X)
        truth = np.concatenate(_labels(y, [each.shape for each in predicted]))
        return float(np.mean(np.concatenate([each.ravel() for each in predicted]) == truth))

    def _decoded(self, rows: GraphRows, known: Tensor | None) -> Decoding:
        energy = self._energy(rows).to("cpu")
        return dual_ascent.branch_and_bound(energy, known=known, node_limit=self.node_limit)

    def _shapes(self, X: Any, graphs: Graphs) -> list[tuple[int, ...]]:
        """Return for each graph the shape of its array of classes: (nodes,); subclasses may differ."""
        return [(len(each),) for each in graphs.nodes]

    def _known(self, rows: GraphRows, known: Any, shapes: Sequence[tuple[int, ...]]) -> Tensor | None:
        """Convert known classes to indices into ``classes_``, NaN for nodes without known class."""
        if known is None:
            return None
        each = []
        for own in _labels(known, shapes, "known"):
            missing = is_missing(own)
            codes = np.full(len(own), -1)
            codes[~missing] = [self._code(value) for value in own[~missing].tolist()]
            each.append(codes)
        return rows.known(each)

    def _code(self, value: Any) -> int:
        (at,) = np.nonzero(self.classes_ == value)
        if not len(at):
            raise ValueError(f"known: expected one of the classes {self.classes_.tolist()}, got {value!r}")
        return int(at[0])

    def _map(self, kernel: Any, features: list[np.ndarray]) -> KernelMap | None:
        """Build the map to a kernel's features; return None for the linear kernel or without features."""
        flat = np.concatenate(features)
        if (isinstance(kernel, str) and kernel == "linear") or not flat.size:
            return None
        named = SimpleNamespace(
            kernel=kernel, gamma=self.gamma, kernel_degree=self.kernel_degree, coef0=self.coef0, C=1.0
        )
        return KernelMap.of(Kernel.of(named, flat, None, self.device), flat)

    def _energy(self, rows: GraphRows) -> FactorEnergy:
        nodes = self.coef_.shape[1]
        pairs = np.zeros((rows.num_outputs - rows.num_states, self.edge_coef_.shape[2]))
        pairs[rows.pair] = self.edge_coef_.reshape(len(rows.pair), -1)
        scores = np.zeros((cast(Any, rows.features).shape[0], rows.num_outputs))
        scores[:, : rows.num_states] = rows.features[:, :nodes] @ self.coef_.T + self.intercept_
        scores[:, rows.num_states :] = rows.features[:, nodes:] @ pairs[:, :-1].T + pairs[:, -1]
        return rows.energies(scores).to(self._device)

    def _rows(self, graphs: Graphs) -> GraphRows:
        nodes = _mapped(self.node_map_, graphs.nodes)
        pairs = _mapped(self.edge_map_, graphs.edge_features)
        return GraphRows.of(nodes, graphs.edges, pairs, len(self.classes_), self.directed)

    def _set_weights(self, rows: GraphRows, weights: np.ndarray) -> None:
        """Set the fitted coefficients of nodes and edges from the solver's weights."""
        states = rows.num_states
        nodes = self.n_features_in_ if self.node_map_ is None else self.node_map_.basis.shape[1]
        self.coef_, self.intercept_ = weights[:states, :nodes].copy(), weights[:states, -1].copy()
        pairs = weights[states:, nodes:][rows.pair]
        self.edge_coef_ = pairs.reshape(states, states, -1).copy()

    def _validated(self, X: Any, *, fitted: bool = False) -> Graphs:
        """Validate graphs and convert to arrays; raise ValueError if a graph is invalid."""
        if fitted:
            check_is_fitted(self)
        if not isinstance(X, Sequence) or not len(X):
            raise ValueError("X: expected a list of graphs (node features, edges), got none")
        wanted = ("node features", "edges", "edge features")[: 3 if self.edge_features else 2]
        found = Graphs([], [], [])
        for number, graph in enumerate(X):
            if not isinstance(graph, tuple | list) or len(graph) != len(wanted):
                raise ValueError(f"X[{number}]: expected ({', '.join(wanted)}), got {_described(graph)}")
            nodes = check_array(
                graph[0], dtype=cast(Any, np.float64), input_name=f"X[{number}]: node features"
            )
            edges = _edges(np.asarray(graph[1]), len(nodes), number)
            is_whole = np.issubdtype(edges.dtype, np.integer) or not edges.size
            if not is_whole or edges.ndim != 2 or edges.shape[1] != 2:
                raise ValueError(f"X[{number}]: expected whole numbers (edges, 2), got {_described(edges)}")
            edges = edges.astype(np.int64)
            is_inside = ((edges >= 0) & (edges < len(nodes))).all()
            if not is_inside or (edges[:, 0] == edges[:, 1]).any():
                raise ValueError(f"X[{number}]: expected edges between different nodes below {len(nodes)}")
            of_edges = np.zeros((len(edges), 0))
            if self.edge_features:
                of_edges = np.asarray(graph[2], np.float64)
                if of_edges.ndim != 2 or len(of_edges) != len(edges) or not np.isfinite(of_edges).all():
                    raise ValueError(
                        f"X[{number}]: expected edge features ({len(edges)}, features), all finite, "
                        f"got "
                        f"{_described(of_edges)}"
                    )
            for name, size, known in (
                ("node features", nodes.shape[1], found.nodes),
                ("edge features", of_edges.shape[1], found.edge_features),
            ):
                attribute = "n_features_in_" if name == "node features" else "n_edge_features_"
                before = getattr(self, attribute) if fitted else known[0].shape[1] if known else size
                if size != before:
                    raise ValueError(f"X[{number}]: expected {before} {name}, got {size}")
            for name, value in (("nodes", nodes), ("edges", edges), ("edge_features", of_edges)):
                getattr(found, name).append(value)
        return found


def _edges(given: np.ndarray, nodes: int, number: int) -> np.ndarray:
    """Return edges (edges, 2); if parents of a tree's nodes are given, convert these to edges."""
    if given.ndim != 1:
        return given
    if not len(given):
        return np.zeros((0, 2), np.int64)
    if np.issubdtype(given.dtype, np.integer) and len(given) == nodes:
        children = np.flatnonzero(given != -1)
        edges = np.stack([given[children], children], 1)
        if ((edges >= 0) & (edges < nodes)).all():
            links = sparse.coo_array((np.ones(len(edges)), edges.T), (nodes, nodes))
            # Check for cycles: in a forest, each edge reduces the number of components by 1.
            if csgraph.connected_components(links)[0] == nodes - len(edges):
                return edges
    raise ValueError(f"X[{number}]: expected edges (edges, 2), or a tree's parents, −1 to {nodes - 1}")


def _mapped(found: KernelMap | None, features: list[np.ndarray]) -> list[np.ndarray]:
    """Map the features of each graph by a kernel's map; keep the features if there is no map."""
    if found is None:
        return features
    flat = np.concatenate(features)
    mapped = found(flat) if len(flat) else np.zeros((0, found.basis.shape[1]))
    return np.split(mapped, np.cumsum([len(each) for each in features])[:-1])


def _described(value: Any) -> str:
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _labels(y: Any, shapes: Sequence[tuple[int, ...]], name: str = "y") -> list[np.ndarray]:
    """Return the classes of each graph's nodes as vectors; raise ValueError if a shape is wrong."""
    if y is None or len(y) != len(shapes):
        raise ValueError(f"{name}: expected {len(shapes)} arrays of classes, one a graph")
    found = [np.asarray(each) for each in y]
    for number, (each, shape) in enumerate(zip(found, shapes, strict=True)):
        if each.shape != tuple(shape):
            wanted = f"{shape[0]} classes" if len(shape) == 1 else f"classes of shape {shape}"
            raise ValueError(f"{name}[{number}]: expected {wanted}, got shape {each.shape}")
    return [each.ravel() for each in found]


def _known_part(graphs: Graphs, labels: Sequence[np.ndarray], some: Sequence[int]) -> Graphs:
    """Return some graphs without the nodes whose class is missing."""
    found = Graphs([], [], [])
    for number in some:
        known, edges = labels[number] >= 0, graphs.edges[number]
        inside = known[edges].all(1)
        found.nodes.append(graphs.nodes[number][known])
        found.edges.append((np.cumsum(known) - 1)[edges[inside]])
        found.edge_features.append(graphs.edge_features[number][inside])
    return found
