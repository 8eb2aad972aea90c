"""The CUDA kernel of branch and bound on the host, from the same source, beside the CPU's search."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeps import slow

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.kernels import nvrtc
from lmbm_torch.kernels.search import directed, directed_cuda, operator
from lmbm_torch.kernels.search.records import Found, SearchProblem

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
BATCH = 10

Searcher = Callable[[SearchProblem], Found]


@pytest.fixture(scope="module")
def on_host(tmp_path_factory) -> Callable[..., Searcher]:
    """A search by the kernel with so many lanes: one by itself, or more as fibers, in an order."""
    if COMPILER is None:
        pytest.skip("no g++, which compiles the kernel for the host: install GCC")

    @cache
    def built(lanes: int) -> ctypes.CDLL:
        folder = tmp_path_factory.mktemp("branch_and_bound")
        before = (HERE / ("host_lane.h" if lanes == 1 else "host_cuda.h")).read_text()
        parts = f"#define LANES {lanes}", before, directed_cuda.KERNEL.read_text()
        launch = (HERE / "host_branch_and_bound.cpp").read_text()
        (folder / "search.cpp").write_text("\n".join((*parts, launch)))
        flags = "-std=c++17", "-O2", "-ffp-contract=off", "-w", "-shared", "-fPIC"
        command = [COMPILER, *flags, "-o", folder / "search.so", folder / "search.cpp"]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(folder / "search.so"))

    def search_with(lanes: int, blocks: int = 1, order: int = 0) -> Searcher:
        def search(problem: SearchProblem) -> Found:
            groups = 1 if lanes == 1 else blocks * 32 // lanes
            found, arguments = directed_cuda.prepared(problem, groups)
            values = [nvrtc.argument(value) for value in arguments]
            places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            assert built(lanes).launch_on_host(places, blocks, order), "threads wait for each other forever"
            return found

        return search

    return search_with


def random_problem(seed: int, most_labels: int = 12, batch: int = BATCH) -> SearchProblem:
    """Networks with or without cliques, known labels, limits, of own or shared weights, for either loss."""
    generator = torch.Generator().manual_seed(seed)

    def choose(*options: Any) -> Any:
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    labels, scale = choose(*range(1, most_labels + 1)), choose(0.3, 1.0, 3.0)
    cliques = [torch.randperm(labels, generator=generator)[: choose(3, 4)].sort().values for _ in range(4)]
    cliques = cliques if labels >= 4 and choose(True, False) else []
    parents = torch.full((len(cliques), 3), labels)
    for place, clique in enumerate(cliques):
        parents[place, : len(clique) - 1] = clique[:-1]
    known = torch.randint(-4, 5, (batch, labels), generator=generator).double()
    known = known.where(known.abs() == 4, 0).sign() if choose(True, False) else known[:1] * 0
    margin, temperature = choose((1.0, 0.0), (0.0, 0.5), (0.7, 0.2))
    free = int((known == 0).sum(1).min())
    return SearchProblem(
        fields=normal(batch, labels),
        children=scale * normal(choose(1, batch), labels, labels).triu(1),
        clique_parents=parents,
        clique_child=torch.tensor([int(clique[-1]) for clique in cliques], dtype=torch.int64),
        clique_weight=scale * normal(choose(1, batch), len(cliques)),
        known=known,
        margin=margin,
        temperature=temperature,
        round_off=branch_and_bound.ROUND_OFF,
        ceiling=choose(torch.inf, torch.inf, 1.5),
        node_limit=choose(2**62, 2**62, 8),
        top_k=min(choose(1, 1, 3), 2**free),
    )


def compared(came: Found, problem: SearchProblem) -> tuple[int, int]:
    """Compare with the CPU's search, and return both numbers of nodes."""
    expected = directed.search(problem)
    for name in ("labels", "limited"):
        assert torch.equal(getattr(came, name), getattr(expected, name)), name
    for name in ("losses", "bound"):
        torch.testing.assert_close(getattr(came, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
    # Who is proven best is decided by these alone.
    exact = [found.losses[:, -1] <= found.bound for found in (came, expected)]
    assert torch.equal(*exact)
    return int(came.nodes.sum()), int(expected.nodes.sum())


def all_agree(search: Searcher, seeds: range, most_labels: int = 12) -> None:
    counts = [
        compared(search(problem), problem)
        for problem in (random_problem(seed, most_labels) for seed in seeds)
    ]
    came, expected = map(sum, zip(*counts, strict=True))
    assert abs(came - expected) <= 0.01 * expected


@pytest.mark.parametrize("networks", [1_000, slow(10_000)])
def test_its_source_as_cpp_finds_what_the_cpu_finds(on_host, networks):
    all_agree(on_host(1), range(networks // BATCH))


def test_more_labels_than_lanes(on_host):
    all_agree(on_host(1), range(500, 504), most_labels=24)


def test_ties_go_to_what_the_search_finds_first(on_host):
    nothing = torch.zeros(2, 3, dtype=torch.float64)
    problem = random_problem(0)._replace(
        fields=nothing,
        children=torch.zeros(1, 3, 3, dtype=torch.float64),
        known=nothing[:1],
        clique_parents=torch.zeros(0, 3).long(),
        clique_child=torch.zeros(0).long(),
        clique_weight=torch.zeros(1, 0, dtype=torch.float64),
        top_k=3,
        ceiling=torch.inf,
        node_limit=2**62,
        margin=1.0,
        temperature=0.0,
    )
    came = on_host(1)(problem)
    compared(came, problem)
    assert came.labels[0].tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 1]]


# A row of labels that fills no group, groups of one warp that end at different times, warps ahead of others.
@pytest.mark.parametrize("lanes", [slow(4), 8, slow(16), 32])
def test_lanes_share_the_labels(on_host, lanes):
    for order in range(3):
        all_agree(on_host(lanes, blocks=2, order=order), range(2 * order, 2 * order + 2))


@pytest.mark.parametrize("lanes", [slow(4), slow(16), slow(32)])
def test_lanes_share_more_labels(on_host, lanes):
    all_agree(on_host(lanes, blocks=2, order=1), range(40), most_labels=20)


def test_tables_fit_the_shared_memory_of_a_block_or_the_cpu_searches():
    assert [directed_cuda.lanes(labels) for labels in (1, 6, 14, 101)] == [4, 8, 16, 32]
    # Of rcv1's labels on every device that has a limit of its own, also consumers' ones.
    assert directed_cuda.shared_bytes(101) <= min(directed_cuda.MOST_SHARED.values())
    assert directed_cuda.shared_bytes(150) <= directed_cuda.MOST_SHARED[120] < directed_cuda.shared_bytes(160)


@pytest.mark.parametrize("capability", [90, slow(80), slow(86), slow(120)])
@pytest.mark.parametrize("lanes", [8, slow(4), slow(16), slow(32)])
def test_it_compiles_without_spills(lanes, capability):
    try:
        nvrtc.library()
    except ImportError as missing:
        pytest.skip(str(missing))
    code, report = nvrtc.compiled(directed_cuda.source(lanes), capability)
    assert code.startswith(b"\x7fELF")
    assert not report or "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report


def test_tensors_of_a_gpu_are_searched_by_the_kernel_where_it_suits(monkeypatch, on_host):
    problem, searched = random_problem(3), []
    plain = operator._search_on_host

    class Cuda:
        is_cuda = True

    monkeypatch.setattr(directed_cuda, "suits", lambda problem: bool(searched))
    monkeypatch.setattr(directed_cuda, "search", lambda problem: ("by the kernel",))
    monkeypatch.setattr(operator, "_search_on_host", lambda *arguments: searched.append(arguments) or plain)
    assert operator._search(Cuda(), *problem[1:]) is plain
    assert operator._search(Cuda(), *problem[1:]) == ("by the kernel",)
    assert len(searched) == 1


@pytest.mark.parametrize("failure", [RuntimeError("nvrtc: unknown architecture"), OSError("no libcuda")])
def test_a_kernel_that_cannot_be_loaded_leaves_the_search_to_the_cpu(monkeypatch, failure):
    def refuse(*arguments: Any) -> None:
        raise failure

    monkeypatch.setattr(directed_cuda, "kept", refuse)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 9))
    directed_cuda._loaded.cache_clear()
    with pytest.warns(RuntimeWarning, match="branch and bound runs on the CPU: .*"):
        assert directed_cuda._kernel(6, 0) is None
    directed_cuda._loaded.cache_clear()


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
def test_a_kernel_is_tried_beside_the_cpu_before_it_is_used(on_host, lanes):
    assert directed_cuda.agrees(on_host(lanes), lanes, "cpu")
    for name in ("labels", "losses", "bound"):

        def wrong(problem: SearchProblem, name: str = name) -> Found:
            found = on_host(lanes)(problem)
            getattr(found, name)[-1] += 1
            return found

        assert not directed_cuda.agrees(wrong, lanes, "cpu")


