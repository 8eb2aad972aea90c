"""Sparse models as tables of log-potentials over few labels each, which an elimination starts from."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lmbm_torch.energies import DirectedEnergy, to_spins
from lmbm_torch.inference.parts.clique_potentials import Machine, cliques_of, log_potentials, parity
from lmbm_torch.inference.parts.triangulation import Cliques
from lmbm_torch.shapes import Float

__all__ = ["log_tables", "scopes_of"]


def scopes_of(energy: Machine | DirectedEnergy) -> Cliques:
    """The labels of each table: a Boltzmann machine's cliques, a network's labels with their parents."""
    return _families(energy) if isinstance(energy, DirectedEnergy) else cliques_of(energy)


def log_tables(
    energy: Machine | DirectedEnergy, scopes: Cliques
) -> tuple[Float[Tensor, "_batch labels values"], list[Tensor], Float[Tensor, " _batch"]]:
    """Log-potentials of each label's two values, of each scope's labellings, and a constant.

    Tables are (batch or 1, labellings), a scope's first label the most significant bit of a number.

    Args:
        energy: the model.
        scopes: those of :func:`scopes_of`.
    """
    if isinstance(energy, DirectedEnergy):
        unary = energy.unary.new_zeros(*energy.unary.shape, 2)
        return unary, [_conditional(energy, family) for family in scopes], unary[:, 0, 0]
    unary, weight = log_potentials(energy, scopes)
    by_value = torch.stack([-unary, unary], -1).expand(energy.batch_size, -1, -1)
    parities = {order: parity(order, by_value) for order in {len(clique) for clique in scopes}}
    weights = (weight if weight.ndim == 2 else weight[None]).unbind(1)
    tables = [one[:, None] * parities[len(clique)] for one, clique in zip(weights, scopes, strict=True)]
    return by_value, tables, energy.constant


def _families(energy: DirectedEnergy) -> Cliques:
    """Each label, then its parents."""
    seen = energy.parents.detach() != 0
    if seen.ndim == 3:
        seen = seen.any(0)
    parents = [{*row.nonzero()[:, 0].tolist()} for row in seen.cpu()]
    place = energy.positions.tolist()
    for clique in energy.cliques:
        child = max(clique, key=place.__getitem__)
        parents[child] |= {*clique} - {child}
    return tuple((child, *sorted(others)) for child, others in enumerate(parents))


def _conditional(energy: DirectedEnergy, family: tuple[int, ...]) -> Float[Tensor, "_batch labellings"]:
    """log P(child | parents) = log σ(2 s z) of every labelling of a family."""
    child, *parents = family
    shift = torch.arange(len(family) - 1, -1, -1, device=energy.device)
    numbers = torch.arange(2 ** len(family), device=energy.device)
    spins = to_spins(numbers[:, None] >> shift & 1, energy.dtype)
    field = energy.unary[:, child, None] + energy.parents[..., child, parents] @ spins[:, 1:].mT
    if energy.clique_weight is not None:
        place = {label: index for index, label in enumerate(family)}
        for index, clique in enumerate(energy.cliques):
            # All others of the family come before the child, which is the clique's own child then.
            if child in clique and {*clique} <= {*family}:
                others = [place[label] for label in clique if label != child]
                field = field + energy.clique_weight[..., index, None] * spins[:, others].prod(1)
    return logsigmoid(2 * spins[:, 0] * field)
