"""A given graph of labels: names, matrices and graphs, the optimum of a convex solver, and its refusals."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from strategies.label_problems import random_inputs

from lmbm_torch import load
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.references import hinge_dual, hinge_primal

X, Y = random_inputs(0, 40, 3, 5)
# Labels 0 and 3 have no parents.
GRAPH = {4: [0, 1], 1: [3], 2: [4, 3]}
MATRIX = np.array([[int(j in GRAPH.get(i, ())) for j in range(5)] for i in range(5)])
NAMES = [f"n{i}" for i in range(5)]
SETTINGS = {"C": 2.0, "random_state": 0, "tol": 1e-6}


def optimum(k: int, weight: np.ndarray | float = 1.0) -> float:
    spins = 2 * Y - 1
    inputs = np.column_stack([X, np.ones(len(X)), spins[:, MATRIX[k] == 1]])
    return hinge_primal(inputs, spins[:, k], 2.0 * weight * np.ones(len(X)))[0]


@pytest.mark.parametrize("solver", ["dual_coordinate", "exponentiated_gradient", "pegasos"])
def test_the_optimum_is_that_of_each_label_with_its_parents(solver):
    tol = {"pegasos": 0.05, "exponentiated_gradient": 1e-2}.get(solver, 1e-6)
    model = LMSBNClassifier(**SETTINGS | {"tol": tol}, solver=solver, parents=MATRIX).fit(X, Y)
    assert model.objective_ == pytest.approx(sum(map(optimum, range(5))), rel=2 * tol)
    assert ((model.parent_coef_ != 0) <= (MATRIX == 1)).all()
    assert (model.parent_coef_ != 0).sum() == MATRIX.sum()
    energy = model.energy(X)
    assert np.array_equal(model.predict(X), exact.decode_hinge(energy, margin=1.0).labels.numpy())


def test_names_matrices_and_graphs_say_the_same():
    model = LMSBNClassifier(**SETTINGS, parents=MATRIX).fit(X, Y)
    frame = pd.DataFrame(Y, columns=NAMES)
    named = {NAMES[child]: [NAMES[parent] for parent in parents] for child, parents in GRAPH.items()}
    drawn = nx.DiGraph((parent, child) for child, parents in named.items() for parent in parents)
    for parents, labels in ((GRAPH, Y), (named, frame), (drawn, frame), (nx.DiGraph(MATRIX.T), Y)):
        other = LMSBNClassifier(**SETTINGS, parents=parents).fit(X, labels)
        assert np.array_equal(other.parent_coef_, model.parent_coef_)
    assert model.ordering_.tolist() == [0, 3, 1, 4, 2]
    other = LMSBNClassifier(**SETTINGS, parents=MATRIX, ordering=[3, 1, 0, 4, 2]).fit(X, Y)
    np.testing.assert_allclose(other.parent_coef_, model.parent_coef_, atol=1e-3)


def test_kernels_and_class_weights_see_given_parents_alone():
    weighted = LMSBNClassifier(**SETTINGS, parents=MATRIX, class_weight={1: 3.0}).fit(X, Y)
    expected = sum(optimum(k, np.where(Y[:, k] == 1, 3.0, 1.0)) for k in range(5))
    assert weighted.objective_ == pytest.approx(expected, rel=1e-5)
    gram, spins = (X @ X.T) ** 2, 2 * Y - 1
    kernel = LMSBNClassifier(**SETTINGS, parents=MATRIX, parent_scale=0.5, kernel="precomputed").fit(gram, Y)
    assert ((kernel.parent_coef_ != 0) <= (MATRIX == 1)).all()
    joint = [gram + 1 + 0.5 * spins[:, row == 1] @ spins[:, row == 1].T for row in MATRIX]
    values = [hinge_dual(joint[k], spins[:, k], np.full(40, 2.0))[0] for k in range(5)]
    assert kernel.objective_ == pytest.approx(sum(values), rel=1e-5)


def test_a_complete_graph_is_the_network_of_all_earlier_labels():
    complete = np.tril(np.ones((5, 5)), -1)
    given = LMSBNClassifier(**SETTINGS, parents=complete).fit(X, Y)
    free = LMSBNClassifier(**SETTINGS, ordering="index").fit(X, Y)
    assert given.objective_ == pytest.approx(free.objective_, rel=1e-5)
    np.testing.assert_allclose(given.parent_coef_, free.parent_coef_, atol=1e-3)
    missing = np.where(np.random.default_rng(1).random(Y.shape) < 0.2, np.nan, Y)
    models = [LMSBNClassifier(**SETTINGS, ordering="index").fit(X, missing)]
    models.append(LMSBNClassifier(**SETTINGS, parents=complete).fit(X, missing))
    assert models[0].objective_ == pytest.approx(models[1].objective_, rel=1e-5)


def test_a_file_holds_the_graph(tmp_path):
    model = LMSBNClassifier(**SETTINGS | {"tol": 0.01}, parents=GRAPH, calibrate=True).fit(X, Y)
    model.save(tmp_path / "network")
    read = load(tmp_path / "network")
    assert np.array_equal(read.parents_, MATRIX == 1)
    assert np.array_equal(read.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parents": {0: [1], 1: [2], 2: [0]}}, "parents: expected no circle"),
        ({"parents": np.eye(5)}, "parents: expected no circle"),
        ({"parents": {"x": [0]}}, "parents: expected names or numbers of the labels, got 'x'"),
        ({"parents": np.ones((4, 4))}, "parents: expected shape"),
        ({"parents": 2 * MATRIX}, "parents: expected a matrix of 0 and 1"),
        ({"parents": nx.Graph([(0, 1)])}, "parents: expected a directed graph"),
        ({"parents": MATRIX, "degree": 3}, "degree: expected 2 with parents"),
        ({"parents": MATRIX, "max_parents": 2}, "max_parents: expected None, .* need parents=None"),
        ({"parents": MATRIX, "ordering": "f_score"}, "ordering: expected 'auto' or a permutation"),
        ({"parents": MATRIX, "ordering": range(5)}, "parents: expected parents before children"),
    ],
)
def test_what_is_no_graph_of_the_labels_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LMSBNClassifier(**SETTINGS | settings).fit(X, Y)


def test_mini_batches_have_no_given_parents():
    with pytest.raises(ValueError, match="parents: expected None for partial_fit"):
        LMSBNClassifier(parents=MATRIX).partial_fit(X, Y)
