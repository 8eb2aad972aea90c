"""Shared by the benchmarks: their arguments, their clock, and their tables."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lmbm_torch.compare.tables import table, write_csv

# Benchmarks of parts of tables import the package of tables, which stands beside their folder.
sys.path.append(str(Path(__file__).parents[1]))

__all__ = [
    "MIB",
    "described",
    "median_seconds",
    "peak",
    "reset_peak",
    "resident",
    "seconds",
    "show",
    "table",
    "told",
    "write_csv",
]

MIB = 2**20

Row = Mapping[str, Any]


def described(file: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for the arguments of a benchmark, with ``--output``, the folder of the table."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    name = f"bench/{Path(file).stem}"
    help = "folder of the table, which scripts/keep.py copies into results/"
    parser.add_argument("--output", type=Path, default=Path("runs") / name, help=help)
    parser.set_defaults(name=name)
    return parser


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one call, on the wall clock or, with ``time.process_time``, of the processor."""
    started = clock()
    work()
    return clock() - started


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median over calls, after one that compiles and warms up."""
    work()
    return statistics.median(seconds(work) for _ in range(repeats))


def resident(process: int | str = "self") -> int:
    """Return the bytes of memory that a process has now; Linux alone."""
    return _memory(process, "VmRSS")


def peak(process: int | str = "self") -> int:
    """Return the most bytes of memory that a process has had since its last reset; Linux alone."""
    return _memory(process, "VmHWM")


def reset_peak() -> None:
    """Let :func:`peak` of this process count anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def _memory(process: int | str, name: str) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(name))


def told(row: dict[str, Any]) -> dict[str, Any]:
    """Print a row to standard error in one line, and return the row: a run may take hours."""
    print("  ".join(f"{name} {_rounded(value)}" for name, value in row.items()), file=sys.stderr, flush=True)
    return row


def show(rows: Sequence[Row], title: str | None = None) -> None:
    """Print rows of the same columns as a table."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*map(_rounded, row.values()))
    Console(width=200).print(table)


def _rounded(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
