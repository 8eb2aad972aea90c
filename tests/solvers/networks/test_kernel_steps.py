"""The steps of one label of a kernel network against a convex solver, and the choice between them."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from interpreted import interpreted
from sklearn.metrics.pairwise import rbf_kernel

from lmbm_torch.kernels import jit
from lmbm_torch.kernels.dual import kernel_network as compiled
from lmbm_torch.kernels.dual.records import Box

plain = interpreted("dual.kernel_network")


@jit.njit
def _moves(joint, box, free, tol, steps, spent):
    """The moves are a part that Python cannot call."""
    return compiled.solve_free(joint, box, free, tol, steps, spent)


@jit.njit
def _pairs(joint, box, steps, goal):
    return compiled._pair_steps(joint, box, steps, goal)


@jit.njit
def _largest(values):
    return compiled.largest(values)


def solve_free(joint, box, *rest):
    return _moves(joint, box, compiled.Free.of(len(joint)), *rest)


def random_label(seed: int, instances: int = 40, C: float = 5.0) -> tuple[np.ndarray, Box]:
    """A joint kernel, and a label's dual at zero, some instances without a loss."""
    random = np.random.default_rng(seed)
    # Different diagonal entries leave no ties between first steps.
    joint = rbf_kernel(random.normal(size=(instances, 3))) + 1 + np.diag(random.random(instances))
    spins = random.choice([-1.0, 0.0, 1.0], instances)
    bound = C * random.random(instances) * (random.random(instances) < 0.8) * spins
    # In the precision that is compiled beforehand.
    return joint.astype(np.float32), Box(
        np.zeros(instances), np.minimum(bound, 0), np.maximum(bound, 0), -spins, spins
    )


@pytest.mark.parametrize("number", [64, 192])
def test_the_largest_value_is_found_where_it_comes_first(number):
    random = np.random.default_rng(number)
    for _ in range(50):
        values = random.integers(-2, 40, number).astype(np.float32)
        assert _largest(values) == values.argmax()
    for place in (0, 63, number - 1):
        values = np.full(number, -2, np.float32)
        values[place] = -1
        assert _largest(values) == place


def test_known_duals_are_begun_with_exact_moves(monkeypatch):
    """As all are that are no zeros."""
    joint, box = begun(0)
    some = Box(box.coef.copy(), box.lower, box.upper, box.gradient.copy(), box.linear)
    made = compiled.solve_label(joint, some, 1e-9, 10**4)
    assert some.shares().sum() <= 1e-8
    monkeypatch.setattr(plain, "_pair_steps", lambda *_: pytest.fail("a pair before exact moves"))
    assert plain.solve_label(joint, box, 1e-9, 10**4) == made
    np.testing.assert_allclose(box.coef, some.coef, rtol=1e-7, atol=1e-9)


def test_exact_moves_begin_once_however_far_the_primal_value_falls(monkeypatch):
    joint, box = begun(0)
    gap = box.shares().sum()
    first, begins, moves = gap + box.coef @ (box.linear - box.gradient) / 2, [], plain.solve_free
    monkeypatch.setattr(plain, "solve_free", lambda *given: begins.append(given) or moves(*given))
    plain.solve_label(joint, box, 1e-2, 10**4)
    gap = box.shares().sum()
    assert gap + box.coef @ (box.linear - box.gradient) / 2 < 0.1 * first
    assert len(begins) == 1


