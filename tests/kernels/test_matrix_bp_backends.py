"""Every kernel of belief propagation does what the readable reference does."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
import torch
from numba import njit
from sweeps import slow
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.kernels.jit import SUMS
from lmbm_torch.kernels.matrix_bp import choosing, plain
from lmbm_torch.kernels.matrix_bp.compiled import groups
from lmbm_torch.kernels.matrix_bp.compiled.rows import answer_odds, gains, hear_odds
from lmbm_torch.kernels.matrix_bp.compiled.vectors import pointer
from lmbm_torch.kernels.matrix_bp.plain import Beliefs, Problem, Product, propagate

KERNELS: dict[str, Callable[[Problem], Beliefs]] = {"numba": groups.propagate}
if find_spec("triton"):
    from lmbm_torch.kernels.matrix_bp.compiled import cuda

    def on_device(problem: Problem) -> Beliefs:
        """Triton's kernel on the GPU, or in the interpreter that conftest chose where there is none."""
        device = "cuda" if torch.cuda.is_available() else "cpu"

        def moved(values: Iterable[object], device: str) -> Iterator[object]:
            return (value.to(device) if isinstance(value, Tensor) else value for value in values)

        return Beliefs(*moved(cuda.propagate(Problem(*moved(problem, device))), "cpu"))

    KERNELS["triton"] = on_device


