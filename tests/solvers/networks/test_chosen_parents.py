"""Labels with chosen parents: the optimum of liblinear, the parents of the steepest descent."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.svm import LinearSVC

from lmbm_torch.solvers.networks.chosen_parents import ManyLabels, choose_parents, solve_block, with_parents

C, TOL = 0.5, 1e-4


def drawn(instances: int = 120, labels: int = 6) -> ManyLabels:
    """Labels that share what features do not say."""
    random = np.random.default_rng(0)
    X = random.normal(size=(instances, 4))
    shared = random.normal(size=(instances, 2))
    scores = X @ random.normal(size=(4, labels)) + 2 * shared @ random.normal(size=(2, labels))
    Y = sparse.csc_array((scores > 1).astype(np.float64))
    return ManyLabels(features=X, labels=Y, C=C)


def objective(features, spins: np.ndarray, weights: np.ndarray, bias: float) -> float:
    losses = np.maximum(1 - spins * (features @ weights + bias), 0)
    return float(0.5 * (weights @ weights + bias**2) + C * losses.sum())


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_each_label_is_at_the_optimum_of_liblinear(form):
    problems = drawn()
    problems = ManyLabels(features=form(problems.features), labels=problems.labels, C=C)
    solved = solve_block(problems, range(1, 6), max_parents=2, tol=TOL, max_iter=1000, seed=0)
    assert ((solved.primal - solved.dual) <= TOL * solved.primal).all()
    for j, k in enumerate(range(1, 6)):
        parents = solved.parents[[j]].indices
        assert len(parents) <= 2
        assert (parents < k).all()
        rows = with_parents(problems.features, problems.labels[:, parents])
        spins = 2 * problems.labels[:, [k]].toarray()[:, 0] - 1
        theirs = LinearSVC(C=C, loss="hinge", tol=1e-8, max_iter=1_000_000).fit(rows, spins)
        best = objective(rows, spins, theirs.coef_[0], float(theirs.intercept_[0]))
        assert solved.primal[j] == pytest.approx(best, rel=2 * TOL)
        weights = np.append(solved.features[j], solved.parents[[j]].data)
        own = solved.bias[j] - solved.parents[[j]].data.sum()
        assert objective(rows, spins, weights, own) == pytest.approx(solved.primal[j], rel=1e-9)
        margins = spins * (rows @ weights + own)
        assert solved.losses[j] == pytest.approx(np.maximum(1 - margins, 0).sum())


def test_parents_are_those_whose_weights_the_objective_falls_with_fastest():
    random = np.random.default_rng(1)
    earlier = (random.random((5, 40)) < 0.3).astype(float)
    earlier[3] = 0
    signed = random.normal(size=40)
    promise = [abs(sum(signed[i] * row[i] for i in range(40))) for row in earlier]
    best = sorted(sorted(range(5), key=lambda j: -promise[j])[:3])
    assert choose_parents(sparse.csr_array(earlier), 5, signed, 3).tolist() == best
    # What no instance has promises nothing.
    assert choose_parents(sparse.csr_array(earlier), 5, signed, 9).tolist() == [0, 1, 2, 4]


def test_a_block_is_learned_alike_whatever_others_are():
    problems = drawn()
    settings = {"tol": TOL, "max_parents": 2, "max_iter": 1000, "seed": 0}
    whole, again = (solve_block(problems, range(2, 5), **settings) for _ in range(2))
    assert np.array_equal(whole.features, again.features)
    solve_block(problems, range(2), **settings)
    third = solve_block(problems, range(2, 5), **settings)
    assert np.array_equal(third.features, whole.features)
    assert (third.parents != whole.parents).nnz == 0


def test_weights_of_losses_count_as_repeated_instances():
    problems = drawn(60)
    weight = np.random.default_rng(0).integers(0, 3, 60)
    rows = np.repeat(np.arange(60), weight)
    twice = ManyLabels(features=problems.features[rows], labels=problems.labels[rows], C=C)
    settings = {"tol": TOL, "max_parents": 2, "max_iter": 1000, "seed": 0}
    expected = solve_block(twice, range(6), **settings)
    for weights in (weight.astype(float), np.tile(weight, (6, 1)).T.astype(float)):
        weighed = ManyLabels(features=problems.features, labels=problems.labels, C=C, sample_weight=weights)
        came = solve_block(weighed, range(6), **settings)
        assert came.primal[0] == pytest.approx(expected.primal[0], rel=2 * TOL)


def test_no_parents_is_refused():
    with pytest.raises(ValueError, match="max_parents"):
        solve_block(drawn(), range(2), max_parents=0, tol=TOL, max_iter=10, seed=0)
