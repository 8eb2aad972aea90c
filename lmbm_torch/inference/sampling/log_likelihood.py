"""Estimates of the mean log-likelihood of restricted Boltzmann machines, one too high and one too low."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_device, check_labels, check_shape
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Estimate, LogLikelihoodBounds
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import annealed_importance
from lmbm_torch.shapes import Float, Shaped
from lmbm_torch.verdicts import one_door

__all__ = ["bounds"]


@one_door
@torch.no_grad()
def bounds(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "examples visible"],
    *,
    num_chains: int = 100,
    num_temperatures: int = 1000,
    num_examples: int = 100,
    chains_per_example: int = 10,
    generator: torch.Generator | None = None,
    base: Float[Tensor, "#batch visible"] | None = None,
    path: Sequence[BipartiteEnergy] = (),
) -> LogLikelihoodBounds:
    """Return an upper and a lower estimate of the mean log-likelihood of labels under one model.

    Both are exact if one side of the model has at most 22 units. Otherwise ``upper`` is mean(log f(v)) − log
    Z, f = exp(−free energy), with log Z from :func:`annealed_importance.estimate
    <lmbm_torch.inference.sampling.annealed_importance.estimate>`, too low on average. ``lower`` takes log Z
    from :func:`annealed_importance.reverse <lmbm_torch.inference.sampling.annealed_importance.reverse>` for
    some of the examples, too high on average if the examples resemble the model's samples. The mean of log
    f(v) is exact, over all examples.

    Args:
        energy: a batch of one example, since all labels share the model.
        labels: {0, 1}.
        num_chains: the number of chains of the forward estimate, at least 2.
        num_temperatures, generator, base, path: options of both estimates; see :mod:`annealed_importance
            <lmbm_torch.inference.sampling.annealed_importance>`.
        num_examples: the number of examples for the reverse estimate, drawn at random from ``labels``; at
            least 2, at most all. The standard error is for the mean over the examples.
        chains_per_example: the number of chains of the reverse estimate, at least 2.

    Returns:
        The effective size of ``upper`` is that of the forward chains; the effective size of ``lower`` is the
        mean over the examples of that of the example's chains.

    Raises:
        ValueError: the energy has several examples; ``labels`` have another shape than (examples, visible),
            or values except 0 and 1; a number is below 2; one of the estimates refuses the input.
    """
    energy.check_values()
    if energy.batch_size != 1:
        raise ValueError(f"energy: expected a batch of 1 example, got {energy.batch_size}")
    check_shape("labels", labels, None, energy.num_visible)
    check_device("labels", labels, energy.device)
    check_labels("labels", labels)
    score = float(-energy.free_energy(labels).mean())
    if min(energy.num_visible, energy.num_hidden) <= LIMITS.enumerable:
        value = Estimate(score - float(exact.log_partition(energy)), 0.0, math.inf)
        return LogLikelihoodBounds(value, value, exact=True)
    annealing = {"num_temperatures": num_temperatures, "generator": generator, "base": base, "path": path}
    forward = annealed_importance.estimate(energy, num_chains=num_chains, **annealing)
    upper = Estimate(
        score - float(forward.value), float(forward.standard_error), float(forward.effective_size)
    )
    chosen = _some(labels, num_examples, generator)
    backward = annealed_importance.reverse(
        _repeated(energy, len(chosen)),
        chosen,
        num_chains=chains_per_example,
        **{**annealing, "path": [_repeated(each, len(chosen)) for each in path]},
    )
    log_partitions = -energy.free_energy(chosen) - backward.value
    lower = Estimate(
        score - float(log_partitions.mean()),
        float(log_partitions.std()) / math.sqrt(len(chosen)),
        float(backward.effective_size.mean()),
    )
    return LogLikelihoodBounds(upper, lower, exact=False)


def _some(labels: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    check_count("num_examples", count)
    if min(count, len(labels)) < 2:
        raise ValueError(f"num_examples: expected at least 2, got {count} of {len(labels)} examples")
    order = torch.randperm(len(labels), generator=generator, device=labels.device)
    return labels[order[:count]]


def _repeated(energy: BipartiteEnergy, count: int) -> BipartiteEnergy:
    """Repeat the only example ``count`` times, without copies."""
    return BipartiteEnergy(energy.visible.expand(count, -1), energy.hidden.expand(count, -1), energy.coupling)
