"""Triton's launches without a GPU: its binder, specialisation and ptxas run, and nothing is executed.

    python tests/kernels/dry_device.py < cases.jsonl

Each line of the input is a case, with the fields of :class:`Case`; each line of the output says what came of
it: the launches, and for every program that was compiled its registers, the bytes of its stack, the
instructions that load or store there (spills), its shared memory, the instructions of its longest loop and
the processor's seconds of its compilation. The answers of a case mean nothing. The kernels must not have been
imported for Triton's interpreter, so that tests run this in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from lmbm_torch.kernels.search.directed_cuda import MOST_SHARED

os.environ.pop("TRITON_INTERPRET", None)

import triton
from triton.backends.compiler import GPUTarget

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Case:
    """A call of the CUDA kernels, and the device that it is compiled for."""

    capability: int = 90
    visible: int = 784
    hidden: int = 256
    batch: int = 2
    dtype: str = "float32"
    product: str = "SUM"
    damping: float = 0.0
    known: bool = False
    start: bool = True
    keep: bool = False
    pairs: bool = False
    num_iters: int = 1


class DryDevice:
    """A driver for Triton that compiles for a device of ``capability`` and runs nothing."""

    def __init__(self, capability: int) -> None:
        self.launches: list[str] = []
        self.programs: list[dict[str, Any]] = []
        self.binaries: list[bytes] = []
        self._target = GPUTarget("cuda", capability, 32)
        self._ended = processor_seconds()
        properties = {"max_shared_mem": MOST_SHARED[capability]}
        self.utils = SimpleNamespace(load_binary=self._load, get_device_properties=lambda device: properties)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            self.launches.append(metadata.name)

        return launch

    def starts(self) -> None:
        """The compilation of whatever comes next begins now."""
        self._ended = processor_seconds()

    def _load(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        seconds = processor_seconds() - self._ended
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(binary)
            file.flush()
            used = dict(re.findall(r"\b(REG|STACK):(\d+)", disassembled("-res-usage", file.name)))
            stack = int(used["STACK"])
            code = disassembled("-sass", file.name)
        self.binaries.append(binary)
        self.programs.append(
            {
                "kernel": name,
                "registers": int(used["REG"]),
                "stack": stack,
                "spills": len(re.findall(r"\b(?:LDL|STL)\b", code)),
                "shared": shared,
                "loop": instructions_of_loop(code),
                "seconds": round(seconds, 2),
            }
        )
        self.starts()
        return object(), object(), int(used["REG"]), stack // 4, 1024


def processor_seconds() -> float:
    """Of this process, and of those that it has waited for: ptxas is one."""
    return sum(os.times()[:4])


def instructions_of_loop(code: str) -> int:
    """Instructions of the longest loop that stores to global memory, 0 where there is none."""
    found = re.findall(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", code, re.MULTILINE)
    lines = [(int(address, 16), text) for address, text in found]
    number = {address: i for i, (address, _) in enumerate(lines)}
    longest = 0
    for i, (address, text) in enumerate(lines):
        back = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
        if back and int(back[1], 16) < address:
            loop = lines[number[int(back[1], 16)] : i + 1]
            if any("STG" in text for _, text in loop):
                longest = max(longest, len(loop))
    return longest


def disassembled(option: str, path: str) -> str:
    return subprocess.run([CUOBJDUMP, option, path], capture_output=True, text=True, check=True).stdout


@contextmanager
def active(device: DryDevice) -> Iterator[None]:
    """Let Triton launch on ``device``."""
    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(device)
    try:
        yield
    finally:
        triton.runtime.driver._active = before


def run(case: Case) -> DryDevice:
    """Call the kernels with tensors of the host."""
    from lmbm_torch.kernels.matrix_bp.compiled import cuda
    from lmbm_torch.kernels.matrix_bp.plain import Problem, Product

    dtype = getattr(torch, case.dtype)

    def some(*shape: int) -> torch.Tensor:
        return torch.full(shape, 0.01, dtype=dtype)

    problem = Problem(
        visible=some(case.batch, case.visible),
        hidden=some(case.batch, case.hidden),
        coupling=some(case.visible, case.hidden),
        known=torch.ones(case.batch, case.visible) if case.known else None,
        start=some(case.batch, case.visible, case.hidden) if case.start else None,
        num_iters=case.num_iters,
        tol=0.0,
        damping=case.damping,
        product=Product[case.product],
        keep_messages=case.keep,
        pair_weights=some(case.batch) if case.pairs else None,
    )
    device = DryDevice(case.capability)
    for kernel in (cuda.iterate, cuda.conclude):
        # Programs are remembered by the number of a device, which is that of every case.
        kernel.device_caches.clear()
    with active(device):
        device.starts()
        cuda.propagate(problem)
    return device


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # What was compiled before would take no time.
        os.environ["TRITON_CACHE_DIR"] = folder
        for line in sys.stdin:
            case = Case(**json.loads(line))
            device = run(case)
            came = {"case": asdict(case), "launches": device.launches, "programs": device.programs}
            print(json.dumps(came), flush=True)


if __name__ == "__main__":
    main()
