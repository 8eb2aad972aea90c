"""Indicators of the words and part-of-speech tags around each token."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from lmbm_torch.shapes import Float, Int

WORD_TEMPLATES = ((-2,), (-1,), (0,), (1,), (2,), (-1, 0), (0, 1))
TAG_TEMPLATES = (
    *((-2,), (-1,), (0,), (1,), (2,)),
    *((-2, -1), (-1, 0), (0, 1), (1, 2)),
    *((-2, -1, 0), (-1, 0, 1), (0, 1, 2)),
)
"""The neighbours that a feature looks at together, as is usual for text chunking."""


def window_features(
    words: Int[np.ndarray, " tokens"],
    tags: Int[np.ndarray, " tokens"],
    start: Int[np.ndarray, " sentences_and_one"],
    word_names: np.ndarray,
    tag_names: np.ndarray,
    num_train: int,
) -> tuple[Float[csr_array, "tokens features"], tuple[str, ...]]:
    """One indicator for each template and each value of it in the training part, CSR float64; their names.

    Beyond a sentence's ends there is a word and a tag of their own. A value that does not occur in the
    training part has no column, so that a token of the test part may have fewer features than there are
    templates.

    Args:
        words: indices into ``word_names``; tags: into ``tag_names``.
        start: where each sentence's tokens begin, and the number of tokens.
        num_train: the first so many sentences are the training part.
    """
    lengths = np.diff(start)
    position = np.arange(start[-1]) - np.repeat(start[:-1], lengths)
    length = np.repeat(lengths, lengths)
    in_training = np.arange(len(words)) < start[num_train]
    columns, names, width = [], [], 0
    for kind, codes, known, templates in (
        ("word", words, word_names, WORD_TEMPLATES),
        ("tag", tags, tag_names, TAG_TEMPLATES),
    ):
        spelt = [*map(str, known), "<none>"]
        for template in templates:
            around = np.stack([_shifted(codes, offset, position, length, len(known)) for offset in template])
            keys = np.asarray(np.ravel_multi_index(tuple(around), (len(spelt),) * len(template)))
            seen, first = np.unique(keys[in_training], return_index=True)
            place = np.searchsorted(seen, keys).clip(max=len(seen) - 1)
            columns.append(np.where(seen[place] == keys, width + place, -1))
            prefix = f"{kind}[{','.join(map(str, template))}]="
            names += [prefix + "|".join(spelt[code] for code in around[:, each]) for each in first.tolist()]
            width += len(seen)
    every = np.stack(columns, 1)
    present = every >= 0
    offsets = np.concatenate([[0], present.sum(1).cumsum()])
    features = csr_array((np.ones(present.sum()), every[present], offsets), shape=(len(words), width))
    return features, tuple(names)


def _shifted(
    codes: np.ndarray, offset: int, position: np.ndarray, length: np.ndarray, outside: int
) -> np.ndarray:
    """The code ``offset`` tokens on, ``outside`` where that is beyond the sentence."""
    inside = (position + offset >= 0) & (position + offset < length)
    return np.where(inside, np.roll(codes, -offset), outside)
