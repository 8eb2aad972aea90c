"""Columns of free text as features: tf-idf of the words in training rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csc_array

from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.columns import NamedColumn, as_texts
from lmbm_torch.extras import naming_extras

MAX_TERMS = 50_000
"""Number of the most frequent words of a column that are kept."""


@dataclass(frozen=True)
class TextColumn(NamedColumn):
    """A column of texts, as ``TfidfVectorizer`` of scikit-learn takes texts; a missing text has no words.

    Args:
        name: of the column.
        terms: words, one feature each.
        idf: inverse document frequency of each word in the training rows.
    """

    kind: ClassVar[str] = "texts"
    name: str
    terms: tuple[str, ...]
    idf: tuple[float, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}:{term}" for term in self.terms)

    def features(self, values: np.ndarray, unknown: list[str], sparse: bool) -> Features:
        """Return tf-idf of the texts, ``(rows, terms)``, float64, rows of norm 1; other words are left out.

        Args:
            unknown: ignored: new words are common in new texts.
        """
        found = self._vectoriser.transform([text or "" for text in as_texts(values)])
        return csc_array(found) if sparse else found.toarray()

    @cached_property
    def _vectoriser(self) -> Any:
        vectoriser = _vectoriser(vocabulary=list(self.terms))
        vectoriser.idf_ = np.array(self.idf)
        return vectoriser


def fit_text_column(name: str, values: np.ndarray) -> TextColumn:
    """Return the column of words occurring in at least two rows.

    Raises:
        ValueError: there is no such word.
    """
    texts = [text or "" for text in as_texts(values)]
    try:
        vectoriser = _vectoriser(min_df=2, max_features=MAX_TERMS).fit(texts)
    except ValueError as error:
        raise ValueError(
            f"column {name!r}: expected texts with words that occur in two rows, got none"
        ) from error
    return TextColumn(
        name, tuple(vectoriser.get_feature_names_out().tolist()), tuple(vectoriser.idf_.tolist())
    )


def _vectoriser(**options: Any) -> Any:
    with naming_extras():
        from sklearn.feature_extraction.text import TfidfVectorizer
    return TfidfVectorizer(dtype=np.float64, **options)
