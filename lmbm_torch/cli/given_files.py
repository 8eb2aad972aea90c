"""Checks of the files, columns and labels that a command line names, before slow imports."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from lmbm_torch.data.formats import arff_text, delimited
from lmbm_torch.data.tables.names import MISSING, matching, numbers_of
from lmbm_torch.extras import naming_extras
from lmbm_torch.files import reading
from lmbm_torch.incoming import ending

TABLE = "lmbm_torch.data.datamodule.serve_table"
# Keys of the group ``data`` whose values are files.
FILES = ("train", "test", "path", "data.path")
# Options for tables whose values are names of columns.
COLUMNS = ("labels", "ignore", "categorical", "text", "image", "id_columns", "groups")
# Largest size in bytes of a file whose labels are also checked here, which takes about half a second.
MOST_BYTES = 2**23
# Options in messages of readers, outside quotes.
_OPTIONS = re.compile(r"(?<![\w.'])(label_\w+|odd_numbers|categorical|uncertain)(?![\w'])")


def check_files(config: DictConfig, groups: Collection[Any] = ()) -> None:
    """Raise ValueError with all faults of the files in a configuration; the message names the keys.

    In a table, the columns and the labels are checked, too; torch is not imported.

    Args:
        groups: of keys that need a value; missing values (``???``) are faults, too.
    """
    missing = sorted(key for key in OmegaConf.missing_keys(config) if key.split(".")[0] in groups)
    words = " ".join(f"{key}=…" for key in missing)
    faults = [f"{', '.join(missing)}: expected a value, got none; add {words}"] if missing else []
    faults += [] if config.get("rules") is None else _absent("rules", config.rules)
    if config.data.get("_target_") == TABLE:
        faults += _faults_of_table(OmegaConf.to_container(config.data, resolve=True))
    else:
        for key in FILES:
            faults += _absent(f"data.{key}", OmegaConf.select(config.data, key, throw_on_missing=False))
    if faults:
        raise ValueError("\n  ".join(_OPTIONS.sub(r"data.\1", fault) for fault in faults))


def _absent(key: str, path: Any) -> Iterator[str]:
    if isinstance(path, str) and not Path(path).exists():
        yield f"{key}: expected a file, found none at {path}"


def _faults_of_table(options: Any) -> Iterator[str]:
    options = {key: value for key, value in options.items() if value != "???"}
    tables: dict[str, dict[str, Any]] = {}
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
        # A value of a wrong type is skipped here, because the check of types refuses it later.
        several = [patterns] if isinstance(patterns, str) else patterns
        for pattern in several if isinstance(several, list) else ():
            try:
                chosen.setdefault(key, []).extend(matching(f"data.{key}", [str(pattern)], [*found]))
            except ValueError as error:
                yield str(error)
    left_out = {name for key in ("ignore", "id_columns", "groups") for name in chosen.get(key, ())}
    labels = [*dict.fromkeys(chosen.get("labels", ()))]
    if "test" in tables:
        needed = [name for name in found if name in labels or name not in left_out]
        if absent := [name for name in needed if name not in tables["test"]]:
            yield f"data.test: expected the columns of {options['train']}, found none named {absent}"
    if labels:
        yield from _faults_of_labels(tables, labels, options)
    folder = Path(options["train"]).parent
    for name in chosen.get("image", ()):
        texts = [text for text in found[name].tolist() if text is not None]
        if absent := [text for text in texts if not (folder / str(text)).is_file()]:
            images = f"paths of images, got {len(absent)} without a file such as {absent[:5]}"
            yield f"data.train: column {name!r}: expected {images}"
    named = {name for names in chosen.values() for name in names}
    for name, values in found.items() if options.get("odd_numbers") == "refuse" else ():
        if name not in named and all(isinstance(text, str | None) for text in values.tolist()):
            try:
                numbers_of(name, values, False, [])
            except ValueError as error:
                yield f"data.train: {error}"


def _faults_of_labels(tables: Mapping[str, Any], labels: list[str], options: Any) -> Iterator[str]:
    from lmbm_torch.data.tables.labels import check_left, fit_labels

    try:
        check_left(tables["train"], labels)
        classes = matching("label_classes", options.get("label_classes") or (), labels)
        told = options.get("label_words"), options.get("label_separator"), classes, options.get("uncertain")
        form = fit_labels(tables["train"], labels, *told)
    except ValueError as error:
        # Of a column, or with the name of an option.
        yield f"data.train: {error}" if str(error).startswith("label ") else f"data.{error}"
        return
    for key, table in tables.items():
        for column in form.columns:
            try:
                form.applied({column.name: table[column.name]} if column.name in table else {})
            except ValueError as error:
                yield f"data.{key}: {error}"


def _columns(path: str, options: Any) -> dict[str, Any]:
    """Return the columns of a table by name, numbers or texts; without rows for a large file."""
    with reading(path, *delimited.DAMAGE) as file, warnings.catch_warnings():
        # Warnings are given later, when the file is read for training.
        warnings.simplefilter("ignore")
        is_small, kind = file.stat().st_size <= MOST_BYTES, ending(file)
        if kind not in delimited.ENDINGS:
            raise ValueError(f"expected a file ending in one of {', '.join(delimited.ENDINGS)}")
        if kind == ".parquet":
            return _of_parquet(file)
        if kind == ".arff":
            content = arff_text.read(file, header_alone=not is_small)
            return content.columns() if is_small else dict.fromkeys(content.attributes, np.array([]))
        with delimited.opened(file, options.get("delimiter"), encoding=options.get("encoding")) as found:
            return delimited.columns(found) if is_small else dict.fromkeys(found.names, np.array([]))


def _of_parquet(file: Path) -> dict[str, Any]:
    with naming_extras():
        import pyarrow.parquet
    found = pyarrow.parquet.ParquetFile(file)
    names = found.schema_arrow.names
    if found.metadata.num_rows * len(names) > MOST_BYTES // 8:
        return dict.fromkeys(names, np.array([]))
    return {
        name: np.array([*map(_cell, values)], dtype=object)
        for name, values in found.read().to_pydict().items()
    }


def _cell(value: Any) -> Any:
    """Return a value of a Parquet file: lists as texts in JSON, texts of missing values as None."""
    if isinstance(value, list | dict):
        return json.dumps(value, default=str)
    text = value.strip() if isinstance(value, str) else value
    return None if isinstance(text, str) and text in MISSING else text