@pytest.mark.parametrize("is_right", [True, False])
def test_a_kernel_that_answers_wrongly_leaves_the_search_to_the_cpu(monkeypatch, is_right, recwarn):
    kernel = object()
    monkeypatch.setattr(directed_cuda, "kept", lambda *arguments: b"")
    monkeypatch.setattr(directed_cuda, "Kernel", lambda *arguments: kernel)
    monkeypatch.setattr(directed_cuda, "agrees", lambda *arguments: is_right)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    directed_cuda._loaded.cache_clear()
    assert directed_cuda._kernel(6, 0) is (kernel if is_right else None)
    assert [str(each.message)[:33] for each in recwarn] == ["branch and bound runs on the CPU:"] * (
        not is_right
    )
    directed_cuda._loaded.cache_clear()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("most_labels", [4, 8, 16, 40])
def test_a_device_finds_what_the_cpu_finds(most_labels):
    def search(problem: SearchProblem) -> Found:
        tensors = [each.cuda() if isinstance(each, torch.Tensor) else each for each in problem]
        assert directed_cuda.suits(SearchProblem(*tensors))
        return Found(*(each.cpu() for each in directed_cuda.search(SearchProblem(*tensors))))

    all_agree(search, range(100), most_labels)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_search_is_captured_in_a_cuda_graph():
    tensors = [
        each.cuda() if isinstance(each, torch.Tensor) else each for each in random_problem(1, batch=1000)
    ]
    problem = SearchProblem(*tensors)
    expected = directed_cuda.search(problem)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = directed_cuda.search(problem)
    for _ in range(2):
        graph.replay()
        assert all(map(torch.equal, found, expected))


def test_the_energy_of_a_network_is_searched_like_its_problem(on_host, monkeypatch):
    normal = torch.randn(12, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    energy = DirectedEnergy(normal[:5], normal[5:].tril(-1), torch.arange(7))
    expected = branch_and_bound.decode(energy, top_k=2)
    monkeypatch.setattr(branch_and_bound, "_found", on_host(1))
    came = branch_and_bound.decode(energy, top_k=2)
    assert torch.equal(came.labels, expected.labels)
    assert torch.equal(came.status.exact, expected.status.exact)
    torch.testing.assert_close(came.bound, expected.bound)
