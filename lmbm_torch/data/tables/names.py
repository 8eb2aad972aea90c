"""Names of columns, by patterns, and texts of cells that are missing values, booleans or numbers.

No import of torch is needed, so that commands can check columns at once.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    # The module of shapes imports torch.
    from lmbm_torch.shapes import Float

MISSING = frozenset(
    ("", "?", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>")
) | {"N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "#NV"}
"""Texts that stand for a missing value in a CSV file: those of pandas, the question mark and Excel's #NV."""
BOOLEANS = {"true": "1", "false": "0"}
"""Booleans in files, in small letters, and the numbers that stand for booleans of data frames."""
SHOWN = 5
"""Number of strange values that a message shows."""


def matching(argument: str, patterns: str | Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names that match any of ``patterns`` (``tag_*``), in the order of the patterns.

    Raises:
        ValueError: a pattern matches no name; the message suggests similar names.
    """
    found: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        # A name may itself contain wildcard characters, so equality is tried first.
        matches = [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            close = difflib.get_close_matches(pattern, names) or list(names[:10])
            raise ValueError(
                f"{argument}: expected names or patterns of columns, got {pattern!r}, which fits no column; "
                f"the table has {close}"
            )
        found += [name for name in matches if name not in found]
    return found


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError if a column has no name, or two columns have the same name."""
    if not names:
        raise ValueError("expected a first line of column names, got none")
    if nameless := [place for place, name in enumerate(names) if not name]:
        raise ValueError(
            f"expected a name for every column, got none for {nameless} (0 is the first; is it an index?)"
        )
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"expected each column name once, got {twice} more than once")


def as_numbers(texts: Sequence[str | None], decimal_comma: bool = False) -> np.ndarray:
    """Convert texts to numbers and None to NaN if all texts are numbers; else return the texts as objects.

    ``1_2`` is a text here, although Python reads ``1_2`` as a number.

    Args:
        decimal_comma: whether ``1,5`` is also a number, in a column without decimal points.
    """
    try:
        return np.array([np.nan if text is None else float(text.replace("_", "?")) for text in texts])
    except ValueError:
        known = [text for text in texts if text is not None]
        if decimal_comma and any("," in text for text in known) and not any("." in text for text in known):
            numbers = as_numbers([None if text is None else text.replace(",", ".") for text in texts])
            # If all texts are numbers with decimal commas, return the numbers.
            if numbers.dtype != object:
                return numbers
        return as_booleans(texts)


def as_booleans(texts: Sequence[str | None]) -> np.ndarray:
    """Convert booleans to 1 and 0, NaN for None, if all texts are booleans; else return the texts."""
    words = [None if text is None else text.lower() for text in texts]
    if not BOOLEANS.keys() >= {*words} - {None} > set():
        return np.array(texts, dtype=object)
    return np.array([np.nan if word is None else float(BOOLEANS[word]) for word in words])


def written_numbers(texts: Sequence[str]) -> dict[str, float]:
    """Return the numbers among texts in the forms of printed tables: ``1 000``, ``1,234.5``, ``50%`` (0.5).

    A comma separates thousands (``1,234``). If more texts are numbers with the comma as decimal sign
    (``1.234,5``), all texts are read in this way.
    """
    found: dict[str, float] = {}
    for thousands, decimal in ((",", "."), (".", ",")):
        group = rf"\d{{1,3}}(?:[\s'{thousands}]\d{{3}})+"
        form = re.compile(rf"([+-]?(?:\d+|{group})(?:\{decimal}\d+)?)(\s?%)?")
        read = {}
        for text in texts:
            if (match := form.fullmatch(text)) is not None:
                digits = re.sub(rf"[\s'{thousands}]", "", match[1]).replace(decimal, ".")
                read[text] = float(digits) / (100 if match[2] else 1)
        if len(read) > len(found):
            found = read
    return found


def split_numbers(values: np.ndarray) -> tuple[Float[np.ndarray, " rows"], list[str]]:
    """Return texts as numbers with NaN for words, and the sorted distinct words."""
    numbers, odd = np.full(len(values), np.nan), {}
    for row, text in enumerate(values.tolist()):
        if text is not None:
            try:
                numbers[row] = float(text.replace("_", "?"))
            except ValueError:
                odd[text] = True
    return numbers, list(odd)


def numbers_of(name: str, values: np.ndarray, written: bool, notes: list[str]) -> np.ndarray | None:
    """Return a column of mostly numbers as numbers, NaN for words; None for a column of other texts.

    Args:
        name: of the column.
        values: texts, None where missing.
        written: take numbers as readers write them, and words for missing, instead of an error.
        notes: gets a sentence about words among numbers.

    Raises:
        ValueError: words among numbers, unless ``written``.
    """
    numbers, odd = split_numbers(values)
    read = written_numbers(odd)
    known = np.isin(values, [*read]) | ~np.isnan(numbers)
    count = sum(text is not None for text in values.tolist())
    if not odd or 2 * int(known.sum()) <= count:
        return None if odd else numbers
    strange = [text for text in odd if text not in read]
    shown = [*strange, *read][:SHOWN]
    if not written:
        rows = count - int((~np.isnan(numbers)).sum())
        raise ValueError(
            f"column {name!r}: expected numbers, got texts such as {shown} in {rows} of {len(values)} rows; "
            "odd_numbers='coerce' reads 1 000, 1,234 and 50% as numbers and other texts as missing; if the "
            "column is named in categorical, each text becomes a category"
        )
    for text, number in read.items():
        numbers[values == text] = number
    if strange:
        notes.append(f"column {name!r}: texts such as {strange[:SHOWN]} among numbers are missing")
    return numbers
