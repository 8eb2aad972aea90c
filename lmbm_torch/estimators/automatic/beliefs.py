"""What a fitted classifier believes of the labels, as much of it as expected F1 and thresholds ask for.

That is P(y_i = 1, |y| = s), (instances, labels, sizes) for s = 1 …: the labelling of largest expected F1 is a
function of it (Dembczyński et al. 2011), and its sums over sizes are the marginals. It is linear in the
distribution of the labels, so that of a mixture it is the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.automatic.label_sets import LabelSetClassifier
from lmbm_torch.estimators.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.label_chains.probabilistic import ProbabilisticClassifierChain
from lmbm_torch.inference.sampling import ancestral

Beliefs = np.ndarray
"""(instances, labels, sizes), float32."""

# Larger labellings count as ones of this size: tables grow with it. Sizes of many labels are not counted.
MAX_SIZE, MANY_LABELS = 30, 128
# A chain asks its classifiers about each draw.
NETWORK_DRAWS, CHAIN_DRAWS = 300, 30


def beliefs(pipeline: Any, X: Any) -> Beliefs | None:
    """Of a fitted pipeline; None of one that has no probabilities."""
    model, X = pipeline[-1], pipeline[:-1].transform(X)
    if isinstance(model, LabelSetClassifier):
        return _of_label_sets(model.label_set_proba(X), model.labellings_)
    if isinstance(model, DecodingClassifier):
        energies = model.calibrated(model.energies(X))
        if isinstance(energies[0], DirectedEnergy):
            return _of_draws(energies, NETWORK_DRAWS)
    if isinstance(model, ProbabilisticClassifierChain):
        return _of_draws(model.energies(X), CHAIN_DRAWS)
    if not hasattr(model, "predict_proba"):
        return None
    found = model.predict_proba(X)
    # Trees have one array for each label, and no list of a single one.
    of_labels: Any = model.classes_
    if np.ndim(of_labels[0]) == 0:
        found, of_labels = [found], [of_labels]
    if isinstance(found, list):
        pairs = zip(found, of_labels, strict=True)
        # A label of one class in training has one column.
        found = np.stack(
            [
                each[:, list(classes).index(1)] if 1 in classes else np.zeros(len(each))
                for each, classes in pairs
            ],
            1,
        )
    return of_marginals(found)


def marginals(beliefs: Beliefs) -> np.ndarray:
    """P(y_i = 1), (instances, labels)."""
    return beliefs.sum(-1)


def of_marginals(probabilities: np.ndarray) -> Beliefs:
    """Of independent labels, whose number is Poisson-binomial.

    Args:
        probabilities: (instances, labels).
    """
    count, labels = probabilities.shape
    sizes = _sizes(labels)
    if sizes == 1:
        return probabilities.astype(np.float32)[..., None]
    found = np.zeros((count, labels, sizes), np.float32)
    # P(so many of the labels in front), then those behind: together the others of each label.
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
    """P(so many), (instances, sizes), once a label counts that has the probability (instances, 1)."""
    moved = numbers * probability
    found = numbers - moved
    found[:, 1:] += moved[:, :-1]
    found[:, -1] += moved[:, -1]
    return found


def _of_both(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """P(so many) of the sum of two independent numbers, (instances, sizes)."""
    found = np.zeros_like(first)
    for number in range(first.shape[1]):
        share = second[:, number, None]
        found[:, number:] += share * first[:, : first.shape[1] - number]
        found[:, -1:] += share * first[:, first.shape[1] - number :].sum(1, keepdims=True)
    return found


def _of_draws(energies: Any, draws: int) -> Beliefs:
    """Of the equal mixture of directed models."""
    generator = torch.Generator().manual_seed(0)
    share = -(-draws // len(energies))
    drawn = [ancestral.sample(energy, share, generator=generator) for energy in energies]
    labels = torch.cat(drawn).movedim(0, 1).float()
    return (labels.mT @ _size_indicators(labels) / labels.shape[1]).numpy()


def _of_label_sets(probabilities: np.ndarray, labellings: np.ndarray) -> Beliefs:
    """Of label sets (sets, labels) that have each a probability, (instances, sets)."""
    labels = torch.from_numpy(labellings).float()
    by_size = labels[:, :, None] * _size_indicators(labels)[:, None, :]
    return (
        (torch.from_numpy(probabilities).float() @ by_size.flatten(1)).unflatten(1, by_size.shape[1:]).numpy()
    )


def _sizes(num_labels: int) -> int:
    return min(num_labels, MAX_SIZE if num_labels <= MANY_LABELS else 1)


def _size_indicators(labels: torch.Tensor) -> torch.Tensor:
    """Whether a labelling (…, labels) has so many labels, (…, sizes)."""
    most = _sizes(labels.shape[-1])
    sizes = labels.sum(-1, keepdim=True).clamp(max=most)
    return (sizes == torch.arange(1, most + 1, device="cpu")).float()
