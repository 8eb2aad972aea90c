"""Text of ARFF files: relation, attributes and rows, in the notation of Weka.

No import of torch is needed, so that commands can check names of attributes at once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmbm_torch.incoming import lines

_QUOTED = r"""'(?P<one>(?:[^'\\]|\\.)*)'|"(?P<two>(?:[^"\\]|\\.)*)\""""
_NAME = re.compile(rf"\s*(?:{_QUOTED}|(?P<bare>[^\s{{%]+))\s*(?P<rest>.*)", re.DOTALL)
# A value and what ends it: a comma, a comment or the end of the line; within braces a brace.
_VALUE = re.compile(rf"""\s*(?:{_QUOTED}|(?P<bare>(?!['"])[^,%]*))\s*(?P<end>,|%|$)""")
_IN_BRACES = re.compile(rf"""\s*(?:{_QUOTED}|(?P<bare>(?!['"])[^,%}}]*))\s*(?P<end>,|\}})""")
_INDEX = re.compile(r"\s*(\d{1,9})\s+")
_AFTER = re.compile(r"\s*(%.*)?$", re.DOTALL)
# INTEGER [0,9] of older files has a range.
_NUMBER = re.compile(r"(numeric|real|integer)\s*(\[[^\]]*\])?\s*(%.*)?$", re.IGNORECASE | re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
TEXT, DATE, RELATIONAL = "string", "date", "relational"
"""Kinds of attributes, besides ``numeric`` and declared values."""


@dataclass(frozen=True)
class Attribute:
    """A column of an ARFF file.

    Args:
        name: without quotes.
        kind: ``numeric``, ``nominal`` or one of the constants of this module.
        values: the declared values of a nominal attribute.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Content:
    """The content of an ARFF file.

    Args:
        relation: the name, with MEKA's options.
        attributes: the columns.
        rows: a list by attribute, or in a sparse file a dictionary of the stored values; None for a missing
            value.
        lines: the line number of each row.
        is_sparse: whether the rows stand in braces.
    """

    relation: str
    attributes: list[Attribute]
    rows: list[Any]
    lines: list[int]
    is_sparse: bool

    def column(self, number: int) -> list[str | None]:
        """Return the values of an attribute in all rows of a dense file."""
        return [row[number] for row in self.rows]

    def codes(self, number: int, values: Iterable[str | None], lines: Iterable[int]) -> Iterator[float]:
        """Yield numbers of an attribute, the positions of nominal values, NaN for missing values.

        Args:
            values: some values of the attribute.
            lines: the line number of each value.

        Raises:
            ValueError: a text that is no number, or an undeclared value; the message names the line.
        """
        attribute = self.attributes[number]
        known = {value: float(place) for place, value in enumerate(attribute.values)}
        for value, line in zip(values, lines, strict=True):
            try:
                if value is None:
                    yield math.nan
                else:
                    yield known[value] if known else float(value.replace("_", "?"))
            except (KeyError, ValueError):
                wanted = f"one of {[*attribute.values]}" if known else "a number"
                raise ValueError(
                    f"line {line}: attribute {attribute.name!r}: expected {wanted}, got {value!r}"
                ) from None


def read(file: Path, *, header_alone: bool = False) -> Content:
    """Read an ARFF file.

    Args:
        header_alone: leave out the rows but the first one.

    Raises:
        ValueError: no valid ARFF; the message names the line.
    """
    relation, attributes, is_data, is_sparse = "", [], False, False
    rows: list[Any] = []
    places: list[int] = []
    with lines(file) as found:
        for line in found:
            text = line.strip()
            if not is_data and text[:5].lower() == "@data" and text[5:6] in ("", " ", "\t", "%", "{"):
                is_data, text = True, text[5:].strip()
            if not text or text.startswith("%"):
                continue
            try:
                if is_data:
                    is_sparse = text.startswith("{") if not rows else is_sparse
                    rows.append(_row(text, len(attributes), is_sparse))
                    places.append(found.number)
                    if header_alone:
                        break
                elif (keyword := text.split(None, 1)[0].lower()) == "@relation":
                    match = _NAME.match(text[len(keyword) :])
                    is_bare = match is None or match["bare"] is not None
                    relation = text[len(keyword) :].strip() if is_bare else _text(match)
                elif keyword == "@attribute":
                    attributes.append(_attribute(text[len(keyword) :]))
                else:
                    raise ValueError(f"expected @relation, @attribute or @data, got {text[:40]!r}")
            except ValueError as error:
                raise ValueError(f"line {found.number}: {error}") from error
    if not is_data or not attributes:
        raise ValueError(f"expected {'attributes' if is_data else '@data'}, got none")
    counts = Counter(attribute.name for attribute in attributes)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"expected each attribute once, got {twice} more than once")
    return Content(relation, attributes, rows, places, is_sparse)


def _attribute(text: str) -> Attribute:
    match = _NAME.match(text)
    if match is None:
        raise ValueError(f"expected the name of an attribute, got {text[:40]!r}")
    name, kind = _text(match) or "", match["rest"]
    if kind.startswith("{"):
        values, place = [], 1
        while True:
            value = _IN_BRACES.match(kind, place)
            if value is None:
                raise ValueError(f"attribute {name!r}: expected values in braces, got {kind[:40]!r}")
            values.append(_text(value))
            place = value.end()
            if value["end"] == "}":
                break
        if not _AFTER.match(kind, place) or "" in values or None in values or len({*values}) < len(values):
            raise ValueError(f"attribute {name!r}: expected values in braces, each once, got {kind[:40]!r}")
        return Attribute(name, "nominal", tuple(map(str, values)))
    if _NUMBER.match(kind):
        return Attribute(name, "numeric")
    word = kind.split(None, 1)[0].lower() if kind else ""
    if word not in (TEXT, DATE, RELATIONAL):
        raise ValueError(
            f"attribute {name!r}: expected numeric, real, integer, string, date or values in braces, "
            f"got {kind[:40]!r}"
        )
    return Attribute(name, word)


def _row(text: str, count: int, is_sparse: bool) -> list[str | None] | dict[int, str | None]:
    if text.startswith("{") != is_sparse:
        raise ValueError(f"expected a row {'in' if is_sparse else 'without'} braces, as the first one is")
    if is_sparse:
        return _sparse_row(text, count)
    if not any(sign in text for sign in "'\"%\t"):
        values = [None if value == "?" else value for value in map(str.strip, text.split(","))]
    else:
        values = _values(text if "," in text else text.replace("\t", ","))
    if "" in values:
        raise ValueError("expected values between commas, got an empty value")
    if len(values) != count:
        raise ValueError(f"expected {count} values, got {len(values)}")
    return values


def _values(text: str) -> list[str | None]:
    values, place = [], 0
    while True:
        match = _VALUE.match(text, place)
        if match is None:
            raise ValueError(f"expected values between commas, got {text[place:][:40]!r}")
        values.append(_text(match))
        place = match.end()
        if match["end"] != ",":
            return values


def _sparse_row(text: str, count: int) -> dict[int, str | None]:
    values: dict[int, str | None] = {}
    place = 1
    if (empty := re.match(r"\{\s*\}", text)) is not None:
        place = empty.end()
    while place and text[place - 1] != "}":
        index = _INDEX.match(text, place)
        match = None if index is None else _IN_BRACES.match(text, index.end())
        value = None if match is None else _text(match)
        if index is None or match is None or value == "":
            raise ValueError(f"expected '{{index value, …}}', got {text[place:][:40]!r}")
        number = int(index[1])
        if number >= count or number in values:
            why = "once each" if number in values else f"from 0 to {count - 1}"
            raise ValueError(f"expected indices {why}, got {number}")
        values[number], place = value, match.end()
    if not _AFTER.match(text, place):
        raise ValueError(f"expected the end of the row, got {text[place:][:40]!r}")
    return values


def _text(match: Any) -> str | None:
    """Return a value without quotes and escapes; None for an unquoted question mark."""
    if match["bare"] is not None:
        bare = match["bare"].strip()
        return None if bare == "?" else bare
    quoted = match["one"] if match["one"] is not None else match["two"]
    return re.sub(r"\\(.)", lambda escaped: _ESCAPED.get(escaped[1], escaped[1]), quoted, flags=re.DOTALL)
