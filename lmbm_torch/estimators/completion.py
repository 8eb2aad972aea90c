"""Learning from incomplete labels by models that have no order to impute them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lmbm_torch.estimators.paths import Path
from lmbm_torch.estimators.targets import known_tensor
from lmbm_torch.fitting.completion import learn_along
from lmbm_torch.inference.results import Decoding


class CompletingMixin:
    """A classifier that is learned from its own predictions of missing labels, given those that are known.

    The first are a sigmoid belief network's (:mod:`lmbm_torch.fitting.completion`); the classifier is learned
    anew until its predictions stay, four times at most. Under ``constraints`` these obey them, but for
    instances whose known labels break one.
    """

    _decode: Callable[..., Decoding]
    _energy: Any
    _rules: Any
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
        if not np.isnan(labels).any():
            return learn(path, labels)
        return learn_along(
            self._scaled(X, sample_weight),
            labels,
            lambda complete: learn(Path(), complete),
            lambda rows: self._completed(self._energy(X[rows]), labels[rows]),
            C=self.C_,
            sample_weight=sample_weight,
            seed=self._seed(),
        )

    def _completed(self, energy: Any, labels: np.ndarray) -> np.ndarray:
        """What this classifier predicts given the labels that are known, allowed wherever these are."""
        known: Any = known_tensor(labels, energy)
        rules = self._rules()
        found = self._decode(energy, known).labels.cpu().numpy()
        if rules is None:
            return found
        broken = np.flatnonzero(rules.violated(found).any(1)).tolist()
        rows = [row for row in broken if rules.leaves_any(labels[row])]
        if rows:
            part = torch.tensor(rows, device=energy.device)
            allowed = self._decode(energy.select(part), known[part], rules=rules)
            found[rows] = allowed.labels.cpu().numpy()
        return found
