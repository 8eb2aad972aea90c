"""Matrix belief propagation on restricted Boltzmann machines, beside PyTorch, torch.compile and NumPy.

Every peer makes the same iterations in float32 and in the same odds form (a division and a logarithm per
message), without the residual, log partition and checks that ours has: PyTorch eagerly and compiled, each at
the number of instances at a time that suits it best (found beforehand, not timed), NumPy one instance at a
time, in blocks of rows that stay in cache. Runs take turns, each after a rest in which torch's threads end
their spinning; told are the median and the least time. ``error`` is the largest difference of a visible
unit's marginal from ours in float64 after the same iterations.

Floor, per message entry (a visible and a hidden unit) and iteration: 12 bytes, the messages read and written
and the weight read; 10 multiplications and additions (a fused pair counts once) and 1 division, of both
messages together. On a Zen 5 core, 64-byte registers and two such instructions a cycle, 16 entries (one
register) take about 5 cycles of arithmetic; the division hides behind it (4.4 cycles to answer a register
with it, 4.0 with a multiplication in its place, so that an estimated reciprocal would gain nothing). The
kernel takes 14 in the second-level cache, with the residual's two comparisons and second division, products'
exponents and what there is to do between rows. The bytes' share is measured here, as a loop that does
nothing else on as many matrices of the same size, and ``over_floor`` is a routine's time as a multiple of
it. Two threads on two cores halve both. On a CUDA device the floor is one read and one write of the messages,
at the bandwidth of a copy.

PGMax is run where ``--pgmax-python`` names an interpreter that has it, on single instances alone. It makes as
many iterations of its own schedule, so its beliefs are compared after ten times as many of both. libDAI is in
no package index, and its rows say so.

    python scripts/bench/matrix_bp.py [--repeats 5] [--quick] [--pgmax-python PATH]
"""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matrix_bp_peers import best_chunk, iteration, numpy_beliefs, pgmax_beliefs, torch_beliefs
from measuring import described, seconds, table, write_csv
from numba import njit
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.files import write_figure
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.kernels.threads import share

# Seconds after which threads of torch's that wait for work have stopped spinning.
REST = 0.02

Row = dict[str, Any]


def random_energy(batch: int, visible: int, hidden: int, weight: float = 0.1) -> BipartiteEnergy:
    """Return weights N(0, weight²), biases N(0, 1), in float32."""
    generator = torch.Generator().manual_seed(0)
    return BipartiteEnergy(
        torch.randn(batch, visible, generator=generator),
        torch.randn(batch, hidden, generator=generator),
        weight * torch.randn(visible, hidden, generator=generator),
    )


@njit(nogil=True, fastmath=True)
def _stream(messages, weight, times):
    for _ in range(times):
        for i in range(np.uint64(messages.shape[0])):
            messages[i] += weight[i]


def streaming_floor(batch: int, entries: int, num_iters: int) -> float:
    """Return nanoseconds per entry and iteration to read and write messages and read weights, and no more."""
    weight = torch.zeros(entries).numpy()
    scratch = [torch.zeros(entries).numpy() for _ in range(torch.get_num_threads())]

    def run() -> None:
        share(range(batch), lambda row: _stream(scratch[row % len(scratch)], weight, num_iters))

    run()
    return min(seconds(run) for _ in range(5)) / (batch * entries * num_iters) * 1e9


