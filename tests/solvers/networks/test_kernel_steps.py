"""The steps of one label of a kernel network: compiled against plain, and both against a convex solver."""

from __future__ import annotations

from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from lmbm_torch.kernels import jit
from lmbm_torch.kernels.dual.compiled import kernel_network as compiled
from lmbm_torch.kernels.dual.plain import kernel_network as plain
from lmbm_torch.kernels.dual.plain.kernel_network import Box, shares


@jit.njit
def _compiled_moves(joint, box, free, tol, steps, spent):
    """The moves are a part that Python cannot call."""
    return compiled.solve_free(joint, box, free, tol, steps, spent)


@jit.njit
def _largest(values):
    return compiled.largest(values)


compiled_moves = SimpleNamespace(
    solve_free=lambda joint, box, *rest: _compiled_moves(joint, box, compiled.Free.of(len(joint)), *rest)
)


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


@pytest.mark.parametrize("seed", range(4))
def test_compiled_steps_are_those_of_the_reference(seed):
    found = []
    for backend in (plain, compiled):
        joint, box = random_label(seed)
        made = backend.solve_label(joint, box, 1e-9, 20)
        np.testing.assert_allclose(box.gradient, joint @ box.coef - box.linear, atol=1e-12)
        found.append((made, box.coef))
    assert found[0][0] == found[1][0] == 20
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-9, atol=1e-12)


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
    """As all are that are no zeros, by both backends alike."""
    joint, box = begun(0)
    found = []
    for backend in (plain, compiled):
        some = Box(box.coef.copy(), box.lower, box.upper, box.gradient.copy(), box.linear)
        found.append((backend.solve_label(joint, some, 1e-9, 10**4), some.coef))
        assert shares(some).sum() <= 1e-8
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-7, atol=1e-9)
    monkeypatch.setattr(plain, "_pair_steps", lambda *_: pytest.fail("a pair before exact moves"))
    assert plain.solve_label(joint, box, 1e-9, 10**4) == found[0][0]


def test_exact_moves_begin_once_however_far_the_primal_value_falls(monkeypatch):
    joint, box = begun(0)
    gap = shares(box).sum()
    first, begins, moves = gap + box.coef @ (box.linear - box.gradient) / 2, [], plain.solve_free
    monkeypatch.setattr(plain, "solve_free", lambda *given: begins.append(given) or moves(*given))
    plain.solve_label(joint, box, 1e-2, 10**4)
    gap = shares(box).sum()
    assert gap + box.coef @ (box.linear - box.gradient) / 2 < 0.1 * first
    assert len(begins) == 1


MOVES = pytest.mark.parametrize("moves", [plain, compiled_moves], ids=["plain", "compiled"])


