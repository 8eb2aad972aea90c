"""Annealed importance sampling, forward and reverse, for likelihoods of restricted Boltzmann machines.

Forward chains go from an energy with a known partition function to the given energy. They give an unbiased
estimate of the partition function. Its logarithm is too low on average: estimated log-likelihoods are too
high. Reverse chains go from given labels back to the first energy; estimated log-likelihoods are then too
low. :mod:`~lmbm_torch.inference.sampling.log_likelihood` combines both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_device, check_known, check_labels, check_shape
from lmbm_torch.energies.bipartite import BipartiteEnergy, softplus
from lmbm_torch.inference.common.given import clamp
from lmbm_torch.inference.common.results import Estimate
from lmbm_torch.inference.sampling.annealing import Stretch, check_path, stretches
from lmbm_torch.inference.sampling.gibbs import draw
from lmbm_torch.shapes import Float, Known, Shaped
from lmbm_torch.verdicts import one_door, settle

__all__ = ["estimate", "reverse"]


@one_door
@torch.no_grad()
def estimate(
    energy: BipartiteEnergy,
    *,
    num_chains: int = 100,
    num_temperatures: int = 1000,
    generator: torch.Generator | None = None,
    known: Known | None = None,
    base: Float[Tensor, "#batch visible"] | None = None,
    path: Sequence[BipartiteEnergy] = (),
) -> Estimate[Tensor]:
    """Return log Z = log Z_0 + log E[w], with chains of weight w from an uncoupled energy.

    Z_0 is the partition function of the uncoupled energy. At step k of T, the energy moves along the path
    from (k − 1)/T to k/T, which adds the increase of −free_energy(v) to a chain's log w; then v takes a Gibbs
    step at k/T (Neal 2001; Salakhutdinov and Murray 2008). w is an unbiased estimate of Z/Z_0 for any number
    of temperatures and any path.

    The standard error reflects only states that the chains have visited. If most of Z lies in a few states
    that chains hardly ever reach from the biases, all chains may miss the states and still agree: for a
    model trained on images, the estimate was 20 nats too low without ``base``, at standard errors below 1.

    Args:
        energy: a bipartite energy, on any device.
        num_chains: the number of independent chains for each example, at least 2.
        num_temperatures: T, the number of steps from no coupling to full coupling, evenly spaced along the
            path.
        generator: the source of randomness, on the energy's device; by default torch's own.
        known: {0, 1, NaN}, NaN for a free visible unit; the partition then sums over the free units.
        base: log-odds of the visible units at the start, with hidden units at ½; the log-odds of the units'
            frequencies in the data are best. By default the energy's own biases on both sides.
        path: energies along the way, in order, like earlier states of the training; by default a straight
            path.

    Raises:
        ValueError: NaN or infinity in the energy or along the path; fewer than 2 chains, or fewer
            temperatures than parts of the path; ``known`` of another shape than (batch, labels), or with
            impossible values; a ``base`` of another shape, dtype or device, or not finite; a ``path`` of
            other sizes, dtypes or devices than the energy.
    """
    _check_chains(num_chains)
    parts = _annealing(energy, base, path, num_temperatures)
    check_known(known, energy.device, *energy.visible.shape)
    settle()
    start = parts[0].first
    visible = torch.sigmoid(start.visible).expand(num_chains, -1, -1)
    visible = clamp(draw(visible, generator), known)
    log_weights = energy.visible.new_zeros(num_chains, energy.batch_size)
    for part in parts:
        for hotter, colder in part.shares():
            fields = part.fields(visible)
            log_weights = log_weights + part.gain(visible, fields, hotter, colder)
            visible = clamp(part.gibbs_step(fields, colder, generator), known)
    log_mean, *trust = _log_mean(log_weights)
    return Estimate(_log_partition_of_biases(start, known) + log_mean, *trust)


@one_door
@torch.no_grad()
def reverse(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    *,
    num_chains: int = 10,
    num_temperatures: int = 1000,
    generator: torch.Generator | None = None,
    base: Float[Tensor, "#batch visible"] | None = None,
    path: Sequence[BipartiteEnergy] = (),
) -> Estimate[Tensor]:
    """Return log p(v) = log f(v) − log Z_0 + log E[1/w], for chains of weight w from v back to no coupling.

    RAISE (Burda, Grosse and Salakhutdinov 2015) runs the chains of :func:`estimate` backwards, with f =
    exp(−free energy). E[f(v)/(w Z_0)] is the probability that a chain of :func:`estimate` ends at v, for any
    number of temperatures. Therefore the mean logarithm over chains is below the logarithm of this
    probability, which is below log p(v) on average over the model's own samples. As a mean over unseen
    examples, the result is a lower bound if the examples resemble the model's samples. For a single v it may
    not be a bound: the probability of reaching v may be larger than p(v). More temperatures help.

    Args:
        energy: a bipartite energy, on any device.
        labels: v, {0, 1}, one row for each example.
        num_chains: independent chains for each example, at least 2; more chains raise the estimate.
        num_temperatures, generator, base, path: see :func:`estimate`, with the same order of the path.

    Raises:
        ValueError: see :func:`estimate`; ``labels`` of another shape than (batch, visible), or values except
            0 and 1.
    """
    _check_chains(num_chains)
    parts = _annealing(energy, base, path, num_temperatures)
    check_shape("labels", labels, energy.batch_size, energy.num_visible)
    check_device("labels", labels, energy.device)
    check_labels("labels", labels)
    settle()
    visible = labels.to(energy.dtype).expand(num_chains, -1, -1)
    log_weights = torch.zeros_like(visible[..., 0])
    for part in reversed(parts):
        fields = part.fields(visible)
        for hotter, colder in reversed(part.shares()):
            visible = part.gibbs_step(fields, colder, generator)
            fields = part.fields(visible)
            log_weights = log_weights - part.gain(visible, fields, hotter, colder)
    log_mean, *trust = _log_mean(log_weights)
    at_start = _log_partition_of_biases(parts[0].first, None)
    return Estimate(log_mean - energy.free_energy(labels) - at_start, *trust)


def _check_chains(num_chains: int) -> None:
    check_count("num_chains", num_chains)
    if num_chains == 1:
        raise ValueError(f"num_chains: expected at least 2, for a standard error, got {num_chains}")


def _annealing(
    energy: BipartiteEnergy, base: Tensor | None, path: Sequence[BipartiteEnergy], num_temperatures: int
) -> list[Stretch]:
    """Check the input, and return the path from an uncoupled energy to ``energy`` as stretches."""
    energy.check_values()
    check_path(energy, path)
    check_count("num_temperatures", num_temperatures)
    if num_temperatures < len(path) + 1:
        raise ValueError(
            f"num_temperatures: expected at least {len(path) + 1}, one for each part of the path, "
            f"got {num_temperatures}"
        )
    return stretches(energy, base, path, num_temperatures)


def _log_mean(log_weights: Float[Tensor, "chains batch"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logarithm of the mean weight, its standard error, and the effective number of chains."""
    relative = (log_weights - log_weights.amax(0)).exp()
    return (
        log_weights.logsumexp(0) - math.log(len(log_weights)),
        relative.std(0) / (relative.mean(0) * math.sqrt(len(relative))),
        relative.sum(0) ** 2 / (relative**2).sum(0),
    )


def _log_partition_of_biases(energy: BipartiteEnergy, known: Tensor | None) -> Float[Tensor, " batch"]:
    """Return log Z of an energy from its biases, as if the coupling were 0."""
    visible = softplus(energy.visible)
    if known is not None:
        visible = torch.where(known.isnan(), visible, known.nan_to_num().to(energy.dtype) * energy.visible)
    return visible.sum(-1) + softplus(energy.hidden).sum(-1)
