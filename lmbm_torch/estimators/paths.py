"""The state that a fit leaves to the next one on the same instances with a larger C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Path:
    """The way along which estimators are fitted by ``fit_along``, each from the last one's solution.

    Attributes:
        C: of the last one.
        state: its solver's last state.
        ordering: of a network's labels.
        known: what kernel networks have in common.
    """

    C: float | None = None
    state: Any = None
    ordering: np.ndarray | None = None
    known: Any = None

    def duals(self, problem: Any, C: float) -> np.ndarray | None:
        """The last duals, scaled to the box for another C; None where there are none yet."""
        if self.state is None or self.C is None:
            return None
        return np.minimum(self.state.dual_coef * (C / self.C), problem.upper)