def timed(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, tuple[float, float]]:
    """Return median and least seconds of each, run in turn after one run that is not timed."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            time.sleep(REST)
            times[name].append(seconds(work))
    return {name: (statistics.median(of), min(of)) for name, of in times.items()}


def in_double(energy: BipartiteEnergy) -> BipartiteEnergy:
    return BipartiteEnergy(energy.visible.double(), energy.hidden.double(), energy.coupling.double())


def fixed_iterations(
    batch: int,
    visible: int,
    hidden: int,
    num_iters: int,
    repeats: int,
    compiling: bool,
    pgmax_python: str | None,
) -> list[Row]:
    """Return ours and every peer, for a given number of iterations."""
    energy = random_energy(batch, visible, hidden)

    def ours(given: BipartiteEnergy = energy) -> Tensor:
        result = matrix_bp.marginals(given, num_iters=num_iters, tol=0.0)
        # Repeating to the last bit, an instance may end early.
        assert (result.status.num_iters >= 0.9 * num_iters).all()
        return result.visible

    steps: dict[str, Callable] = {"eager torch": iteration}
    if compiling:
        torch.compiler.reset()
        steps["torch.compile"] = torch.compile(iteration)
    chunks = {name: best_chunk(step, energy) for name, step in steps.items()}
    works: dict[str, Callable[[], Any]] = {"lmbm_torch": ours}
    for name, step in steps.items():
        works[name] = partial(torch_beliefs, step, energy, num_iters, chunks[name])
    works["NumPy"] = lambda: numpy_beliefs(energy, num_iters)[0]
    sizes = {"instances": batch, "visible": visible, "hidden": hidden, "iterations": num_iters}
    truth = ours(in_double(energy))
    times = timed(works, repeats)
    floor = streaming_floor(batch, visible * hidden, num_iters)
    rows = [
        figures(f"{num_iters} iterations", sizes, name, times, floor)
        | {"at_a_time": chunks.get(name, 1), "error": f"{error(works[name](), truth):.0e}"}
        for name in works
    ]
    return [*rows, pgmax(energy, sizes, times, floor, pgmax_python), libdai(sizes)]


def error(found: Any, truth: Tensor) -> float:
    """Return the largest difference of a visible unit's marginal."""
    rows = [torch.as_tensor(row).reshape(-1, truth.shape[1]) for row in found]
    return float((torch.cat(rows).double() - truth).abs().max())


def figures(
    what: str,
    sizes: dict[str, int],
    name: str,
    times: dict[str, tuple[float, float]],
    floor: float,
) -> Row:
    """Return the time of a routine, beside ours and beside the floor."""
    median, least = times[name]
    per_entry = 1e9 * median / math.prod(sizes.values())
    return {"what": what, **sizes, "routine": name} | {
        "ms": round(1e3 * median, 3),
        "least_ms": round(1e3 * least, 3),
        "ns_per_entry": round(per_entry, 3),
        "times_ours": round(median / times["lmbm_torch"][0], 2),
        "least_times_ours": round(least / times["lmbm_torch"][1], 2),
        "streaming_floor_ns": round(floor, 3),
        "over_floor": round(per_entry / floor, 1),
        "threads": torch.get_num_threads(),
    }


def pgmax(
    energy: BipartiteEnergy,
    sizes: dict[str, int],
    times: dict[str, tuple[float, float]],
    floor: float,
    python: str | None,
) -> Row:
    """Return PGMax in an interpreter of its own."""
    num_iters = sizes["iterations"]
    row: Row = {"what": f"{num_iters} iterations", **sizes, "routine": "PGMax"}
    if python is None:
        return row | {"note": "missing: no interpreter that has it was named"}
    if energy.batch_size > 1:
        return row | {"note": "not run: its graphs take one instance at a time"}
    spent, later = pgmax_beliefs(energy, num_iters, python)
    times = times | {"PGMax": (statistics.median(spent), min(spent))}
    truth = matrix_bp.marginals(in_double(energy), num_iters=10 * num_iters, tol=0.0).visible
    found = error([torch.sigmoid(later.double())], truth)
    return figures(f"{num_iters} iterations", sizes, "PGMax", times, floor) | {
        "at_a_time": 1,
        "error": f"{found:.0e}",
        "note": f"error after {10 * num_iters} iterations",
    }


def libdai(sizes: dict[str, int]) -> Row:
    return {
        "what": f"{sizes['iterations']} iterations",
        **sizes,
        "routine": "libDAI",
        "note": "missing: packaged neither for Python nor for Debian",
    }


def to_a_residual(visible: int, hidden: int, tol: float, repeats: int) -> list[Row]:
    """Return one large instance, ours and NumPy in blocks, until messages change by ``tol`` or less."""
    energy = random_energy(1, visible, hidden)
    ours = matrix_bp.marginals(energy, num_iters=200, tol=tol)
    peak = peak_memory()
    theirs, made = numpy_beliefs(energy, 200, tol)
    truth = matrix_bp.marginals(in_double(energy), num_iters=200, tol=tol).visible
    works: dict[str, Callable[[], object]] = {
        "lmbm_torch": partial(matrix_bp.marginals, energy, num_iters=200, tol=tol),
        "NumPy": partial(numpy_beliefs, energy, 200, tol),
    }
    times = timed(works, repeats)
    floor = streaming_floor(1, visible * hidden, 3)
    rows = []
    for name, count, found in (
        ("lmbm_torch", int(ours.status.num_iters), [ours.visible]),
        ("NumPy", made, theirs),
    ):
        sizes = {"instances": 1, "visible": visible, "hidden": hidden, "iterations": count}
        row = figures(f"to a residual of {tol:g}", sizes, name, times, floor)
        rows.append(row | {"error": f"{error(found, truth):.0e}", "at_a_time": 1})
    # Of the whole process, with torch and numba in it, before any peer has run.
    rows[0]["peak_MiB"] = round(peak)
    return rows


