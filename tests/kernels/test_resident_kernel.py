"""The resident kernel of belief propagation on the host, as NVRTC compiles it, and what it refuses."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeps import slow
from test_matrix_bp_backends import random_problem
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.kernels import nvrtc
from lmbm_torch.kernels.matrix_bp.compiled import resident
from lmbm_torch.kernels.matrix_bp.plain import Beliefs, Problem, propagate

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")

Launch = Callable[..., None]


@pytest.fixture(scope="module")
def on_host(tmp_path_factory) -> Callable[..., Launch]:
    """A launch that runs the kernel with fibers for threads, of given clusters and order."""
    if COMPILER is None:
        pytest.skip("no g++, which compiles the kernel for the host: install GCC")
    libraries: dict[tuple[int, int, bool], ctypes.CDLL] = {}

    def built(num_visible: int, num_hidden: int, rough: bool) -> ctypes.CDLL:
        key = num_visible, num_hidden, rough
        if key not in libraries:
            folder = tmp_path_factory.mktemp("resident")
            (folder / "resident.cpp").write_text(on_the_host(num_visible, num_hidden, rough))
            subprocess.run(
                [
                    *(COMPILER, "-std=c++17", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC"),
                    *("-o", folder / "resident.so", folder / "resident.cpp"),
                ],
                check=True,
            )
            libraries[key] = ctypes.CDLL(str(folder / "resident.so"))
        return libraries[key]

    def launch_with(clusters: int = 1, order: int = 0, rough: bool = False) -> Launch:
        def launch(num_visible: int, num_hidden: int, _: int, arguments: tuple[Any, ...]) -> None:
            library = built(num_visible, num_hidden, rough)
            assert library.shared_bytes() == resident.shared_bytes(num_visible, num_hidden)
            values = [nvrtc.argument(value) for value in arguments]
            assert library.launch_on_host(*values, clusters, order), "threads wait for each other forever"

        return launch

    return launch_with


def on_the_host(num_visible: int, num_hidden: int, rough: bool) -> str:
    """What stands for a device's instructions, the kernel itself, and its launch."""
    first = "#define ROUGH\n" if rough else ""
    kernel = resident.source(num_visible, num_hidden).replace(resident.DEVICE.read_text(), "")
    return first + (HERE / "host_cuda.h").read_text() + kernel + (HERE / "host_resident.cpp").read_text()


@pytest.fixture
def run(monkeypatch, on_host) -> Callable[..., Beliefs]:
    """The resident backend with its launch on the host."""
    monkeypatch.setattr(resident, "_check_device", lambda device: None)

    def run(problem: Problem, clusters: int = 1, order: int = 0, rough: bool = False) -> Beliefs:
        monkeypatch.setattr(resident, "_clusters", lambda problem: clusters)
        monkeypatch.setattr(resident, "_launch", on_host(clusters, order, rough))
        return resident.propagate(problem)

    return run


def single(problem: Problem) -> Problem:
    return Problem(*(value.float() if isinstance(value, Tensor) else value for value in problem))


def some_problem(num_visible: int, num_hidden: int, batch: int, **options: Any) -> Problem:
    options = {"coupling": 0.1, "num_iters": 5, "keep_messages": False} | options
    return random_problem(0, num_visible, num_hidden, batch, **options)


def assert_close(came: Beliefs, expected: Beliefs, tolerance: float) -> None:
    """Beliefs as probabilities, as users see them."""
    for name in ("visible", "hidden"):
        probabilities = torch.sigmoid(getattr(came, name).double())
        torch.testing.assert_close(
            probabilities, torch.sigmoid(getattr(expected, name)), rtol=0, atol=tolerance
        )
    torch.testing.assert_close(
        came.log_partition.double(), expected.log_partition, rtol=tolerance, atol=10 * tolerance
    )


# One column and one block; columns that fill no warp; two blocks, the second not full; 35 columns of a
# thread, which are summed in two pieces.
@pytest.mark.parametrize("shape", [(5, 3), (70, 40), slow((555, 33)), slow((784, 256)), slow((832, 250))])
def test_its_source_on_the_host_does_what_the_reference_does(run, shape):
    problem = some_problem(*shape, 3 if max(shape) < 100 else 1, known=True)
    came, expected = run(single(problem)), propagate(problem)
    assert_close(came, expected, 3e-6)
    torch.testing.assert_close(came.residual.double(), expected.residual, rtol=1e-3, atol=1e-6)
    assert torch.equal(came.num_iters, expected.num_iters)


@pytest.mark.parametrize("shape", [(70, 40), slow((784, 256))])
def test_what_a_device_rounds_more_coarsely_changes_little(run, shape):
    problem = some_problem(*shape, 1, num_iters=4)
    assert_close(run(single(problem), rough=True), propagate(problem), 5e-6)


@pytest.mark.parametrize(("clusters", "order"), [(1, 1), (1, 2), (2, 0), (5, 0)])
def test_no_bit_depends_on_which_threads_are_first_or_on_the_clusters(run, clusters, order):
    # Odd numbers of iterations and of instances: places of exchange alternate through all of them.
    problem = single(some_problem(5, 40, 3, num_iters=3))
    came, expected = run(problem, clusters, order), run(problem)
    for name in ("visible", "hidden", "log_partition", "residual"):
        assert torch.equal(getattr(came, name), getattr(expected, name)), name


