"""Files of tables: written completely or not at all, and marked when a table is finished."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmbm_torch.files import replacing_text

FINISHED = "finished.json"
KEPT = (".csv", ".md", ".png")


def write_text(path: Path, text: str) -> None:
    """Write a file of UTF-8, in a folder that is made if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_text(path) as stream:
        stream.write(text)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file with every column of any row, except for names with a leading ``_``."""
    columns = list(dict.fromkeys(name for row in rows for name in row if not name.startswith("_")))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


@contextmanager
def table(folder: Path, name: str) -> Iterator[Path]:
    """Give the folder of a table, marked as finished when the block ends without an exception.

    The mark lists the CSV, Markdown and PNG files that the block has written, ``table.*`` and others, for
    ``make keep``, and the training recipe (:func:`recipe_used`).

    Args:
        folder: made if needed.
        name: of the table in ``results/``, such as ``lmbm_2009`` or ``bench/smo``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FINISHED).unlink(missing_ok=True)
    before = _versions(folder)
    yield folder
    written = sorted(file for file, version in _versions(folder).items() if before.get(file) != version)
    mark = {"name": name, "files": written, "recipe": recipe_used()}
    write_text(folder / FINISHED, json.dumps(mark, indent=1))


def recipe_used() -> dict[str, Any] | None:
    """Return the constants of the training recipe by name; None if the recipe is not imported."""
    recipe = sys.modules.get("lmbm_torch.fitting.recipe")
    if recipe is None:
        return None
    constants = {name: value for name, value in vars(recipe).items() if name.isupper() and name[0] != "_"}
    return json.loads(json.dumps(constants, sort_keys=True))


def _versions(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the time of writing of each file that may be kept."""
    states = {file.name: file.stat() for file in folder.iterdir() if file.suffix in KEPT}
    return {name: (state.st_mtime_ns, state.st_ino) for name, state in states.items()}
