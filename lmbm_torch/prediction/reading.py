"""Rows of files and folders, in the form of a predictor's training data."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.data import MultilabelData, read_arff, read_npz, read_svmlight
from lmbm_torch.data.dataset import without_split
from lmbm_torch.data.formats.delimited import ENDINGS
from lmbm_torch.data.formats.table import cells, is_table, new_rows, open_table
from lmbm_torch.data.mapped import open_mapped
from lmbm_torch.incoming import ending as ending_of
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.shapes import Float, Int

SVMLIGHT = (".svm", ".svmlight", ".libsvm", ".txt")
PARQUET = ".parquet"
PARTS = ("train", "test", "all")


def read(path: str | PathLike, saved: Predictor, delimiter: str | None = None) -> MultilabelData:
    """Read the rows of a file by its ending, or of a folder of data on the disk.

    .csv, .tsv (also .gz) and dense .arff files have the columns of the training table, by name and in any
    order; columns of labels may be left out, as may ``y`` in .npz files. svmlight files end in .svm,
    .svmlight, .libsvm or .txt, also with .gz or .bz2. Unknown labels are NaN in an npz file and ``?`` in an
    ARFF file. Without a table's schema, an ARFF file's labels are the attributes named like the predictor's
    labels; for an svmlight file those names must be numbers.

    Args:
        path: the file or the folder.
        saved: the predictor.
        delimiter: the delimiter of CSV files.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another ending; an unreadable file, or a file without the predictor's features.
    """
    if Path(path).is_dir():
        return open_mapped(path)
    ending = ending_of(Path(path))
    if saved.schema is not None and is_table(path):
        return new_rows(path, saved.schema, delimiter)
    if ending == ".npz":
        return read_npz(path, num_labels=len(saved.label_names))
    if ending == ".arff":
        return read_arff(path, saved.label_names)
    if ending in SVMLIGHT:
        return read_svmlight(path, labels=_label_numbers(saved), num_features=saved.num_inputs)
    if is_table(path):
        raise ValueError(
            "path: expected a file without column names, such as .npz, since the model was trained on "
            f"features that had none, got {path}"
        )
    raise ValueError(
        f"path: expected a file ending in .npz, one of {', '.join(SVMLIGHT)} or, for a model trained on a "
        f"table, one of {', '.join(ENDINGS)}, got {path}"
    )


def read_unlabelled(path: str | PathLike, saved: Predictor, delimiter: str | None = None) -> MultilabelData:
    """Read rows as :func:`read` does; labels of tables and svmlight files are NaN.

    Raises:
        FileNotFoundError, ValueError: as :func:`read`, apart from labels.
    """
    if saved.schema is not None and is_table(path):
        return new_rows(path, saved.schema, delimiter, labelled=False)
    if ending_of(Path(path)) in SVMLIGHT and not Path(path).is_dir():
        found = read_svmlight(path, num_features=saved.num_inputs)
        labels = np.full((found.num_instances, len(saved.label_names)), np.nan)
        return without_split(found.name, found.features, labels, saved.label_names, found.feature_names)
    return read(path, saved, delimiter)


def is_parquet(path: str | PathLike) -> bool:
    """Return whether a path is a Parquet file by its ending, or a folder of Parquet files."""
    folder = Path(path)
    return folder.suffix.lower() == PARQUET or any(folder.glob(f"*{PARQUET}"))


def ids(path: str | PathLike, saved: Predictor, delimiter: str | None = None) -> dict[str, list[str]]:
    """Return the columns of a CSV file with names of rows, as written; empty without such columns."""
    if saved.schema is None or not saved.schema.id_columns or not is_table(path):
        return {}
    found = open_table(path, delimiter, saved.schema.delimiter).delimiter
    return cells(path, saved.schema.id_columns, found)


def rows_of(data: MultilabelData, part: str | None = None) -> Int[np.ndarray, " rows"]:
    """Return the rows of a part in :data:`PARTS`; by default the test part, or else all rows.

    Raises:
        ValueError: another part, or an empty part.
    """
    if part is None:
        part = "test" if len(data.test) else "all"
    if part not in PARTS:
        raise ValueError(f"part: expected one of {', '.join(PARTS)}, got {part}")
    rows = np.arange(data.num_instances) if part == "all" else {"train": data.train, "test": data.test}[part]
    if len(rows) == 0:
        raise ValueError(f"part: expected one with rows, but {data.name} has no {part} part")
    return rows


def known_labels(
    saved: Predictor, data: MultilabelData, rows: Int[np.ndarray, " rows"]
) -> Float[Tensor, "rows labels"]:
    """Return the labels of rows for metrics.

    Raises:
        ValueError: other labels than the predictor's, or missing labels.
    """
    if data.label_names != saved.label_names:
        raise ValueError(
            f"label_names: expected the model's, {list(saved.label_names)}, got {list(data.label_names)}"
        )
    labels = torch.from_numpy(data.labels[rows])
    if missing := int(labels.isnan().sum()):
        raise ValueError(f"labels: expected all known, since measures need them, got {missing} missing")
    return labels


def _label_numbers(saved: Predictor) -> list[int]:
    try:
        return [int(name) for name in saved.label_names]
    except ValueError as error:
        raise ValueError(
            "path: expected an .npz or .arff file, since svmlight files number their labels and this model's "
            f"have names such as {saved.label_names[0]!r}"
        ) from error
