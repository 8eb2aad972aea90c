"""Tables whose cells are computed one by one: what is done is kept, so that a table can be taken up again."""

from __future__ import annotations

import csv
import gc
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Result = dict[str, Any]
"""What a cell has found, by name. ``paper_<name>`` is shown beside ``<name>``; ``_<name>``, such as an array
for a figure, is kept and left out of the tables."""


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

    def file(self, folder: Path) -> Path:
        name = re.sub(r"[^a-z0-9]+", "_", f"{self.data} {self.method}".lower()).strip("_")
        return folder / "cells" / f"{name}.json"


def compute(cells: Iterable[Cell], folder: Path, console: Console) -> list[Result]:
    """Every cell's result, in order; those that ``folder`` holds already are read, not computed."""
    done: dict[tuple[str, str], Result] = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    for cell in cells:
        file = cell.file(folder)
        if file.exists():
            result = json.loads(file.read_text(encoding="utf-8"))
        else:
            needed = () if cell.after is None else (done[cell.data, cell.after],)
            with Progress(*columns, console=console, transient=True) as progress:
                progress.add_task(f"{cell.data}: {cell.method}")
                result = {"data": cell.data, "method": cell.method, **cell.run(*needed)}
            _write(file, json.dumps(result, indent=1))
            # A trainer and its module refer to each other, and keep their data until then.
            gc.collect()
        done[cell.data, cell.method] = result
    return list(done.values())


def write_tables(results: list[Result], columns: Mapping[str, str], folder: Path) -> str:
    """Write ``table.csv``, everything, and ``table.md``, ``columns`` (key to heading); return the latter.

    A column that no result on a data set has is left out there.
    """
    keys = list(dict.fromkeys(key for result in results for key in result if not key.startswith("_")))
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, keys, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(results)
    lines = []
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
    _write(folder / "table.md", text)
    return text


def _beside_paper(result: Result, key: str) -> str:
    ours, paper = result.get(key), result.get(f"paper_{key}")
    return _shown(ours) if paper is None else f"{_shown(ours)} ({_shown(paper)})"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _write(file: Path, text: str) -> None:
    """All or nothing: a killed run leaves no half-written cell."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)
