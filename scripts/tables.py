"""Files of tables: written whole or not at all, marked once a table is finished, and kept in results/."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmbm_torch.files import replacing, replacing_text

RESULTS = Path(__file__).parents[1] / "results"
FINISHED = "finished.json"
KEPT = (".csv", ".md", ".png")


def write_text(path: Path, text: str) -> None:
    """A file of UTF-8, in a folder that is made if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_text(path) as stream:
        stream.write(text)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV file with every column that any row has, except for those whose names begin with ``_``."""
    columns = list(dict.fromkeys(name for row in rows for name in row if not name.startswith("_")))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


@contextmanager
def table(folder: Path, name: str) -> Iterator[Path]:
    """The folder of a table, marked as finished when the block ends without an exception.

    The mark lists the CSV, Markdown and PNG files that the block has written, ``table.*`` and others, for
    :func:`keep`.

    Args:
        folder: made if needed.
        name: of the table in ``results/``, such as ``lmbm_2009`` or ``bench/smo``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FINISHED).unlink(missing_ok=True)
    before = _versions(folder)
    yield folder
    written = sorted(file for file, version in _versions(folder).items() if before.get(file) != version)
    write_text(folder / FINISHED, json.dumps({"name": name, "files": written}, indent=1))


def keep(folder: Path, results: Path = RESULTS) -> list[Path]:
    """Copy a finished table to ``<name>.*`` and ``<name>_<other file>`` in ``results``; the copies.

    Raises:
        ValueError: the table is not finished, lacks one of its files, or has fewer rows than the kept one
            that it would replace.
    """
    if not (folder / FINISHED).is_file():
        raise ValueError(f"folder: expected that of a finished table, got {folder} without {FINISHED}")
    mark = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
    contents = {}
    for file in map(Path, mark["files"]):
        if not (folder / file).is_file():
            raise ValueError(f"folder: expected all files of the table, found no {file} in {folder}")
        own = mark["name"] if file.stem == "table" else f"{mark['name']}_{file.stem}"
        contents[results / f"{own}{file.suffix}"] = (folder / file).read_bytes()
    for target, content in contents.items():
        if target.suffix == ".csv" and target.exists():
            kept, found = _num_rows(target.read_bytes()), _num_rows(content)
            if found < kept:
                raise ValueError(
                    f"folder: expected a table with at least the {kept} rows of {target}, got {found}; "
                    "delete that file first to keep fewer"
                )
    for target, content in contents.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as stream:
            stream.write(content)
    return [*contents]


def _versions(folder: Path) -> dict[str, tuple[int, int]]:
    """When each file that may be kept was written."""
    states = {file.name: file.stat() for file in folder.iterdir() if file.suffix in KEPT}
    return {name: (state.st_mtime_ns, state.st_ino) for name, state in states.items()}


def _num_rows(content: bytes) -> int:
    return sum(1 for _ in csv.reader(io.StringIO(content.decode(), newline=""))) - 1
