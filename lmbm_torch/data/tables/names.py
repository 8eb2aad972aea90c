"""Names of columns, by patterns, and words for missing values.

No import of torch is needed, so that commands can check names of columns at once.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

MISSING = frozenset(
    ("", "?", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>")
) | {"N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "#NV"}
"""Texts that stand for a missing value in a CSV file: those of pandas, the question mark and Excel's #NV."""


def matching(argument: str, patterns: str | Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names that match any of ``patterns`` (``tag_*``), in the order of the patterns.

    Raises:
        ValueError: a pattern without a match; the message suggests similar names.
    """
    found: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        # A name may contain wildcard characters.
        matches = [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            close = difflib.get_close_matches(pattern, names) or list(names[:10])
            raise ValueError(
                f"{argument}: expected names of columns, got {pattern!r} without a match; "
                f"the table has {close}"
            )
        found += [name for name in matches if name not in found]
    return found


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError for columns without a name, or of the same name."""
    if not names:
        raise ValueError("expected a first line of column names, got none")
    if nameless := [place for place, name in enumerate(names) if not name]:
        raise ValueError(
            f"expected a name for every column, got none for {nameless} (0 is the first), as for "
            "an index column"
        )
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"expected each column name once, got {twice} more than once")