def test_an_instance_stops_at_the_first_look_that_finds_it_converged(run):
    problem = some_problem(5, 40, 3, num_iters=100, tol=1e-4)
    came, expected = run(single(problem)), propagate(problem)
    assert (came.residual <= 1e-4).all()
    assert torch.equal(came.num_iters, -(-expected.num_iters // 4) * 4)
    torch.testing.assert_close(came.visible.double(), expected.visible, rtol=0, atol=3e-4)


def test_one_iteration_from_nothing_proves_nothing(run):
    came = run(single(some_problem(5, 3, 1, num_iters=1)))
    assert came.residual.isinf().all()


def test_marginals_can_ask_for_it(monkeypatch, on_host):
    problem = some_problem(5, 3, 2, num_iters=8, tol=1e-6)
    monkeypatch.setattr(resident, "_clusters", lambda problem: 1)
    monkeypatch.setattr(resident, "_check_device", lambda device: None)
    monkeypatch.setattr(resident, "_launch", on_host())
    energy = BipartiteEnergy(*single(problem)[:3])
    came, expected = (
        matrix_bp.marginals(energy, num_iters=8, tol=1e-6, backend="resident"),
        propagate(problem),
    )
    torch.testing.assert_close(came.visible.double(), torch.sigmoid(expected.visible), rtol=0, atol=3e-6)
    torch.testing.assert_close(came.log_partition.double(), expected.log_partition, rtol=3e-6, atol=3e-5)
    energy.coupling.requires_grad_()
    with pytest.raises(ValueError, match=r"backend: 'resident' has no gradient: .*no_grad"):
        matrix_bp.marginals(energy, num_iters=8, tol=1e-6, backend="resident")


def test_what_it_cannot_do_is_refused(monkeypatch):
    energy = BipartiteEnergy(torch.zeros(1, 5), torch.zeros(1, 3), torch.ones(5, 3))
    with pytest.raises(ValueError, match=r"backend.*'streaming', 'resident'.*'fast'"):
        matrix_bp.marginals(energy, backend="fast")
    with pytest.raises(ValueError, match=r"CUDA device.*cpu"):
        matrix_bp.marginals(energy, backend="resident")
    monkeypatch.setattr(resident, "_check_device", lambda device: None)
    problem = single(some_problem(5, 3, 1))
    for refused, reason in (
        (some_problem(5, 3, 1), "float32.*float64"),
        (single(some_problem(833, 3, 1)), "832 visible.*833"),
        (single(some_problem(5, 257, 1)), "256 hidden.*257"),
        (problem._replace(damping=0.1), "damping"),
        (problem._replace(keep_messages=True), "messages"),
        (problem._replace(coupling=problem.coupling + 21), "expects coupling weights"),
    ):
        with pytest.raises(ValueError, match=reason):
            resident.propagate(refused)


def test_only_devices_that_it_is_compiled_for_have_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ValueError, match=r"9\.0.*8\.0"):
        resident._check_device(torch.device("cuda"))


@pytest.mark.parametrize("shape", [(70, 40), (784, 256), slow((resident.MOST_VISIBLE, resident.MOST_HIDDEN))])
def test_it_compiles_without_spills_and_fits_a_block(shape):
    try:
        nvrtc.library()
    except ImportError as missing:
        pytest.skip(str(missing))
    code, report = nvrtc.compiled(resident.source(*shape), 90)
    assert code.startswith(b"\x7fELF")
    if not report:
        pytest.skip("this NVRTC passes on no report of ptxas")
    assert re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", report) == ["0"] * 3
    assert int(re.search(r"Used (\d+) registers", report)[1]) <= 128
    assert resident.shared_bytes(*shape) <= 227 * 1024


def test_source_that_does_not_compile_is_said_to_be_so():
    try:
        nvrtc.library()
    except ImportError as missing:
        pytest.skip(str(missing))
    with pytest.raises(RuntimeError, match="nonsense"):
        nvrtc.compiled("nonsense", 90)


def test_without_nvrtc_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["libnothing.so"]))
    nvrtc.library.cache_clear()
    with pytest.raises(ImportError, match="pip install nvidia-cuda-nvrtc"):
        nvrtc.library()
    nvrtc.library.cache_clear()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_keeps_clusters_running_and_spills_little():
    device = torch.cuda.current_device()
    if torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("not of capability 9.0")
    most = torch.cuda.get_device_properties(device).multi_processor_count // 8
    assert 0 < resident._most_clusters(784, 256, device) <= most
    assert resident._kernel(784, 256, device).local_bytes() <= 32


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("shape", [(16, 3), (30, 30), (500, 200), (784, 256), (832, 250)])
@pytest.mark.parametrize("batch", [1, 40])
def test_a_device_does_what_the_reference_does(shape, batch):
    problem = some_problem(*shape, batch, num_iters=20, known=True)
    on_device = Problem(*(value.cuda() if isinstance(value, Tensor) else value for value in single(problem)))
    assert resident.suits(on_device)
    came = Beliefs(*(None if value is None else value.cpu() for value in resident.propagate(on_device)))
    assert_close(came, propagate(problem), 5e-6)
