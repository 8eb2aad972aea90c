"""Joint classifiers of the cells of images and other grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from lmbm_torch.estimators.common.settings import Constraints
from lmbm_torch.estimators.graphs.classifier import GraphClassifier, Graphs

# Steps (rows, columns) from a cell to later neighbours, so each edge occurs once; diagonal neighbours last.
STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))


class GridClassifier(GraphClassifier):
    """A joint classifier of the cells of images, a :class:`GraphClassifier` of their grids.

    ``X`` is an array (images, rows, columns, features) or a list of arrays (rows, columns, features) of any
    sizes; ``y``, ``known`` and predictions have the classes (rows, columns) of each. Edges lead from a
    cell to the right and down, with diagonals also down to the right and down to the left.

    Args:
        C, objective, directed, kernel, edge_kernel, gamma, kernel_degree, coef0, node_limit, tol, max_iter,
            device, verbose, random_state: see :class:`GraphClassifier`.
        diagonals: whether a cell has 8 neighbours, rather than 4.
        edge_features: whether an edge has features: for each direction a constant and the features of both
            cells; otherwise edges only have a constant.

    Attributes:
        classes_, coef_, intercept_, edge_coef_, node_map_, edge_map_, objective_, n_iter_, duality_gap_,
            is_exact_: see :class:`GraphClassifier`.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.estimators import GridClassifier
        >>> images = np.random.default_rng(0).normal(size=(4, 5, 5, 1))
        >>> images[:, :, 2:] += 2
        >>> model = GridClassifier(random_state=0).fit(images, [np.tile([0, 0, 1, 1, 1], (5, 1))] * 4)
        >>> model.predict(images)[0][0]
        array([0, 0, 1, 1, 1])
    """

    _accepted: ClassVar[Constraints] = {**GraphClassifier._accepted, "diagonals": ["boolean"]}

    def __init__(
        self,
        C: float = 1.0,
        *,
        objective="hinge",
        diagonals=False,
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
        super().__init__(
            C,
            objective=objective,
            edge_features=edge_features,
            directed=directed,
            kernel=kernel,
            edge_kernel=edge_kernel,
            gamma=gamma,
            kernel_degree=kernel_degree,
            coef0=coef0,
            node_limit=node_limit,
            tol=tol,
            max_iter=max_iter,
            device=device,
            verbose=verbose,
            random_state=random_state,
        )
        self.diagonals = diagonals

    def _shapes(self, X: Any, graphs: Graphs) -> list[tuple[int, ...]]:
        return [np.shape(each)[:2] for each in X]

    def _validated(self, X: Any, *, fitted: bool = False) -> Graphs:
        if not isinstance(X, Sequence | np.ndarray) or not len(X):
            raise ValueError("X: expected a list of images (rows, columns, features), got none")
        graphs = []
        for number, each in enumerate(X):
            image = np.asarray(each)
            if image.ndim != 3:
                raise ValueError(f"X[{number}]: expected (rows, columns, features), got shape {image.shape}")
            graphs.append(self._graph(image))
        return super()._validated(graphs, fitted=fitted)

    def _graph(self, image: np.ndarray) -> tuple[np.ndarray, ...]:
        """Convert an image to a graph: node features, edges and, with ``edge_features``, edge features."""
        cells = np.arange(image.shape[0] * image.shape[1]).reshape(image.shape[:2])
        nodes, edges = image.reshape(cells.size, -1), []
        for down, right in STEPS[: 4 if self.diagonals else 2]:
            last = cells[down:, max(right, 0) : cells.shape[1] + min(right, 0)]
            first = cells[: len(cells) - down, max(-right, 0) : cells.shape[1] - max(right, 0)]
            edges.append(np.stack([first.ravel(), last.ravel()], 1))
        pairs = np.concatenate(edges)
        if not self.edge_features:
            return nodes, pairs
        own = np.concatenate([np.ones((len(pairs), 1)), nodes[pairs[:, 0]], nodes[pairs[:, 1]]], 1)
        direction = np.repeat(np.eye(len(edges)), [len(each) for each in edges], 0)
        return nodes, pairs, (direction[:, :, None] * own[:, None]).reshape(len(pairs), -1)
