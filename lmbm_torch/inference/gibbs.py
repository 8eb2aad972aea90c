"""Block Gibbs sampling of restricted Boltzmann machines: one side at a time, all of its units at once."""

from __future__ import annotations

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_device, check_known, check_labels, check_shape
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.inference.known import check_agreement, clamp
from lmbm_torch.inference.results import BipartiteSamples
from lmbm_torch.shapes import Shaped

__all__ = ["sample"]


@torch.no_grad()
def sample(
    energy: BipartiteEnergy,
    num_steps: int,
    *,
    init: Shaped[Tensor, "*chains batch visible"] | None = None,
    generator: torch.Generator | None = None,
    known: Shaped[Tensor, "batch visible"] | None = None,
) -> BipartiteSamples:
    """The last of ``num_steps`` draws of h from p(h | v), then v from p(v | h), in every chain.

    belief_propagation_in_crbms_2017, Equation 3 and what follows it. CD-k starts from the training labels and
    takes k steps; persistent CD goes on from the chains that the last call returned.

    Args:
        energy: a bipartite energy, on any device.
        num_steps: times that both sides are drawn.
        init: {0, 1}, the visible units to start from, with any number of chains for each example in leading
            axes; by default one chain each, drawn from p(v) as if nothing were coupled.
        generator: the source of randomness, on the energy's device; by default torch's own.
        known: {0, 1, NaN}, NaN for a free visible unit; the others stay as they are.

    Raises:
        ValueError: NaN or infinity in the energy; ``num_steps`` below 1; ``known`` or ``init`` of another
            shape or with other values, or against each other.
    """
    energy.check_values()
    check_count("num_steps", num_steps)
    check_known(known, energy.device, *energy.visible.shape)
    if init is None:
        visible = clamp(torch.bernoulli(torch.sigmoid(energy.visible), generator=generator), known)
    else:
        chains = [None] * (init.ndim - 2)
        check_shape("init", init, *chains, *energy.visible.shape)
        check_device("init", init, energy.device)
        check_labels("init", init)
        check_agreement(init, known)
        visible = init.to(energy.dtype)
    for _ in range(num_steps):
        hidden = torch.bernoulli(energy.hidden_given_visible(visible), generator=generator)
        visible = torch.bernoulli(energy.visible_given_hidden(hidden), generator=generator)
        visible = clamp(visible, known)
    return BipartiteSamples(visible.long(), hidden.long())
