"""Files of tables, which are written completely or not at all; a further file marks a finished table."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmbm_torch.files import replacing_text

Result = dict[str, Any]
"""The values of a row, by name. ``paper_<name>`` is shown next to ``<name>``. ``_<name>``, such as an array
for a figure, is not written to the CSV file."""
FINISHED = "finished.json"
KEPT = (".csv", ".md", ".png")


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8; make the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_text(path) as stream:
        stream.write(text)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file with all columns that occur in rows, except for names that begin with ``_``."""
    columns = list(dict.fromkeys(name for row in rows for name in row if not name.startswith("_")))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


@contextmanager
def table(folder: Path, name: str) -> Iterator[Path]:
    """Yield the folder of a table, and mark the table as finished if the block ends without an exception.

    The mark is a file that lists the CSV, Markdown and PNG files that the block has written, for ``make
    keep``, and the training recipe (:func:`recipe_used`).

    Args:
        folder: the folder, which is made if needed.
        name: name of the table in ``results/``, such as ``lmbm_2009`` or ``bench/smo``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FINISHED).unlink(missing_ok=True)
    before = _versions(folder)
    yield folder
    written = sorted(file for file, version in _versions(folder).items() if before.get(file) != version)
    mark = {"name": name, "files": written, "recipe": recipe_used()}
    write_text(folder / FINISHED, json.dumps(mark, indent=1))


def recipe_used() -> dict[str, Any] | None:
    """Return the constants of the training recipe by name; None if nothing has imported the recipe."""
    recipe = sys.modules.get("lmbm_torch.fitting.recipe")
    if recipe is None:
        return None
    constants = {name: value for name, value in vars(recipe).items() if name.isupper() and name[0] != "_"}
    return json.loads(json.dumps(constants, sort_keys=True))


def _versions(folder: Path) -> dict[str, tuple[int, int]]:
    """Return for each file that may be kept two numbers that change if the file is written again."""
    states = {file.name: file.stat() for file in folder.iterdir() if file.suffix in KEPT}
    return {name: (state.st_mtime_ns, state.st_ino) for name, state in states.items()}


def write_tables(results: list[Result], columns: Mapping[str, str], folder: Path, note: str = "") -> str:
    """Write all values to ``table.csv`` and some columns to ``table.md``; return the text of ``table.md``.

    If a column has no result on a data set, it is left out of the table for the data set.

    Args:
        columns: from the keys of the columns in ``table.md`` to the headings.
        note: text above the tables.
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
    """Print the tables of :func:`write_tables`; columns for which a line has no room follow below."""
    for data in dict.fromkeys(result["data"] for result in results):
        rows = [result for result in results if result["data"] == data]
        methods = [str(row["method"]) for row in rows]
        cells = {
            key: [_beside_paper(row, key) for row in rows]
            for key in columns
            if any(row.get(key) is not None for row in rows)
        }
        widths = {key: max(map(len, [*columns[key].split(), *own])) for key, own in cells.items()}
        for some in _groups_that_fit(widths, console.width - max(map(len, methods)) - len("│  │")):
            table = Table(title=data, title_justify="left")
            table.add_column("method", no_wrap=True)
            for key in some:
                table.add_column(columns[key], justify="right", overflow="fold")
            for place, method in enumerate(methods):
                table.add_row(Text(method), *(cells[key][place] for key in some))
            console.print(table)


def _groups_that_fit(widths: Mapping[str, int], room: int) -> list[list[str]]:
    """Divide columns into groups of at most ``room`` characters; a wider column is a group of its own."""
    groups: list[list[str]] = []
    left = 0
    for key, width in widths.items():
        needed = width + len("  │")
        if not groups or needed > left:
            groups.append([])
            left = room
        groups[-1].append(key)
        left -= needed
    return groups


def _beside_paper(result: Result, key: str) -> str:
    ours, paper = result.get(key), result.get(f"paper_{key}")
    return _shown(ours) if paper is None else f"{_shown(ours)} ({_shown(paper)})"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
