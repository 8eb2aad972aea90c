"""Nodes of graphs classified jointly: optima, gradients, what is certified, and what is refused."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import lmbm_torch
from lmbm_torch.estimators import ChainCRF, GraphClassifier, GridClassifier
from lmbm_torch.inference import decode


def some_graphs(seed: int, count: int = 7, *, edge_features: bool = False):
    """Graphs of 2 to 5 nodes with a cycle, whose neighbours mostly differ by one class."""
    random = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(count):
        nodes = int(random.integers(2, 6))
        edges = np.stack([np.arange(nodes - 1), np.arange(1, nodes)], 1)
        if nodes > 2:
            edges = np.concatenate([edges, [[nodes - 1, 0]]])
        labels = (np.arange(nodes) + random.integers(3)) % 3
        features = random.normal(size=(nodes, 2)) + 0.4 * labels[:, None]
        graph = (features, edges)
        X.append((*graph, random.normal(size=(len(edges), 2))) if edge_features else graph)
        y.append(labels)
    return X, y


def objective(model, X, y, kind, C):
    """By enumeration of the model's energies."""
    weights = sum(np.square(each).sum() for each in (model.coef_, model.intercept_))
    pairs = np.square(model.edge_coef_)
    if not model.directed:
        pairs = pairs * (np.triu(np.ones((3, 3)))[..., None])
    total = 0.0
    for one, truth in zip(model.energy(X).examples(), y, strict=True):
        labels = torch.tensor([*product(range(3), repeat=len(truth))])[:, None]
        scores, own = one.score(labels)[:, 0], one.score(torch.tensor(truth)[None]).item()
        loss = (labels[:, 0] != torch.tensor(truth)).sum(1)
        best = (scores + loss).max() if kind == "hinge" else scores.logsumexp(0)
        total += best.item() - own
    return 0.5 * (weights + pairs.sum()) + C * total


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("kind", ["hinge", "likelihood"])
def test_the_objective_is_that_of_enumeration_and_the_gap_certifies_it(kind, directed):
    X, y = some_graphs(0, edge_features=True)
    model = GraphClassifier(
        0.3, objective=kind, edge_features=True, directed=directed, tol=1e-3, max_iter=2000, random_state=0
    ).fit(X, y)
    value = objective(model, X, y, kind, 0.3)
    assert model.objective_ >= value - 1e-9
    assert model.duality_gap_ <= 1e-3
    if kind == "likelihood":
        assert model.objective_ == pytest.approx(value, rel=1e-9)
    # No weights nearby are better by more than the gap.
    random = np.random.default_rng(0)
    for _ in range(5):
        other = clone(model)
        vars(other).update(vars(model))
        other.coef_ = model.coef_ + 0.05 * random.normal(size=model.coef_.shape)
        assert objective(other, X, y, kind, 0.3) >= model.objective_ * (1 - model.duality_gap_) - 1e-9


def test_a_chain_has_the_weights_of_a_chain_crf():
    random = np.random.default_rng(1)
    chains = [random.normal(size=(length, 2)) for length in (3, 5, 2, 4)]
    y = [random.integers(3, size=len(each)) for each in chains]
    X = [(each, np.stack([np.arange(len(each) - 1), np.arange(1, len(each))], 1)) for each in chains]
    graph = GraphClassifier(0.5, objective="likelihood", directed=True, tol=1e-5, max_iter=2000).fit(X, y)
    chain = ChainCRF(0.5, tol=1e-5).fit(chains, y)
    np.testing.assert_allclose(graph.coef_, chain.coef_, atol=1e-3)
    np.testing.assert_allclose(graph.edge_coef_[..., 0], chain.transition_, atol=1e-3)
    for found, expected in zip(graph.predict_proba(X), chain.predict_proba(chains), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-3)


