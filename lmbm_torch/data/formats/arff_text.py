"""Text of ARFF files: relation, attributes and rows, in the notation of Weka.

The module does not import torch, because commands must check names of attributes quickly.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmbm_torch.data.tables.names import as_numbers
from lmbm_torch.incoming import lines

_QUOTED = r"""'(?P<one>(?:[^'\\]|\\.)*)'|"(?P<two>(?:[^"\\]|\\.)*)\""""
_NAME = re.compile(rf"\s*(?:{_QUOTED}|(?P<bare>[^\s{{%]+))\s*", re.DOTALL)
# Match a value and what ends the value: a comma, a comment, the end of the line or, within braces, a brace.
_VALUE = re.compile(rf"""\s*(?:{_QUOTED}|(?P<bare>(?!['"])[^,%]*))\s*(?P<end>,|%|$)""", re.DOTALL)
_BRACED = rf"""(?:{_QUOTED}|(?P<bare>(?!['"])[^,%}}]*))\s*(?P<end>,|\}})"""
_DECLARED, _STORED = (re.compile(rf"\s*{part}{_BRACED}") for part in ("", r"(?P<index>\d{1,9})\s+"))
_AFTER = re.compile(r"\s*(%.*)?", re.DOTALL)
# Match a numeric type; older files add a range, such as INTEGER [0,9].
_NUMBER = re.compile(r"(numeric|real|integer)\s*(\[[^\]]*\])?\s*(%.*)?", re.IGNORECASE | re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
NUMERIC, TEXT, DATE, RELATIONAL = "numeric", "string", "date", "relational"
"""Kinds of attributes without declared values."""


@dataclass(frozen=True, eq=False)
class Content:
    """The content of an ARFF file.

    Args:
        relation: the relation's name, with MEKA's options.
        attributes: for each name the declared values, or the type, which is a constant of this module.
        rows: for each row a list of values or, in a sparse file, a dictionary; a missing value is None.
        lines: the line number of each row.
        is_sparse: whether the rows are in braces.
    """

    relation: str
    attributes: dict[str, tuple[str, ...] | str]
    rows: list[Any]
    lines: list[int]
    is_sparse: bool

    def codes(self, name: str, values: Iterable[str | None], lines: Iterable[int]) -> Iterator[float]:
        """Yield values of an attribute as numbers: positions of nominal values, NaN for missing values.

        Args:
            values: some values of the attribute.
            lines: the line number of each value.

        Raises:
            ValueError: a value is no number, or is not declared; the message names the line.
        """
        declared = self.attributes[name]
        known = {} if isinstance(declared, str) else {value: float(at) for at, value in enumerate(declared)}
        for value, line in zip(values, lines, strict=True):
            try:
                if value is None:
                    yield math.nan
                else:
                    yield known[value] if known else float(value.replace("_", "?"))
            except (KeyError, ValueError):
                wanted = f"one of {[*known]}" if known else "a number"
                raise ValueError(
                    f"line {line}: attribute {name!r}: expected {wanted}, got {value!r}"
                ) from None

    def columns(self) -> dict[str, np.ndarray]:
        """Return the columns of a dense file: numbers, NaN if missing, or texts.

        Raises:
            ValueError: a sparse file, no row, or see :meth:`codes`.
        """
        if self.is_sparse:
            raise ValueError("expected a dense ARFF file, got a sparse one; use read_arff (data=arff)")
        if not self.rows:
            raise ValueError("expected a table with at least one row, got no row")
        columns = {}
        for number, (name, kind) in enumerate(self.attributes.items()):
            values = [row[number] for row in self.rows]
            numbers = self.codes(name, values, self.lines) if kind == NUMERIC else None
            columns[name] = as_numbers(values) if numbers is None else np.array([*numbers])
        return columns


def read(file: Path, *, header_alone: bool = False) -> Content:
    """Read an ARFF file.

    Args:
        header_alone: whether to read only the header and the first row.

    Raises:
        ValueError: the file is no valid ARFF; the message names the line.
    """
    relation, attributes, is_data, is_sparse = "", [], False, False
    rows: list[Any] = []
    numbers: list[int] = []
    with lines(file) as found:
        for line in found:
            text = line.strip()
            if not is_data and re.match(r"@data([\s%{]|$)", text, re.IGNORECASE):
                is_data, text = True, text[5:].strip()
            if not text or text.startswith("%"):
                continue
            try:
                if is_data:
                    is_sparse = text.startswith("{") if not rows else is_sparse
                    rows.append(_row(text, len(attributes), is_sparse))
                    numbers.append(found.number)
                    if header_alone:
                        break
                    continue
                keyword, _, rest = text.expandtabs(1).partition(" ")
                if keyword.lower() == "@relation":
                    match = _NAME.match(rest)
                    relation = rest if match is None or match["bare"] is not None else str(_text(match))
                elif keyword.lower() == "@attribute":
                    attributes.append(_attribute(rest))
                else:
                    raise ValueError(f"expected @relation, @attribute or @data, got {text[:40]!r}")
            except ValueError as error:
                raise ValueError(f"line {found.number}: {error}") from error
    if not is_data or not attributes:
        raise ValueError(f"expected a line {'@attribute' if is_data else '@data'}, got no such line")
    counts = Counter(name for name, _ in attributes)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"expected distinct names of attributes, got {twice} more than once")
    return Content(relation, dict(attributes), rows, numbers, is_sparse)


