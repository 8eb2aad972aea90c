"""Tables of cells, computed one by one and stored: an interrupted table can be continued.

A long cell may be ``resumable``: the cell keeps its state in a file and calls :func:`check_time` to learn
whether the time for the table has run out.
"""

from __future__ import annotations

import gc
import io
import json
import math
import os
import pickle
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from threadpoolctl import threadpool_limits

from lmbm_torch.checks import check_count, check_not_negative
from lmbm_torch.compare.tables import Result, write_text
from lmbm_torch.estimators.common.spreading import Kept, keep, spread, workers

try:
    # Comes with Dask, Ray and newer joblib, and also pickles functions without a name.
    from cloudpickle import Pickler
except ImportError:
    from pickle import Pickler

Done = dict[tuple[str, str], Result]
"""Results by data set and method."""


CELLS = "cells"
"""The folder of results within the folder of a table."""
# Least bytes of an array that is pickled apart.
LARGE = 1000
_deadline = math.inf
"""The end of the time of this process, by ``time.time``."""


class OutOfTime(Exception):
    """The error of a cell when the time for the table has run out; the state of the cell is stored.

    Args:
        result: the preliminary result, or None.
    """

    def __init__(self, result: Result | None = None) -> None:
        super().__init__(result)
        self.result = result


def check_time(needed: float = 0.0) -> None:
    """Raise :class:`OutOfTime` if less than ``needed`` seconds are left for the table."""
    if time.time() + needed >= _deadline:
        raise OutOfTime


@dataclass(frozen=True)
class Cell:
    """A method on a data set.

    Args:
        data: the set's name.
        method: the row's name.
        run: computes the result; with ``after`` from the result of another cell.
        after: the method on the same set whose result is needed first.
        resumable: ``run`` takes ``state``, the file to continue from if the file exists, and may raise
            :class:`OutOfTime`.
    """

    data: str
    method: str
    run: Callable[..., Result]
    after: str | None = None
    resumable: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.data, self.method

    @property
    def title(self) -> str:
        return f"{self.data}: {self.method}"

    def file(self, folder: Path) -> Path:
        return folder / CELLS / f"{self._slug}.json"

    def state(self, folder: Path) -> Path:
        """Return the file of a resumable cell that is not finished."""
        return folder / "states" / f"{self._slug}.pt"

    @property
    def _slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "_", f"{self.data} {self.method}".lower()).strip("_")


def compute(
    cells: Iterable[Cell],
    folder: Path,
    console: Console,
    processes: int = 1,
    time_limit: float | None = None,
) -> list[Result]:
    """Compute every cell's result, in order; results in ``folder`` are read, not computed.

    Several processes share the cores and take the cells in order, each cell as soon as the needed cell has
    been computed. If joblib has an active backend, such as a Dask cluster, and ``processes`` is one, the
    workers of the backend compute the cells, independent cells first. Resumable cells, with states in local
    files, stay on the local computer.

    Args:
        time_limit: seconds after which no cell is begun, and resumable cells end with preliminary results,
            ``unfinished`` in the result. Cells without a result are left out.

    Raises:
        ValueError: ``processes`` below one, a negative ``time_limit``.
        Exception: the error of the first failed cell; of a resumable cell, once all other cells are computed.
    """
    check_count("processes", processes)
    deadline = math.inf
    if time_limit is not None:
        check_not_negative("time_limit", time_limit)
        deadline = time.time() + time_limit
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        cells = [*cells]
        work = _Work(cells, folder, CellProgress(bars, console, len(cells)), deadline)
        if processes > 1:
            _side_by_side(work, processes)
        else:
            _spread_out(work)
            _set_deadline(deadline)
            while cell := work.next():
                work.take(cell, partial(_result, cell, folder, *work.needed(cell)))
        return work.results()


class CellProgress:
    """The progress of the cells: each running cell with its time, and the number of finished cells.

    A terminal shows moving lines; a log gets one line for each cell.

    Args:
        total: number of cells.
    """

    def __init__(self, bars: Progress, console: Console, total: int) -> None:
        self.bars, self.console, self.total, self.done = bars, console, total, 0
        self.tasks: dict[tuple[str, str], tuple[TaskID, float]] = {}
        self.overall = bars.add_task(self._counted())

    def begin(self, cell: Cell) -> None:
        """Show that a cell has begun."""
        self.tasks[cell.key] = self.bars.add_task(cell.title), time.monotonic()

    def end(self, cell: Cell) -> None:
        """Show that a cell is done."""
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


