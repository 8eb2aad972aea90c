"""Losses of restricted Boltzmann machines with a few steps of Gibbs sampling: CD, PCD and CD-PercLoss.

Each loss compares the free energies F of the labels v and of labels v⁻ at the end of a Markov chain. In the
gradient of F(v) − F(v⁻), v⁻ and E[h | v⁻] replace the intractable expectations in
belief_propagation_in_crbms_2017, Equation 5 and Appendix A; v⁻ is held constant. The value of the loss does
not measure progress: contrastive divergence does not follow the gradient of any function.
"""

from __future__ import annotations

from typing import Literal

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
    init: Shaped[Tensor, "*chains batch visible"] | Literal["labels", "random"] = "labels",
    generator: torch.Generator | None = None,
    inference: object = None,
) -> Float[Tensor, " batch"]:
    """Return the contrastive divergence F(v) − F(v⁻), with free energy F and samples v⁻ after k Gibbs steps.

    Args:
        energy: a bipartite energy; gradients flow to the energy's tensors but not through the Markov chain.
        labels: v, {0, 1}, or NaN for a missing label, which is sampled given the observed labels by k steps.
        num_steps: the number k of steps of Gibbs sampling (CD-k, Hinton 2002).
        init: the start of the Markov chains. ``"labels"``: one chain, from the labels (missing labels are
            sampled first). ``"random"``: one chain, from a sample of the model without hidden units, better
            for some conditional models (Mnih et al. 2011). Or a tensor of {0, 1} with chains in leading axes.
        generator: the source of randomness, on the energy's device; by default torch's own.
        inference: not used, since the Markov chain replaces inference; all losses of models with hidden units
            have this argument.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; the energy contains
            NaN or infinity; ``num_steps`` is below 1; ``init`` is unknown, or has another shape or other
            values than described above.

    Examples:
        >>> import torch
        >>> from lmbm_torch import BipartiteEnergy
        >>> from lmbm_torch.losses import contrastive_divergence
        >>> energy = BipartiteEnergy(torch.full((1, 2), 9.0), torch.zeros(1, 1), torch.zeros(2, 1))
        >>> contrastive_divergence(energy, torch.ones(1, 2), generator=torch.Generator().manual_seed(0))
        tensor([0.])
    """
    if isinstance(init, str) and init not in ("labels", "random"):
        raise ValueError(f"init: expected 'labels', 'random' or a tensor of {{0, 1}}, got {init!r}")
    # Register the check before other work, so that the CPU waits for the GPU only once, in the sampler.
    foresee_labels("init", labels if isinstance(init, str) else init)
    complete = _complete(energy, labels, num_steps, generator)
    if init == "random":
        start = gibbs.draw(gibbs.uncoupled(energy).detach(), generator)
    else:
        start = complete if isinstance(init, str) else init
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
    """Return the loss F(v) − F(v⁻), and the states v⁻ at which the Markov chains ended: PCD (Tieleman 2008).

    F is the free energy. Every example has separate Markov chains: the caller passes v⁻ to the next call.

    Args:
        energy, labels, num_steps, generator: as in :func:`contrastive_divergence`.
        chains: {0, 1}, the states from which the Markov chains start, with several chains in leading axes.

    Raises:
        ValueError: as :func:`contrastive_divergence`, with ``chains`` for ``init``.

    Examples:
        >>> import torch
        >>> from lmbm_torch import BipartiteEnergy
        >>> from lmbm_torch.losses.contrastive import persistent_contrastive_divergence
        >>> energy = BipartiteEnergy(torch.full((1, 2), 9.0), torch.zeros(1, 1), torch.zeros(2, 1))
        >>> labels = torch.ones(1, 2)
        >>> loss, chains = persistent_contrastive_divergence(energy, labels, labels[None])
        >>> chains.shape
        torch.Size([1, 1, 2])
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
    """Return [F(v) − F(v⁻)]_+ with the free energy F: the loss CD-PercLoss (Mnih et al. 2011).

    v⁻ is the mode of the labels given the hidden units sampled last. If v⁻ were sampled, hundreds of labels
    would hardly ever have a lower free energy than v, and the loss of nearly every example would be 0.

    Args:
        energy, num_steps, generator: as in :func:`contrastive_divergence`.
        labels: v, {0, 1}, or NaN for a missing label, which is drawn given the observed labels; v⁻ keeps the
            drawn value.
        init: the start of the Markov chains; by default a sample from the model without couplings, a logistic
            regression.
        inference: not used; see :func:`contrastive_divergence`.

    Raises:
        ValueError: as :func:`contrastive_divergence`.

    Examples:
        >>> import torch
        >>> from lmbm_torch import BipartiteEnergy
        >>> from lmbm_torch.losses import contrastive_perceptron
        >>> energy = BipartiteEnergy(torch.full((1, 2), 9.0), torch.zeros(1, 1), torch.zeros(2, 1))
        >>> contrastive_perceptron(energy, torch.ones(1, 2))
        tensor([0.])
    """
    complete = _complete(energy, labels, num_steps, generator)
    hidden = gibbs.sample(energy, num_steps, init=init, generator=generator).hidden
    assert hidden is not None
    reached = torch.where(labels.isnan(), complete, energy.visible_fields(hidden) > 0)
    gain = energy.free_energy(complete) - energy.free_energy(reached)
    return _mean_of_chains(gain.clamp_min(0))


def _mean_of_chains(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1]).mean(0)


def _complete(
    energy: BipartiteEnergy, labels: Tensor, num_steps: int, generator: torch.Generator | None
) -> Tensor:
    """Return the labels, with missing labels sampled given the observed labels."""
    energy.check_values()
    if not any_missing(energy, labels):
        return labels
    return gibbs.sample(energy, num_steps, known=labels, generator=generator).visible
