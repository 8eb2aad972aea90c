"""Log-potentials or losses of sparse models as tables over few labels, for elimination."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.inference.trees.triangulation import Cliques
from lmbm_torch.shapes import Bool, Float

Machine = PairwiseEnergy | CliqueEnergy

# Log-potential of an excluded value: far below any score, but finite, so gradients are finite.
EXCLUDED = -1e30


def cliques_of(energy: Machine) -> Cliques:
    """Return the cliques of two or more labels; a pair is a clique if some example couples it."""
    if isinstance(energy, CliqueEnergy):
        return tuple(clique for clique in energy.cliques if len(clique) > 1)
    coupled = energy.pairwise.detach() != 0
    if coupled.ndim == 3:
        coupled = coupled.any(0)
    return tuple(map(tuple, coupled.triu(1).nonzero().tolist()))


def log_potentials(energy: Machine, cliques: Cliques) -> tuple[Tensor, Tensor]:
    """Return the log-potentials of each label's spin, and of the product of each clique's spins."""
    if isinstance(energy, PairwiseEnergy):
        first, second = torch.tensor(cliques, dtype=torch.int64, device=energy.device).view(-1, 2).unbind(1)
        # Add both directions and halve, since the score contains half of each.
        both = energy.pairwise[..., first, second] + energy.pairwise[..., second, first]
        return energy.unary, both / 2
    single = [index for index, clique in enumerate(energy.cliques) if len(clique) == 1]
    larger = [index for index, clique in enumerate(energy.cliques) if len(clique) > 1]
    names = [energy.cliques[index][0] for index in single]
    unary = energy.weight.new_zeros(*energy.weight.shape[:-1], energy.num_labels)
    place = torch.tensor(names, dtype=torch.int64, device=energy.device)
    return unary.index_add(-1, place, energy.weight[..., single]), energy.weight[..., larger]


def parity(order: int, like: Tensor) -> Float[Tensor, " labellings"]:
    """Return Π_i s_i for every labelling of a clique; the first label is the most significant bit."""
    spins = like.new_tensor([-1, 1])
    return reduce(lambda table, _: torch.outer(table, spins).flatten(), range(order - 1), spins)


Potentials = tuple[Float[Tensor, "_batch labels values"], list[Tensor], Float[Tensor, " _batch"]]


def scopes_of(energy: Machine | DirectedEnergy) -> Cliques:
    """Return the labels of each table: the cliques of a Boltzmann machine, or each label of a belief network
    with the parents.
    """
    return families(energy) if isinstance(energy, DirectedEnergy) else cliques_of(energy)


def families(energy: Machine | DirectedEnergy) -> Cliques:
    """Return for each label the labels in its margin: itself, and the parents or neighbours in the graph."""
    others = [{*row.nonzero()[:, 0].tolist()} for row in _seen(energy).cpu()]
    if isinstance(energy, DirectedEnergy):
        place = energy.positions.tolist()
        for clique in energy.cliques:
            child = max(clique, key=place.__getitem__)
            others[child] |= {*clique} - {child}
    return tuple((child, *sorted(rest)) for child, rest in enumerate(others))


def most_others(energy: Machine | DirectedEnergy) -> int:
    """Return the largest number of other labels in a label's margin, ignoring cliques of a directed model.

    The treewidth of the graph of margins is at least this number.
    """
    return int(_seen(energy).sum(-1).max())


def _seen(energy: Machine | DirectedEnergy) -> Bool[Tensor, "labels labels"]:
    """Return a matrix whose row i marks the labels in the margin of label i."""
    if isinstance(energy, CliqueEnergy):
        return (energy.membership @ energy.membership.mT).fill_diagonal_(0) > 0
    seen = _weights(energy).detach() != 0
    return seen.any(0) if seen.ndim == 3 else seen


def log_tables(energy: Machine | DirectedEnergy, scopes: Cliques) -> Potentials:
    """Return log-potentials of each label's two values, tables of log-potentials, and a constant.

    Tables are (batch or 1, labellings of the scope), with the first label as the most significant bit.

    Args:
        energy: the model.
        scopes: from :func:`scopes_of`.
    """
    if isinstance(energy, DirectedEnergy):
        return margin_tables(energy, scopes, lambda margins: logsigmoid(2 * margins))
    unary, weight = log_potentials(energy, scopes)
    by_value = torch.stack([-unary, unary], -1).expand(energy.batch_size, -1, -1)
    parities = {order: parity(order, by_value) for order in {len(clique) for clique in scopes}}
    weights = (weight if weight.ndim == 2 else weight[None]).unbind(1)
    tables = [one[:, None] * parities[len(clique)] for one, clique in zip(weights, scopes, strict=True)]
    return by_value, tables, energy.constant


def margin_tables(
    energy: Machine | DirectedEnergy, scopes: Cliques, value: Callable[[Tensor], Tensor]
) -> Potentials:
    """Return Σ_i value(m_i), a sum over the labels' margins m_i, as one table for each label's family.

    Args:
        scopes: the families, from :func:`families`.
        value: a function that is applied to each margin in a tensor.
    """
    unary = torch.zeros(energy.batch_size, energy.num_labels, 2, dtype=energy.dtype, device=energy.device)
    return unary, [value(_margins(energy, family)) for family in scopes], unary[:, 0, 0]


def _weights(energy: DirectedEnergy | PairwiseEnergy) -> Tensor:
    """Return a matrix whose row i holds the weights in the margin of label i."""
    return energy.parents if isinstance(energy, DirectedEnergy) else energy.pairwise


def _margins(energy: Machine | DirectedEnergy, family: tuple[int, ...]) -> Float[Tensor, "_batch labellings"]:
    """Return the margin s z of the first label of a family, for every labelling of the family."""
    child, *parents = family
    shift = torch.arange(len(family) - 1, -1, -1, device=energy.device)
    numbers = torch.arange(2 ** len(family), device=energy.device)
    spins = to_spins(numbers[:, None] >> shift & 1, energy.dtype)
    if isinstance(energy, CliqueEnergy):
        own = [index for index, clique in enumerate(energy.cliques) if child in clique]
        place = {label: index for index, label in enumerate(family)}
        parities = [spins[:, [place[label] for label in energy.cliques[index]]].prod(1) for index in own]
        weight = energy.weight if energy.weight.ndim == 2 else energy.weight[None]
        return weight[:, own] @ torch.stack(parities) if own else spins.new_zeros(1, len(spins))
    field = energy.unary[:, child, None] + _weights(energy)[..., child, parents] @ spins[:, 1:].mT
    if isinstance(energy, DirectedEnergy) and energy.clique_weight is not None:
        place = {label: index for index, label in enumerate(family)}
        for index, clique in enumerate(energy.cliques):
            # The child must be the last label of the clique, so all others are in the family.
            if child in clique and {*clique} <= {*family}:
                others = [place[label] for label in clique if label != child]
                field = field + energy.clique_weight[..., index, None] * spins[:, others].prod(1)
    return spins[:, 0] * field