def begun(seed: int, C: float = 50.0) -> tuple[np.ndarray, Box]:
    """A label's dual somewhere in its box, over a kernel of few directions."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(60, 5))
    joint = (features @ features.T + 1).astype(np.float32)
    _, lower, upper, _, linear = random_label(seed, 60, C)[1]
    coef = random.choice([0.0, 0.4, 1.0], 60) * (lower + upper)
    return joint, Box(coef, lower, upper, joint @ coef - linear, linear)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [1, 7, 40])
def test_compiled_moves_are_those_of_the_reference(seed, steps):
    found = []
    for moves in (plain, compiled_moves):
        joint, box = begun(seed)
        made, cost = moves.solve_free(joint, box, 1e-9, steps, 1e9)
        assert 0 < made <= steps + 20
        assert cost == 0
        found.append((made, box.coef))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-7, atol=1e-9)


@MOVES
@pytest.mark.parametrize("seed", range(6))
def test_moves_end_at_the_optimum_from_anywhere(moves, seed):
    joint, box = begun(seed)
    best = Box(np.zeros(60), box.lower, box.upper, -box.linear, box.linear)
    plain.solve_label(joint, best, 1e-9, 10**6)
    made, _ = moves.solve_free(joint, box, 1e-9, 10**4, 1e9)
    assert 0 < made < 1000
    gap = shares(box).sum()
    assert gap <= 1e-9 * (gap + box.coef @ (box.linear - box.gradient) / 2)
    np.testing.assert_allclose(box.gradient, joint @ box.coef - box.linear, atol=1e-8)
    value, least = (each.coef @ (each.gradient - each.linear) / 2 for each in (box, best))
    assert value == pytest.approx(least, rel=1e-6)
    assert ((box.coef >= box.lower) & (box.coef <= box.upper)).all()


@MOVES
@pytest.mark.parametrize("rank", [20, 60])
def test_moves_that_promise_to_cost_too_much_are_left(moves, rank):
    random = np.random.default_rng(0)
    roots = random.normal(size=(60, rank))
    joint = (roots @ roots.T).astype(np.float32)
    linear = random.choice([-1.0, 1.0], 60)
    bound = 1e3 * linear

    def run_moves(spent):
        box = Box(np.zeros(60), np.minimum(bound, 0), np.maximum(bound, 0), -linear, linear)
        return moves.solve_free(joint, box, 1e-9, 10**4, spent)

    made, cost = run_moves(0.0)
    assert plain.PROBED <= made < 60
    assert cost > 0
    assert run_moves(2 * cost)[0] > made


def test_no_more_than_so_many_are_free(monkeypatch):
    monkeypatch.setattr(plain, "MOST", 3)
    joint, box = begun(0)
    plain.solve_free(joint, box, 1e-9, 200, 1e9)
    np.testing.assert_allclose(box.gradient, joint @ box.coef - box.linear, atol=1e-8)


def test_alike_instances_are_solved_by_exact_moves(monkeypatch):
    """Pairs alone need eight times as many steps."""
    random = np.random.default_rng(1)
    features = random.normal(size=(120, 3))
    joint = rbf_kernel(features, gamma=0.1) + 1
    noisy = features[:, 0] + 0.5 * features[:, 1] ** 2 + 0.3 * random.normal(size=120)
    linear = np.where(noisy > 0.4, 1.0, -1.0)
    bound, made = 1e3 * linear, []

    def pairs(joint, box, tol, steps, spent):
        gap = shares(box).sum()
        goal = tol * (gap + box.coef @ (linear - box.gradient) / 2)
        return plain._pair_steps(joint, box, min(steps, 120), goal), 0.0

    for moves in (plain.solve_free, pairs):
        monkeypatch.setattr(plain, "solve_free", moves)
        box = Box(np.zeros(120), np.minimum(bound, 0), np.maximum(bound, 0), -linear, linear)
        made.append(plain.solve_label(joint, box, 1e-3, 10**5))
        gap = shares(box).sum()
        assert gap <= 1e-3 * (gap + box.coef @ (linear - box.gradient) / 2)
    assert made[0] < made[1] / 4


@pytest.mark.parametrize("backend", [plain, compiled], ids=["plain", "compiled"])
@pytest.mark.parametrize("instances", [1, 2, 40, 90])
def test_a_label_is_solved_to_the_optimum_of_a_convex_solver(backend, instances):
    joint, box = random_label(7, instances, C=50.0)
    backend.solve_label(joint, box, 1e-10, 10**6)
    coef = cp.Variable(instances)
    roots = np.linalg.cholesky(joint + 1e-12 * np.eye(instances))
    objective = cp.sum_squares(roots.T @ coef) / 2 - box.linear @ coef
    problem = cp.Problem(cp.Minimize(objective), [coef >= box.lower, coef <= box.upper])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    value = box.coef @ (box.gradient - box.linear) / 2
    assert value == pytest.approx(problem.value, rel=1e-7, abs=1e-9)
    assert ((box.coef >= box.lower) & (box.coef <= box.upper)).all()
    np.testing.assert_allclose(box.gradient, joint @ box.coef - box.linear, atol=1e-8)


@pytest.mark.parametrize("backend", [plain, compiled], ids=["plain", "compiled"])
def test_columns_are_added_and_taken_away(backend):
    joint = random_label(0)[0].astype(np.float64)
    columns = np.random.default_rng(0).choice([-1.0, 1.0], (3, 40))
    changed = joint.copy()
    backend.add_columns(changed, columns, np.array([1.0, 0.5, 2.0]))
    np.testing.assert_allclose(changed, joint + (columns.T * [1.0, 0.5, 2.0]) @ columns)
    backend.add_columns(changed, columns, -np.array([1.0, 0.5, 2.0]))
    np.testing.assert_allclose(changed, joint)
