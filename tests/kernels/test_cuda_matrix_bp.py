"""What Triton's kernel of belief propagation does beyond what test_matrix_bp_backends asks of every one."""

from __future__ import annotations

import pytest
import torch
from test_matrix_bp_backends import assert_same, random_problem
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.kernels.matrix_bp import choosing
from lmbm_torch.kernels.matrix_bp.plain import Beliefs, Problem, Product, propagate, select

cuda = pytest.importorskip("lmbm_torch.kernels.matrix_bp.compiled.cuda", reason="Triton is for Linux")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(problem: Problem, device: str = DEVICE) -> Problem:
    return Problem(*(value.to(device) if isinstance(value, Tensor) else value for value in problem))


def test_a_cuda_device_has_the_kernel():
    assert choosing.kernel("cuda") is cuda.propagate


@pytest.mark.parametrize("which", Product)
def test_no_bit_depends_on_the_batch_or_changes_from_run_to_run(which):
    problem = on_device(random_problem(0, 9, 40, 2, dtype=torch.float32, product=which, start=True))
    whole = cuda.propagate(problem)
    assert_same(cuda.propagate(problem), whole, 0.0, Beliefs._fields)
    for row in range(2):
        alone = slice(row, row + 1)
        expected = Beliefs(*(None if value is None else value[alone] for value in whole))
        assert_same(cuda.propagate(select(problem, alone)), expected, 0.0, Beliefs._fields)


def test_instances_are_taken_in_chunks(monkeypatch):
    problem = on_device(random_problem(1, 20, 40, 5, pairs=True, known=True))
    whole = cuda.propagate(problem)
    monkeypatch.setattr(cuda, "CHUNK_BYTES", 2 * 40 * 32 * 8)
    came = cuda.propagate(problem)
    assert_same(came, whole, 0.0, tuple(name for name in Beliefs._fields if name != "pair_sum"))
    assert_same(came, whole, 1e-12, ("pair_sum",))


def test_pairwise_beliefs_are_summed_in_groups(monkeypatch):
    problem = on_device(random_problem(2, 20, 40, 5, pairs=True))
    monkeypatch.setattr(cuda, "_SUM_BYTES", 2 * 40 * 32 * 8)
    assert_same(cuda.propagate(problem), propagate(problem), 1e-9)


def test_rows_too_wide_for_the_registers_go_to_the_reference(monkeypatch):
    problem = on_device(random_problem(3, 9, 4))
    monkeypatch.setitem(cuda.MOST_COLUMNS, torch.float64, 8)
    assert_same(cuda.propagate(problem), propagate(problem), 0.0, Beliefs._fields)


def test_instances_that_have_converged_cost_nothing(monkeypatch):
    problem = on_device(random_problem(4, 12, 10, 4, coupling=0.1, num_iters=1000, tol=1e-6))
    launches = []

    class Counted:
        def __getitem__(self, grid):
            def launch(*numbers, **options):
                launches.append(grid)
                kernel[grid](*numbers, **options)

            return launch

    kernel = cuda.iterate
    monkeypatch.setattr(cuda, "iterate", Counted())
    came = cuda.propagate(problem)
    assert (came.residual <= 1e-6).all()
    assert int(came.num_iters.max()) < 16
    assert len(launches) == 16
    assert_same(came, propagate(problem), 1e-9, Beliefs._fields[:4])


@pytest.mark.parametrize("damping", [0.0, 0.1], ids=["in odds", "in log-odds"])
def test_fields_that_cancel_lose_nothing_in_single_precision(damping):
    # What known units tell adds up to 1600, where float32 are 1e-4 apart, and a bias takes it away.
    problem = random_problem(7, 201, 3, 1, num_iters=3, damping=damping, dtype=torch.float32)
    known = torch.ones(1, 201)
    known[0, -1] = torch.nan
    coupling = problem.coupling * 0.01 + 8
    problem = problem._replace(
        coupling=coupling, known=known, hidden=-coupling[:-1].double().sum(0)[None].float() + 0.3
    )
    exact = propagate(Problem(*(x.double() if isinstance(x, Tensor) else x for x in problem)))
    came = cuda.propagate(on_device(problem)).to_visible[0, -1].cpu().double()
    torch.testing.assert_close(came, exact.to_visible[0, -1], rtol=0, atol=1e-5)


def test_beliefs_in_single_precision_are_as_close_as_is_said():
    problem = random_problem(8, 784, 16, 1, coupling=0.1, num_iters=3, keep_messages=False)
    expected = propagate(problem)
    single = Problem(*(value.float() if isinstance(value, Tensor) else value for value in problem))
    came = cuda.propagate(on_device(single))
    for name in ("visible", "hidden"):
        probabilities = torch.sigmoid(getattr(came, name).cpu().double())
        torch.testing.assert_close(probabilities, torch.sigmoid(getattr(expected, name)), rtol=0, atol=3e-6)


@pytest.mark.cuda
def test_beliefs_on_a_gpu_are_those_of_double_precision():
    if DEVICE == "cpu":
        pytest.skip("no CUDA device")
    problem = random_problem(9, 784, 256, 8, coupling=0.05, num_iters=20, keep_messages=False)
    expected = propagate(problem)
    single = Problem(*(value.float() if isinstance(value, Tensor) else value for value in problem))
    came = cuda.propagate(on_device(single))
    for name in ("visible", "hidden"):
        probabilities = torch.sigmoid(getattr(came, name).cpu().double())
        torch.testing.assert_close(probabilities, torch.sigmoid(getattr(expected, name)), rtol=0, atol=1e-5)
    energy = BipartiteEnergy(*(tensor.to(DEVICE) for tensor in single[:3]))
    torch.testing.assert_close(
        matrix_bp.marginals(energy, num_iters=20, tol=0.0).visible.cpu(), torch.sigmoid(came.visible.cpu())
    )
