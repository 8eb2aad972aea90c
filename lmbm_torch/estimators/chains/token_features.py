"""Features of tokens as dictionaries or texts, and the vocabulary that maps the features to columns.

The names of features are those of python-crfsuite: the attribute ``{"word": "Oslo"}`` is ``word:Oslo``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from scipy import sparse

from lmbm_torch.persistence.stored import Stored

__all__: list[str] = []

# Stands for the column of a feature that was not seen in training.
UNKNOWN = -1
# Number of sequences converted at once: few enough for the lists of numbers to stay in the processor's cache.
_PART = 256


def are_tokens(X: Any) -> bool:
    """Return whether ``X`` is a list of sequences of dictionaries, texts or lists of texts."""
    if isinstance(X, np.ndarray) or not isinstance(X, Sequence) or not X:
        return False
    first = next((each for each in X if isinstance(each, (list, tuple)) and len(each)), None)
    if first is None:
        return False
    token = first[0]
    return isinstance(token, (Mapping, str)) or (
        isinstance(token, (list, tuple, set)) and all(isinstance(each, str) for each in token) and bool(token)
    )


def attributes(token: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the names and values of a token's features.

    A token that is a text is a feature of this name with value 1. In a dictionary, a text gives the feature
    ``key:text`` with value 1; a boolean or a number gives the feature ``key`` with value 1, 0 or the number;
    each text of a list gives ``key:text`` with value 1; the entries of a dictionary give ``key:entry``.

    Raises:
        ValueError: a value has an unknown type, or is NaN or infinite.
    """
    if isinstance(token, str):
        yield prefix + token, 1.0
    elif isinstance(token, Mapping):
        for key, value in token.items():
            name = f"{prefix}{key}"
            if isinstance(value, str):
                yield f"{name}:{value}", 1.0
            elif isinstance(value, (bool, np.bool_, Real)):
                number = float(value)
                if not np.isfinite(number):
                    raise ValueError(f"X: expected a finite number for the feature {name!r}, got {number}")
                yield name, number
            else:
                yield from attributes(value, f"{name}:")
    elif isinstance(token, (list, tuple, set, frozenset)):
        for each in sorted(token, key=str) if isinstance(token, (set, frozenset)) else token:
            if not isinstance(each, str):
                raise ValueError(f"X: expected texts in a list of features, got {type(each).__name__}")
            yield prefix + each, 1.0
    else:
        where = f" for the feature {prefix[:-1]!r}" if prefix else ""
        kinds = "a text, a number, a boolean, a list of texts or a dictionary"
        raise ValueError(f"X: expected {kinds}{where}, got {type(token).__name__}")


