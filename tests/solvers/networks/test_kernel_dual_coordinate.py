"""Kernel label problems: the linear ones of an explicit feature map, a convex solver, and the contract."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems.kernels import check_certificate, gram_of
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC, LinearSVC
from strategies.label_problems import random_inputs, random_problems

from lmbm_torch.memory import memory_budget
from lmbm_torch.references import hinge_primal
from lmbm_torch.solvers import gram as kernels
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.gram import CachedGram, PrecomputedGram
from lmbm_torch.solvers.networks import dual_coordinate, kernel_dual_coordinate
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import LabelProblems


def with_kernel(linear: LabelProblems, parent_scale: float = 1.0) -> KernelLabelProblems:
    """The same problems through the linear kernel."""
    features = np.asarray(linear.features)
    shared = {
        name: getattr(linear, name)
        for name in ("spins", "context", "shared", "own", "cliques", "C", "upper", "margin")
    }
    scale = np.full(linear.context.shape[1], parent_scale)
    scale[0] = 1.0
    return KernelLabelProblems(
        gram=gram_of(features @ features.T),
        scale=scale,
        ordering=linear.ordering,
        clique_order=linear.clique_order,
        **shared,
    )


FORMS = {
    "plain": {},
    "independent": {"parents": False},
    "cliques": {"num_labels": 5, "num_cliques": 4},
    "weighted": {"weighted": True},
    "large C": {"C": 100.0},
    "margin": {"margin": 2.5, "C": 5.0},
    "more features than instances": {"instances": 8, "num_features": 20, "C": 10.0},
    "several blocks": {"instances": 150, "C": 3.0},
    "one label": {"num_labels": 1},
    "missing": {"missing": 0.2, "num_labels": 4},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_linear_kernel_is_the_linear_problem(form):
    linear = random_problems(0, **form)
    problems = with_kernel(linear)
    state = run(kernel_dual_coordinate, problems, tol=1e-8)
    theirs = run(dual_coordinate, linear, tol=1e-8)
    assert (state.gaps <= 1e-8).all()
    if "missing" not in form:
        check_certificate(problems, state)
    np.testing.assert_allclose(state.primal, theirs.primal, rtol=1e-6)
    width = linear.num_features
    np.testing.assert_allclose(
        np.asarray(linear.features).T @ state.weights[: problems.num_instances],
        theirs.weights[:width],
        atol=2e-3 * np.abs(theirs.weights).max(),
    )
    np.testing.assert_allclose(
        state.weights[problems.num_instances :],
        theirs.weights[width:],
        atol=2e-3 * np.abs(theirs.weights).max(),
    )


@pytest.mark.parametrize("parent_scale", [0.3, 4.0])
def test_scaled_parents_reach_the_optimum_of_a_convex_solver(parent_scale):
    features, labels = random_inputs(1, 40, 3, 3)
    matrix = rbf_kernel(features, gamma=0.7)
    roots = np.linalg.cholesky(matrix + 1e-10 * np.eye(40))
    problems = KernelLabelProblems.from_labels(
        gram_of(matrix), labels, ordering=[2, 0, 1], C=5.0, parent_scale=parent_scale
    )
    state = run(kernel_dual_coordinate, problems, tol=1e-8)
    for k in range(3):
        spins = problems.context[:, 1 : 1 + k] * np.sqrt(parent_scale)
        inputs = np.hstack([roots, np.ones((40, 1)), spins])
        best = hinge_primal(inputs, problems.spins[k], problems.upper, margin=problems.margin)[0]
        assert state.primal[k] == pytest.approx(best, rel=1e-5)


def test_equals_liblinear_through_the_feature_map():
    features, labels = random_inputs(3, 80, 4, 3)
    matrix = rbf_kernel(features, gamma=0.3)
    values, vectors = np.linalg.eigh(matrix)
    roots = vectors * np.sqrt(values.clip(0))
    problems = KernelLabelProblems.from_labels(gram_of(matrix), labels, C=0.8)
    fields = problems.fields(run(kernel_dual_coordinate, problems, tol=1e-10).weights)
    for k in range(3):
        inputs = np.hstack([roots, 2 * labels[:, :k] - 1])
        peer = LinearSVC(loss="hinge", C=0.8, tol=1e-9, max_iter=10**6, random_state=0)
        peer.fit(inputs, labels[:, k])
        np.testing.assert_allclose(fields[:, k], peer.decision_function(inputs), atol=1e-3)


def test_rows_on_demand_in_single_precision_have_the_same_optimum():
    features, labels = random_inputs(5, 150, 4, 3)
    matrix = torch.from_numpy(rbf_kernel(features, gamma=0.5))
    whole = KernelLabelProblems.from_labels(PrecomputedGram(matrix), labels, C=3.0)
    asked = CachedGram(lambda rows, columns: matrix[rows][:, columns].float(), 150, cache_bytes=4 * 150 * 20)
    on_demand = KernelLabelProblems.from_labels(asked, labels, C=3.0)
    expected = run(kernel_dual_coordinate, whole, tol=1e-6).primal
    np.testing.assert_allclose(run(kernel_dual_coordinate, on_demand, tol=1e-6).primal, expected, rtol=1e-5)


@pytest.mark.parametrize("most", [16, 60])
@pytest.mark.parametrize("form", ["plain", "cliques", "weighted", "missing"])
def test_parts_of_the_kernel_find_what_all_of_it_finds(form, most):
    problems = with_kernel(random_problems(6, **{"instances": 120, "C": 10.0} | FORMS[form]), 0.7)
    expected = run(kernel_dual_coordinate, problems, tol=1e-6)
    with memory_budget(most**2 * 4):
        state = run(kernel_dual_coordinate, problems, tol=1e-6)
    assert (state.gaps <= 1e-6).all()
    np.testing.assert_allclose(state.primal, expected.primal, rtol=1e-5)


@pytest.mark.parametrize("C", [1.0, 30.0])
def test_parts_take_no_more_memory_than_their_budget(C):
    features, labels = random_inputs(16, 1200, 6, 3)
    inputs, budget, asked = torch.from_numpy(features), 2**18, []

    def kernel(rows, columns):
        asked.append(kernels.rbf(inputs[rows], inputs[columns], 0.5))
        return asked[-1]

    def problems() -> KernelLabelProblems:
        return KernelLabelProblems.from_labels(CachedGram(kernel, 1200), labels, C=C)

    whole, expected = problems(), run(kernel_dual_coordinate, problems(), tol=1e-4)
    asked.clear()
    with memory_budget(budget):
        tracemalloc.start()
        state = run(kernel_dual_coordinate, whole, tol=1e-4)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (state.gaps <= 1e-4).all()
    np.testing.assert_allclose(state.primal, expected.primal, rtol=2e-4)
    assert max(values.nbytes for values in asked) <= budget
    # The joint kernel, its room and duals, fields and changes of some labels: all values would take 5.8 MB.
    assert peak < 6 * budget


def test_weight_two_is_an_instance_twice_and_weight_zero_none():
    features, labels = random_inputs(8, 30, 4, 3)
    times = np.random.default_rng(0).integers(0, 3, 30)
    copies = np.repeat(np.arange(30), times)
    matrix = rbf_kernel(features, gamma=0.5)
    weighted = KernelLabelProblems.from_labels(gram_of(matrix), labels, sample_weight=times)
    repeated = KernelLabelProblems.from_labels(gram_of(matrix[np.ix_(copies, copies)]), labels[copies])
    one, two = (run(kernel_dual_coordinate, problems, tol=1e-9) for problems in (weighted, repeated))
    np.testing.assert_allclose(one.primal, two.primal, rtol=1e-8)
    assert not one.dual_coef[:, times == 0].any()


def test_missing_labels_have_no_loss_and_are_imputed():
    features, labels = random_inputs(9, 60, 4, 4, missing=0.3)
    problems = KernelLabelProblems.from_labels(gram_of(rbf_kernel(features, gamma=0.5)), labels, C=2.0)
    state = run(kernel_dual_coordinate, problems, tol=1e-7)
    assert not state.dual_coef[np.isnan(labels.T)].any()
    for position in range(4):
        problems = problems.impute(position, state.weights)
    solved = run(kernel_dual_coordinate, problems, tol=1e-7)
    np.testing.assert_allclose(state.primal, solved.primal, rtol=1e-5)


def test_steps_can_be_taken_one_by_one_and_start_anywhere():
    features, labels = random_inputs(10, 100, 4, 3)
    problems = KernelLabelProblems.from_labels(gram_of(rbf_kernel(features, gamma=0.5)), labels, C=2.0)
    seen: list[float] = []
    state = run(kernel_dual_coordinate, problems, tol=1e-9, callback=lambda state: seen.append(state.gap))
    assert seen
    again = kernel_dual_coordinate.init(problems)
    while again.gap > 1e-9:
        again = kernel_dual_coordinate.update(problems, again, tol=1e-9)
        check_certificate(problems, again)
    np.testing.assert_allclose(again.primal, state.primal, rtol=1e-7)
    larger = replace(problems, C=4.0, upper=2 * problems.upper)
    warm = run(
        kernel_dual_coordinate,
        larger,
        tol=1e-7,
        start=kernel_dual_coordinate.init(larger, 2 * state.dual_coef),
    )
    cold = run(kernel_dual_coordinate, larger, tol=1e-7)
    np.testing.assert_allclose(warm.primal, cold.primal, rtol=1e-6)
    only = kernel_dual_coordinate.update(problems, kernel_dual_coordinate.init(problems), positions=[1])
    assert only.dual_coef[1].any()
    assert not only.dual_coef[[0, 2]].any()


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("weighs_labels", [False, True])
def test_another_order_has_the_problems_that_it_would_have_been_given(missing, weighs_labels):
    features, labels = random_inputs(9, 40, 3, 5, missing=missing)
    weight = np.random.default_rng(0).random((40, 5))
    settings = {
        "C": 2.0,
        "margin": 1.5,
        "parent_scale": 0.3,
        "sample_weight": weight if weighs_labels else None,
    }
    gram = gram_of(rbf_kernel(features))
    first, second = ([3, 0, 4, 1, 2], [1, 4, 2, 0, 3])
    given = KernelLabelProblems.from_labels(gram, labels, ordering=second, **settings)
    found = KernelLabelProblems.from_labels(gram, labels, ordering=first, **settings)
    ordering = np.array(second)
    found = found.in_order(ordering)
    ordering[:] = 0
    for name, value in vars(given).items():
        np.testing.assert_equal(getattr(found, name), value, name)
    assert found.context.flags.c_contiguous
    assert found.spins.flags.c_contiguous
    np.testing.assert_array_equal(found.parents, given.parents)
    with pytest.raises(ValueError, match="ordering: expected a permutation"):
        found.in_order(np.zeros(5, int))
    cliques = KernelLabelProblems.from_labels(gram, labels, cliques=[(0, 1, 2)])
    with pytest.raises(ValueError, match="cliques: expected no cliques for another ordering, got 1"):
        cliques.in_order(np.arange(5))


@pytest.mark.parametrize("C", [1.0, 30.0])
def test_libsvm_with_a_free_intercept_is_never_worse_and_ours_reaches_it(C):
    # Its problem is ours but for the square of the intercept, which a large constant in the kernel frees.
    features, labels = random_inputs(12, 100, 4, 1)
    matrix = rbf_kernel(features, gamma=0.5)
    problems = KernelLabelProblems.from_labels(gram_of(matrix + 1e4), labels, C=C)
    state = run(kernel_dual_coordinate, problems, tol=1e-8)
    peer = SVC(C=C, kernel="precomputed", tol=1e-8).fit(matrix, labels[:, 0])
    np.testing.assert_allclose(
        problems.fields(state.weights)[:, 0], peer.decision_function(matrix), atol=1e-2
    )
    duals = np.zeros(100)
    duals[peer.support_] = np.abs(peer.dual_coef_[0])
    signed = duals * problems.spins[0]
    assert state.dual[0] == pytest.approx(duals.sum() - 0.5 * signed @ matrix @ signed, rel=1e-4)


def test_more_threads_find_the_same(monkeypatch):
    features, labels = random_inputs(13, 60, 4, 5)
    problems = KernelLabelProblems.from_labels(
        gram_of(rbf_kernel(features)), labels, C=3.0, cliques=[(0, 1, 4), (1, 2, 3)]
    )
    expected = run(kernel_dual_coordinate, problems, tol=1e-6)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    state = run(kernel_dual_coordinate, problems, tol=1e-6)
    np.testing.assert_allclose(state.primal, expected.primal, rtol=1e-6)


def test_bad_inputs_are_refused_by_name():
    gram, labels = gram_of(np.eye(4)), np.eye(4)[:, :2]
    problems = KernelLabelProblems.from_labels(gram, labels)
    refusals = {
        "parent_scale: expected": lambda: KernelLabelProblems.from_labels(gram, labels, parent_scale=0),
        "labels: expected shape": lambda: KernelLabelProblems.from_labels(gram, labels[:3]),
        "tol: expected": lambda: run(kernel_dual_coordinate, problems, tol=0),
        "max_iter: expected": lambda: run(kernel_dual_coordinate, problems, max_iter=0),
        "dual_coef: expected": lambda: kernel_dual_coordinate.init(problems, np.full((2, 4), 9.0)),
        "positions: expected": lambda: kernel_dual_coordinate.update(
            problems, kernel_dual_coordinate.init(problems), positions=[5]
        ),
    }
    for message, call in refusals.items():
        with pytest.raises(ValueError, match=message):
            call()