def test_wide_graphs_learn_by_messages(monkeypatch):
    X, y = some_graphs(2)
    exact = GraphClassifier(0.1, objective="likelihood", tol=1e-3).fit(X, y)
    monkeypatch.setattr("lmbm_torch.solvers.structural.graphs.limit_bytes", lambda size: 1)
    messages = GraphClassifier(0.1, objective="likelihood", tol=1e-3).fit(X, y)
    assert (exact.is_exact_, messages.is_exact_, messages.duality_gap_) == (True, False, np.inf)
    # Loops of weak pairs.
    np.testing.assert_allclose(messages.coef_, exact.coef_, atol=0.03)


def test_predictions_are_the_best_labellings_and_survive_a_file(tmp_path):
    X, y = some_graphs(3, edge_features=True)
    y = [np.array(["a", "b", "c"])[each] for each in y]
    model = GraphClassifier(edge_features=True, directed=True, random_state=0).fit(X, y)
    best = decode(model.energy(X))
    assert model.decode(X).status.exact.all()
    for row, (found, truth) in enumerate(zip(model.predict(X), y, strict=True)):
        assert found.tolist() == model.classes_[best.labels[row, : len(truth)]].tolist()
    assert model.score(X, y) > 0.7
    model.save(tmp_path / "graphs.safetensors")
    again = lmbm_torch.load(tmp_path / "graphs.safetensors")
    assert all(map(np.array_equal, again.predict(X), model.predict(X)))
    assert not hasattr(model, "predict_proba")


def test_sample_weights_count_examples():
    X, y = some_graphs(4, 6)
    settings = {"tol": 1e-3, "max_iter": 300, "random_state": 0}
    twice = GraphClassifier(0.2, **settings).fit([*X, X[0]], [*y, y[0]])
    weighted = GraphClassifier(0.2, **settings).fit(X, y, sample_weight=[2, 1, 1, 1, 1, 1])
    assert weighted.objective_ == pytest.approx(twice.objective_, rel=2e-3)


def test_an_early_end_warns():
    X, y = some_graphs(5)
    for kind in ("hinge", "likelihood"):
        with pytest.warns(ConvergenceWarning):
            GraphClassifier(objective=kind, tol=1e-8, max_iter=1, random_state=0).fit(X, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: [], "X: expected a list of graphs"),
        (lambda X: [X[0][:1], *X[1:]], r"X\[0\]: expected \(node features, edges\), got tuple"),
        (lambda X: [(X[0][0], [[0.5, 1]]), *X[1:]], r"X\[0\]: expected whole numbers \(edges, 2\)"),
        (lambda X: [(X[0][0], [[0, 9]]), *X[1:]], r"X\[0\]: expected edges between different nodes below"),
        (lambda X: [*X[:-1], (X[-1][0][:, :1], X[-1][1])], r"X\[6\]: expected 2 node features, got 1"),
    ],
)
def test_other_graphs_are_refused(change, message):
    X, y = some_graphs(0)
    with pytest.raises(ValueError, match=message):
        GraphClassifier().fit(change(X), y)
    with pytest.raises(ValueError, match=r"y\[0\]: expected \d classes, got shape"):
        GraphClassifier().fit(X, [each[:-1] for each in y])


def with_holes(y, seed: int):
    """A third of the classes, never the first of a graph, are NaN."""
    random = np.random.default_rng(seed)
    found = [each.astype(float) for each in y]
    for each in found:
        each[1:][random.random(len(each) - 1) < 1 / 3] = np.nan
    return found