class _Work:
    """The cells of a table: the next cell, and the results and failures so far."""

    def __init__(self, cells: Sequence[Cell], folder: Path, progress: CellProgress, deadline: float) -> None:
        self.cells, self.folder, self.progress, self.deadline = cells, folder, progress, deadline
        self.waiting = [*cells]
        self.done: Done = {}
        self.unfinished: Done = {}
        self.failures: list[Exception] = []

    def next(self) -> Cell | None:
        """Return the first cell that can begin now; stored results are taken at once."""
        for cell in [*self.waiting]:
            if cell.after is not None and (cell.data, cell.after) not in self.done:
                continue
            stored = cell.file(self.folder).exists()
            if not stored and time.time() >= self.deadline and not cell.state(self.folder).exists():
                continue
            self.waiting.remove(cell)
            self.progress.begin(cell)
            if not stored:
                return cell
            self.take(cell, partial(_result, cell, self.folder))
        return None

    def ready(self) -> list[Cell]:
        """Return all cells for other computers to begin now; stored results are taken at once."""
        waiting, begun = [*self.waiting], []
        self.waiting = [cell for cell in waiting if not cell.resumable]
        while cell := self.next():
            begun.append(cell)
        self.waiting = [cell for cell in waiting if cell in self.waiting or cell.resumable]
        return begun

    def needed(self, cell: Cell) -> tuple[Result, ...]:
        return () if cell.after is None else (self.done[cell.data, cell.after],)

    def take(self, cell: Cell, result: Callable[[], Result]) -> None:
        """Store a cell's result, partial result or failure; the remaining cells go on."""
        try:
            self.done[cell.key] = result()
        except OutOfTime as stopped:
            if stopped.result is not None:
                self.unfinished[cell.key] = {**_named(cell), **stopped.result, "unfinished": True}
        except Exception as failure:
            if not cell.resumable:
                raise
            failure.add_note(f"in the cell {cell.title}")
            self.failures.append(failure)
        self.progress.end(cell)

    def results(self) -> list[Result]:
        """Return the results in the order of the cells."""
        if self.failures:
            raise self.failures[0]
        found = self.done | self.unfinished
        return [found[cell.key] for cell in self.cells if cell.key in found]


def _side_by_side(work: _Work, processes: int) -> None:
    running: dict[Future[Result], Cell] = {}
    # A new process for the next long cell: a failure may leave memory behind, as on a GPU.
    tasks = 1 if any(cell.resumable for cell in work.cells) else None
    context, given = get_context("spawn"), (processes, work.deadline)
    with ProcessPoolExecutor(processes, context, _begin, given, max_tasks_per_child=tasks) as pool:
        while True:
            while len(running) < processes and (cell := work.next()):
                running[pool.submit(_result, cell, work.folder, *work.needed(cell))] = cell
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                work.take(running.pop(future), future.result)


def _spread_out(work: _Work) -> None:
    """Compute the cells that are not resumable by the workers of joblib's active backend, if any."""
    if workers() == 1:
        return
    cells = [cell for cell in work.waiting if not cell.resumable]
    found, kept = _packed(cells)
    bytes_of = dict(zip((cell.key for cell in cells), found, strict=True))
    while begun := work.ready():
        calls = [(bytes_of[cell.key], work.deadline, work.needed(cell)) for cell in begun]
        results = spread(_computed, kept, calls)
        for cell in begun:
            work.take(cell, partial(_received, cell, work.folder, results))


def _computed(arrays: Sequence[np.ndarray], call: tuple[bytes, float, tuple[Result, ...]]) -> Result | None:
    """Return a cell's result, computed by a worker; None if the time was over before."""
    cell, deadline, needed = call
    return None if time.time() >= deadline else _unpacked(cell, arrays).run(*needed)


def _received(cell: Cell, folder: Path, results: Iterator[Result | None]) -> Result:
    """Store and return the next result: workers may have other disks."""
    if (found := next(results)) is None:
        raise OutOfTime
    return _stored(cell, folder, found)


def _stored(cell: Cell, folder: Path, found: Result) -> Result:
    result = {**_named(cell), **found}
    write_text(cell.file(folder), json.dumps(result, indent=1))
    return result


def _result(cell: Cell, folder: Path, *needed: Result) -> Result:
    """Return the result of a cell, read if stored, else computed and stored."""
    file, state = cell.file(folder), cell.state(folder)
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    result = _stored(cell, folder, cell.run(*needed, **({"state": state} if cell.resumable else {})))
    state.unlink(missing_ok=True)
    # A trainer and its module refer to each other and keep their data until collected.
    gc.collect()
    return result


def _named(cell: Cell) -> Result:
    return {"data": cell.data, "method": cell.method}


def _begin(processes: int, deadline: float) -> None:
    """Take a share of the cores, and end with the parent process, even if the parent is killed."""
    share = max(1, torch.get_num_threads() // processes)
    torch.set_num_threads(share)
    # The threads wait without sleep, on cores that other processes need.
    threadpool_limits(share, user_api="blas")
    _set_deadline(deadline)
    Thread(target=_end_with_parent, daemon=True).start()


def _set_deadline(deadline: float) -> None:
    global _deadline  # one for each process, for all cells
    _deadline = deadline


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _packed(values: Iterable[Any]) -> tuple[list[bytes], Kept]:
    """Pickle values for :func:`_unpacked`, and keep their large arrays, each sent once."""
    arrays: list[np.ndarray] = []
    found = []
    for value in values:
        stream = io.BytesIO()
        _Packer(stream, arrays).dump(value)
        found.append(stream.getvalue())
    return found, keep(arrays)


def _unpacked(value: bytes, arrays: Sequence[np.ndarray]) -> Any:
    """Load a value that :func:`_packed` pickled in the same program."""
    return _Unpacker(io.BytesIO(value), arrays).load()


class _Packer(Pickler):  # pyright: ignore[reportGeneralTypeIssues]  # one of two
    def __init__(self, stream: io.BytesIO, arrays: list[np.ndarray]) -> None:
        super().__init__(stream)
        self._arrays = arrays

    def persistent_id(self, obj: Any) -> int | None:
        """Return the place of a large array, None for other objects."""
        if type(obj) is not np.ndarray or obj.nbytes < LARGE:
            return None
        for place, array in enumerate(self._arrays):
            if array is obj:
                return place
        self._arrays.append(obj)
        return len(self._arrays) - 1


class _Unpacker(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, arrays: Sequence[np.ndarray]) -> None:
        super().__init__(stream)
        self._arrays = arrays

    def persistent_load(self, pid: int) -> np.ndarray:
        return self._arrays[pid]
