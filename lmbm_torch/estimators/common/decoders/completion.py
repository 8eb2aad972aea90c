"""Training with missing labels, for models without an order of the labels.

Missing labels are replaced by predictions given the known labels: first by a belief network's predictions
(:mod:`lmbm_torch.fitting.completion`), later by the classifier's own. Training is repeated until the
predictions stay the same, at most four times. Predictions obey ``constraints``, except for instances whose
known labels break a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.common.targets import label_tensor
from lmbm_torch.fitting import completion
from lmbm_torch.fitting.dual import Path
from lmbm_torch.solvers.networks.problems import Features


def learn_along(
    classifier: DecodingClassifier[Any],
    path: Path,
    learn: Callable[[Path, np.ndarray], None],
    X: Features,
    labels: np.ndarray,
    sample_weight: np.ndarray | None,
) -> None:
    """Train by ``learn``; if labels are missing, repeatedly, with the missing labels predicted.

    Args:
        path: earlier fit from which ``learn`` starts; not used if labels are missing.
        labels: (instances, labels) in {0, 1}, NaN for missing labels.
    """
    if not np.isnan(labels).any():
        learn(path, labels)
        return
    completion.learn_along(
        classifier._scaled(X, sample_weight),
        labels,
        lambda complete: learn(Path(), complete),
        lambda rows: completed(classifier, classifier._energy(X[rows]), labels[rows]),
        C=classifier.C_,
        sample_weight=sample_weight,
        seed=classifier._seed(),
    )


def completed(classifier: DecodingClassifier[Any], energy: Any, labels: np.ndarray) -> np.ndarray:
    """Predict labels given the known labels, under the rules where the known labels allow the rules."""
    known = label_tensor("known", labels, energy, allow_missing=True)
    rules = classifier.rules
    found = classifier._decode_energy(energy, known).labels.cpu().numpy()
    if rules is None:
        return found
    broken = np.flatnonzero(rules.violated(found).any(1)).tolist()
    rows = [row for row in broken if rules.leaves_any(labels[row])]
    if rows:
        part = torch.tensor(rows, device=energy.device)
        allowed = classifier._decode_energy(energy.select(part), known[part], rules=rules)
        found[rows] = allowed.labels.cpu().numpy()
    return found