def test_the_likelihood_sums_missing_classes_out():
    X, y = some_graphs(6)
    holes = with_holes(y, 0)
    assert np.isnan(np.concatenate(holes)).any()
    model = GraphClassifier(0.3, objective="likelihood", tol=1e-4, max_iter=500).fit(X, holes)

    def value(coef):
        other = clone(model)
        vars(other).update({**vars(model), "coef_": coef})
        weights = sum(np.square(each).sum() for each in (coef, model.intercept_))
        weights += (np.square(model.edge_coef_) * np.triu(np.ones((3, 3)))[..., None]).sum()
        total = 0.0
        for one, given in zip(other.energy(X).examples(), holes, strict=True):
            labels = torch.tensor([*product(range(3), repeat=len(given))])[:, None]
            scores = one.score(labels)[:, 0]
            fits = (labels[:, 0] == torch.tensor(given)) | torch.tensor(np.isnan(given))
            total += (scores.logsumexp(0) - scores[fits.all(1)].logsumexp(0)).item()
        return 0.5 * weights + 0.3 * total

    assert model.objective_ == pytest.approx(value(model.coef_), rel=1e-9)
    assert model.duality_gap_ == np.inf
    step = np.zeros_like(model.coef_)
    step[1, 0] = 1e-4
    slope = (value(model.coef_ + step) - value(model.coef_ - step)) / 2e-4
    assert slope == pytest.approx(0, abs=1e-2)


def test_missing_classes_are_completed_and_known_ones_kept():
    X, y = some_graphs(7, 12)
    names = np.array(["a", "b", "c"])
    holes = [
        np.array([None if np.isnan(value) else names[int(value)] for value in each], object)
        for each in with_holes(y, 1)
    ]
    holes[0][:] = None
    model = GraphClassifier(0.5, tol=0.05, random_state=0).fit(X, holes)
    assert model.classes_.tolist() == ["a", "b", "c"]
    # At the end a completion is the best one under the weights that it led to.
    completed = model.predict(X, known=holes)
    for found, given in zip(completed, holes, strict=True):
        assert all(own in (None, other) for own, other in zip(given, found, strict=True))
    again = GraphClassifier(0.5, tol=0.05, random_state=0).fit(X, completed)
    assert model.objective_ <= again.objective_ * 1.06
    likely = GraphClassifier(0.5, objective="likelihood").fit(X, holes)
    certain = likely.predict_proba(X, known=holes)[1]
    known = holes[1] != None  # noqa: E711
    assert certain[known].max(1).tolist() == pytest.approx([1.0] * int(known.sum()))
    with pytest.raises(ValueError, match="known: expected one of the classes"):
        model.predict(X[:1], known=[["d"] * len(y[0])])
    with pytest.raises(ValueError, match="y: expected the class of at least one node"):
        GraphClassifier().fit(X, [np.full(len(each), np.nan) for each in y])


def halves(seed: int, count: int):
    """Images of 5 x 5 cells, one class left of a column and the other one right."""
    random, X, y = np.random.default_rng(seed), [], []
    for _ in range(count):
        labels = np.zeros((5, 5), int)
        labels[:, random.integers(1, 5) :] = 1
        y.append(abs(labels - random.integers(2)))
        X.append(y[-1][..., None] - 0.5 + 0.8 * random.normal(size=(5, 5, 1)))
    return X, y


@pytest.mark.parametrize("objective", ["hinge", "likelihood"])
def test_a_fifth_of_the_nodes_known_teaches_nearly_as_much_as_all(objective):
    X, y = halves(0, 15)
    random = np.random.default_rng(1)
    holes = [np.where(random.random(each.shape) < 0.8, np.nan, each) for each in y]
    model = GridClassifier(objective=objective, tol=0.05, random_state=0)
    whole, some = (clone(model).fit(X, each).score(*halves(1, 30)) for each in (y, holes))
    assert whole > 0.75
    assert some > whole - 0.05


def some_images(seed: int, count: int = 6):
    """Images of different sizes with an edge at a column."""
    random, X, y = np.random.default_rng(seed), [], []
    for number in range(count):
        labels = np.zeros((3 + number % 2, 4), int)
        labels[:, random.integers(1, 4) :] = 1
        X.append(labels[..., None] + 0.7 * random.normal(size=(*labels.shape, 1)))
        y.append(labels)
    return X, y


