"""Examples shared out to threads, which end together and hear Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from lmbm_torch.backends.threads import share, stoppable

_BLOCKS_PER_THREAD = 8


def by_rows(batch: int, work: Callable[[int, int, np.ndarray], None]) -> None:
    """Call ``work(first, last, stop)`` for examples ``first`` up to ``last``, until ``stop[0]`` is set."""
    size = max(1, -(-batch // (_BLOCKS_PER_THREAD * torch.get_num_threads())))

    def of_all(stop: np.ndarray) -> None:
        share(range(0, batch, size), lambda first: work(first, min(first + size, batch), stop))

    stoppable(of_all)
