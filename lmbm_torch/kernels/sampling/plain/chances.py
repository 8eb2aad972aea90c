"""The mean chance of each label over samples of a directed model: the definition, in NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lmbm_torch.kernels.sampling.plain.network import Network


class Chances(NamedTuple):
    """Chances that labels are 1, given the labels before them in each sample.

    Args:
        mean: (batch, labels), over the samples.
        variance: (batch, labels), of the samples'.
    """

    mean: np.ndarray
    variance: np.ndarray


def mean_chances(network: Network, noise: np.ndarray) -> Chances:
    """The means of σ(log-odds) over samples.

    Args:
        noise: (samples, labels), logistic, of all examples.
    """
    moments = [_moments(network._replace(log_odds=row), noise) for row in network.log_odds]
    mean, variance = zip(*moments, strict=True)
    return Chances(np.array(mean), np.array(variance))


def _moments(network: Network, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of one example's chances."""
    log_odds = np.tile(network.log_odds, (len(noise), 1))
    for label in range(noise.shape[1]):
        drawn = log_odds[:, label] > noise[:, label]
        edges = slice(network.start[label], network.start[label + 1])
        log_odds[:, network.child[edges]] += network.step[edges] * drawn[:, None]
    chances = np.exp(-np.logaddexp(0, -log_odds))
    return chances.mean(0), chances.var(0)