@pytest.mark.parametrize("diagonals", [False, True])
def test_grids_are_graphs_of_their_cells(diagonals):
    X, y = some_images(0)
    settings = {"objective": "likelihood", "edge_features": True, "directed": True}
    grid = GridClassifier(diagonals=diagonals, **settings).fit(X, y)
    steps = [(0, 1), (1, 0), (1, 1), (1, -1)][: 4 if diagonals else 2]
    graphs = []
    for image in X:
        cells = [*np.ndindex(*image.shape[:2])]
        pairs, features = [], []
        for number, (down, right) in enumerate(steps):
            for row, column in cells:
                other = (row + down, column + right)
                if other in cells:
                    own = np.zeros((len(steps), 3))
                    own[number] = 1.0, image[row, column, 0], image[(*other, 0)]
                    pairs.append((cells.index((row, column)), cells.index(other)))
                    features.append(own.ravel())
        graphs.append((image.reshape(-1, 1), np.array(pairs), np.array(features)))
    graph = GraphClassifier(**settings).fit(graphs, [each.ravel() for each in y])
    np.testing.assert_allclose(grid.edge_coef_, graph.edge_coef_, atol=1e-6)
    for found, expected in zip(grid.predict_proba(X), graph.predict_proba(graphs), strict=True):
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-6)
    found = grid.predict(X, known=[np.where(each, 1.0, np.nan) for each in y])
    assert all((one[each > 0] == 1).all() for one, each in zip(found, y, strict=True))
    assert grid.score(X, y) > 0.8


def test_images_of_one_size_are_one_array_and_others_are_refused(tmp_path):
    X, y = some_images(1)
    X, y = np.stack(X[::2]), np.stack(y[::2])
    model = GridClassifier(0.5, tol=0.1, random_state=0).fit(X, y)
    assert np.stack(model.predict(X)).shape == y.shape
    model.save(tmp_path / "grid.safetensors")
    assert np.array_equal(lmbm_torch.load(tmp_path / "grid.safetensors").predict(X), model.predict(X))
    with pytest.raises(ValueError, match=r"X\[0\]: expected \(rows, columns, features\), got shape \(3, 4\)"):
        model.predict(X[..., 0])
    with pytest.raises(ValueError, match=r"y\[0\]: expected classes of shape \(3, 4\), got shape \(12,\)"):
        GridClassifier().fit(X, y.reshape(len(y), -1))
    with pytest.raises(ValueError, match="X: expected a list of images"):
        GridClassifier().fit([], [])


def rbf(first, second, gamma=0.7):
    return np.exp(-gamma * np.square(first[:, None] - second[None]).sum(-1))


def root(features):
    """Rows whose inner products are the kernel's values, and a constant."""
    eigenvalues, vectors = np.linalg.eigh(rbf(features, features) + 1)
    return vectors * np.sqrt(eigenvalues.clip(0))


@pytest.mark.parametrize("directed", [False, True])
def test_kernels_of_nodes_and_edges_have_the_optimum_of_the_factored_dual(directed):
    pytest.importorskip("cvxpy")
    from lmbm_torch.references.graphs import TinyGraph, factored_graph_dual

    random = np.random.default_rng(0)
    # A cycle of four nodes with its triangulation, a triangle, a star and a single node.
    shapes = [
        (4, [(0, 1), (1, 2), (2, 3), (3, 0)], [(0, 1, 2), (0, 2, 3)]),
        (3, [(0, 1), (1, 2), (2, 0)], [(0, 1, 2)]),
        (4, [(0, 1), (0, 2), (0, 3)], [(0, 1), (0, 2), (0, 3)]),
        (1, [], [(0,)]),
    ]
    X, y = [], []
    for nodes, edges, _ in shapes:
        pairs = np.array(edges, int).reshape(-1, 2)
        X.append((random.normal(size=(nodes, 2)), pairs, random.normal(size=(len(edges), 2))))
        y.append(random.integers(2, size=nodes))
    X[2] = (X[2][0], np.array([-1, 0, 0, 0]), X[2][2])
    settings = {"edge_features": True, "directed": directed, "random_state": 0}
    model = GraphClassifier(
        0.8, kernel=rbf, edge_kernel="rbf", gamma=0.7, tol=1e-4, max_iter=5000, **settings
    )
    model.fit(X, y)
    of_nodes = np.split(root(np.concatenate([each[0] for each in X])), np.cumsum([4, 3, 4]))
    of_edges = np.split(root(np.concatenate([each[2] for each in X])), np.cumsum([4, 3, 3]))
    graphs = [
        TinyGraph(*each, cliques)
        for *each, cliques in zip(
            of_nodes, [s[1] for s in shapes], of_edges, y, [s[2] for s in shapes], strict=True
        )
    ]
    dual = factored_graph_dual(graphs, 2, 0.8, directed=directed)
    assert model.duality_gap_ <= 1e-4
    assert dual <= model.objective_ * (1 + 1e-7)
    assert model.objective_ * (1 - model.duality_gap_) <= dual * (1 + 1e-7)


