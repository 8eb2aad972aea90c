"""Indicators of the values around each position of sequences, such as of words and part-of-speech tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Float, Int

Template = tuple[int, ...]
"""The neighbours in a feature, by distance from the position."""

WORD_TEMPLATES: tuple[Template, ...] = ((-2,), (-1,), (0,), (1,), (2,), (-1, 0), (0, 1))
TAG_TEMPLATES: tuple[Template, ...] = (
    *((-2,), (-1,), (0,), (1,), (2,)),
    *((-2, -1), (-1, 0), (0, 1), (1, 2)),
    *((-2, -1, 0), (-1, 0, 1), (0, 1, 2)),
)
"""Templates usual for text chunking."""


@dataclass(frozen=True, eq=False)
class Windows(Stored):
    """Features that indicate the values around a position, such as the previous and the current word.

    A template is a tuple of relative positions, such as ``(-1, 0)``. For each template and each combination
    of values in the training part there is one indicator. Positions beyond the ends of a sequence have a
    special value. Combinations that are not in the training part have no indicator.

    Args:
        columns: names of the columns.
        values: distinct values of each column.
        templates: templates of each column.
        seen: for each template of each column, the ascending keys of the combinations with an indicator.
    """

    columns: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    templates: tuple[tuple[Template, ...], ...]
    seen: tuple[Int[np.ndarray, " values"], ...]

    @classmethod
    def of(
        cls,
        columns: Sequence[str],
        values: Sequence[Sequence[str]],
        templates: Sequence[Sequence[Template]],
        codes: Sequence[Int[np.ndarray, " positions"]],
        start: Int[np.ndarray, " sequences_and_one"],
    ) -> Windows:
        """Return the windows of a training part.

        Args:
            codes: for each column, indices into ``values``.
            start: the first position of each sequence, then the number of positions.
        """
        empty = cls(
            tuple(columns),
            tuple(tuple(map(str, each)) for each in values),
            tuple(tuple(tuple(template) for template in each) for each in templates),
            (),
        )
        seen = tuple(np.unique(keys) for keys in empty._keys(codes, start))
        return cls(empty.columns, empty.values, empty.templates, seen)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the features, such as ``word[-1,0]=of|the``."""
        found = []
        for (column, template), keys in zip(self._each(), self.seen, strict=True):
            spelt = [*self.values[column], "<none>"]
            prefix = f"{self.columns[column]}[{','.join(map(str, template))}]="
            around = np.unravel_index(keys, (len(spelt) + 1,) * len(template))
            rows = np.stack(around, 1).tolist()
            found += [prefix + "|".join(spelt[code] for code in row) for row in rows]
        return tuple(found)

    def encode(self, column: int, texts: Sequence[str]) -> Int[np.ndarray, " positions"]:
        """Return the codes of values; a value that training did not have gets the number of values plus 1."""
        known = {text: code for code, text in enumerate(self.values[column])}
        return np.array([known.get(text, len(known) + 1) for text in texts], np.int64)

    def features(
        self, codes: Sequence[Int[np.ndarray, " positions"]], start: Int[np.ndarray, " sequences_and_one"]
    ) -> Float[csr_array, "positions features"]:
        """Return the indicators, CSR float64; for ``codes`` see :meth:`encode`, for ``start`` :meth:`of`."""
        places, width = [], 0
        for keys, seen in zip(self._keys(codes, start), self.seen, strict=True):
            place = np.searchsorted(seen, keys).clip(max=len(seen) - 1)
            places.append(np.where(seen[place] == keys, width + place, -1))
            width += len(seen)
        every = np.stack(places, 1)
        present = every >= 0
        offsets = np.concatenate([[0], present.sum(1).cumsum()])
        return csr_array((np.ones(present.sum()), every[present], offsets), shape=(len(every), width))

    def _each(self) -> Iterator[tuple[int, Template]]:
        """Yield the number of the column and the template, for each template of each column."""
        for column, templates in enumerate(self.templates):
            for template in templates:
                yield column, template

    def _keys(self, codes: Sequence[np.ndarray], start: np.ndarray) -> Iterator[np.ndarray]:
        """Yield, for each template, a key for each position, which encodes the values around the position."""
        lengths = np.diff(start)
        position = np.arange(start[-1]) - np.repeat(start[:-1], lengths)
        length = np.repeat(lengths, lengths)
        for column, template in self._each():
            outside, own = len(self.values[column]), codes[column]
            around = [_shifted(own, offset, position, length, outside) for offset in template]
            # Besides the values there are two codes: beyond the ends of the sequence, and unknown.
            yield np.asarray(np.ravel_multi_index(around, (outside + 2,) * len(template)))


def _shifted(
    codes: np.ndarray, offset: int, position: np.ndarray, length: np.ndarray, outside: int
) -> np.ndarray:
    """Return the code of the token ``offset`` tokens later; ``outside`` beyond the ends of the sentence."""
    inside = (position + offset >= 0) & (position + offset < length)
    return np.where(inside, np.roll(codes, -offset), outside)
