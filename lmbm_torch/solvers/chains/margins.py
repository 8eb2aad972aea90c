"""Max-margin Markov networks of long chains, for :mod:`~lmbm_torch.solvers.structural.smoothing`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmbm_torch.checks import check_positive
from lmbm_torch.solvers.chains.likelihood import LinearChains
from lmbm_torch.solvers.chains.problems import best_labels
from lmbm_torch.solvers.structural.linear import Curvature
from lmbm_torch.solvers.structural.smoothing import MarginProblem


@dataclass(frozen=True, eq=False)
class ChainMargins(LinearChains, MarginProblem):
    """min_w ½‖w‖² + Σ_x C_x max_y [Hamming(y_x, y) + score(x, y) − score(x, y_x)], that of Frank–Wolfe.

    Args are those of :class:`~.likelihood.LinearChains`, and

    Args:
        coupling_penalty: η > 0, multiplies the transitions' squares.

    Raises:
        ValueError: see :class:`~.likelihood.LinearChains`; a penalty not above zero.
    """

    coupling_penalty: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("coupling_penalty", self.coupling_penalty)

    def losses_at(self, flat: np.ndarray, temperature: float) -> tuple[float, np.ndarray, np.ndarray]:
        """See :meth:`MarginProblem.losses_at`."""
        return self.losses(self._augmented(self.scores(flat), 1 / temperature), self.transition(flat))

    def hinges(self, flat: np.ndarray) -> float:
        """See :meth:`MarginProblem.hinges`."""
        scores = self._augmented(self.scores(flat), 1.0)
        _, hinges = best_labels(scores, self.transition(flat), self.lengths, self.labels)
        return float(self.upper @ np.maximum(hinges, 0.0))

    def expected_loss(self, errors: np.ndarray) -> float:
        """See :meth:`MarginProblem.expected_loss`."""
        # Of the true label, −C (1 − its marginal).
        return -float(errors[np.arange(len(errors)), self.labels].sum())

    def curvature_at(self, flat: np.ndarray, temperature: float) -> Curvature:
        """See :meth:`MarginProblem.curvature_at`."""
        _, errors, pairs = self.losses_at(flat, temperature)
        return self.curvature_of(errors, pairs, self.coupling_penalty)

    def _augmented(self, scores: np.ndarray, loss: float) -> np.ndarray:
        """Scores (positions, states) larger by ``loss`` for each wrong label."""
        augmented = scores + loss
        augmented[np.arange(len(scores)), self.labels] -= loss
        return augmented