def on_cuda(repeats: int) -> list[Row]:
    """Return the kernel's share of the bandwidth of a copy, where there is a CUDA device."""
    sizes = {"instances": 64, "visible": 784, "hidden": 256, "iterations": 20}
    what = "20 iterations on CUDA"
    if not torch.cuda.is_available():
        return [{"what": what, **sizes, "routine": "lmbm_torch", "note": "missing: no CUDA device"}]
    few = random_energy(sizes["instances"], sizes["visible"], sizes["hidden"])
    sizes["instances"] *= 16
    energy = BipartiteEnergy(
        few.visible.repeat(16, 1).cuda(), few.hidden.repeat(16, 1).cuda(), few.coupling.cuda()
    )
    source = torch.empty(math.prod(sizes.values()) // sizes["iterations"], device="cuda")
    target = torch.empty_like(source)

    def finished(work: Callable[[], object]) -> None:
        work()
        torch.cuda.synchronize()

    run = partial(matrix_bp.marginals, energy, num_iters=sizes["iterations"], tol=0.0)
    works: dict[str, Callable[[], object]] = {
        "lmbm_torch": partial(finished, run),
        "copy": partial(finished, lambda: target.copy_(source)),
    }
    times = timed(works, repeats)
    truth = matrix_bp.marginals(in_double(few), num_iters=sizes["iterations"], tol=0.0).visible.repeat(16, 1)
    floor = 1e9 * times["copy"][0] / len(source)
    row = figures(what, sizes, "lmbm_torch", times, floor)
    share_of_copy = floor / float(str(row["ns_per_entry"]))
    note = f"{share_of_copy:.0%} of the bandwidth of a copy, {torch.cuda.get_device_name()}"
    return [row | {"error": f"{error(run().visible.cpu(), truth):.0e}", "note": note}]


def peak_memory() -> float:
    """Return the most that this process has held so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def growth(repeats: int) -> list[Row]:
    """Return ours alone, as one size doubles at a time from 64 instances of 256 x 128 and 10 iterations."""
    rows = []
    base = {"instances": 64, "visible": 256, "hidden": 128, "iterations": 10}
    for grown in base:
        for factor in (0.25, 0.5, 1, 2, 4):
            sizes = {name: int(size * (factor if name == grown else 1)) for name, size in base.items()}
            energy = random_energy(sizes["instances"], sizes["visible"], sizes["hidden"])
            run = partial(matrix_bp.marginals, energy, num_iters=sizes["iterations"], tol=0.0)
            times = timed({"lmbm_torch": run}, repeats)
            floor = streaming_floor(sizes["instances"], sizes["visible"] * sizes["hidden"], 10)
            rows.append(figures(f"growing {grown}", sizes, "lmbm_torch", times, floor) | {"at_a_time": 1})
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Plot cost against each size, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for grown in ("instances", "visible", "hidden", "iterations"):
        points: list[Any] = [row for row in rows if row["what"] == f"growing {grown}"]
        axes.plot([row[grown] for row in points], [row["ms"] for row in points], marker="o", label=grown)
    axes.set(
        xscale="log", yscale="log", xlabel="size, the others at 64, 256, 128 and 10", ylabel="milliseconds"
    )
    axes.legend()
    write_figure(path, figure)


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="without torch.compile and without growing sizes"
    )
    parser.add_argument("--pgmax-python", help="an interpreter that has PGMax")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    compiling = not arguments.quick

    rows = to_a_residual(10_000, 2_000, 1e-4, arguments.repeats)
    for *sizes, repeats in (
        (64, 784, 256, 20, 1),
        (1, 1_000, 500, 10, 4),
        (100, 14, 100, 20, 4),
        (32, 64, 64, 10, 4),
        (1_000, 6, 10, 10, 4),
        (1, 6, 10, 10, 4),
    ):
        batch, visible, hidden, num_iters = sizes
        repeats *= arguments.repeats
        rows += fixed_iterations(
            batch, visible, hidden, num_iters, repeats, compiling, arguments.pgmax_python
        )
    rows += on_cuda(arguments.repeats)
    if not arguments.quick:
        rows += growth(arguments.repeats)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if arguments.quick:
        return
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
        draw(rows, folder / "table.png")


if __name__ == "__main__":
    main()
