"""Tables whose cells are computed one by one and stored, so that an interrupted table can be continued."""

from __future__ import annotations

import gc
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lmbm_torch.checks import check_count
from lmbm_torch.reproductions.tables import write_csv, write_text

Result = dict[str, Any]
"""A cell's result, by name. ``paper_<name>`` is shown beside ``<name>``; ``_<name>``, such as an array for
a figure, is stored and left out of the tables."""
Done = dict[tuple[str, str], Result]
"""Results by data set and method."""


@dataclass(frozen=True)
class Cell:
    """One method on one data set.

    Args:
        data: the set's name.
        method: the row's name.
        run: computes the result; with ``after`` it is given that cell's.
        after: the method on the same set whose result is needed first.
    """

    data: str
    method: str
    run: Callable[..., Result]
    after: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.data, self.method

    @property
    def title(self) -> str:
        return f"{self.data}: {self.method}"

    def file(self, folder: Path) -> Path:
        name = re.sub(r"[^a-z0-9]+", "_", f"{self.data} {self.method}".lower()).strip("_")
        return folder / "cells" / f"{name}.json"


def compute(cells: Iterable[Cell], folder: Path, console: Console, processes: int = 1) -> list[Result]:
    """Every cell's result, in order; those that ``folder`` holds already are read, not computed.

    Several processes share the cores and take the cells in order, each as soon as the cell that it needs has
    been computed.

    Raises:
        ValueError: ``processes`` below one.
    """
    check_count("processes", processes)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        cells = [*cells]
        progress = CellProgress(bars, console, len(cells))
        if processes > 1:
            return _side_by_side(cells, folder, progress, processes)
        done: Done = {}
        for cell in cells:
            progress.begin(cell)
            done[cell.key] = _result(cell, folder, *_needed(cell, done))
            progress.end(cell)
        return [*done.values()]


class CellProgress:
    """The cells that are being computed, each with its time, and how many of all are done.

    On a terminal these are lines that move; elsewhere, such as in a log, there is one line for each cell.

    Args:
        total: number of cells.
    """

    def __init__(self, bars: Progress, console: Console, total: int) -> None:
        self.bars, self.console, self.total, self.done = bars, console, total, 0
        self.tasks: dict[tuple[str, str], tuple[TaskID, float]] = {}
        self.overall = bars.add_task(self._counted())

    def begin(self, cell: Cell) -> None:
        """A cell has been taken up."""
        self.tasks[cell.key] = self.bars.add_task(cell.title), time.monotonic()

    def end(self, cell: Cell) -> None:
        """A cell is done."""
        task, started = self.tasks.pop(cell.key)
        self.bars.remove_task(task)
        self.done += 1
        self.bars.update(self.overall, description=self._counted())
        if not self.console.is_terminal:
            seconds = time.monotonic() - started
            line = f"{self._counted()}: {cell.title} ({seconds:.1f} s)"
            self.console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _counted(self) -> str:
        return f"{self.done} of {self.total} cells"


def _side_by_side(
    cells: Sequence[Cell], folder: Path, progress: CellProgress, processes: int
) -> list[Result]:
    waiting, running, done = [*cells], {}, {}
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (processes,)) as pool:
        while waiting or running:
            ready = [cell for cell in waiting if cell.after is None or (cell.data, cell.after) in done]
            for cell in ready[: processes - len(running)]:
                waiting.remove(cell)
                future = pool.submit(_result, cell, folder, *_needed(cell, done))
                running[future] = cell
                progress.begin(cell)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                done[cell.key] = future.result()
                progress.end(cell)
    return [done[cell.key] for cell in cells]


def _needed(cell: Cell, done: Done) -> tuple[Result, ...]:
    return () if cell.after is None else (done[cell.data, cell.after],)


def _result(cell: Cell, folder: Path, *needed: Result) -> Result:
    """The result of a cell, read if it is stored, else computed and stored."""
    file = cell.file(folder)
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    result = {"data": cell.data, "method": cell.method, **cell.run(*needed)}
    write_text(file, json.dumps(result, indent=1))
    # A trainer and its module refer to each other, and keep their data until then.
    gc.collect()
    return result


def _begin(processes: int) -> None:
    """Take a share of the cores, and end when the parent process does, even if that is killed."""
    torch.set_num_threads(max(1, torch.get_num_threads() // processes))
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def write_tables(results: list[Result], columns: Mapping[str, str], folder: Path, note: str = "") -> str:
    """Write ``table.csv``, all values, and ``table.md``, ``columns`` (key to heading); return the latter.

    A column that no result on a data set has is left out there; ``note`` stands above its tables.
    """
    write_csv(folder / "table.csv", results)
    lines = [note, ""] if note else []
    for data in dict.fromkeys(result["data"] for result in results):
        rows = [result for result in results if result["data"] == data]
        used = [key for key in columns if any(row.get(key) is not None for row in rows)]
        headings = " | ".join(columns[key] for key in used)
        lines += [f"### {data}", "", f"| method | {headings} |", "|---|" + "---|" * len(used)]
        for row in rows:
            shown = " | ".join(_beside_paper(row, key) for key in used)
            lines.append(f"| {row['method']} | {shown} |")
        lines.append("")
    text = "\n".join(lines)
    write_text(folder / "table.md", text)
    return text


def print_tables(results: Sequence[Result], columns: Mapping[str, str], console: Console) -> None:
    """Print what :func:`write_tables` writes to ``table.md``; where there is no room, cells are folded."""
    for data in dict.fromkeys(result["data"] for result in results):
        rows = [result for result in results if result["data"] == data]
        used = [key for key in columns if any(row.get(key) is not None for row in rows)]
        table = Table(title=data, title_justify="left")
        table.add_column("method", no_wrap=True)
        for key in used:
            table.add_column(columns[key], justify="right", overflow="fold")
        for row in rows:
            table.add_row(Text(str(row["method"])), *(_beside_paper(row, key) for key in used))
        console.print(table)


def _beside_paper(result: Result, key: str) -> str:
    ours, paper = result.get(key), result.get(f"paper_{key}")
    return _shown(ours) if paper is None else f"{_shown(ours)} ({_shown(paper)})"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
