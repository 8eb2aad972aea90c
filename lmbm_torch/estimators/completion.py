"""Learning from incomplete labels by models that have no order to impute them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lmbm_torch.estimators.paths import Path
from lmbm_torch.estimators.targets import known_tensor
from lmbm_torch.fitting.completion import completed_labels
from lmbm_torch.inference.results import Decoding

# Fits, each to what the last one predicts for missing labels, that are made at most.
ROUNDS = 4


class CompletingMixin:
    """A classifier that is learned from its own predictions of missing labels, given those that are known.

    The first are a sigmoid belief network's (:mod:`lmbm_torch.fitting.completion`); the classifier is learned
    anew until its predictions stay, four times at most.
    """

    _decode: Callable[[Any, Any], Decoding]
    _energy: Any
    _scaled: Any
    _seed: Any
    C_: float

    def _learn_along(
        self,
        path: Path,
        learn: Callable[[Path, np.ndarray], None],
        X: Any,
        labels: np.ndarray,
        sample_weight: np.ndarray | None,
    ) -> None:
        """Call ``learn`` with complete labels, and the path that leads to their solution.

        Args:
            path: to what the labels as they are given make the problem; none leads to completed ones.
            labels: (instances, labels) in {0, 1}, NaN where missing.
        """
        rows = np.flatnonzero(np.isnan(labels).any(1))
        if not len(rows):
            return learn(path, labels)
        inputs = self._scaled(X, sample_weight)
        complete = completed_labels(inputs, labels, C=self.C_, sample_weight=sample_weight, seed=self._seed())
        for _ in range(ROUNDS):
            learn(Path(), complete)
            energy = self._energy(X[rows])
            again = complete.copy()
            again[rows] = self._decode(energy, known_tensor(labels[rows], energy)).labels.cpu().numpy()
            if (again == complete).all():
                break
            complete = again
        return None
