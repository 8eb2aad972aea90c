"""Features of tokens as dictionaries or texts, and the vocabulary that maps the features to columns.

The names of features are those of python-crfsuite: the attribute ``{"word": "Oslo"}`` is ``word:Oslo``.
"""

from __future__ import annotations

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

    A text counts 1 under its own name. In a dictionary, a text counts 1 under ``key:text``, a boolean 1 or 0
    and a number itself under ``key``, each text of a list 1 under ``key:text``, and the entries of a
    dictionary stand under ``key:entry``.

    Raises:
        ValueError: a value of another type, NaN or infinity.
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
    """The columns of token features.

    Args:
        names: of the columns, in order.
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, X: Sequence[Sequence[Any]], min_freq: int) -> TokenFeatures:
        """Return the features of the sequences with at least ``min_freq`` occurrences.

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
        """Return the features of stored names."""
        return cls(tuple(names))

    @cached_property
    def columns(self) -> dict[str, int]:
        """Return the column of each name."""
        return {name: column for column, name in enumerate(self.names)}

    def rows(self, X: Sequence[Sequence[Any]]) -> tuple[Any, np.ndarray, int]:
        """Return the features of all tokens, the starts of the sequences, and how many features were unknown.

        Returns:
            A CSR matrix (tokens, features) in canonical format, (sequences + 1,) first tokens, and a count.

        Raises:
            ValueError: a sequence without a token; see :func:`attributes`.
        """
        values: list[float] = []
        columns: list[int] = []
        ends, start, unknown = [0], [0], 0
        for number, tokens in enumerate(X):
            if not isinstance(tokens, (list, tuple)) or not tokens:
                raise ValueError(f"X: expected a list of tokens for sequence {number}, got {tokens!r:.40}")
            for token in tokens:
                unknown += self._add(token, "", columns, values)
                ends.append(len(columns))
            start.append(len(ends) - 1)
        shape = (len(ends) - 1, len(self.names))
        matrix = sparse.csr_array((np.asarray(values, dtype=np.float64), columns, ends), shape=shape)
        matrix.sum_duplicates()
        return matrix, np.asarray(start), unknown

    def _add(self, token: Any, prefix: str, columns: list[int], values: list[float]) -> int:
        """Add the columns and values of a token; return how many features were unknown.

        Texts, truth values and lists of texts, most features, are looked up without a call of their own.
        """
        unknown, find, found = 0, self.columns.get, []
        if type(token) is not dict:
            found = attributes(token, prefix)
        else:
            for key, value in token.items():
                kind = type(value)
                if kind is str:
                    texts: Any = (value,)
                elif kind is bool:
                    found.append((f"{prefix}{key}", float(value)))
                    continue
                elif kind is list:
                    texts = value
                elif kind is dict:
                    unknown += self._add(value, f"{prefix}{key}:", columns, values)
                    continue
                else:
                    found.extend(attributes({key: value}, prefix))
                    continue
                for text in texts:
                    if type(text) is not str:
                        found.extend(attributes({key: [text]}, prefix))
                        continue
                    column = find(f"{prefix}{key}:{text}")
                    if column is None:
                        unknown += 1
                    else:
                        columns.append(column)
                        values.append(1.0)
        for name, value in found:
            column = find(name)
            if column is None:
                unknown += 1
            else:
                columns.append(column)
                values.append(value)
        return unknown