def random_problem(
    seed: int,
    num_visible: int,
    num_hidden: int,
    batch_size: int = 3,
    *,
    coupling: float = 0.5,
    dtype: torch.dtype = torch.float64,
    known: bool = False,
    start: bool = False,
    pairs: bool = False,
    **options: object,
) -> Problem:
    """A problem with normal weights and biases, run for a few iterations whether it converges or not."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    visible = normal(batch_size, num_visible)
    problem = Problem(
        visible=visible.to(dtype),
        hidden=normal(batch_size, num_hidden).to(dtype),
        coupling=(coupling * normal(num_visible, num_hidden)).to(dtype),
        known=torch.where(visible.abs() < 0.7, (visible > 0).double(), torch.nan) if known else None,
        start=(0.3 * normal(batch_size, num_visible, num_hidden)).to(dtype) if start else None,
        num_iters=3,
        tol=0.0,
        damping=0.0,
        product=Product.SUM,
        keep_messages=True,
        pair_weights=normal(batch_size).to(dtype) if pairs else None,
    )
    return problem._replace(**options)


# With a tolerance of 0 the last bit decides when to stop.
ANSWERS = tuple(name for name in Beliefs._fields if name not in ("num_iters", "residual"))


def assert_same(came: Beliefs, expected: Beliefs, tolerance: float, names: tuple[str, ...] = ANSWERS) -> None:
    for name in names:
        value, other = getattr(came, name), getattr(expected, name)
        assert (value is None) == (other is None), name
        if value is not None:
            torch.testing.assert_close(
                value, other, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
            )


SHAPES = [(1, 1), (1, 9), (9, 1), (7, 5), (70, 40)]


# Triton's interpreter takes a second for each, and more for large ones.
INTERPRETED = [(7, 5)]


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        (slow if kernel == "triton" and shape not in INTERPRETED else pytest.param)(kernel, shape)
        for kernel in KERNELS
        for shape in SHAPES
    ],
)
@pytest.mark.parametrize("which", Product)
@pytest.mark.parametrize(
    ("known", "start", "damping"), [(False, False, 0.0), (True, True, 0.0), (True, False, 0.3)]
)
def test_kernels_do_what_the_reference_does(kernel, which, shape, known, start, damping):
    options = {"known": known, "start": start, "pairs": which is Product.SUM, "damping": damping}
    problem = random_problem(0, *shape, product=which, **options)
    assert_same(KERNELS[kernel](problem), propagate(problem), 1e-9)
    single = random_problem(0, *shape, product=which, dtype=torch.float32, **options)
    assert_same(KERNELS[kernel](single), propagate(single), 2e-4)


@pytest.mark.parametrize("which", Product)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("known", "damping"), [(False, 0.0), (True, 0.0), (True, 0.3)])
def test_the_first_answers_are_of_the_beliefs_given(which, shape, known, damping):
    init = torch.rand(3, shape[1], generator=torch.Generator().manual_seed(0)).double()
    # A certain unit, too.
    init[0], init[1] = 0.0, 1.0
    options = {"known": known, "pairs": which is Product.SUM, "damping": damping, "init": init}
    for num_iters in (1, 3):
        problem = random_problem(0, *shape, product=which, num_iters=num_iters, **options)
        came, expected = groups.propagate(problem), propagate(problem)
        assert_same(came, expected, 1e-9)
        assert torch.equal(came.num_iters, expected.num_iters)
        assert torch.equal(came.residual.isinf(), torch.full((3,), num_iters == 1))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(40, 1100), slow((2100, 40))], ids=["several parts", "long rows"])
def test_large_models_are_cut_into_parts(kernel, shape):
    problem = random_problem(1, *shape, batch_size=1, coupling=0.1, num_iters=2, pairs=True)
    assert_same(KERNELS[kernel](problem), propagate(problem), 1e-8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("scale", [34.0, 36.0, slow(10.0), slow(200.0)])
def test_kernels_agree_on_both_sides_of_the_switch(kernel, scale):
    for dtype, tolerance in ((torch.float64, 1e-7), (torch.float32, 1e-4)):
        problem = random_problem(2, 20, 15, dtype=dtype, num_iters=2, keep_messages=False)
        coupling = problem.coupling * (scale / problem.coupling.abs().max())
        problem = problem._replace(coupling=coupling, visible=problem.visible - coupling.sum(1) / 2)
        truth = propagate(Problem(*(x.double() if isinstance(x, Tensor) else x for x in problem)))
        came = KERNELS[kernel](problem)
        for name in ("visible", "hidden"):
            probabilities = torch.sigmoid(getattr(came, name).double())
            expected = torch.sigmoid(getattr(truth, name))
            torch.testing.assert_close(probabilities, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("which", [Product.SUM, Product.MAX])
def test_kernels_stop_when_the_reference_does(kernel, which):
    for num_iters, tol in ((1, 1e-3), (2, 1e-6), (30, 1e-3), (30, 1e-6)):
        problem = random_problem(3, 12, 10, 3, num_iters=num_iters, tol=tol, product=which)
        came, expected = KERNELS[kernel](problem), propagate(problem)
        assert torch.equal(came.num_iters, expected.num_iters)
        torch.testing.assert_close(came.residual, expected.residual, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bias", [-1e4, 1e4])
def test_fields_beyond_every_exponent_are_told(kernel, bias):
    for which, dtype in product(Product, (torch.float32, torch.float64)):
        problem = random_problem(5, 6, 5, dtype=dtype, product=which)
        problem = problem._replace(visible=problem.visible + bias, hidden=problem.hidden - bias)
        assert_same(KERNELS[kernel](problem), propagate(problem), 2e-4 if dtype == torch.float32 else 1e-9)


@pytest.fixture
def threads(monkeypatch) -> Iterator[Callable[[int], None]]:
    # However small a model, its rows are shared.
    monkeypatch.setattr(groups, "_SHARED_MESSAGES", 0)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("which", [Product.SUM, Product.MAX])
def test_threads_do_not_change_a_bit(threads, batch_size, which):
    results = []
    for count in (1, 2, 3):
        threads(count)
        problem = random_problem(6, 90, 1100, batch_size, dtype=torch.float32, product=which)
        if which is Product.SUM:
            problem = problem._replace(pair_weights=torch.ones(batch_size))
        results.append(groups.propagate(problem))
    for result in results[1:]:
        assert_same(result, results[0], 0.0, Beliefs._fields)


def test_the_kernel_can_be_called_from_several_threads(threads):
    threads(2)
    problems = [random_problem(seed, 90, 1100, 1 + seed % 3) for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        for problem, came in zip(problems, pool.map(groups.propagate, problems), strict=True):
            assert_same(came, groups.propagate(problem), 0.0, Beliefs._fields)


@pytest.mark.parametrize(
    ("dtype", "widest", "close"), [(torch.float32, 14.9, 5e-6), (torch.float64, 149, 1e-9)]
)
@pytest.mark.parametrize("factor", [1, 2, 9])
@pytest.mark.parametrize("which", [Product.SUM, Product.MIXED])
def test_what_is_certain_is_so_beside_large_couplings(dtype, widest, close, factor, which):
    """On both sides of the largest beside which odds of visible units are certain."""
    for seed in range(5):
        problem = random_problem(seed, 33, 40, dtype=dtype, known=True, product=which, num_iters=2)
        coupling = problem.coupling * (factor * widest / problem.coupling.abs().max())
        problem = problem._replace(coupling=coupling)
        tensors = {name: getattr(problem, name).double() for name in ("visible", "hidden", "coupling")}
        came, exact = groups.propagate(problem), propagate(problem._replace(**tensors))
        for name in ("visible", "hidden", "to_visible", "to_hidden"):
            value, other = getattr(came, name), getattr(exact, name)
            assert value.dtype == dtype
            torch.testing.assert_close(value.double(), other, rtol=close, atol=30 * close)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_inner_loops_are_vectorised(dtype):
    # Compiled here: the machine code of what comes from numba's cache is not kept.
    options = {"fastmath": SUMS, "error_model": "numpy"}

    @njit(**options)
    def rows(messages, weight, own, product):
        first, stop = np.uint64(0), np.uint64(len(own))
        ratio, power = hear_odds(pointer(messages), pointer(weight), first, first, stop, pointer(own))
        product[0] = ratio + power

    @njit(**options)
    def answers(messages, weight, own, product):
        told, weights, odds, gathered = pointer(messages), pointer(weight), pointer(own), pointer(product)
        first, stop = np.uint64(0), np.uint64(len(own))
        answer_odds(told, weights, first, first, stop, odds, own[0], own[0], gathered, gathered)

    gains_here = njit(**options)(gains.py_func)
    matrices, vectors = [np.ones((2, 64), dtype)] * 2, [np.ones(64, dtype)] * 2
    for compiled, arguments in (
        (rows, (*matrices, *vectors)),
        (answers, (*matrices, *vectors)),
        (gains_here, (np.ones(64), vectors[0], np.ones(64))),
    ):
        compiled(*arguments)
        (code,) = compiled.inspect_asm().values()
        packed = "pd" if compiled is gains_here or dtype is np.float64 else "ps"
        operation = "mul" if compiled is rows else "div"
        assert re.search(rf"\bv?{operation}{packed}\b|\bf{operation}\s+v\d+\.", code)


def test_the_reference_is_the_same_in_any_chunks(monkeypatch):
    problem = random_problem(7, 8, 6, 7, pairs=True, known=True)
    whole = propagate(problem)
    monkeypatch.setattr(plain, "CPU_CHUNK_BYTES", 2 * problem.visible[0].nbytes * 6)
    assert_same(propagate(problem), whole, 1e-12)


def test_the_reference_can_be_differentiated_unrolled():
    problem = random_problem(8, 5, 4, coupling=0.4, num_iters=200, tol=1e-13, keep_messages=False)
    tensors = [problem.visible, problem.hidden, problem.coupling]
    for tensor in tensors:
        tensor.requires_grad_()
    beliefs = propagate(problem._replace(pair_weights=torch.ones(3, dtype=torch.float64)))
    beliefs.log_partition.sum().backward()
    torch.testing.assert_close(problem.visible.grad, torch.sigmoid(beliefs.visible))
    torch.testing.assert_close(problem.hidden.grad, torch.sigmoid(beliefs.hidden))
    torch.testing.assert_close(problem.coupling.grad, beliefs.pair_sum)
    # A few iterations have a gradient of their own, which is not that of a fixed point.
    short = problem._replace(num_iters=2)

    def visible(*tensors: Tensor) -> Tensor:
        return propagate(short._replace(visible=tensors[0], hidden=tensors[1], coupling=tensors[2])).visible

    assert torch.autograd.gradcheck(visible, tensors)


@pytest.fixture
def chosen_anew() -> Iterator[None]:
    choosing._compiled.cache_clear()
    yield
    choosing._compiled.cache_clear()


@pytest.mark.usefixtures("chosen_anew")
def test_without_the_kernel_the_reference_runs_and_says_so_once(monkeypatch):
    energy = BipartiteEnergy(torch.zeros(1, 2), torch.zeros(1, 3), torch.ones(2, 3))
    expected = matrix_bp.marginals(energy)
    choosing._compiled.cache_clear()
    monkeypatch.delattr("lmbm_torch.kernels.matrix_bp.compiled.groups")
    monkeypatch.setitem(sys.modules, "lmbm_torch.kernels.matrix_bp.compiled.groups", None)
    with pytest.warns(RuntimeWarning, match="without a compiled kernel") as told:
        came = [matrix_bp.marginals(energy) for _ in range(2)][-1]
    assert len(told) == 1
    torch.testing.assert_close(came.visible, expected.visible)


@pytest.mark.usefixtures("chosen_anew")
def test_a_cuda_device_without_triton_has_the_reference(monkeypatch):
    triton_alone = "lmbm_torch.kernels.matrix_bp.compiled.cuda"
    for name in [name for name in sys.modules if name.startswith(triton_alone)]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(name, raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.warns(RuntimeWarning, match="without a compiled kernel.*triton"):
        assert choosing.kernel("cuda") is propagate
    assert choosing.kernel("mps") is propagate
