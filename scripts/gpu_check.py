"""Everything that only a GPU can tell, in one command for the first hour with one.

    python scripts/gpu_check.py [--output runs/gpu_check] [--results results] [--skip tests benchmarks]

Runs, on the current CUDA device:

- ``search``: branch and bound beside the CPU's, and both times;
- ``tests``: those marked ``cuda``, and those of both kernels of belief propagation, which use a GPU where
  there is one;
- ``csr``: scores of sparse features and their gradients, beside the CPU's;
- ``bandwidth``: of a copy;
- ``kernels``: both kernels of belief propagation beside float64 on the CPU, beside each other, and their
  times beside the model's (scripts/cycle_model.py);
- ``sanitizer``: both kernels under compute-sanitizer, where that is installed;
- ``benchmarks``: each in scripts/bench/ that takes ``--device``, and the rows for CUDA of bench/matrix_bp.

A check that fails is a row that says so, and the others go on. The table goes to
``results/gpu_check_<device>.csv``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import cycle_model
import torch
from keep import RESULTS, keep
from scipy.sparse import csr_array
from torch import Tensor

from lmbm_torch.compare.tables import table, write_csv
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import BipartiteEnergy, DirectedEnergy
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.models import BoltzmannMachine

HERE = Path(__file__).parent
ROOT = HERE.parent
BENCHMARKS = HERE / "bench"
KERNEL_TESTS = ("test_cuda_matrix_bp.py", "test_matrix_bp_backends.py", "test_resident_kernel.py")

MARK = "pytest.mark.cuda"

Row = dict[str, Any]
Check = Callable[[torch.device], Iterator[Row]]

# Beliefs of the kernels, beside those of float64.
BELIEFS_WITHIN = 5e-6

# Instances, visible and hidden units, iterations.
SIZES = ((64, 784, 256, 20), (1024, 784, 256, 20), (256, 500, 200, 20), (1, 784, 256, 20))


def tests(device: torch.device) -> Iterator[Row]:
    """Yield the tests that need a GPU, and those that use one."""
    # The plugin, where there is one, warns of the processes, and warnings are errors.
    pytest = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:benchmark"]
    # Most of their time is the compiler's, on the host.
    pytest += ["-n", str(max(4, len(os.sched_getaffinity(0)) - 4))]
    yield ran("marked cuda", [*pytest, "-m", "cuda", *marked_cuda()])
    files = [f"tests/kernels/{name}" for name in KERNEL_TESTS]
    yield ran("kernels of belief propagation", [*pytest, "-m", "", *files])


def marked_cuda() -> list[str]:
    """Return the files with such tests; a GPU's time is not spent on collecting the others."""
    files = sorted(Path(ROOT, "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if MARK in path.read_text(encoding="utf-8")]


def ran(what: str, command: Sequence[str], says: str = r".*\S.*", seconds: float | None = None) -> Row:
    """Return a row of a command, passed if it ended with 0, and the last line of its output like ``says``.

    A command of more than so many seconds is ended, by an exception. All that a failed one said goes to the
    standard error.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=seconds)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr, flush=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if re.fullmatch(says, line)]
    note = lines[-1].strip() if lines else f"ended with {done.returncode} and said nothing"
    return {"what": what, "result": "failed" if done.returncode else "passed", "note": note}


# Instances, labels and mean field, for 6, 18 and 130 nodes an instance: trained networks of Scene and Yeast
# take 6.6 and 19.
SEARCHES = ((1_000_000, 6, -2.0), (1_000_000, 14, -2.0), (100_000, 101, -5.0))
# Seconds after which a search has gone wrong: the kernel cannot be interrupted from the host.
MOST_SEARCH_SECONDS = 120


def search(device: torch.device) -> Iterator[Row]:
    """Yield branch and bound of random networks, on the device by its kernel and on the host's cores."""
    # A process of its own, which can be ended.
    pytest = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:benchmark", "-m", "cuda"]
    files = ["tests/kernels/test_cuda_branch_and_bound.py"]
    tested = ran("branch and bound, tests", [*pytest, *files], seconds=MOST_SEARCH_SECONDS)
    yield tested
    if tested["result"] == "passed":
        for sizes in SEARCHES:
            yield from searched(device, *sizes)


def searched(device: torch.device, instances: int, labels: int, field: float) -> Iterator[Row]:
    """Yield the rows of one size; the CPU is given a tenth of the instances."""
    energy = random_network(instances, labels, field)
    on_device = replace(
        energy, **{name: getattr(energy, name).to(device) for name in ("unary", "parents", "ordering")}
    )
    what = f"branch and bound, {instances} x {labels}"
    found = branch_and_bound.decode_hinge(on_device, node_limit=10_000)
    few = slice(0, instances // 10)
    started = time.perf_counter()
    expected = branch_and_bound.decode_hinge(energy.select(few), node_limit=10_000)
    host = 10 * (time.perf_counter() - started)
    same = (found.labels[few].cpu() == expected.labels).all(1).float().mean()
    yield within(f"{what}: share of other labellings", float(1 - same), 1e-6)
    seconds = median_seconds(
        lambda: branch_and_bound.decode_hinge(on_device, node_limit=10_000), device, repeats=3
    )
    nodes = float(expected.status.num_iters.double().mean())
    note = f"{host / seconds:.1f} times as fast as {os.cpu_count()} cores, {nodes:.1f} nodes an instance"
    yield {"what": f"{what}: seconds", "result": "measured", "value": seconds, "note": note}


def random_network(instances: int, labels: int, field: float) -> DirectedEnergy:
    """Return fields N(field, 2²), and weights N(0, 0.5²) divided by the root of a label's position."""
    generator = torch.Generator().manual_seed(0)
    unary = field + 2 * torch.randn(instances, labels, generator=generator)
    weights = torch.randn(labels, labels, generator=generator).tril(-1)
    scale = 0.5 / torch.arange(1, labels + 1).sqrt()
    return DirectedEnergy(unary, weights * scale[:, None], torch.arange(labels))


def csr(device: torch.device) -> Iterator[Row]:
    """Yield scores of sparse features, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(64, 300, generator=generator) * (torch.rand(64, 300, generator=generator) < 0.1)
    labels = torch.randint(2, (64, 12), generator=generator)
    here = _score_and_gradients(torch.device("cpu"), dense, labels)
    there = _score_and_gradients(device, dense, labels)
    for name, value in here.items():
        yield within(name, float((there[name].cpu() - value).abs().max()), 1e-4)


def _score_and_gradients(device: torch.device, dense: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = BoltzmannMachine(num_features=dense.shape[1], num_labels=labels.shape[1])
    size = sum(parameter.numel() for parameter in model.parameters())
    weights = 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(1))
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    model = model.to(device)
    scores = model(to_tensor(csr_array(dense.numpy())).to(device)).score(labels.to(device))
    scores.square().sum().backward()
    gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"scores": scores.detach()} | gradients


def within(what: str, difference: float, tolerance: float) -> Row:
    """Return a row of a difference, which must not be above ``tolerance``; NaN never is below it."""
    passed = difference <= tolerance
    note = f"differs by {difference:.1e}, at most {tolerance:g} wanted"
    return {"what": what, "result": "passed" if passed else "failed", "value": difference, "note": note}


def bandwidth(device: torch.device) -> Iterator[Row]:
    """Yield bytes read and written in a second by a copy of a GiB."""
    yield {"what": "copy, bytes per second", "result": "measured", "value": measured_bandwidth(device, 2**28)}


def measured_bandwidth(device: torch.device, numbers: int) -> float:
    source = torch.rand(numbers, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), device)


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """Return the median over calls, each waited for, after three that compile and warm up."""

    def once() -> float:
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    return statistics.median([once() for _ in range(repeats + 3)][3:])


def kernels(device: torch.device) -> Iterator[Row]:
    """Yield both kernels of belief propagation: their beliefs, and their times beside the model's."""
    copy = measured_bandwidth(device, 2**28)
    properties = torch.cuda.get_device_properties(device)
    described = replace(
        cycle_model.H200,
        name=properties.name,
        multiprocessors=properties.multi_processor_count,
        clock=1e3 * getattr(properties, "clock_rate", cycle_model.H200.clock / 1e3),
        bandwidth=copy,
    )
    for sizes in SIZES:
        yield from compared(device, described, *sizes)


def compared(
    device: torch.device,
    described: cycle_model.Device,
    instances: int,
    visible: int,
    hidden: int,
    iterations: int,
) -> Iterator[Row]:
    """Yield the rows of one size."""
    energy = random_energy(instances, visible, hidden)
    few = slice(0, 8)
    double = BipartiteEnergy(
        *(t.double() for t in (energy.visible[few], energy.hidden[few], energy.coupling))
    )
    truth = matrix_bp.marginals(double, num_iters=iterations, tol=0.0)
    on_device = BipartiteEnergy(*(t.to(device) for t in (energy.visible, energy.hidden, energy.coupling)))
    bytes_moved = 8 * instances * visible * hidden * iterations
    found: dict[str, Tensor] = {}
    for name, model in (("streaming", cycle_model.streaming), ("resident", cycle_model.resident)):
        what = f"{name}, {instances} x {visible} x {hidden}, {iterations} iterations"
        work = partial(matrix_bp.marginals, on_device, num_iters=iterations, tol=0.0, backend=name)
        try:
            result = work()
        except (ValueError, ImportError, RuntimeError) as error:
            yield {"what": what, "result": "failed", "note": str(error)}
            continue
        found[name] = result.visible
        for side in ("visible", "hidden"):
            apart = (getattr(result, side)[few].cpu().double() - getattr(truth, side)).abs().max()
            yield within(f"{what}: {side} beliefs", float(apart), BELIEFS_WITHIN)
        seconds = median_seconds(work, device)
        expected = model(described, instances, visible, hidden, iterations).seconds
        share = bytes_moved / described.bandwidth / seconds
        note = f"{seconds / expected:.2f} times the model's floor, {share:.0%} of the bandwidth of a copy"
        yield {"what": f"{what}: seconds", "result": "measured", "value": seconds, "note": note}
    if len(found) == 2:
        apart = float((found["streaming"] - found["resident"]).abs().max())
        yield within(f"both kernels, {instances} x {visible} x {hidden}", apart, 2 * BELIEFS_WITHIN)


def random_energy(instances: int, visible: int, hidden: int) -> BipartiteEnergy:
    """Return weights N(0, 0.1²), biases N(0, 1), in float32."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return BipartiteEnergy(
        normal(instances, visible), normal(instances, hidden), 0.1 * normal(visible, hidden)
    )


SMALL = """
import torch
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import BipartiteEnergy, DirectedEnergy
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.inference.search import branch_and_bound
energy = BipartiteEnergy(torch.randn(3, 70).cuda(), torch.randn(3, 40).cuda(), torch.randn(70, 40).cuda())
for backend in ("streaming", "resident"):
    matrix_bp.marginals(energy, num_iters=5, backend=backend)
for labels in (5, 40):
    tables = torch.randn(3, labels), torch.randn(labels, labels).tril(-1), torch.arange(labels)
    network = DirectedEnergy(*(table.cuda() for table in tables))
    branch_and_bound.decode(network, top_k=2, node_limit=100)
torch.cuda.synchronize()
"""


def sanitizer(device: torch.device) -> Iterator[Row]:
    """Yield accesses out of bounds, races in shared memory, barriers that not all threads reach."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        yield {
            "what": "compute-sanitizer",
            "result": "missing",
            "note": "not installed: it comes with CUDA's toolkit",
        }
        return
    for tool in ("memcheck", "racecheck", "synccheck"):
        command = [program, "--tool", tool, "--error-exitcode", "1", sys.executable, "-c", SMALL]
        yield ran(tool, command, says=r"=+ .*SUMMARY.*")


def benchmarks(device: torch.device) -> Iterator[Row]:
    """Yield whatever in scripts/bench/ takes a device; their own tables are in runs/."""
    sys.path.insert(0, str(BENCHMARKS))
    for row in import_module("matrix_bp").on_cuda(5):
        yield {
            "what": "bench/matrix_bp",
            "result": "measured",
            "value": row.get("ms"),
            "note": row.get("note"),
        }
    for path in taking_device(BENCHMARKS):
        yield ran(f"bench/{path.stem}", [sys.executable, str(path), "--device", str(device)])


def taking_device(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.py")) if '"--device"' in path.read_text(encoding="utf-8")]


CHECKS: dict[str, Check] = {
    check.__name__: check for check in (bandwidth, search, csr, kernels, sanitizer, tests, benchmarks)
}


def rows_of(name: str, check: Check, device: torch.device) -> Iterator[Row]:
    """Yield the rows of a check; one that ends by an exception says so."""
    started = time.perf_counter()
    try:
        for row in check(device):
            seconds = round(time.perf_counter() - started, 1)
            yield (
                {"check": name, "what": "", "result": "", "value": None, "note": ""}
                | row
                | {"seconds": seconds}
            )
            started = time.perf_counter()
    except Exception as error:
        # Whatever a card does to one check, the others are to be run in the same hour.
        yield {"check": name, "what": "", "result": "failed", "note": f"{type(error).__name__}: {error}"}


def current_device() -> tuple[torch.device, str]:
    """Return the current device and the name of its model."""
    return torch.device("cuda", torch.cuda.current_device()), torch.cuda.get_device_name()


def slug(device_name: str) -> str:
    """Return the name of a device as a part of a file's."""
    return re.sub(r"[^a-z0-9]+", "_", device_name.lower()).strip("_")


def written(rows: list[Row], device_name: str, folder: Path, results: Path) -> list[Path]:
    """Return the table of the rows, copied into ``results``."""
    with table(folder, f"gpu_check_{slug(device_name)}"):
        write_csv(
            folder / "table.csv", [{"device": device_name, "torch": torch.__version__} | row for row in rows]
        )
    return keep(folder, results)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_check"), help="folder of the table")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table is kept")
    parser.add_argument("--skip", nargs="+", choices=CHECKS, default=[], help="checks that are not run")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("this machine has no CUDA device that PyTorch can use")
    device, name = current_device()
    rows = []
    for check in (check for check in CHECKS if check not in options.skip):
        for row in rows_of(check, CHECKS[check], device):
            print(
                "  ".join(f"{key} {value}" for key, value in row.items() if value not in ("", None)),
                flush=True,
            )
            rows.append(row)
    for path in written(rows, name, options.output, options.results):
        print(f"kept {path}")
    return int(any(row["result"] == "failed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
