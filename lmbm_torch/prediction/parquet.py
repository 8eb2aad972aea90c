"""Predictions for Parquet files, batch by batch: an output file of the same name for each input file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from lmbm_torch.data import MultilabelData
from lmbm_torch.data.formats.table import new_rows
from lmbm_torch.data.tables.frames import open_frame
from lmbm_torch.extras import naming_extras
from lmbm_torch.files import Mode, check_free, reading, replacing
from lmbm_torch.prediction.answers import BATCH_SIZE, Prediction
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.reading import PARQUET
from lmbm_torch.prediction.tables import columns, label_columns, table_rows

with naming_extras():
    import pyarrow
    import pyarrow.parquet

# Key in the metadata of an output file under which the job is recorded.
NOTE = b"lmbm.job"

Ids = Mapping[str, Sequence[Any]]
Answer = Callable[[MultilabelData], tuple[Iterable[Prediction], Ids]]
"""Rows → their predictions, and columns of texts that stand beside them."""


def parts(path: str | PathLike) -> list[Path]:
    """Return the Parquet files of a folder in the order of names, or the file ``path``.

    Raises:
        FileNotFoundError: there is no file at ``path``, or no Parquet file in the folder.
    """
    if not Path(path).is_dir():
        with reading(path) as file:
            return [file]
    found = sorted(Path(path).glob(f"*{PARQUET}"))
    if not found:
        raise FileNotFoundError(f"path: expected a folder of {PARQUET} files, got none in {path}")
    return found


def write_predictions(
    path: str | PathLike,
    output: str | PathLike,
    saved: Predictor,
    answer: Answer,
    mode: Mode = "x",
    top_k: int = 1,
    beside: Sequence[str] = (),
    job: str | None = None,
) -> None:
    """Write the predictions for a file, or for each file of a folder, as Parquet.

    :func:`~lmbm_torch.prediction.tables.table_rows` describes rows and columns; row numbers start at 0 in
    each file, and columns that identify rows keep their types. Memory holds :data:`BATCH_SIZE` rows and one
    row group of the needed columns. Each file appears complete or not at all. After an error, finished files
    stay, and a call with the same ``job`` continues with the other files.

    Args:
        output: a file; or a folder for files of the same names, which is made if it does not exist.
        mode: as in ``open``: by default an existing file is never overwritten.
        top_k: number of labellings for each instance.
        beside: names of additional columns of texts that ``answer`` returns.
        job: a name of the job, such as a hash of the model and its settings. Each output file records the job
            with size and time of the source; in mode ``"x"``, such a file is not written again.

    Raises:
        FileExistsError: in mode ``"x"``, another job's file exists; nothing is written then.
        FileNotFoundError: see :func:`parts`.
        ValueError: the model was trained without a table, the output is the input, a file is no Parquet file
            or lacks a column, or ``answer`` raises it. The message names the file.
    """
    if saved.schema is None:
        raise ValueError(
            "path: expected a file without column names, such as .npz, because the model was trained "
            f"without column names, got {path}"
        )
    if Path(output).resolve() == Path(path).resolve():
        raise ValueError(f"output: expected another path than the input, got {output}")
    files = parts(path)
    if Path(path).is_dir():
        Path(output).mkdir(parents=True, exist_ok=True)
    for file, target, note in _unfinished(files, path, output, mode, job):
        with (
            reading(file, pyarrow.ArrowException),
            # Without pre_buffer=False, further row groups would be read in advance.
            pyarrow.parquet.ParquetFile(file, pre_buffer=False) as source,
        ):
            _write_part(source, file.parent, target, saved, answer, mode, top_k, beside, note)


def _unfinished(
    files: Sequence[Path], path: str | PathLike, output: str | PathLike, mode: Mode, job: str | None
) -> list[tuple[Path, Path, dict[bytes, bytes]]]:
    """Return the source, the target and the metadata of each file that is not finished."""
    found = []
    for file in files:
        target = Path(output) / file.name if Path(path).is_dir() else Path(output)
        about = file.stat()
        note = {} if job is None else {NOTE: f"{job} {about.st_size} {about.st_mtime_ns}".encode()}
        if mode == "x" and note and _has_note(target, note[NOTE]):
            continue
        check_free(target, mode)
        found.append((file, target, note))
    return found


def _has_note(target: Path, note: bytes) -> bool:
    """Return whether this job has already written the target for this source."""
    try:
        return (pyarrow.parquet.read_schema(target).metadata or {}).get(NOTE) == note
    except (FileNotFoundError, pyarrow.ArrowException):
        return False


def _write_part(
    source: Any,
    folder: Path,
    target: Path,
    saved: Predictor,
    answer: Answer,
    mode: Mode,
    top_k: int,
    beside: Sequence[str],
    note: dict[bytes, bytes],
) -> None:
    """Write the predictions for one file; each batch becomes a row group."""
    assert saved.schema is not None
    there = source.schema_arrow
    named = [name for name in saved.schema.id_columns if name in there.names]
    needed = [column.name for column in saved.schema.columns if column.name in there.names]
    ids = {name: there.field(name).type for name in named} | dict.fromkeys(beside, pyarrow.string())
    schema = pyarrow.schema(_types(columns(saved, top_k, [*ids]), saved, ids), metadata=note)
    first: Any = 0
    with replacing(target, mode) as stream, pyarrow.parquet.ParquetWriter(stream, schema) as writer:
        for batch in source.iter_batches(BATCH_SIZE, columns=[*dict.fromkeys([*needed, *named])]):
            if not batch.num_rows:
                continue
            table = pyarrow.Table.from_batches([batch])
            # Relative paths of images start at the folder of the source file.
            rows = replace(open_frame(table), folder=str(folder))
            predictions, texts = answer(new_rows(rows, saved.schema, labelled=False))
            of_rows = {name: table[name].to_pylist() for name in named} | dict(texts)
            found: Any = table_rows(saved, predictions, of_rows)
            writer.write_batch(_batch(([first + row, *rest] for row, *rest in found), schema))
            first += batch.num_rows


def _types(names: Sequence[str], saved: Predictor, ids: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the Arrow type of each column of predictions."""
    counts = {"row": pyarrow.int64(), "rank": pyarrow.int32(), "exact": pyarrow.int8()}
    known = {
        **counts,
        "labels": pyarrow.string(),
        **{
            name: pyarrow.string() if is_class else pyarrow.int8()
            for name, is_class in label_columns(saved).items()
        },
        **ids,
    }
    return ((name, known.get(name, pyarrow.float64())) for name in names)


def _batch(rows: Iterable[list[object]], schema: Any) -> Any:
    arrays = [
        pyarrow.array(values, part.type) for values, part in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pyarrow.record_batch(arrays, schema=schema)
