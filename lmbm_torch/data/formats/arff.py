"""ARFF files in the conventions of Mulan and MEKA: some attributes are labels, the others features."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.formats.attributes import labels_apart, places
from lmbm_torch.data.formats.lines import LimitedLines
from lmbm_torch.extras import naming_extras
from lmbm_torch.files import reading


@dataclass(frozen=True)
class Header:
    """The relation and the attributes that an ARFF file declares."""

    relation: str
    attributes: tuple[str, ...]


LabelColumns = Callable[[Header], Sequence[int]]


def read_arff(path: str | PathLike, labels: LabelColumns) -> MultilabelData:
    """Read a dense or sparse ARFF file, all of it as training part; ``join`` adds a test part.

    Numeric attributes and nominal ones that stand for numbers are taken; sparse files give CSR features.
    ``?`` means NaN, and is allowed for labels alone.

    Args:
        labels: which attributes are the labels, from :func:`by_name`, :func:`first`, :func:`last`,
            :func:`by_mulan_xml`, or :func:`by_meka_option` itself.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no valid ARFF; a label that is not 0, 1 or missing; ``labels`` that are not in the file or
            leave no feature; an attribute of strings, dates or named categories. The message names the file.
    """
    with reading(path, csv.Error) as file:
        sparse = is_sparse(file)
        content = parse(file, encode_nominal=True)
        if strings := [name for name, values in content["attributes"] if values == "STRING"]:
            raise ValueError(f"attributes: expected numeric or nominal ones, got strings in {strings}")
        header = Header(content["relation"], tuple(name for name, _ in content["attributes"]))
        codes = (_sparse_codes if sparse else _dense_codes)(content["data"], len(header.attributes))
        categories = {name: values for name, values in content["attributes"] if isinstance(values, list)}
        return labels_apart(file.stem, codes, header.attributes, categories, list(labels(header)))


def by_name(names: Sequence[str]) -> LabelColumns:
    """The attributes of these names, in this order."""
    return lambda header: places(names, header.attributes)


def first(count: int) -> LabelColumns:
    """The first ``count`` attributes."""
    return lambda header: range(_check_count(count, header))


def last(count: int) -> LabelColumns:
    """The last ``count`` attributes, where Mulan's own files have them."""
    return lambda header: range(len(header.attributes) - _check_count(count, header), len(header.attributes))


def by_mulan_xml(path: str | PathLike) -> LabelColumns:
    """The attributes that Mulan's XML file of labels names, in the order of the ARFF file, as Mulan does.

    Raises:
        FileNotFoundError: there is no such XML file.
        ValueError: no valid XML, or none with label names.
    """
    with reading(path, ElementTree.ParseError, LookupError, argument="labels") as file:
        elements = ElementTree.parse(file).getroot().iter()
        names = [element.get("name", "") for element in elements if element.tag.rpartition("}")[2] == "label"]
        if not all(names) or not names:
            raise ValueError("expected <label name=…> elements")
    return lambda header: sorted(places(names, header.attributes))


def by_meka_option(header: Header) -> Sequence[int]:
    """Those that MEKA's option in the relation's name counts: ``-C 6`` the first six, ``-C -6`` the last."""
    option = re.search(r"-C\s+(-?\d+)", header.relation)
    if option is None:
        raise ValueError(f"labels: expected MEKA's option '-C n' in the relation, got {header.relation!r}")
    count = int(option[1])
    return first(count)(header) if count > 0 else last(-count)(header)


def _check_count(count: int, header: Header) -> int:
    if not 0 < count < len(header.attributes):
        raise ValueError(f"labels: expected 1 to {len(header.attributes) - 1} labels, got {count}")
    return count


def is_sparse(file: Path) -> bool:
    """Whether the first data row is written in braces."""
    with file.open(encoding="utf-8") as stream:
        lines = iter(LimitedLines(stream))
        for line in lines:
            if line.lstrip().lower().startswith("@data"):
                break
        rows = (line.strip() for line in lines)
        return next((row.startswith("{") for row in rows if row and not row.startswith("%")), False)


def parse(file: Path, *, encode_nominal: bool) -> dict[str, Any]:
    """Parse a file by liac-arff: relation, attributes, and the data by row.

    Args:
        encode_nominal: give nominal values by their positions among the declared ones, else as texts.

    Raises:
        ValueError: no valid ARFF.
    """
    with naming_extras():
        import arff

    kind = arff.LOD if is_sparse(file) else arff.DENSE
    with file.open(encoding="utf-8") as stream:
        try:
            return arff.load(
                _as_liac_expects(LimitedLines(stream)), encode_nominal=encode_nominal, return_type=kind
            )
        except arff.ArffException as error:
            # The exception's own text cannot be printed where the row holds a percent sign.
            raise ValueError(f"no valid ARFF: {type(error).__name__} in line {error.line}") from error


def _as_liac_expects(lines: Iterable[str]) -> Iterator[str]:
    """Header lines with spaces for tabs, integers declared as the reals they are to us, and no empty value.

    liac-arff does not split a header line at a tab, truncates 1.5 in an INTEGER attribute to 1, and takes the
    end of a truncated row for a missing value.
    """
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text.startswith("@"):
            line = re.sub(r"\binteger\s*$", "real", line.expandtabs(1), flags=re.IGNORECASE)
        elif text and not text.startswith("%") and re.search(r"(^|,)\s*(,|$)", text):
            raise ValueError(f"empty value in line {number}")
        yield line


def _dense_codes(rows: Sequence[list[int | float | None]], num_attributes: int) -> np.ndarray:
    return np.array(rows, dtype=np.float64).reshape(len(rows), num_attributes)


def _sparse_codes(rows: Sequence[dict[int, int | float | None]], num_attributes: int) -> csr_array:
    values = (np.nan if value is None else value for row in rows for value in row.values())
    columns = (column for row in rows for column in row)
    codes = csr_array(
        (
            np.fromiter(values, dtype=np.float64),
            np.fromiter(columns, dtype=np.int64),
            np.cumsum([0, *map(len, rows)]),
        ),
        shape=(len(rows), num_attributes),
    )
    # liac-arff does not look at the column of a missing value.
    codes.check_format(full_check=True)
    return codes
