"""Beliefs of fitted classifiers: the probabilities needed for expected F1 and for thresholds.

Beliefs are P(y_i = 1, |y| = s), (instances, labels, sizes) for s = 1, 2, …: the label set of largest expected
F1 is a function of the beliefs (Dembczyński et al. 2011), and sums over sizes are the marginals. Beliefs are
linear in the distribution of the labels: beliefs of a mixture are the mean of its members' beliefs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.automatic.label_sets import LabelSetClassifier
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.common.targets import positive_probabilities
from lmbm_torch.estimators.label_chains.boosting import LabelBoostingClassifier
from lmbm_torch.estimators.label_chains.forest import LabelForestClassifier
from lmbm_torch.estimators.label_chains.probabilistic import ProbabilisticClassifierChain
from lmbm_torch.estimators.networks.independent_labels import IndependentLabelsClassifier
from lmbm_torch.inference.sampling import ancestral

Beliefs = np.ndarray
"""(instances, labels, sizes), float32."""

# Largest counted number of labels (larger label sets count as this size, because tables grow with it), and
# number of labels beyond which sizes are not counted.
MAX_SIZE, MANY_LABELS = 30, 128
# Samples of a belief network and of a chain, whose links predict for every sample.
NETWORK_DRAWS, CHAIN_DRAWS = 300, 30


def beliefs(pipeline: Any, X: Any) -> Beliefs | None:
    """Return the beliefs of a fitted pipeline; None without probabilities."""
    model, X = pipeline[-1], pipeline[:-1].transform(X)
    if isinstance(model, LabelSetClassifier):
        return _of_label_sets(model.label_set_proba(X), model.labellings_)
    if isinstance(model, (IndependentLabelsClassifier, LabelBoostingClassifier, LabelForestClassifier)):
        # A field is half the log-odds.
        return of_marginals(torch.sigmoid(2 * model.energy(X).unary).numpy())
    if isinstance(model, DecodingClassifier):
        energies = model.calibrated(model.energies(X))
        if isinstance(energies[0], DirectedEnergy):
            return _of_draws(energies, NETWORK_DRAWS)
    if isinstance(model, ProbabilisticClassifierChain):
        return _of_draws(model.energies(X), CHAIN_DRAWS)
    if not hasattr(model, "predict_proba"):
        return None
    num_labels = 1 if np.ndim(model.classes_[0]) == 0 else len(model.classes_)
    return of_marginals(positive_probabilities(model.predict_proba(X), model.classes_, [1] * num_labels))


def marginals(beliefs: Beliefs) -> np.ndarray:
    """Return P(y_i = 1), (instances, labels)."""
    return beliefs.sum(-1)


def of_marginals(probabilities: np.ndarray) -> Beliefs:
    """Compute the beliefs of independent labels, with a Poisson-binomial number of labels.

    Args:
        probabilities: (instances, labels).
    """
    count, labels = probabilities.shape
    sizes = _sizes(labels)
    if sizes == 1:
        return probabilities.astype(np.float32)[..., None]
    found = np.zeros((count, labels, sizes), np.float32)
    # P(number of earlier labels), combined with P(number of later labels): all labels but the current one.
    none = np.eye(1, sizes).repeat(count, 0)
    front = [none]
    for label in range(labels - 1):
        front.append(_with_one_more(front[-1], probabilities[:, label, None]))
    behind = none
    for label in reversed(range(labels)):
        own = probabilities[:, label, None]
        found[:, label] = _of_both(front[label], behind) * own
        behind = _with_one_more(behind, own)
    return found


def _with_one_more(numbers: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Add a label of probability (instances, 1) to P(number), (instances, sizes)."""
    moved = numbers * probability
    found = numbers - moved
    found[:, 1:] += moved[:, :-1]
    found[:, -1] += moved[:, -1]
    return found


def _of_both(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute P(number) of the sum of two independent numbers, (instances, sizes)."""
    found = np.zeros_like(first)
    for number in range(first.shape[1]):
        share = second[:, number, None]
        found[:, number:] += share * first[:, : first.shape[1] - number]
        found[:, -1:] += share * first[:, first.shape[1] - number :].sum(1, keepdims=True)
    return found


def _of_draws(energies: Any, draws: int) -> Beliefs:
    """Estimate the beliefs of an equal mixture of directed models."""
    generator = torch.Generator().manual_seed(0)
    share = -(-draws // len(energies))
    drawn = [ancestral.sample(energy, share, generator=generator) for energy in energies]
    labels = torch.cat(drawn).movedim(0, 1).float()
    return (labels.mT @ _size_indicators(labels) / labels.shape[1]).numpy()


def _of_label_sets(probabilities: np.ndarray, labellings: np.ndarray) -> Beliefs:
    """Compute the beliefs of label sets (sets, labels) with probabilities (instances, sets)."""
    labels = torch.from_numpy(labellings).float()
    by_size = labels[:, :, None] * _size_indicators(labels)[:, None, :]
    return (
        (torch.from_numpy(probabilities).float() @ by_size.flatten(1)).unflatten(1, by_size.shape[1:]).numpy()
    )


def _sizes(num_labels: int) -> int:
    return min(num_labels, MAX_SIZE if num_labels <= MANY_LABELS else 1)


def _size_indicators(labels: torch.Tensor) -> torch.Tensor:
    """Return whether label sets (…, labels) have certain sizes, (…, sizes)."""
    most = _sizes(labels.shape[-1])
    sizes = labels.sum(-1, keepdim=True).clamp(max=most)
    return (sizes == torch.arange(1, most + 1, device="cpu")).float()