@dataclass(frozen=True)
class TokenFeatures(Stored):
    """The vocabulary of token features: a column for each feature name.

    Args:
        names: the feature name of each column.
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, X: Sequence[Sequence[Any]], min_freq: int) -> TokenFeatures:
        """Collect the features that occur in at least ``min_freq`` tokens of the sequences.

        Raises:
            ValueError: no feature is frequent enough; see :func:`attributes`.
        """
        counts = Counter(name for tokens in X for token in tokens for name, _ in attributes(token))
        names = sorted(name for name, count in counts.items() if count >= min_freq)
        if not names:
            raise ValueError(f"X: expected a feature in at least {min_freq} tokens (min_freq), got none")
        return cls(tuple(names))

    @classmethod
    def from_parts(cls, given: Any, *, names: Sequence[str]) -> TokenFeatures:
        """Build the vocabulary from names read from a file."""
        return cls(tuple(names))

    @cached_property
    def known(self) -> _Names:
        """Return the sorted names, with the column of each name, for look-ups."""
        order = sorted(range(len(self.names)), key=self.names.__getitem__)
        return _Names("", [self.names[column] for column in order], order)

    def rows(self, X: Sequence[Sequence[Any]]) -> tuple[Any, np.ndarray, int]:
        """Convert the tokens of all sequences to a matrix.

        Returns:
            A canonical CSR matrix (tokens, features), the sequences' first tokens, and the unknown features.

        Raises:
            ValueError: a sequence has no token, or a value is invalid, see :func:`attributes`.
        """
        parts = [self._part(X, first) for first in range(0, len(X), _PART)]
        values, columns, sizes, lengths, unknown = (np.concatenate(each) for each in zip(*parts, strict=True))
        ends = np.concatenate([[0], sizes.cumsum()])
        matrix = sparse.csr_array((values, columns, ends), shape=(len(sizes), len(self.names)))
        matrix.sum_duplicates()
        return matrix, np.concatenate([[0], lengths.cumsum()]), int(unknown.sum())

    def _part(self, X: Sequence[Sequence[Any]], first: int) -> tuple[np.ndarray, ...]:
        """Convert the next ``_PART`` sequences from ``first`` on; return values and columns of features.

        Further arrays are the tokens' numbers of features, the lengths, and (1,) the unknown features.
        """
        given: dict[int, float] = {}
        found: list[int] = []
        ends, lengths, known = [0], [], self.known
        for number, tokens in enumerate(X[first : first + _PART], first):
            if not isinstance(tokens, (list, tuple)) or not tokens:
                raise ValueError(f"X: expected a list of tokens for sequence {number}, got {tokens!r:.40}")
            for token in tokens:
                if type(token) is dict:
                    known.add(token, found, given)
                elif type(token) is list:
                    known.add_texts(token, found)
                else:
                    known.add_any(token, found, given)
                ends.append(len(found))
            lengths.append(len(tokens))
        columns, values = np.fromiter(found, np.int32, len(found)), np.ones(len(found))
        values[[*given]] = [*given.values()]
        is_known = columns != UNKNOWN
        before = np.concatenate([[0], is_known.cumsum()])
        unknown = len(found) - before[-1:]
        return values[is_known], columns[is_known], np.diff(before[ends]), np.asarray(lengths), unknown


class _Names(dict):
    """The feature names with a common prefix; the dictionary holds for each key the names under the key.

    Names are looked up without joining keys and texts, which would take most of the time of a prediction.

    Args:
        prefix: the common prefix of the names.
        rests: the names without the prefix, sorted.
        columns: the column of each name.
    """

    def __init__(self, prefix: str, rests: list[str], columns: list[int]) -> None:
        self.prefix, self.rests, self.columns = prefix, rests, columns
        self.found = _Columns(zip(rests, columns, strict=True))

    def __missing__(self, key: Any) -> _Names:
        begin = f"{key}:"
        # Names that begin with "key:" are sorted before "key;", because ";" is the character after ":".
        first, end = bisect_left(self.rests, begin), bisect_left(self.rests, f"{key};")
        rests = [rest[len(begin) :] for rest in self.rests[first:end]]
        found = _Names(self.prefix + begin, rests, self.columns[first:end])
        if rests and isinstance(key, str):
            self[key] = found
        return found

    def add(self, token: dict, columns: list[int], values: dict[int, float]) -> None:
        """Append the columns of a dictionary's features to ``columns``, −1 for an unknown feature.

        Args:
            values: filled with values except 1, by index in ``columns``; False adds no feature.

        Raises:
            ValueError: see :func:`attributes`.
        """
        for key, value in token.items():
            kind = type(value)
            if kind is str:
                columns.append(self[key].found[value])
            elif kind is dict:
                self[key].add(value, columns, values)
            elif kind is list:
                self[key].add_texts(value, columns)
            elif kind is bool and type(key) is str:
                if value:
                    columns.append(self.found[key])
            else:
                self.add_any({key: value}, columns, values)

    def add_any(self, token: Any, columns: list[int], values: dict[int, float]) -> None:
        """Append the columns of any token, with names by :func:`attributes`; see :meth:`add`."""
        for name, number in attributes(token, self.prefix):
            if number != 1:
                values[len(columns)] = number
            columns.append(self.found[name[len(self.prefix) :]])

    def add_texts(self, texts: list, columns: list[int]) -> None:
        """Append the columns of a token that is a list of texts; see :meth:`add`."""
        try:
            columns += map(self.found.__getitem__, texts)
        except TypeError as error:  # an entry without a hash
            raise ValueError(f"X: expected texts in a list of features, {error}") from error


class _Columns(dict):
    """A dictionary from names without prefix to columns; −1 for an unknown name."""

    def __missing__(self, text: Any) -> int:
        if not isinstance(text, str):
            raise ValueError(f"X: expected texts in a list of features, got {type(text).__name__}")
        return UNKNOWN
