"""What the benchmarks have in common: how they are called, their clock, and what they print and keep."""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lmbm_torch.files import replacing_text

RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, Any]


def described(description: str | None) -> argparse.ArgumentParser:
    """Arguments of a benchmark that tells of itself in its docstring."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """What one call takes, by the clock on the wall or, ``time.process_time``, of the processor."""
    started = clock()
    work()
    return clock() - started


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """After one call that compiles and warms up."""
    work()
    return statistics.median(seconds(work) for _ in range(repeats))


def write(rows: Sequence[Row], path: Path) -> None:
    """A CSV file with every column that any row has."""
    path.parent.mkdir(exist_ok=True)
    with replacing_text(path) as file:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def show(rows: Sequence[Row], title: str | None = None) -> None:
    """Print rows of the same columns as a table."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=200).print(table)
