"""Checks of the files, columns and labels that a command line names, before heavy imports."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lmbm_torch.data.formats.delimited import DAMAGE
from lmbm_torch.files import reading

TABLE = "lmbm_torch.data.datamodule.serve_table"
# Keys of files in the groups ``data``.
FILES = ("train", "test", "path", "data.path")
# Options of a table that name columns.
COLUMNS = ("labels", "ignore", "categorical", "text", "image", "id_columns", "groups")
# Bytes up to which the labels of a file are read twice, in about half a second.
MOST_BYTES = 2**23


def check_files(config: DictConfig) -> None:
    """Raise ValueError with all faults of the files that a configuration names, by the keys of the user.

    Of a table the columns and labels are checked, too; torch is not imported.
    """
    faults = [] if config.get("rules") is None else [*_absent("rules", config.rules)]
    if config.data.get("_target_") == TABLE:
        faults += _faults_of_table(OmegaConf.to_container(config.data, resolve=True))
    else:
        for key in FILES:
            faults += _absent(f"data.{key}", OmegaConf.select(config.data, key, throw_on_missing=False))
    if faults:
        raise ValueError("\n  ".join(faults))


def _absent(key: str, path: Any) -> Iterator[str]:
    if isinstance(path, str) and not Path(path).exists():
        yield f"{key}: expected a file, found none at {path}"


def _faults_of_table(options: Any) -> Iterator[str]:
    # Imported here, because other kinds of data do not need these names.
    from lmbm_torch.data.tables.names import matching

    tables = {}
    for key in ("train", "test"):
        if isinstance(path := options.get(key), str):
            try:
                tables[key] = _columns(path, options)
            except (ValueError, OSError) as error:
                yield f"data.{key}: {str(error).removeprefix('path: ')}"
    found = tables.get("train")
    if found is None:
        return
    chosen: dict[str, list[str]] = {}
    for key in COLUMNS:
        patterns = options.get(key)
        # Other types are refused with the types of all keys.
        several = [patterns] if isinstance(patterns, str) else patterns
        for pattern in several if isinstance(several, list) else ():
            try:
                chosen.setdefault(key, []).extend(matching(f"data.{key}", [str(pattern)], [*found]))
            except ValueError as error:
                yield str(error)
    left_out = {name for key in ("ignore", "id_columns", "groups") for name in chosen.get(key, ())}
    labels = [*dict.fromkeys(chosen.get("labels", ()))]
    if tables.get("test") is not None:
        needed = [name for name in found if name in labels or name not in left_out]
        if absent := [name for name in needed if name not in tables["test"]]:
            yield f"data.test: expected the columns of {options['train']}, found none named {absent}"
    if labels:
        yield from _faults_of_labels(tables, labels, options)


def _faults_of_labels(tables: Mapping[str, Any], labels: list[str], options: Any) -> Iterator[str]:
    import numpy as np

    from lmbm_torch.data.tables.labels import check_left, fit_labels
    from lmbm_torch.data.tables.names import matching

    columns = {
        key: {name: np.array(values, dtype=object) for name, values in table.items()}
        for key, table in tables.items()
        if table is not None
    }
    try:
        check_left(columns["train"], labels)
        classes = matching("label_classes", options.get("label_classes") or (), labels)
        told = options.get("label_words"), options.get("label_separator"), classes, options.get("uncertain")
        form = fit_labels(columns["train"], labels, *told)
    except ValueError as error:
        yield f"data.labels: {error}"
        return
    for key, table in columns.items():
        for column in form.columns:
            try:
                form.applied({column.name: table[column.name]} if column.name in table else {})
            except ValueError as error:
                yield f"data.{key}: {error}"


def _columns(path: str, options: Any) -> dict[str, list[str | None]] | None:
    """Return the columns of a table as texts; None for Parquet, whose reader is no lighter than torch."""
    from lmbm_torch.data.formats import arff_text, delimited
    from lmbm_torch.incoming import ending

    with reading(path, *DAMAGE) as file, warnings.catch_warnings():
        # Warnings come when the file is read.
        warnings.simplefilter("ignore")
        if ending(file) in (".csv", ".tsv"):
            return delimited.texts(file, options.get("delimiter"), options.get("encoding"), MOST_BYTES)
        if ending(file) not in delimited.ENDINGS:
            raise ValueError(f"expected a file ending in one of {', '.join(delimited.ENDINGS)}")
        if ending(file) != ".arff":
            return None
        is_small = file.stat().st_size <= MOST_BYTES
        content = arff_text.read(file, header_alone=not is_small)
        if content.is_sparse:
            return {name: [] for name in content.attributes}
        return {name: [row[at] for row in content.rows] for at, name in enumerate(content.attributes)}