def test_a_kernel_crf_of_chains_is_that_of_chain_crf():
    random = np.random.default_rng(3)
    chains = [random.normal(size=(length, 2)) for length in (3, 5, 2)]
    y = [random.integers(3, size=len(each)) for each in chains]
    X = [(each, np.arange(-1, len(each) - 1)) for each in chains]
    settings = {"kernel": "rbf", "gamma": 0.5, "max_iter": 2000}
    graph = GraphClassifier(0.5, objective="likelihood", directed=True, tol=1e-6, **settings).fit(X, y)
    chain = ChainCRF(0.5, tol=1e-7, **settings).fit(chains, y)
    fresh = [random.normal(size=(4, 2))]
    found = graph.predict_proba([(fresh[0], np.arange(-1, 3))])[0]
    np.testing.assert_allclose(found, chain.predict_proba(fresh)[0], atol=1e-3)


def test_kernels_survive_a_file_and_refuse_what_is_none(tmp_path):
    X, y = some_graphs(8, edge_features=True)
    settings = {"edge_features": True, "random_state": 0}
    model = GraphClassifier(kernel="poly", edge_kernel="rbf", **settings).fit(X, y)
    model.save(tmp_path / "graphs.safetensors")
    again = lmbm_torch.load(tmp_path / "graphs.safetensors")
    for found, expected in zip(again.decode(X).labels, model.decode(X).labels, strict=True):
        assert found.tolist() == expected.tolist()
    with pytest.raises(ValueError, match="kernel: expected positive semidefinite values, got an eigenvalue"):
        GraphClassifier(kernel=lambda a, b: -rbf(a, b), **settings).fit(X, y)
    with pytest.raises(ValueError, match=r"kernel: expected k\(x, z\) = k\(z, x\)"):
        GraphClassifier(kernel=lambda a, b: rbf(a, b) + a[:, :1], **settings).fit(X, y)


@pytest.mark.parametrize("parents", [[1, 0, -1], [-1, 3, 0], [-1, 0], [-2, 0, 0], [-1.0, 0.0, 0.0]])
def test_parents_that_are_no_tree_are_refused(parents):
    with pytest.raises(ValueError, match=r"X\[0\]: expected"):
        GraphClassifier().fit([(np.zeros((3, 1)), np.array(parents))], [[0, 1, 0]])


@pytest.mark.parametrize("objective", ["hinge", "likelihood"])
def test_graph_without_edges_may_have_an_empty_list(objective):
    nodes = [np.array([[2.0], [-0.1]]), np.array([[-2.0], [0.3]])]
    labels = [[1, 1], [0, 1]]
    found = [
        GraphClassifier(objective=objective, random_state=0).fit(
            [(nodes[0], [[0, 1]]), (nodes[1], none)], labels
        )
        for none in ([], np.zeros((0, 2), int))
    ]
    np.testing.assert_array_equal(*(each.coef_ for each in found))
