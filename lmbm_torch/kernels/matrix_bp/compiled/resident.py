"""Matrix belief propagation on a GPU, with all messages in the registers of a cluster of blocks.

The kernel (``resident.cu``, CUDA, compiled by NVRTC for the sizes of a model) neither reads nor writes
messages between iterations: eight blocks of a device of compute capability 9.0 hold the 784 × 256 messages of
an instance, and all iterations of all instances are one launch. Messages are odds, and sums are float32. If
messages with Σ |log-odds| = U cancel, the log-odds of a belief have an error of about 1e-7 U. On the CPU,
beliefs of 784 × 256 units have errors of 3e-6, and 5e-6 with the coarse logarithms of a GPU.

The kernel is used for all supported problems (:func:`suits`): on an H200, 1.1 to 2.8 times as fast as the
streaming kernel for models from 30 × 30 to 784 × 256 and 1 to 4,096 instances. Tests also compile the same
source for the CPU, with fibers instead of threads.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lmbm_torch.kernels.matrix_bp import plain
from lmbm_torch.kernels.matrix_bp.plain import LOG_RANGE, Beliefs, Problem, Product, spread
from lmbm_torch.kernels.nvrtc import Kernel, is_installed, kept

# Largest sizes that fit a cluster: 52 visible units for each of the 16 warps of a block, because a thread
# holds 52 messages in registers; 32 hidden units for each of eight blocks.
MOST_VISIBLE, MOST_HIDDEN = 16 * 52, 8 * 32

# Number of messages that are multiplied before a logarithm is taken.
_FACTORS = 4

# Number of iterations between two checks of convergence; the last iteration is also checked.
_LOOK_EVERY = 4

# Source of the kernel, and of the device instructions that the kernel calls.
KERNEL, DEVICE = (Path(__file__).with_name(name) for name in ("resident.cu", "resident_device.cuh"))

_WARPS = 16
_CAPABILITY = 90


def source(num_visible: int, num_hidden: int) -> str:
    """Return the CUDA source for the sizes of a model."""
    sizes = f"#define VISIBLE {num_visible}\n#define HIDDEN {num_hidden}\n"
    return sizes + DEVICE.read_text() + KERNEL.read_text()


def suits(problem: Problem) -> bool:
    """Return whether the kernel supports the problem, and is faster than the streaming kernel."""
    if problem.visible.shape[1] < _WARPS or not is_installed():
        # With so few visible units, some warps would have none, and the other kernel is faster.
        return False
    try:
        check(problem)
    except ValueError:
        return False
    return True


def propagate(problem: Problem) -> Beliefs:
    """Run sum-product propagation for tensors on a CUDA device.

    Convergence (no message changes by more than ``tol``) is checked only at every fourth iteration.

    Raises:
        ValueError: the model, the device or a setting is not supported.
        ImportError: NVRTC is not installed.
        RuntimeError: the CUDA driver refuses the kernel.
    """
    check(problem)
    (batch, num_visible), num_hidden = problem.visible.shape, problem.hidden.shape[1]
    known = torch.full_like(problem.visible, torch.nan) if problem.known is None else problem.known
    clusters = _clusters(problem)
    new = problem.visible.new_empty
    visible, hidden, row_values, residual = (
        new(batch, num_visible),
        new(batch, num_hidden),
        new(batch, num_hidden),
        new(batch),
    )
    num_iters = torch.empty(batch, dtype=torch.int32, device=visible.device)
    scratch = new(clusters * blocks(num_hidden) * columns(num_visible) * 32 * _WARPS)
    arguments = (
        *(problem.coupling.mT.exp().contiguous(), problem.hidden.contiguous(), problem.visible.contiguous()),
        *(known.to(visible.dtype).contiguous(), visible, hidden, row_values, residual, num_iters, scratch),
        *(batch, problem.num_iters, problem.tol, _LOOK_EVERY),
    )
    _launch(num_visible, num_hidden, clusters, arguments)
    pairs = row_values.double().sum(1) - (visible.double() - problem.visible).sum(1)
    return Beliefs(
        visible=visible,
        hidden=hidden,
        log_partition=plain.log_partition(problem, visible.double(), hidden.double(), pairs).to(
            visible.dtype
        ),
        num_iters=num_iters.long(),
        residual=residual.log1p(),
        to_visible=None,
        to_hidden=None,
        pair_sum=None,
    )


def check(problem: Problem) -> None:
    """Check that the kernel supports the problem.

    Raises:
        ValueError: the model, the device or a setting is not supported.
    """
    _check_device(problem.visible.device)
    if problem.visible.dtype != torch.float32:
        raise ValueError(f"backend: 'resident' expects an energy in float32, got {problem.visible.dtype}")
    sizes = (problem.visible.shape[1], problem.hidden.shape[1])
    if sizes[0] > MOST_VISIBLE or sizes[1] > MOST_HIDDEN:
        raise ValueError(
            f"backend: 'resident' expects at most {MOST_VISIBLE} visible and {MOST_HIDDEN} hidden units, "
            f"got {sizes[0]} and {sizes[1]}"
        )
    if problem.product is not Product.SUM or problem.damping > 0:
        raise ValueError("backend: 'resident' supports only sum-product propagation without damping")
    is_started = problem.start is not None or problem.init is not None
    if is_started or problem.keep_messages or problem.pair_weights is not None:
        raise ValueError("backend: 'resident' supports no init, no kept messages, no pairwise beliefs")
    most = LOG_RANGE[torch.float32] / _FACTORS
    if (widest := spread(problem)) > most:
        raise ValueError(
            f"backend: 'resident' expects coupling weights from −{most:g} to {most:g}, got ±{widest:g}"
        )


def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        raise ValueError(f"backend: 'resident' expects an energy on a CUDA device, got {device}")
    capability = torch.cuda.get_device_capability(device)
    if capability != divmod(_CAPABILITY, 10):
        raise ValueError(
            "backend: 'resident' expects a device of compute capability 9.0, got "
            f"{capability[0]}.{capability[1]}"
        )


def blocks(num_hidden: int) -> int:
    """Return the number of blocks of a cluster."""
    return -(-num_hidden // 32)


def columns(num_visible: int) -> int:
    """Return the number of messages that a thread holds."""
    return -(-num_visible // _WARPS)


def shared_bytes(num_visible: int, num_hidden: int) -> int:
    """Return the size of the kernel's ``struct Shared`` in bytes."""
    padded, of_cluster = -(-columns(num_visible) // 4) * 4, blocks(num_hidden)
    sums = 2 * of_cluster * (num_visible + _WARPS) + 3 * _WARPS * 32
    return -(-4 * (padded * (32 + 2) * _WARPS + sums) // 16) * 16


def _clusters(problem: Problem) -> int:
    """Return the number of clusters: one per instance, but not more than can run at the same time."""
    (batch, num_visible), num_hidden = problem.visible.shape, problem.hidden.shape[1]
    with torch.cuda.device_of(problem.visible):
        return max(1, min(batch, _most_clusters(num_visible, num_hidden, torch.cuda.current_device())))


@cache
def _most_clusters(num_visible: int, num_hidden: int, device: int) -> int:
    of_a_cluster = blocks(num_hidden)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    return _kernel(num_visible, num_hidden, device).active_clusters(
        multiprocessors // of_a_cluster * of_a_cluster, 32 * _WARPS
    )


def _launch(
    num_visible: int, num_hidden: int, clusters: int, arguments: tuple[Tensor | int | float, ...]
) -> None:
    place = arguments[0]
    assert isinstance(place, Tensor)
    with torch.cuda.device_of(place):
        kernel = _kernel(num_visible, num_hidden, torch.cuda.current_device())
        kernel.launch(clusters * blocks(num_hidden), 32 * _WARPS, arguments)


@cache
def _kernel(num_visible: int, num_hidden: int, device: int) -> Kernel:
    """Compile the kernel for the sizes of a model (once), and load the code on the current ``device``."""
    code = kept(source(num_visible, num_hidden), _CAPABILITY)
    return Kernel(code, "resident", shared_bytes(num_visible, num_hidden))