def begun(seed: int, C: float = 50.0) -> tuple[np.ndarray, Box]:
    """A label's dual somewhere in its box, over a kernel of few directions."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(60, 5))
    joint = (features @ features.T + 1).astype(np.float32)
    _, lower, upper, _, linear = random_label(seed, 60, C)[1]
    coef = random.choice([0.0, 0.4, 1.0], 60) * (lower + upper)
    return joint, Box(coef, lower, upper, joint @ coef - linear, linear)


@pytest.mark.parametrize("seed", range(6))
def test_moves_end_at_the_optimum_from_anywhere(seed):
    joint, box = begun(seed)
    best = Box(np.zeros(60), box.lower, box.upper, -box.linear, box.linear)
    compiled.solve_label(joint, best, 1e-9, 10**6)
    made, _ = solve_free(joint, box, 1e-9, 10**4, 1e9)
    assert 0 < made < 1000
    gap = box.shares().sum()
    assert gap <= 1e-9 * (gap + box.coef @ (box.linear - box.gradient) / 2)
    np.testing.assert_allclose(box.gradient, joint @ box.coef - box.linear, atol=1e-8)
    value, least = (each.coef @ (each.gradient - each.linear) / 2 for each in (box, best))
    assert value == pytest.approx(least, rel=1e-6)
    assert ((box.coef >= box.lower) & (box.coef <= box.upper)).all()


@pytest.mark.parametrize("seed", range(3))
def test_what_free_instances_leave_of_the_kernel_is_right_after_all_moves(seed):
    joint, box = begun(seed)
    free = compiled.Free.of(60)
    _moves(joint, box, free, 1e-9, 10**4, 1e9)
    some, kernel = free.is_free, joint.astype(np.float64)
    inverse = np.linalg.pinv(kernel[np.ix_(some, some)])
    left = np.diag(kernel) - np.einsum("if,fg,ig->i", kernel[:, some], inverse, kernel[:, some])
    np.testing.assert_allclose(free.left[~some], left[~some], atol=1e-9)


@pytest.mark.parametrize("rank", [20, 60])
def test_moves_that_promise_to_cost_too_much_are_left(rank):
    random = np.random.default_rng(0)
    roots = random.normal(size=(60, rank))
    joint = (roots @ roots.T).astype(np.float32)
    linear = random.choice([-1.0, 1.0], 60)
    bound = 1e3 * linear

    def run_moves(spent):
        box = Box(np.zeros(60), np.minimum(bound, 0), np.maximum(bound, 0), -linear, linear)
        return solve_free(joint, box, 1e-9, 10**4, spent)

    made, cost = run_moves(0.0)
    assert plain.PROBED <= made < 60
    assert cost > 0
    assert run_moves(2 * cost)[0] > made


def test_no_more_than_so_many_are_free(monkeypatch):
    monkeypatch.setattr(plain, "MOST", 3)
    joint, box = begun(0)
    plain.solve_free(joint, box, plain.Free.of(60), 1e-9, 200, 1e9)
    np.testing.assert_allclose(box.gradient, joint @ box.coef - box.linear, atol=1e-8)


def test_alike_instances_are_solved_by_exact_moves():
    """Pairs alone need eight times as many steps."""
    random = np.random.default_rng(1)
    features = random.normal(size=(120, 3))
    joint = (rbf_kernel(features, gamma=0.1) + 1).astype(np.float32)
    noisy = features[:, 0] + 0.5 * features[:, 1] ** 2 + 0.3 * random.normal(size=120)
    linear = np.where(noisy > 0.4, 1.0, -1.0)
    bound = 1e3 * linear

    def goal(box):
        gap = box.shares().sum()
        return gap, 1e-3 * (gap + box.coef @ (linear - box.gradient) / 2)

    box, alone = (
        Box(np.zeros(120), np.minimum(bound, 0), np.maximum(bound, 0), -linear, linear) for _ in range(2)
    )
    made, pairs = compiled.solve_label(joint, box, 1e-3, 10**5), 0
    gap, least = goal(box)
    assert gap <= least
    while goal(alone)[0] > goal(alone)[1] and pairs < 10**5:
        pairs += _pairs(joint, alone, 120, goal(alone)[1])
    assert made < pairs / 4


@pytest.mark.parametrize("instances", [1, 2, 40, 90])
def test_a_label_is_solved_to_the_optimum_of_a_convex_solver(instances):
    joint, box = random_label(7, instances, C=50.0)
    compiled.solve_label(joint, box, 1e-10, 10**6)
    coef = cp.Variable(instances)
    roots = np.linalg.cholesky(joint + 1e-12 * np.eye(instances))
    objective = cp.sum_squares(roots.T @ coef) / 2 - box.linear @ coef
    problem = cp.Problem(cp.Minimize(objective), [coef >= box.lower, coef <= box.upper])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    value = box.coef @ (box.gradient - box.linear) / 2
    assert value == pytest.approx(problem.value, rel=1e-7, abs=1e-9)
    assert ((box.coef >= box.lower) & (box.coef <= box.upper)).all()
    np.testing.assert_allclose(box.gradient, joint @ box.coef - box.linear, atol=1e-8)


def test_columns_are_added_and_taken_away():
    joint = random_label(0)[0].astype(np.float64)
    columns = np.random.default_rng(0).choice([-1.0, 1.0], (3, 40))
    changed = joint.copy()
    compiled.add_columns(changed, columns, np.array([1.0, 0.5, 2.0]))
    np.testing.assert_allclose(changed, joint + (columns.T * [1.0, 0.5, 2.0]) @ columns)
    compiled.add_columns(changed, columns, -np.array([1.0, 0.5, 2.0]))
    np.testing.assert_allclose(changed, joint)
