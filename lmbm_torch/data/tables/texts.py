"""Features of columns of free text: tf-idf of words or characters, and embeddings of pretrained models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csc_array, hstack

from lmbm_torch.checks import is_missing
from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.columns import NamedColumn, as_texts
from lmbm_torch.data.tables.embedding_cache import EmbeddingCache, platform_folder
from lmbm_torch.data.tables.pretrained import TEXT_LIBRARIES, parse, pretrained
from lmbm_torch.extras import naming_extras

MAX_TERMS = 50_000
"""Number of the most frequent terms of a column that are kept."""
# Options of TfidfVectorizer for words, for words and pairs of neighbouring words, and for characters. A group
# of characters must occur in five rows, because too many groups occur in two rows.
TFIDF: dict[str, dict[str, Any]] = {
    "tfidf": {"min_df": 2},
    "phrases": {"min_df": 2, "ngram_range": (1, 2), "sublinear_tf": True},
    "characters": {"min_df": 5, "analyzer": "char_wb", "ngram_range": (2, 5), "sublinear_tf": True},
}


@dataclass(frozen=True)
class TextColumn(NamedColumn):
    """A column of texts, encoded as by ``TfidfVectorizer`` of scikit-learn; a missing text has no terms.

    Args:
        name: name of the column.
        terms: words or groups of characters, with one feature for each.
        idf: inverse document frequency of each term in the training rows.
        encoder: a key of :data:`TFIDF`.
    """

    kind: ClassVar[str] = "texts"
    name: str
    terms: tuple[str, ...]
    idf: tuple[float, ...]
    encoder: str = "tfidf"

    def __post_init__(self) -> None:
        if self.encoder not in TFIDF:
            raise ValueError(f"encoder: expected one of {list(TFIDF)}, got {self.encoder!r}")

    @property
    def feature_names(self) -> tuple[str, ...]:
        between = ":" if self.encoder == "tfidf" else f":{self.encoder}:"
        return tuple(f"{self.name}{between}{term}" for term in self.terms)

    def features(self, values: np.ndarray, unknown: list[str], sparse: bool) -> Features:
        """Return tf-idf of the texts, ``(rows, terms)``, float64, rows of norm 1; unknown terms are ignored.

        Args:
            unknown: not used, because new words are common in new texts.
        """
        found = self._vectoriser.transform([text or "" for text in as_texts(values)])
        return csc_array(found) if sparse else found.toarray()

    @cached_property
    def _vectoriser(self) -> Any:
        options = {name: value for name, value in TFIDF[self.encoder].items() if name != "min_df"}
        vectoriser = _vectoriser(vocabulary=list(self.terms), **options)
        vectoriser.idf_ = np.array(self.idf)
        return vectoriser


@dataclass(frozen=True)
class EmbeddedColumn(NamedColumn):
    """A column of texts, encoded by a pretrained model; the features of a missing text are 0.

    Args:
        name: name of the column.
        encoder: the pretrained model.
        cache: folder that keeps embeddings, not saved with the column; None for no cache.
    """

    kind: ClassVar[str] = "texts"
    name: str
    encoder: Any
    cache: str | None = field(default=None, compare=False)

    def stored_parts(self) -> dict[str, Any]:
        """Return name and encoder; the folder of the cache is not saved, because other computers lack it."""
        return {"name": self.name, "encoder": self.encoder}

    @property
    def feature_names(self) -> tuple[str, ...]:
        count = self.encoder.num_features
        return tuple(f"{self.name}:{self.encoder.title}_{place}" for place in range(count))

    def features(self, values: np.ndarray, unknown: list[str], sparse: bool) -> Features:
        """Return the embeddings, see :class:`NamedColumn`."""
        known = np.flatnonzero(~is_missing(values))
        contents = [text.encode() for text in as_texts(values[known]) if text is not None]
        found = np.zeros((len(values), self.encoder.num_features))
        found[known] = EmbeddingCache(self.encoder, self.cache).embed(contents)
        return csc_array(found) if sparse else found


@dataclass(frozen=True)
class JoinedColumn(NamedColumn):
    """A column of texts with the features of several encoders.

    Args:
        name: name of the column.
        parts: an encoded column for each encoder.
    """

    kind: ClassVar[str] = "texts"
    name: str
    parts: tuple[TextColumn | EmbeddedColumn, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.feature_names)

    def features(self, values: np.ndarray, unknown: list[str], sparse: bool) -> Features:
        """Return the features of all parts, see :class:`NamedColumn`."""
        found = [part.features(values, unknown, sparse) for part in self.parts]
        return hstack(found, format="csc") if sparse else np.hstack(found)


def check_text_encoders(encoders: str | Sequence[str]) -> list[str]:
    """Check the names of text encoders, and return them as a list.

    Raises:
        ValueError: there is no encoder, or an encoder is repeated or unknown.
    """
    found = [encoders] if isinstance(encoders, str) else [*encoders]
    if not found or len({*found}) < len(found):
        raise ValueError(f"text_encoder: expected one or more distinct encoders, got {found}")
    for each in found:
        if each not in TFIDF:
            parse(each, TEXT_LIBRARIES, TFIDF)
    return found


def fit_text_column(
    name: str, values: np.ndarray, encoders: str | Sequence[str] = "tfidf", cache: str | None = None
) -> NamedColumn:
    """Return the column of texts with fitted encoders.

    Args:
        encoders: a key of :data:`TFIDF`, ``"sentence:NAME"`` or ``"hf:NAME"``, or several of these.
        cache: folder that keeps embeddings; None for the platform's folder of caches.

    Raises:
        ValueError: no word occurs in two rows, or :func:`check_text_encoders` raises it.
    """
    found = check_text_encoders(encoders)
    parts = [
        _of_terms(name, values, each)
        if each in TFIDF
        else EmbeddedColumn(name, pretrained(each, TEXT_LIBRARIES), str(cache or platform_folder()))
        for each in found
    ]
    return parts[0] if len(parts) == 1 else JoinedColumn(name, tuple(parts))


def is_sparse(column: NamedColumn) -> bool:
    """Return whether most features of the column are 0 in most rows."""
    return any(isinstance(each, TextColumn) for each in getattr(column, "parts", (column,)))


def _of_terms(name: str, values: np.ndarray, encoder: str) -> TextColumn:
    texts = [text or "" for text in as_texts(values)]
    try:
        vectoriser = _vectoriser(max_features=MAX_TERMS, **TFIDF[encoder]).fit(texts)
    except ValueError as error:
        terms = "characters that occur in five" if encoder == "characters" else "words that occur in two"
        raise ValueError(f"column {name!r}: expected texts with {terms} rows, got no such texts") from error
    terms, idf = vectoriser.get_feature_names_out().tolist(), vectoriser.idf_.tolist()
    return TextColumn(name, tuple(terms), tuple(idf), encoder)


def _vectoriser(**options: Any) -> Any:
    with naming_extras():
        from sklearn.feature_extraction.text import TfidfVectorizer
    return TfidfVectorizer(dtype=np.float64, **options)
