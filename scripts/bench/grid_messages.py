"""Sum-product messages on grids, beside PGMax and beside the bandwidth of a copy.

    python scripts/bench/grid_messages.py [--pgmax-python PATH] [--size 128] [--device cpu]

Times are CPU seconds of an update of all messages by the parallel schedule in float32 on one core, without
preparation. The first row has one grid of ``--size`` rows and columns of 21 states with random
log-potentials, beside PGMax where ``--pgmax-python`` names an interpreter that has it (the same core, without
the building of its graph and compilation), and the largest difference of probabilities at the fixed point of
a smaller, weaker grid. The second row has a batch of 64 grids of 10 × 10 variables and 11 states: the bytes
that an update must move (each table read once, each message written and read twice) per second, against
those of a copy of the tables. Seconds on a device are of the wall clock.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import described, show, told, write_csv

from lmbm_torch.energies import FactorEnergy
from lmbm_torch.inference.graphs import belief_propagation

UPDATES, REPEATS = 20, 5


def grid(batch: int, size: int, states: int, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return random unaries (batch, cells, states), edges, first those to the right, and tables."""
    random = np.random.default_rng(0)
    cells = np.arange(size**2).reshape(size, size)
    right = np.stack([cells[:, :-1].ravel(), cells[:, 1:].ravel()], 1)
    edges = np.concatenate([right, np.stack([cells[:-1].ravel(), cells[1:].ravel()], 1)])
    unary = random.normal(size=(batch, size**2, states)).astype(np.float32)
    return unary, edges, (scale * random.normal(size=(batch, len(edges), states, states))).astype(np.float32)


def energy_of(unary: np.ndarray, edges: np.ndarray, tables: np.ndarray, device: str) -> FactorEnergy:
    given = (torch.from_numpy(each).to(device) for each in (unary, tables))
    first, pairs = given
    return FactorEnergy.from_edges(first, torch.from_numpy(edges), pairs)


def messages(energy: FactorEnergy, updates: int) -> torch.Tensor:
    return belief_propagation.marginals(energy, schedule="parallel", num_iters=updates, tol=0.0).states


def least(work: Callable[[], Any], device: str) -> float:
    """Return the least seconds of calls, after one that warms up."""
    clock, found = time.process_time if device == "cpu" else time.perf_counter, []
    for _ in range(REPEATS + 1):
        began = clock()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        found.append(clock() - began)
    return min(found[1:])


def update_seconds(energy: FactorEnergy, device: str) -> float:
    """Return the seconds of an update."""
    ends = (least(lambda updates=updates: messages(energy, updates), device) for updates in (1, 1 + UPDATES))
    first, last = ends
    return (last - first) / UPDATES


def pgmax(
    unary: np.ndarray, tables: np.ndarray, python: str, updates: int, repeats: int
) -> dict[str, np.ndarray]:
    """Return what ``pgmax_peer.py`` finds on one core."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "energy.npz"), Path(folder, "beliefs.npz")
        size = round(unary.shape[1] ** 0.5)
        np.savez(source, unary=unary[0].reshape(size, size, -1), pairwise=tables[0])
        peer = Path(__file__).with_name("pgmax_peer.py")
        subprocess.run([python, peer, source, target, str(updates), str(repeats)], check=True)
        with np.load(target) as found:
            return dict(found)


def beside_pgmax(size: int, device: str, python: str | None) -> dict[str, Any]:
    unary, edges, tables = grid(1, size, 21, 1.0)
    spent = update_seconds(energy_of(unary, edges, tables, device), device)
    row: dict[str, Any] = {"grids": f"1 of {size} × {size}, 21 states", "update_seconds": spent}
    row |= dict.fromkeys(("pgmax_seconds", "times_as_fast", "difference"), np.nan)
    if python is not None:
        row["pgmax_seconds"] = pgmax(unary, tables, python, UPDATES, REPEATS)["cpu_seconds"].min() / UPDATES
        row["times_as_fast"] = row["pgmax_seconds"] / spent
        weak = grid(1, 16, 21, 0.3)
        log_beliefs = torch.from_numpy(pgmax(weak[0], weak[2], python, 20, 1)["later"]).flatten(0, 1)
        row["difference"] = (
            (log_beliefs.softmax(1) - messages(energy_of(*weak, "cpu"), 200)[0]).abs().max().item()
        )
    return row | dict.fromkeys(("bytes_per_second", "copied_bytes_per_second", "share"), np.nan)


def batches(device: str) -> dict[str, Any]:
    unary, edges, tables = grid(64, 10, 11, 1.0)
    spent = update_seconds(energy_of(unary, edges, tables, device), device)
    source = torch.from_numpy(tables).to(device)
    target = torch.empty_like(source)
    copied = least(lambda: [target.copy_(source) for _ in range(UPDATES)], device) / UPDATES
    moved = tables.size + 4 * 2 * tables.shape[0] * len(edges) * 11
    row: dict[str, Any] = {"grids": "64 of 10 × 10, 11 states", "update_seconds": spent}
    row |= dict.fromkeys(("pgmax_seconds", "times_as_fast", "difference"), np.nan)
    row |= {"bytes_per_second": 4 * moved / spent, "copied_bytes_per_second": 2 * 4 * tables.size / copied}
    return row | {"share": row["bytes_per_second"] / row["copied_bytes_per_second"]}


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--pgmax-python", help="an interpreter that has PGMax")
    parser.add_argument("--size", type=int, default=128, help="rows and columns of the large grid")
    parser.add_argument("--device", default="cpu", help="device of the messages")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # One core for this process and PGMax's.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = [told(beside_pgmax(arguments.size, arguments.device, arguments.pgmax_python))]
    rows.append(told(batches(arguments.device)))
    show(rows, "messages on grids")
    write_csv(arguments.output / "table.csv", rows)


if __name__ == "__main__":
    main()
