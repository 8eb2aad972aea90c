"""Lower bounds on the time of belief propagation's CUDA kernels, by their compiled instructions.

    python scripts/cycle_model.py [--instances 64] [--visible 784] [--hidden 256] [--iterations 20]

A multiprocessor issues four instructions of a warp in a cycle, and computes 16 special functions
(reciprocals, logarithms). Neither kernel can be faster than its issue slots, its special functions, or the
bytes that it moves at the bandwidth of a copy; latency that is not hidden comes on top. The instructions were
counted in code compiled for capability 9.0, and tests/kernels/test_dry_launch.py holds the streaming kernel
to its count. What an H200 took is in results/gpu_check_nvidia_h200.csv: 1.6 times as long for the largest
batch that is streamed, 2.4 times for messages that stay on the chip.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A device of compute capability 9.0.

    Args:
        name: its model.
        multiprocessors: their number.
        clock: in Hz, boosted.
        bandwidth: of a copy, in bytes read and written per second.
    """

    name: str
    multiprocessors: int
    clock: float
    bandwidth: float


# Data sheets; copies reach some nine tenths of the bandwidth that these give.
H100 = Device("H100 SXM", 132, 1.755e9, 0.9 * 3.35e12)
H200 = Device("H200", 132, 1.755e9, 0.9 * 4.8e12)

# Per message and iteration, and thread: instructions and special functions among them.
STREAMING = 45.8, 3.5
RESIDENT = 29.4, 2.8

# Columns of the streaming kernel's tiles are powers of two, and of the resident one's multiples of 16.
_WARPS_OF_A_BLOCK = 16
_LANES = 32
_SPECIAL_LANES = 16
_ISSUED = 4


@dataclass(frozen=True)
class Floors:
    """Seconds below which a kernel cannot be: the largest is its bound."""

    issue: float
    special: float
    memory: float

    @property
    def seconds(self) -> float:
        return max(self.issue, self.special, self.memory)


def streaming(device: Device, instances: int, visible: int, hidden: int, iterations: int) -> Floors:
    """Return the floors of :mod:`lmbm_torch.kernels.matrix_bp.compiled.cuda` in odds and float32."""
    width = 1 << (visible - 1).bit_length()
    messages = instances * hidden * iterations
    issue, special = _cycles(messages * width, STREAMING)
    rate = device.clock * device.multiprocessors
    return Floors(issue / rate, special / rate, 8 * messages * visible / device.bandwidth)


def resident(device: Device, instances: int, visible: int, hidden: int, iterations: int) -> Floors:
    """Return the floors of :mod:`lmbm_torch.kernels.matrix_bp.compiled.resident`, waits included."""
    blocks, columns = -(-hidden // _LANES), -(-visible // _WARPS_OF_A_BLOCK)
    rounds = -(-instances // max(1, device.multiprocessors // blocks))
    of_a_block = rounds * iterations * columns * _WARPS_OF_A_BLOCK * _LANES
    issue, special = _cycles(of_a_block, RESIDENT)
    # The weights once, and what comes in and goes out of every instance.
    moved = 4 * (visible * hidden + 3 * instances * (visible + hidden))
    return Floors(issue / device.clock, special / device.clock, moved / device.bandwidth)


def _cycles(messages: int, counted: tuple[float, float]) -> tuple[float, float]:
    """Return cycles of a multiprocessor to issue, and for special functions."""
    instructions, special = counted
    return messages * instructions / (_LANES * _ISSUED), messages * special / _SPECIAL_LANES


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, size in (("instances", 64), ("visible", 784), ("hidden", 256), ("iterations", 20)):
        parser.add_argument(f"--{name}", type=int, default=size)
    sizes = parser.parse_args()
    for device in (H100, H200):
        for kernel in (streaming, resident):
            floors = kernel(device, sizes.instances, sizes.visible, sizes.hidden, sizes.iterations)
            parts = ", ".join(f"{name} {1e3 * value:.3f}" for name, value in vars(floors).items())
            print(f"{device.name}, {kernel.__name__}: at least {1e3 * floors.seconds:.3f} ms ({parts})")


if __name__ == "__main__":
    main()
