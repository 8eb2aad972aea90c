"""Beliefs of fitted classifiers: the probabilities needed for expected F1 and for thresholds.

Beliefs are P(y_i = 1, |y| = s) for each label i and each number s = 1, 2, … of present labels, an array
(instances, labels, sizes). Sums over sizes are the marginals P(y_i = 1); the label set of largest expected F1
is computed from beliefs (Dembczyński et al. 2011). Beliefs of a mixture are the members' mean beliefs.
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
"""P(y_i = 1, |y| = s) for labels i and sizes s of the label set: (instances, labels, sizes), float32."""

# MAX_SIZE: larger label sets are treated as label sets of this size, to limit memory.
# MANY_LABELS: with more labels, beliefs keep only the marginals, without sizes.
MAX_SIZE, MANY_LABELS = 30, 128
# Number of samples from a belief network, and from a classifier chain, where each sample is more expensive.
NETWORK_DRAWS, CHAIN_DRAWS = 300, 30


def beliefs(pipeline: Any, X: Any) -> Beliefs | None:
    """Return the beliefs P(y_i = 1, |y| = s) of a fitted pipeline; None if it has no probabilities."""
    model, X = pipeline[-1], pipeline[:-1].transform(X)
    if isinstance(model, LabelSetClassifier):
        return _of_label_sets(model.label_set_proba(X), model.labellings_)
    if isinstance(model, (IndependentLabelsClassifier, LabelBoostingClassifier, LabelForestClassifier)):
        # Unary fields are half the log-odds, so the sigmoid of twice the field is the probability.
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
    """Sum P(y_i = 1, |y| = s) over sizes s; return P(y_i = 1), (instances, labels)."""
    return beliefs.sum(-1)


def of_marginals(probabilities: np.ndarray) -> Beliefs:
    """Compute P(y_i = 1, |y| = s) for independent labels, where |y| is Poisson-binomial.

    Args:
        probabilities: P(y_i = 1), (instances, labels).
    """
    count, labels = probabilities.shape
    sizes = _sizes(labels)
    if sizes == 1:
        return probabilities.astype(np.float32)[..., None]
    found = np.zeros((count, labels, sizes), np.float32)
    # ``front`` holds P(number of present labels) before each label; ``behind`` is P(number after the label).
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
    """Update P(number of present labels), (instances, sizes), for a further label of this probability."""
    moved = numbers * probability
    found = numbers - moved
    found[:, 1:] += moved[:, :-1]
    found[:, -1] += moved[:, -1]
    return found


def _of_both(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the distribution of the sum of two independent numbers of labels, (instances, sizes)."""
    found = np.zeros_like(first)
    for number in range(first.shape[1]):
        share = second[:, number, None]
        found[:, number:] += share * first[:, : first.shape[1] - number]
        found[:, -1:] += share * first[:, first.shape[1] - number :].sum(1, keepdims=True)
    return found


def _of_draws(energies: Any, draws: int) -> Beliefs:
    """Estimate the beliefs of an equally weighted mixture of directed models, by ancestral sampling."""
    generator = torch.Generator().manual_seed(0)
    share = -(-draws // len(energies))
    drawn = [ancestral.sample(energy, share, generator=generator) for energy in energies]
    labels = torch.cat(drawn).movedim(0, 1).float()
    return (labels.mT @ _size_indicators(labels) / labels.shape[1]).numpy()


def _of_label_sets(probabilities: np.ndarray, labellings: np.ndarray) -> Beliefs:
    """Compute the beliefs from the probabilities (instances, sets) of label sets (sets, labels)."""
    labels = torch.from_numpy(labellings).float()
    by_size = labels[:, :, None] * _size_indicators(labels)[:, None, :]
    return (
        (torch.from_numpy(probabilities).float() @ by_size.flatten(1)).unflatten(1, by_size.shape[1:]).numpy()
    )


def _sizes(num_labels: int) -> int:
    return min(num_labels, MAX_SIZE if num_labels <= MANY_LABELS else 1)


def _size_indicators(labels: torch.Tensor) -> torch.Tensor:
    """Return one-hot encoded sizes (…, sizes) of label sets (…, labels), for sizes from 1 on."""
    most = _sizes(labels.shape[-1])
    sizes = labels.sum(-1, keepdim=True).clamp(max=most)
    return (sizes == torch.arange(1, most + 1, device="cpu")).float()