def _attribute(text: str) -> tuple[str, tuple[str, ...] | str]:
    match = _NAME.match(text)
    name, kind = (None, text) if match is None else (_text(match), text[match.end() :])
    if name is None:
        raise ValueError(f"expected the name of an attribute, got {text[:40]!r}")
    if _NUMBER.fullmatch(kind):
        return name, NUMERIC
    if kind.startswith("{"):
        values = [_text(each) for each in _fields(_DECLARED, kind, 1)]
        if not {"", None}.isdisjoint(values) or len({*values}) < len(values):
            raise ValueError(f"attribute {name!r}: expected distinct values in braces, got {kind[:40]!r}")
        return name, tuple(map(str, values))
    word = kind.partition(" ")[0].lower()
    if word not in (TEXT, DATE, RELATIONAL):
        kinds = "numeric, real, integer, string, date or values in braces"
        raise ValueError(f"attribute {name!r}: expected {kinds}, got {kind[:40]!r}")
    return name, word


def _row(text: str, count: int, is_sparse: bool) -> list[str | None] | dict[int, str | None]:
    if text.startswith("{") != is_sparse:
        raise ValueError(f"expected a row {'in' if is_sparse else 'without'} braces, like the first row")
    if is_sparse:
        is_empty = text[1:].lstrip().startswith("}")
        pairs = [] if is_empty else [(int(each["index"]), _text(each)) for each in _fields(_STORED, text, 1)]
        row = dict(pairs)
        if len(row) < len(pairs) or any(index >= count for index in row):
            raise ValueError(
                f"expected distinct indices from 0 to {count - 1}, got {[at for at, _ in pairs]}"
            )
        values = [*row.values()]
    else:
        separated = text if "," in text else text.replace("\t", ",")
        if any(sign in text for sign in "'\"%"):
            row = values = [_text(each) for each in _fields(_VALUE, separated, 0)]
        else:
            row = values = [None if part == "?" else part for part in map(str.strip, separated.split(","))]
        if len(values) != count:
            raise ValueError(f"expected {count} values, got {len(values)}")
    if "" in values:
        raise ValueError("expected values between commas, got an empty value")
    return row


def _fields(pattern: re.Pattern[str], text: str, place: int) -> Iterator[Any]:
    """Yield the matches of values between commas, up to a comment, a brace or the end of the text."""
    while True:
        match = pattern.match(text, place)
        if match is None:
            raise ValueError(f"expected values between commas, got {text[place:][:40]!r}")
        yield match
        place = match.end()
        if match["end"] != ",":
            break
    if match["end"] == "}" and not _AFTER.fullmatch(text, place):
        raise ValueError(f"expected the end of the line, got {text[place:][:40]!r}")


def _text(match: Any) -> str | None:
    """Return a value without quotes and escapes; None for an unquoted question mark."""
    if (bare := match["bare"]) is not None:
        return None if bare.strip() == "?" else bare.strip()
    quoted = match["one"] if match["one"] is not None else match["two"]
    return re.sub(r"\\(.)", lambda escaped: _ESCAPED.get(escaped[1], escaped[1]), quoted, flags=re.DOTALL)
