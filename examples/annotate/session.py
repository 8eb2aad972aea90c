"""A table that is being labelled, row by row, and the file that it is written to."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np

from annotate.completions import Completer, Completion
from lmbm_torch.data.features import Features
from lmbm_torch.data.formats.table import cells, open_table
from lmbm_torch.data.tables.schema import label_matrix
from lmbm_torch.files import Mode, replacing_text
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.reading import read
from lmbm_torch.shapes import Float

ENDINGS = (".csv", ".tsv")
COMPRESSED = (*ENDINGS, ".csv.gz", ".tsv.gz")


@dataclass(frozen=True)
class Rows:
    """The rows of a CSV file.

    Args:
        columns: the cells of all columns but labels, as they are written.
        features: raw, one row each.
        labels: (rows, labels) of {0, 1, NaN}, NaN where the file says nothing.
        delimiter: between the values.
    """

    columns: dict[str, list[str]]
    features: Features
    labels: Float[np.ndarray, "rows labels"]
    delimiter: str

    @classmethod
    def read(cls, path: str | PathLike, saved: Predictor, delimiter: str | None = None) -> Rows:
        """Read a file as a model takes it.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: no CSV file; a model of features without names; as :func:`prediction.reading.read`.
        """
        if saved.schema is None:
            raise ValueError("model: expected one that was trained on a table, whose columns have names")
        if not str(path).lower().endswith(COMPRESSED):
            raise ValueError(f"file: expected one ending in {', '.join(COMPRESSED)}, got {path}")
        data = read(path, saved, delimiter)
        table = open_table(path, delimiter, saved.schema.delimiter)
        names = [name for name in table.columns if name not in saved.label_names]
        columns = cells(path, names, table.delimiter)
        return cls(columns, data.features, np.array(data.labels, np.float64), table.delimiter or ",")


def continued(
    path: str | PathLike, rows: Rows, label_names: tuple[str, ...]
) -> Float[np.ndarray, "rows labels"]:
    """The labels of a file that an earlier session has written for these rows.

    Raises:
        FileNotFoundError, ValueError: there is none, or it is one of other rows.
    """
    table = open_table(path, rows.delimiter)
    is_same = set(table.columns) == {*rows.columns, *label_names}
    if is_same and cells(path, [*rows.columns], rows.delimiter) == rows.columns:
        return label_matrix(table, label_names)
    raise ValueError(f"{path} exists and has other rows or columns than the table")


@dataclass
class Session:
    """What is known of each row, and what of it is written.

    Args:
        completer: the model.
        label_names: its labels.
        rows: to be labelled.
        output: the CSV file, written whole after each acceptance.
        written: (rows, labels), the labels in that file, NaN for empty cells.
        mode: as in ``open``, of the first writing; later ones replace what this session wrote.
    """

    completer: Completer
    label_names: tuple[str, ...]
    rows: Rows
    output: Path
    written: Float[np.ndarray, "rows labels"]
    mode: Mode = "x"
    known: Float[np.ndarray, "rows labels"] = field(init=False)
    # Of the row that is looked at: a click asks for the answer before it, which the last one has found.
    _latest: tuple[tuple[int, bytes], Completion] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.known = self.written.copy()

    @property
    def num_rows(self) -> int:
        return len(self.known)

    def warm_up(self) -> None:
        """Answer once with nothing known and once with a label, so that no kernel is compiled at a click."""
        known = np.full(len(self.label_names), np.nan)
        self._complete(0, known)
        known[0] = self._complete(0, known).best[0].labels[0]
        self._complete(0, known)

    def completion(self, row: int) -> Completion:
        """The model's answer, given what is known of the row."""
        return self._complete(row, self.known[row])

    def mark(self, row: int, label: int, value: int | None) -> dict[int, tuple[int, int]]:
        """Say that a label is present (1), absent (0) or not known (None).

        Returns:
            The other labels whose answers changed, with their values before and after.

        Raises:
            ValueError: what is known would contradict the rules; nothing is changed then.
        """
        before = self.completion(row).best[0].labels
        known = self.known[row].copy()
        known[label] = np.nan if value is None else value
        after = self._complete(row, known).best[0].labels
        self.known[row] = known
        pairs = enumerate(zip(before, after, strict=True))
        return {other: pair for other, pair in pairs if other != label and pair[0] != pair[1]}

    def accept(self, row: int) -> None:
        """Write the whole joint answer of a row."""
        self._write(row, np.array(self.completion(row).best[0].labels, np.float64))

    def keep(self, row: int) -> None:
        """Write what is known of a row, and empty cells for the rest."""
        self._write(row, self.known[row])

    def next_unlabelled(self, row: int) -> int | None:
        """The next row, around the end, of which no label is written; None if there is none."""
        order = np.roll(np.arange(self.num_rows), -row - 1)
        left = order[np.isnan(self.written[order]).all(1)]
        return int(left[0]) if len(left) else None

    def progress(self) -> tuple[int, int]:
        """How many rows have a label that is written, and how many of these lack another."""
        has = ~np.isnan(self.written)
        return int(has.any(1).sum()), int((has.any(1) & ~has.all(1)).sum())

    def _complete(self, row: int, known: Float[np.ndarray, " labels"]) -> Completion:
        key = row, known.tobytes()
        if self._latest is None or self._latest[0] != key:
            self._latest = key, self.completer.complete(self.rows.features[row : row + 1], known)
        return self._latest[1]

    def _write(self, row: int, labels: Float[np.ndarray, " labels"]) -> None:
        written = self.written.copy()
        written[row] = labels
        with replacing_text(self.output, self.mode) as stream:
            writer = csv.writer(stream, delimiter=self.rows.delimiter, lineterminator="\n")
            writer.writerow([*self.rows.columns, *self.label_names])
            texts = [["" if value != value else int(value) for value in each] for each in written.tolist()]
            writer.writerows(
                [*named, *each] for *named, each in zip(*self.rows.columns.values(), texts, strict=True)
            )
        # Only once the file has it.
        self.mode, self.written, self.known[row] = "w", written, labels
