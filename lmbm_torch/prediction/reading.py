"""Readers of rows from files and folders, for a predictor."""

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
    """Read the rows of a file, whose ending tells the format, or of a folder with data on disk.

    .csv, .tsv (also .gz) and dense .arff files have the columns of the training table, in any order. Columns
    of labels may be missing, as may ``y`` in .npz files. svmlight files end in .svm, .svmlight, .libsvm or
    .txt, also with .gz or .bz2. Unknown labels are NaN in an npz file and ``?`` in an ARFF file. If the
    predictor has no schema, the labels of an ARFF file are the attributes named like the predictor's labels;
    for an svmlight file these names must be numbers.

    Args:
        path: the file or the folder.
        saved: the predictor.
        delimiter: the delimiter of CSV files.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the ending is unknown, the file is unreadable, or it lacks features of the predictor.
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
            "path: expected a file without column names, such as .npz, because the model was trained "
            f"without column names, got {path}"
        )
    raise ValueError(
        f"path: expected a file ending in .npz, one of {', '.join(SVMLIGHT)} or, for a model trained on a "
        f"table, one of {', '.join(ENDINGS)}, got {path}"
    )


def read_unlabelled(path: str | PathLike, saved: Predictor, delimiter: str | None = None) -> MultilabelData:
    """Read rows by :func:`read`, but ignore labels of tables and svmlight files, which become NaN.

    Raises:
        FileNotFoundError, ValueError: see :func:`read`, without the errors of labels.
    """
    if saved.schema is not None and is_table(path):
        return new_rows(path, saved.schema, delimiter, labelled=False)
    if ending_of(Path(path)) in SVMLIGHT and not Path(path).is_dir():
        found = read_svmlight(path, num_features=saved.num_inputs)
        labels = np.full((found.num_instances, len(saved.label_names)), np.nan)
        return without_split(found.name, found.features, labels, saved.label_names, found.feature_names)
    return read(path, saved, delimiter)


def is_parquet(path: str | PathLike) -> bool:
    """Return whether a path ends like a Parquet file, or is a folder of Parquet files."""
    folder = Path(path)
    return folder.suffix.lower() == PARQUET or any(folder.glob(f"*{PARQUET}"))


def ids(path: str | PathLike, saved: Predictor, delimiter: str | None = None) -> dict[str, list[str]]:
    """Return the columns of a CSV file that identify rows, as texts; empty if there are none."""
    if saved.schema is None or not saved.schema.id_columns or not is_table(path):
        return {}
    found = open_table(path, delimiter, saved.schema.delimiter).delimiter
    return cells(path, saved.schema.id_columns, found)


def rows_of(data: MultilabelData, part: str | None = None) -> Int[np.ndarray, " rows"]:
    """Return the rows of a part in :data:`PARTS`; by default the test part or, without one, all rows.

    Raises:
        ValueError: the part is unknown or empty.
    """
    if part is None:
        part = "test" if len(data.test) else "all"
    if part not in PARTS:
        raise ValueError(f"part: expected one of {', '.join(PARTS)}, got {part}")
    rows = np.arange(data.num_instances) if part == "all" else {"train": data.train, "test": data.test}[part]
    if len(rows) == 0:
        raise ValueError(f"part: expected a part with rows, got {part}, which is empty in {data.name}")
    return rows


def known_labels(
    saved: Predictor, data: MultilabelData, rows: Int[np.ndarray, " rows"]
) -> Float[Tensor, "rows labels"]:
    """Return the labels of rows for metrics.

    Raises:
        ValueError: the labels differ from the predictor's, or labels are missing.
    """
    if data.label_names != saved.label_names:
        raise ValueError(
            f"label_names: expected the model's {list(saved.label_names)}, got {list(data.label_names)}"
        )
    labels = torch.from_numpy(data.labels[rows])
    if missing := int(labels.isnan().sum()):
        raise ValueError(f"labels: expected all labels, which metrics need, got {missing} missing labels")
    return labels


def _label_numbers(saved: Predictor) -> list[int]:
    try:
        return [int(name) for name in saved.label_names]
    except ValueError as error:
        raise ValueError(
            "path: expected an .npz or .arff file, because labels of svmlight files are numbers, but "
            f"labels of this model have names such as {saved.label_names[0]!r}"
        ) from error
