"""Learning from incomplete labels by models that have no order to impute them in.

A classifier is learned from its own predictions of missing labels, given those that are known. The first are
a sigmoid belief network's (:mod:`lmbm_torch.fitting.completion`); the classifier is learned anew until its
predictions stay, four times at most. Under ``constraints`` these obey them, but for instances whose known
labels break one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lmbm_torch.estimators.common.targets import label_tensor
from lmbm_torch.estimators.decoders.decoding import DecodingClassifier
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
    """Call ``learn`` with complete labels, and the path that leads to their solution.

    Args:
        path: to what the labels as they are given make the problem; none leads to completed ones.
        labels: (instances, labels) in {0, 1}, NaN where missing.
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
    """Return what a classifier predicts given the labels that are known, allowed wherever these are."""
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
