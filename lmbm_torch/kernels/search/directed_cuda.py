"""Branch and bound for directed models on CUDA devices, by ``directed.cu``, which is compiled at run time.

The search is that of :mod:`~lmbm_torch.kernels.search.directed`. Sums over labels have another order: bounds
differ by rounding; losses of labellings are summed in the same order. A lane is a thread of a warp; with few
labels, a warp searches up to eight instances at a time. Nothing is copied to the CPU, and a running search
cannot be interrupted. Before the first search of a process, labellings of random networks are compared with
the CPU; after a difference, the CPU searches.

The kernel has not been run on a GPU. It compiles for the compute capabilities 8.0, 8.6, 9.0 and 12.0, and
tests run the same source on a CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from ctypes import c_double, c_longlong
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.nvrtc import Kernel, is_installed, kept
from lmbm_torch.kernels.search.records import Found, SearchProblem

KERNEL = Path(__file__).with_name("directed.cu")

# Largest number of bytes of shared memory in a block, by compute capability; for other capabilities, the
# number that all devices have (CUDA programming guide, technical specifications).
MOST_SHARED = {
    **dict.fromkeys((80, 87), 163 * 1024),
    **dict.fromkeys((86, 89, 120, 121), 99 * 1024),
    **dict.fromkeys((90, 100, 103), 227 * 1024),
}
_ANY_SHARED = 48 * 1024

_WARP = 32
# Number of blocks that a multiprocessor of any of these capabilities holds at a time.
_MOST_BLOCKS = 24
# Bytes of shared memory that CUDA needs for each block.
_ADDED_BYTES = 1024
# Number of random networks for which a kernel is compared with the CPU, and their largest number of labels.
_TRIED, _TRIED_LABELS = 64, 20


def source(lanes: int) -> str:
    """Return the CUDA source for a number of lanes (threads) for each instance."""
    return f"#define LANES {lanes}\n{KERNEL.read_text()}"


def lanes(labels: int) -> int:
    """Return the number of lanes (threads) that share the labels: a power of two from 4 to 32."""
    return min(_WARP, max(4, 1 << (labels - 1).bit_length()))


def shared_bytes(labels: int) -> int:
    """Return the bytes of shared memory of a block of one warp."""
    rows = labels + 1
    return 8 * (labels * rows // 2 + 4 * rows) * (_WARP // lanes(labels))


def suits(problem: SearchProblem) -> bool:
    """Return whether the kernel can be compiled and the tables fit into the shared memory of a block."""
    if not is_installed():
        return False
    with torch.cuda.device_of(problem.fields):
        device, labels = torch.cuda.current_device(), problem.fields.shape[1]
        return shared_bytes(labels) <= _most_shared(device) and _kernel(labels, device) is not None


def search(problem: SearchProblem) -> Found:
    """Return the labellings of least loss on the device of the problem."""
    with torch.cuda.device_of(problem.fields):
        kernel = _kernel(problem.fields.shape[1], torch.cuda.current_device())
        assert kernel is not None
        return _launched(kernel, problem)


def _launched(kernel: Kernel, problem: SearchProblem) -> Found:
    """Run a kernel on the current device, and return the labellings."""
    device, labels = torch.cuda.current_device(), problem.fields.shape[1]
    blocks = min(
        -(-len(problem.fields) * lanes(labels) // _WARP),
        torch.cuda.get_device_properties(device).multi_processor_count
        * max(1, min(_MOST_BLOCKS, _most_shared(device) // (shared_bytes(labels) + _ADDED_BYTES))),
    )
    found, arguments = prepared(problem, blocks * _WARP // lanes(labels))
    kernel.launch(blocks, _WARP, arguments)
    return found


def agrees(search: Callable[[SearchProblem], Found], num_lanes: int, device: str) -> bool:
    """Return whether a search finds the same labellings of random networks as the search on the CPU."""
    generator = torch.Generator("cpu").manual_seed(0)
    labels = min(num_lanes, _TRIED_LABELS)
    like: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": "cpu"}
    fields, children = torch.randn(_TRIED, labels, **like), torch.randn(1, labels, labels, **like).triu(1)
    none, places = (
        torch.zeros(1, 0, dtype=torch.float64, device="cpu"),
        torch.zeros(0, 1, device="cpu").long(),
    )
    round_off = torch.finfo(torch.float64).eps
    limits: Any = {"margin": 1.0, "temperature": 0.0, "round_off": round_off, "ceiling": torch.inf}
    problem = SearchProblem(
        fields, children, places, places[:, 0], none, 0 * fields[:1], **limits, node_limit=2**62, top_k=2
    )
    expected = kernels("search.directed").search(problem)
    moved: list[Any] = [each.to(device) if isinstance(each, torch.Tensor) else each for each in problem]
    found = Found(*(each.cpu() for each in search(SearchProblem(*moved))))
    is_near = torch.allclose(found.bound, expected.bound) and torch.allclose(found.losses, expected.losses)
    return is_near and torch.equal(found.labels, expected.labels)


def prepared(problem: SearchProblem, groups: int) -> tuple[Found, tuple[Any, ...]]:
    """Allocate the results that ``groups`` groups of lanes write; return also the kernel's arguments."""
    (batch, labels), top_k, count = problem.fields.shape, problem.top_k, len(problem.clique_child)
    problem = problem._replace(
        **{name: value.contiguous() for name, value in problem._asdict().items() if hasattr(value, "dtype")}
    )
    new = problem.fields.new_empty
    found = Found(
        labels=problem.fields.new_zeros(batch, top_k, labels, dtype=torch.int64),
        losses=problem.fields.new_full((batch, top_k), torch.inf),
        bound=new(batch),
        nodes=new(batch, dtype=torch.int64),
        limited=new(batch, dtype=torch.bool),
    )

    def step(table: torch.Tensor) -> c_longlong:
        return c_longlong(0 if len(table) == 1 else table.shape[1:].numel())

    arguments = (
        *(problem.fields, problem.children, step(problem.children)),
        *(problem.clique_parents, problem.clique_child, count, problem.clique_parents.shape[1]),
        *(problem.clique_weight, step(problem.clique_weight), problem.known, step(problem.known)),
        *map(c_double, (problem.margin, problem.temperature, problem.round_off, problem.ceiling)),
        *(c_longlong(problem.node_limit), top_k, batch, labels),
        *(new(groups * (labels + 1) * labels), new(groups * count, dtype=torch.int32)),
        *(problem.fields.new_zeros(1, dtype=torch.int32), *found),
    )
    return found, arguments


def _most_shared(device: int) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return MOST_SHARED.get(10 * major + minor, _ANY_SHARED)


def _kernel(labels: int, device: int) -> Kernel | None:
    return _loaded(lanes(labels), shared_bytes(labels), device)


@cache
def _loaded(num_lanes: int, num_bytes: int, device: int) -> Kernel | None:
    """Compile, load and test the kernel on the current ``device``; after a failure, warn and return None."""
    major, minor = torch.cuda.get_device_capability(device)
    try:
        kernel = Kernel(kept(source(num_lanes), 10 * major + minor), "branch_and_bound", num_bytes)
        if agrees(partial(_launched, kernel), num_lanes, f"cuda:{device}"):
            return kernel
        raise RuntimeError("expected the labellings that the search on the CPU finds, got different ones")
    except (ImportError, OSError, RuntimeError) as error:
        warnings.warn(
            f"branch and bound runs on the CPU: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2
        )
        return None
