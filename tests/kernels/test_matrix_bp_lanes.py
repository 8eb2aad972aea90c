"""Many small instances side by side end as the readable reference says, each for itself."""

from __future__ import annotations

import pytest
import torch
from test_matrix_bp_backends import assert_same, random_problem

from lmbm_torch.kernels.matrix_bp import plain
from lmbm_torch.kernels.matrix_bp.compiled import lanes
from lmbm_torch.kernels.matrix_bp.plain import Product, select

FACTORS = 10


@pytest.mark.parametrize("which", [Product.SUM, Product.MIXED])
@pytest.mark.parametrize("shape", [(1, 1), (14, 100), (33, 20)])
@pytest.mark.parametrize(
    ("known", "start", "init"),
    [(False, False, False), (True, True, False), (True, False, False), (True, False, True)],
)
def test_lanes_do_what_the_reference_does(which, shape, known, start, init):
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-4)):
        options = {"known": known, "start": start, "pairs": which is Product.SUM, "dtype": dtype}
        problem = random_problem(0, *shape, batch_size=20, product=which, **options)
        if init:
            beliefs = torch.rand(20, shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
            beliefs[:2] = torch.tensor([[0.0], [1.0]])
            problem = problem._replace(init=beliefs)
        came, expected = lanes.propagate(problem, FACTORS), plain.propagate(problem)
        assert_same(came, expected, tolerance)


def test_every_lane_stops_for_itself():
    problem = random_problem(1, 12, 10, 70, num_iters=40, tol=1e-4)
    together = lanes.propagate(problem, FACTORS)
    assert len(together.num_iters.unique()) > 1
    assert torch.equal(together.num_iters, plain.propagate(problem).num_iters)
    alone = lanes.propagate(select(problem, slice(5, 6)), FACTORS)
    torch.testing.assert_close(alone.visible, together.visible[5:6], rtol=0, atol=1e-14)
    assert torch.equal(alone.num_iters, together.num_iters[5:6])


@pytest.mark.parametrize("bias", [-1e4, 1e4])
def test_fields_beyond_every_exponent_are_told(bias):
    for which in (Product.SUM, Product.MIXED):
        problem = random_problem(2, 6, 5, 20, product=which, coupling=2.0)
        problem = problem._replace(visible=problem.visible + bias, hidden=problem.hidden - bias)
        came = lanes.propagate(problem, FACTORS)
        assert_same(came, plain.propagate(problem), 1e-9)


def test_only_small_instances_in_number_go_side_by_side():
    assert lanes.suits(random_problem(3, 14, 100, 16, dtype=torch.float32))
    assert not lanes.suits(random_problem(3, 14, 100, 15, dtype=torch.float32))
    assert not lanes.suits(random_problem(3, 140, 100, 16, dtype=torch.float32))
