"""Dual coordinate descent against a convex solver and scikit-learn, and what the contract promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy import sparse
from sklearn.svm import LinearSVC
from strategies.label_problems import design, label_problems, optima, random_inputs, random_problems

from lmbm_torch.references import hinge_primal
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems, NetworkState

FORMS = {
    "plain": {},
    "csr": {"csr": True},
    "independent": {"parents": False},
    "cliques": {"num_labels": 5, "num_cliques": 4},
    "csr with cliques": {"num_labels": 4, "num_cliques": 3, "csr": True},
    "weighted": {"weighted": True},
    "large C": {"C": 100.0},
    "small C": {"C": 0.01, "weighted": True},
    "margin": {"margin": 2.5, "C": 5.0},
    "more features than instances": {"instances": 8, "num_features": 20, "C": 10.0},
    "one label": {"num_labels": 1},
    "everything": {"num_labels": 5, "num_cliques": 5, "csr": True, "weighted": True, "C": 3.0, "margin": 0.5},
}


def check_certificate(problems: LabelProblems, state: NetworkState) -> None:
    """Duals in their box, and weights and both values what the duals make them."""
    box = problems.upper * (problems.spins != 0)
    assert (state.dual_coef >= 0).all()
    assert (state.dual_coef <= box).all()
    np.testing.assert_allclose(state.weights, problems.weights(state.dual_coef), atol=1e-9)
    np.testing.assert_allclose(state.primal, problems.primal(state.weights), rtol=1e-9, atol=1e-12)
    value = problems.dual(state.dual_coef, state.weights)
    np.testing.assert_allclose(state.dual, value, rtol=1e-9, atol=1e-9 * state.primal.max())
    assert (state.dual <= state.primal * (1 + 1e-12)).all()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("least", [0, np.inf], ids=["shared sweeps", "none"])
def test_gap_closes_at_the_optimum_of_a_convex_solver(form, seed, least, monkeypatch):
    monkeypatch.setattr(dual_coordinate, "WORTH_SHARING", least)
    problems = random_problems(seed, **form)
    state = run(dual_coordinate, problems, tol=1e-6)
    assert (state.gaps <= 1e-6).all()
    check_certificate(problems, state)
    np.testing.assert_allclose(state.primal, optima(problems), rtol=1e-5)


@given(problems=label_problems())
def test_certificate_is_true_after_one_round(problems):
    state = dual_coordinate.update(problems, dual_coordinate.init(problems), tol=1e-12)
    check_certificate(problems, state)
    solved = run(dual_coordinate, problems, tol=1e-8)
    slack = 1e-7 * solved.primal
    assert (state.dual <= solved.primal + slack).all()
    assert (solved.dual <= state.primal + slack).all()


def test_equals_scikit_learn_where_the_problem_coincides():
    features, labels = random_inputs(3, 60, 5, 3)
    weight = np.random.default_rng(0).uniform(0.1, 2, 60)
    problems = LabelProblems.from_labels(features, labels, C=0.8, sample_weight=weight)
    state = run(dual_coordinate, problems, tol=1e-9)
    network = problems.network(state.weights)
    for k in range(3):
        peer = LinearSVC(
            loss="hinge", dual=True, C=0.8, intercept_scaling=1, tol=1e-9, max_iter=10**6, random_state=0
        )
        peer.fit(np.hstack([features, 2 * labels[:, :k] - 1]), labels[:, k], sample_weight=weight)
        ours = np.hstack([network.features[k], network.parents[k, :k], network.bias[k]])
        np.testing.assert_allclose(ours, np.hstack([peer.coef_[0], peer.intercept_]), atol=1e-4)


def test_dense_csr_and_single_precision_have_one_optimum():
    features, labels = random_inputs(5, 40, 6, 4)
    features = features.astype(np.float32)
    values = [
        run(dual_coordinate, LabelProblems.from_labels(rows, labels), tol=1e-9).primal
        for rows in (
            features,
            features.astype(np.float64),
            sparse.csr_array(features),
            sparse.csr_array(features * 1.0),
        )
    ]
    for value in values[1:]:
        np.testing.assert_allclose(value, values[0], rtol=1e-8)


def test_same_seed_same_result_whatever_the_threads():
    problems = random_problems(2, instances=50, num_labels=7)
    first = run(dual_coordinate, problems, tol=1e-4, seed=3)
    np.testing.assert_array_equal(run(dual_coordinate, problems, tol=1e-4, seed=3).dual_coef, first.dual_coef)
    other = run(dual_coordinate, problems, tol=1e-4, seed=4)
    assert not np.array_equal(other.dual_coef, first.dual_coef)
    threads = torch.get_num_threads()
    try:
        for count in (2, 3):
            torch.set_num_threads(count)
            again = run(dual_coordinate, problems, tol=1e-4, seed=3)
            np.testing.assert_array_equal(again.dual_coef, first.dual_coef)
    finally:
        torch.set_num_threads(threads)


def test_order_of_instances_does_not_matter():
    features, labels = random_inputs(7, 40, 4, 3)
    order = np.random.default_rng(0).permutation(40)
    one = run(dual_coordinate, LabelProblems.from_labels(features, labels), tol=1e-9)
    two = run(dual_coordinate, LabelProblems.from_labels(features[order], labels[order]), tol=1e-9)
    np.testing.assert_allclose(one.primal, two.primal, rtol=1e-8)


def test_weight_two_is_an_instance_twice_and_weight_zero_none():
    features, labels = random_inputs(8, 30, 4, 3)
    times = np.random.default_rng(0).integers(0, 3, 30)
    weighted = LabelProblems.from_labels(features, labels, sample_weight=times)
    repeated = LabelProblems.from_labels(np.repeat(features, times, 0), np.repeat(labels, times, 0))
    one, two = (run(dual_coordinate, problems, tol=1e-9) for problems in (weighted, repeated))
    np.testing.assert_allclose(one.weights, two.weights, atol=1e-5)
    np.testing.assert_allclose(one.primal, two.primal, rtol=1e-8)


@pytest.mark.parametrize("labels", [np.ones((12, 2)), np.zeros((12, 2))], ids=["ones", "zeros"])
def test_label_of_one_class_is_predicted_everywhere(labels):
    features, _ = random_inputs(1, 12, 3, 2)
    problems = LabelProblems.from_labels(features, labels, C=10.0)
    state = run(dual_coordinate, problems, tol=1e-6)
    np.testing.assert_allclose(state.primal, optima(problems), rtol=1e-5)
    assert ((problems.fields(state.weights) >= 0) == labels).all()


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (np.zeros((6, 3)), np.array([[0, 1]] * 4 + [[1, 1]] * 2)),
        (np.ones((6, 1)), np.array([[0, 1], [1, 0]] * 3)),
        (np.array([[0.0, 0.0], [1.0, -2.0]] * 4), np.array([[0, 1], [1, 1]] * 3 + [[1, 0], [0, 0]])),
        (np.array([[1e-9], [2.0], [-3.0]]), np.array([[1], [0], [1]])),
        (np.array([[1e3], [2e3], [-3e3]]), np.array([[1], [0], [1]])),
        (np.array([[2.0, -1.0]]), np.array([[1, 0, 1]])),
        (np.array([[2.0]]), np.array([[1]])),
    ],
    ids=["zero rows", "equal rows", "duplicates", "tiny", "huge", "one instance", "one of each"],
)
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
def test_degenerate_rows_are_solved(features, labels, layout):
    problems = LabelProblems.from_labels(layout(features), labels)
    state = run(dual_coordinate, problems, tol=1e-7)
    assert state.gap <= 1e-7
    check_certificate(problems, state)
    np.testing.assert_allclose(state.primal, optima(problems), rtol=1e-5)


def test_nothing_to_learn_has_no_gap():
    features, labels = random_inputs(1, 12, 3, 2)
    nowhere = LabelProblems.from_labels(features, labels, sample_weight=np.zeros(12))
    unknown = LabelProblems.from_labels(features, np.full((12, 2), np.nan))
    for problems in (nowhere, unknown):
        state = run(dual_coordinate, problems)
        assert state.gap == 0
        assert state.num_iters == 0
        assert not state.weights.any()


def test_warm_start_at_the_optimum_has_nothing_to_do():
    problems = random_problems(6)
    state = run(dual_coordinate, problems, tol=1e-6)
    again = run(
        dual_coordinate,
        problems,
        tol=1e-6 * (1 + 1e-6),
        start=dual_coordinate.init(problems, state.dual_coef),
    )
    assert again.num_iters == 0
    np.testing.assert_array_equal(again.dual_coef, state.dual_coef)


def test_arguments_are_left_as_they_came():
    problems = random_problems(6)
    state = dual_coordinate.init(problems)
    duals = np.full(problems.spins.shape, 0.5)
    dual_coordinate.update(problems, state)
    run(dual_coordinate, problems, start=dual_coordinate.init(problems, duals))
    assert not state.dual_coef.any()
    assert not state.weights.any()
    assert (duals == 0.5).all()


def test_updates_by_hand_reach_what_run_reaches():
    problems = random_problems(9, instances=60, C=10.0)
    state = dual_coordinate.init(problems)
    while (state.gaps > 1e-8).any():
        state = dual_coordinate.update(problems, state, tol=1e-8)
    np.testing.assert_array_equal(state.dual_coef, run(dual_coordinate, problems, tol=1e-8).dual_coef)


def test_rounds_may_be_split_as_one_likes():
    problems = random_problems(9, instances=80, num_labels=5, C=30.0)
    whole = dual_coordinate.update(problems, dual_coordinate.init(problems), num_iters=6, tol=1e-12)
    state = dual_coordinate.init(problems)
    for rounds in (1, 3, 2):
        state = dual_coordinate.update(problems, state, num_iters=rounds, tol=1e-12)
    assert state.num_iters == whole.num_iters == 6
    np.testing.assert_array_equal(state.dual_coef, whole.dual_coef)
    np.testing.assert_array_equal(state.weights, whole.weights)


def test_stored_duals_and_passes_go_on_as_if_never_put_down():
    problems = random_problems(9, instances=80, num_labels=5, C=30.0)

    def restored(state: NetworkState) -> NetworkState:
        return replace(dual_coordinate.init(problems, state.dual_coef), num_iters=state.num_iters)

    state = dual_coordinate.init(problems)
    visited = []
    for _ in range(6):
        state = restored(dual_coordinate.update(problems, state, tol=1e-12))
        visited.append(state)
    resumed = restored(visited[2])
    for _ in range(3):
        resumed = restored(dual_coordinate.update(problems, resumed, tol=1e-12))
    np.testing.assert_array_equal(resumed.dual_coef, state.dual_coef)
    np.testing.assert_array_equal(resumed.weights, state.weights)


def test_callback_sees_every_state_and_may_stop():
    problems = random_problems(9, instances=80, num_labels=4, C=100.0)
    seen: list[NetworkState] = []
    state = run(dual_coordinate, problems, tol=1e-10, callback=seen.append)
    passes = [visited.num_iters for visited in seen]
    assert passes == sorted(set(passes))
    assert passes[-1] == state.num_iters > 5
    assert (np.diff([visited.dual.sum() for visited in seen]) >= 0).all()
    np.testing.assert_array_equal(state.dual_coef, run(dual_coordinate, problems, tol=1e-10).dual_coef)

    def stop(visited: NetworkState) -> None:
        raise StopIteration(visited.num_iters)

    with pytest.raises(StopIteration, match="5"):
        run(dual_coordinate, problems, tol=1e-10, callback=stop)


def test_max_iter_ends_an_unfinished_run():
    problems = random_problems(9, instances=80, num_labels=4, C=100.0)
    state = run(dual_coordinate, problems, tol=1e-12, max_iter=2)
    assert state.num_iters == 2
    assert state.gap > 1e-12
    check_certificate(problems, state)


def test_update_leaves_other_labels_as_they_are():
    problems = random_problems(5, instances=60, num_labels=4, C=20.0)
    state = dual_coordinate.update(problems, dual_coordinate.init(problems), positions=[2, 0, 2], tol=1e-8)
    check_certificate(problems, state)
    assert state.dual_coef[[0, 2]].any(1).all()
    assert not state.dual_coef[[1, 3]].any()
    assert not state.weights[:, [1, 3]].any()
    again = dual_coordinate.update(problems, state, positions=range(4), num_iters=1000, tol=1e-8)
    np.testing.assert_allclose(again.primal, run(dual_coordinate, problems, tol=1e-8).primal, rtol=1e-7)


def test_update_of_what_is_solved_changes_nothing():
    problems = random_problems(5)
    state = run(dual_coordinate, problems, tol=1e-4)
    assert dual_coordinate.update(problems, state, tol=1e-3) is state


def test_bad_input_is_refused_by_name():
    problems, other = random_problems(0), random_problems(0, num_labels=4)
    state = dual_coordinate.init(problems)
    refusals = {
        "dual_coef: expected shape": lambda: dual_coordinate.init(problems, np.zeros((3, 2))),
        "dual_coef: expected 0 to C": lambda: dual_coordinate.init(problems, np.full((3, 25), -0.1)),
        "tol: expected a finite number": lambda: run(dual_coordinate, problems, tol=0.0),
        "max_iter: expected an integer": lambda: run(dual_coordinate, problems, max_iter=0),
        "state.dual_coef: expected shape": lambda: dual_coordinate.update(other, state),
        "state.weights: expected shape": lambda: dual_coordinate.update(
            problems, replace(state, weights=np.zeros((4, 3)))
        ),
        "positions: expected numbers of labels": lambda: dual_coordinate.update(
            problems, state, positions=[-1]
        ),
    }
    for message, call in refusals.items():
        with pytest.raises(ValueError, match=message):
            call()
    for outside in (1.1, np.nan):
        with pytest.raises(ValueError, match="dual_coef: expected 0 to C"):
            run(dual_coordinate, problems, start=dual_coordinate.init(problems, np.full((3, 25), outside)))
    missing = random_problems(0, missing=0.5)
    with pytest.raises(ValueError, match="0 for missing labels"):
        dual_coordinate.init(missing, np.full((3, 25), 0.5))


def in_turn(problems: LabelProblems) -> tuple[np.ndarray, np.ndarray]:
    """Each label solved by itself, in turn, its missing spins filled in before the next one sees them."""
    completed, values = problems.spins.astype(np.float64), []
    features = problems.features.toarray() if sparse.issparse(problems.features) else problems.features
    for k in range(problems.num_labels):
        before = completed[:k].T
        cliques = [clique for clique in problems.cliques if clique[-1] == k]
        products = [before[:, clique[:-1]].prod(1, keepdims=True) for clique in cliques]
        inputs = np.hstack([features, np.ones((len(features), 1)), before, *products])
        value, weights, _ = hinge_primal(inputs, problems.spins[k], problems.upper, margin=problems.margin)
        missing = problems.spins[k] == 0
        completed[k, missing] = np.where(inputs[missing] @ weights >= 0, 1, -1)
        values.append(value)
    return np.array(values), completed


@pytest.mark.parametrize(
    "form",
    [
        {"missing": 0.2},
        {"missing": 0.6, "num_labels": 4, "num_cliques": 3, "weighted": True},
        {"missing": 0.3, "csr": True, "C": 10.0},
    ],
    ids=["some", "many, with cliques", "csr"],
)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_missing_labels_are_imputed_in_turn_by_their_own_prediction(form, warm):
    problems = random_problems(11, **form)
    expected, completed = in_turn(problems)
    duals = None
    if warm:
        share = np.random.default_rng(0).random(problems.spins.shape)
        duals = share * problems.upper * (problems.spins != 0)
    state = run(dual_coordinate, problems, tol=1e-8, start=dual_coordinate.init(problems, duals))
    np.testing.assert_allclose(state.primal, expected, rtol=1e-5)
    imputed = problems.complete(state.weights)
    np.testing.assert_array_equal(imputed.spins, completed)
    check_certificate(replace(imputed, spins=problems.spins), state)


def test_design_of_the_reference_has_all_columns_of_a_label():
    problems = random_problems(0, num_labels=4, num_cliques=2)
    for k in range(4):
        own = sum(clique[-1] == k for clique in problems.cliques)
        assert design(problems, k).shape == (25, 4 + 1 + k + own)
