"""ARFF files in the conventions of Mulan and MEKA, and data sets of OpenML, which are stored as ARFF."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any
from urllib.error import URLError

import numpy as np
from scipy.sparse import csr_array, issparse

from lmbm_torch.data.dataset import MultilabelData, without_split
from lmbm_torch.data.features import Features
from lmbm_torch.data.formats import arff_text
from lmbm_torch.data.tables.labels import WORDS
from lmbm_torch.extras import naming_extras
from lmbm_torch.files import reading
from lmbm_torch.incoming import UNREADABLE, open_compressed, title
from lmbm_torch.shapes import Float

# Types of attributes that cannot become features, with their names in error messages.
_UNREAD = {arff_text.TEXT: "strings", arff_text.DATE: "dates", arff_text.RELATIONAL: "relations"}


def read_arff(
    path: str | PathLike, labels: Sequence[str] | int | str | PathLike | None = None
) -> MultilabelData:
    r"""Read a dense or sparse ARFF file; all rows become training rows, ``with_test`` adds test rows.

    Attributes must be numeric, or nominal with values that stand for numbers. Sparse files give CSR features.
    ``?`` means NaN and is allowed only for labels.

    Args:
        labels: names of the label attributes; or a number n: the first n attributes are labels or, if n is
            negative, the last attributes; or the path of Mulan's XML file with the names of the labels, which
            get the order of the ARFF file. By default, the number is read from MEKA's option in the
            relation's name (``-C 6`` or ``-C -6``).

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is no valid ARFF or XML; a label is not 0, 1 or missing; ``labels`` are not in
            the file, or no attribute is left for features; the number of labels is neither given nor in the
            relation; or attributes are strings, dates or categories. The message names the file.

    Examples:
        >>> import tempfile, pathlib
        >>> from lmbm_torch.data import read_arff
        >>> path = pathlib.Path(tempfile.mkdtemp(), "toy.arff")
        >>> text = "@relation toy\n@attribute a numeric\n@attribute sun {0,1}\n@data\n0.5,1\n2,0\n"
        >>> count = path.write_text(text)
        >>> read_arff(path, ["sun"]).labels.tolist()
        [[1.0], [0.0]]
    """
    names = _names_of_mulan(labels) if isinstance(labels, str | PathLike) else labels
    with reading(path, *UNREADABLE) as file:
        content = arff_text.read(file)
        unread = {
            words: [name for name, kind in content.attributes.items() if kind == each]
            for each, words in _UNREAD.items()
        }
        if found := [f"{words} in {names}" for words, names in unread.items() if names]:
            expected = "attributes: expected numeric or nominal attributes"
            raise ValueError(f"{expected}, got {' and '.join(found)}")
        attributes = [*content.attributes]
        codes = (_sparse_codes if content.is_sparse else _dense_codes)(content)
        categories = {name: kind for name, kind in content.attributes.items() if not isinstance(kind, str)}
        if names is None:
            names = _count_of_meka(content.relation)
        columns = _at_an_end(names, len(attributes)) if isinstance(names, int) else places(names, attributes)
        columns = sorted(columns) if isinstance(labels, str | PathLike) else columns
        return labels_apart(title(file), codes, attributes, categories, columns)


def _names_of_mulan(path: str | PathLike) -> list[str]:
    damage = ElementTree.ParseError, LookupError, *UNREADABLE
    with reading(path, *damage, argument="labels") as file, open_compressed(file) as stream:
        elements = ElementTree.parse(stream).getroot().iter()
        names = [element.get("name", "") for element in elements if element.tag.rpartition("}")[2] == "label"]
        if not all(names) or not names:
            raise ValueError("expected an XML file with <label name=…> elements, got none")
        return names


def _count_of_meka(relation: str) -> int:
    # MEKA's options follow a colon, so that a relation named "vitamin-C 5 study" has no option.
    option = re.search(r":(?:.*\s)?-C\s+(-?\d+)(?!\S)", relation)
    if option is None:
        raise ValueError(f"labels: expected MEKA's option ': -C n' in the relation, got {relation!r}")
    return int(option[1])


def _at_an_end(count: int, num_attributes: int) -> list[int]:
    if not 0 < abs(count) < num_attributes:
        raise ValueError(f"labels: expected a number from 1 to {num_attributes - 1}, got {abs(count)}")
    columns = range(num_attributes)
    return list(columns[:count] if count > 0 else columns[count:])


def _dense_codes(content: arff_text.Content) -> np.ndarray:
    codes = np.empty((len(content.rows), len(content.attributes)))
    for number, name in enumerate(content.attributes):
        codes[:, number] = [*content.codes(name, (row[number] for row in content.rows), content.lines)]
    return codes


def _sparse_codes(content: arff_text.Content) -> csr_array:
    indices = np.fromiter((column for row in content.rows for column in row), dtype=np.int64)
    texts = [value for row in content.rows for value in row.values()]
    lines = [line for row, line in zip(content.rows, content.lines, strict=True) for _ in row]
    numbers, names = np.empty(len(texts)), [*content.attributes]
    order = np.argsort(indices, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(indices[order])) + 1) if len(order) else ():
        values, at = [texts[place] for place in part], [lines[place] for place in part]
        numbers[part] = [*content.codes(names[indices[part[0]]], values, at)]
    parts = numbers, indices, np.cumsum([0, *map(len, content.rows)])
    codes = csr_array(parts, shape=(len(content.rows), len(content.attributes)))
    codes.sort_indices()
    return codes


def places(names: Sequence[str], attributes: Sequence[str]) -> list[int]:
    """Return the columns of the attributes with these names.

    Raises:
        ValueError: a name belongs to no attribute, or occurs twice.
    """
    column = {name: place for place, name in enumerate(attributes)}
    if unknown := [name for name in names if name not in column]:
        raise ValueError(f"labels: expected names of attributes, got unknown names {unknown}")
    if len(set(names)) < len(names):
        raise ValueError(f"labels: expected each name only once, got {list(names)}")
    return [column[name] for name in names]


def labels_apart(
    name: str,
    codes: Features,
    attributes: Sequence[str],
    categories: Mapping[str, Sequence[str]],
    columns: Sequence[int],
) -> MultilabelData:
    """Return a data set from a table of attributes, of which some are labels; all rows are training rows.

    Args:
        codes: ``(instances, attributes)``, float64; a nominal value is its position in the declaration.
        attributes: the names of all columns.
        categories: the declared values of the nominal attributes.
        columns: the columns of the labels; all other columns are features.

    Raises:
        ValueError: no column is left for labels or for features; values of a nominal attribute do not stand
            for numbers; a label is not 0, 1 or NaN; a feature is not finite.
    """
    others = sorted({*range(len(attributes))}.difference(columns))
    if not columns or not others:
        raise ValueError(f"labels: expected some columns as labels, others as features, got {list(columns)}")
    tables = {
        column: _numbers(attribute, categories[attribute])
        for column, attribute in enumerate(attributes)
        if attribute in categories
    }
    # If the declared values are 0, 1, … in this order, the codes are already the values.
    tables = {column: table for column, table in tables.items() if (table != np.arange(len(table))).any()}
    values = _decoded(codes, tables)
    labels: Features = values[:, columns]
    labels = labels.toarray() if isinstance(codes, csr_array) else labels
    names = [attributes[each] for each in columns], [attributes[each] for each in others]
    return without_split(name, values[:, others], labels, *names)


def _numbers(attribute: str, values: Sequence[str]) -> Float[np.ndarray, " values"]:
    """Return the number of each declared value: the text as a number, or 0 for false/no and 1 for true/yes.

    Further values are refused, because positions would invent an order of the categories.
    """
    try:
        return np.array([WORDS[text] if text in WORDS else float(text) for text in map(str.lower, values)])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"attribute {attribute!r}: expected numbers, true/false or yes/no, got the values {list(values)}"
        ) from error


def _decoded(codes: Features, tables: Mapping[int, np.ndarray]) -> Features:
    """Replace positions by numbers, by the table of each column.

    An entry that a sparse matrix leaves out means the first declared value, which must therefore be 0.
    """
    values, sparse = codes.copy(), isinstance(codes, csr_array)
    if sparse and (dense := [column for column, table in tables.items() if table[0] != 0]):
        raise ValueError(
            f"expected 0 as the first value of sparse nominal attributes, got others in columns {dense}"
        )
    for column, table in tables.items():
        stored = values.data if sparse else values[:, column]
        here = ~np.isnan(stored) & (values.indices == column if sparse else True)
        stored[here] = table[stored[here].astype(int)]
    if sparse:
        values.sort_indices()
    return values


def fetch_openml(
    data_id: int,
    labels: Sequence[str] | None = None,
    sha256: str | None = None,
    cache_folder: str | PathLike | None = None,
) -> MultilabelData:
    """Download a data set of OpenML by scikit-learn, which keeps the file and verifies OpenML's checksum.

    Args:
        data_id: OpenML's number of the data set, which determines the version.
        labels: names of the label attributes; by default the targets that OpenML declares.
        sha256: expected :meth:`MultilabelData.sha256`; different content is refused.
        cache_folder: folder of downloaded files; by default scikit-learn's folder.

    Raises:
        ConnectionError: OpenML cannot be reached.
        ValueError: the data set is unknown; a checksum differs; labels are missing or not binary; or an
            attribute consists of strings or categories.

    Examples:
        >>> from lmbm_torch.data import fetch_openml
        >>> data = fetch_openml(40597)  # doctest: +SKIP
    """
    with naming_extras():
        import sklearn.datasets

    home = None if cache_folder is None else str(cache_folder)
    try:
        # All columns are fetched as data, because scikit-learn leaves the zeros of a sparse target undefined.
        bunch = sklearn.datasets.fetch_openml(
            data_id=data_id, target_column=None, as_frame=False, parser="liac-arff", data_home=home
        )
        data = _dataset(bunch, labels)
    except (URLError, TimeoutError) as error:
        raise ConnectionError(f"data_id: could not fetch OpenML data set {data_id}: {error}") from error
    except ValueError as error:
        raise ValueError(f"data_id: OpenML data set {data_id}: {error}") from error
    if sha256 is not None and data.sha256() != sha256.lower():
        raise ValueError(f"sha256: expected {sha256} of OpenML data set {data_id}, got {data.sha256()}")
    return data


def _dataset(bunch: Any, labels: Sequence[str] | None) -> MultilabelData:
    names = list(bunch.feature_names)
    chosen = bunch.details.get("default_target_attribute", "").split(",") if labels is None else list(labels)
    # In ``bunch.data``, a nominal value is the position among the declared values.
    codes = csr_array(bunch.data) if issparse(bunch.data) else bunch.data
    return labels_apart(bunch.details["name"], codes, names, bunch.categories or {}, places(chosen, names))
