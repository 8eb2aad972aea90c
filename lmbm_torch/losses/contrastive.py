"""Losses of restricted Boltzmann machines by a few steps of Gibbs sampling: CD, PCD and CD-PercLoss.

All compare the free energies F of the labels v and of labels v⁻ that a Markov chain has reached. The gradient
of F(v) − F(v⁻), with v⁻ constant, has v⁻ and E[h | v⁻] in the place of the intractable expectations of
belief_propagation_in_crbms_2017, Equation 5 and Appendix A. The value itself is no objective: contrastive
divergence does not follow the gradient of any function.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmbm_torch.checks import foresee_labels
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.inference.sampling import gibbs
from lmbm_torch.losses.missing import any_missing
from lmbm_torch.shapes import Float, Int, Shaped
from lmbm_torch.verdicts import one_door


@one_door
def contrastive_divergence(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    num_steps: int = 1,
    *,
    init: Shaped[Tensor, "*chains batch visible"] | None = None,
    generator: torch.Generator | None = None,
    inference: object = None,
) -> Float[Tensor, " batch"]:
    """F(v) − F(v⁻), for v⁻ after ``num_steps`` steps of Gibbs sampling: CD-k (Hinton 2002).

    Args:
        energy: a bipartite energy, whose gradients flow to its tensors but not through the chain.
        labels: v, {0, 1}, or NaN for a missing label, which is sampled given the others, by as many steps.
        num_steps: k.
        init: {0, 1}, where the chains start, any number of them in leading axes; by default one at the labels
            (with :func:`gibbs.sample <lmbm_torch.inference.sampling.gibbs.sample>`'s own start for the
            missing ones).
        generator: the source of randomness, on the energy's device; by default torch's own.
        inference: not used, since the chain takes its place; accepted because every loss of a model with
            hidden units is called with it.

    Raises:
        ValueError: labels of another shape or with other values; NaN or infinity in the energy; ``num_steps``
            below 1; ``init`` of another shape or with other values.
    """
    # The sampler checks it, after the wait that tells whether labels are missing.
    foresee_labels("init", labels if init is None else init)
    complete = _complete(energy, labels, num_steps, generator)
    start = complete if init is None else init
    return persistent_contrastive_divergence(energy, complete, start, num_steps, generator=generator)[0]


@one_door
def persistent_contrastive_divergence(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    chains: Shaped[Tensor, "*chains batch visible"],
    num_steps: int = 1,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, " batch"], Int[Tensor, "*chains batch visible"]]:
    """F(v) − F(v⁻) and v⁻, with chains that continue from the last call: PCD (Tieleman 2008).

    Every example has its own chains, which the caller keeps.

    Args:
        chains: {0, 1}, the states that each example's chains have reached; any number of chains in leading
            axes.

    Raises:
        ValueError: the same as :func:`contrastive_divergence`, with ``chains`` for ``init``.
    """
    foresee_labels("init", chains)
    complete = _complete(energy, labels, num_steps, generator)
    reached = gibbs.sample(energy, num_steps, init=chains, generator=generator).visible
    return energy.free_energy(complete) - _mean_of_chains(energy.free_energy(reached)), reached


@one_door
def contrastive_perceptron(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    num_steps: int = 1,
    *,
    init: Shaped[Tensor, "*chains batch visible"] | None = None,
    generator: torch.Generator | None = None,
    inference: object = None,
) -> Float[Tensor, " batch"]:
    """[F(v) − F(v⁻)]_+, 0 where the chain found no better labelling: CD-PercLoss (Mnih et al. 2011).

    Args:
        labels: v, {0, 1}, or NaN for a missing label, which is drawn given the others.
        init: where the chains start; by default one sample from the model without its hidden units, which is
            a logistic regression.
        inference: not used; see :func:`contrastive_divergence`.

    Raises:
        ValueError: the same as :func:`contrastive_divergence`.
    """
    complete = _complete(energy, labels, num_steps, generator)
    reached = gibbs.sample(energy, num_steps, init=init, generator=generator).visible
    gain = energy.free_energy(complete) - energy.free_energy(reached)
    return _mean_of_chains(gain.clamp_min(0))


def _mean_of_chains(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1]).mean(0)


def _complete(
    energy: BipartiteEnergy, labels: Tensor, num_steps: int, generator: torch.Generator | None
) -> Tensor:
    """The labels, with the missing ones sampled given the others."""
    energy.check_values()
    if not any_missing(energy, labels):
        return labels
    return gibbs.sample(energy, num_steps, known=labels, generator=generator).visible
