"""Shared by benchmarks of texts: words by Zipf's law, hashed to columns, and labels that they decide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

# Knuth's, of multiplicative hashing.
HASH = 2654435761


def drawn(random: np.random.Generator, count: int, words: int) -> np.ndarray:
    """Return words (count, words), whole numbers of which small ones are frequent."""
    return random.zipf(1.3, size=(count, words)) % 2**40


def hashed(words: np.ndarray, columns: int) -> sparse.csr_array:
    """Return how often each of ``columns`` is hit by the words of each row, CSR."""
    places = (np.repeat(np.arange(len(words)), words.shape[1]), ((words * HASH) % columns).ravel())
    return sparse.csr_array((np.ones(words.size), places), shape=(len(words), columns))


def multiples(words: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Return labels (count, labels): label k is on for the share of rows with most multiples of k + 2."""
    counts = [(words % (2 + label) == 0).sum(1) for label in range(len(shares))]
    labels = [each > np.quantile(each, 1 - share) for each, share in zip(counts, shares, strict=True)]
    return np.column_stack(labels).astype(int)
