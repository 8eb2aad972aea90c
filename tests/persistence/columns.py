"""Small files of tokens."""

from __future__ import annotations

import numpy as np


def sentences(count: int, seed: int) -> str:
    """Sentences of two tags, one token a line."""
    random, lines = np.random.default_rng(seed), []
    for _ in range(count):
        lines += [f"{random.choice(['a', 'b'])} {random.choice(['B-NP', 'O'])}" for _ in range(4)]
        lines.append("")
    return "\n".join(lines) + "\n"
