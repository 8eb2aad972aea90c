"""Conversions between factor graphs and chains, trees and Boltzmann machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.factor import FactorEnergy, FactorScopes
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.energies.restricted import RestrictedEnergy
from lmbm_torch.energies.tree import TreeEnergy

__all__ = ["to_chain", "to_clique", "to_factors", "to_networkx", "to_tree"]

AsFactors = PairwiseEnergy | CliqueEnergy | ChainEnergy | TreeEnergy | FactorEnergy


def to_factors(energy: Any) -> FactorEnergy:
    """Convert a Boltzmann machine, a chain or a tree to a factor graph with equal scores.

    Pairs of labels whose coupling is 0 for every example get no table. Chains of different lengths become
    packed graphs; a factor graph is returned unchanged.

    Raises:
        TypeError: the energy has rules, or is of another kind.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import ChainEnergy, to_factors
        >>> to_factors(ChainEnergy(torch.zeros(1, 3, 2), torch.eye(2))).structure.scopes
        ((0, 1), (1, 2))
    """
    if isinstance(energy, FactorEnergy):
        return energy
    if isinstance(energy, ChainEnergy):
        return _from_chain(energy)
    if isinstance(energy, TreeEnergy):
        children = (energy.parents >= 0).nonzero()[:, 0]
        edges = torch.stack([energy.parents[children], children], 1)
        return FactorEnergy.from_edges(energy.unary, edges, _each(energy.tables[:, children], energy))
    if isinstance(energy, PairwiseEnergy):
        return _from_pairwise(energy)
    if isinstance(energy, CliqueEnergy):
        return _from_clique(energy)
    if isinstance(energy, RestrictedEnergy):
        raise TypeError("energy: expected one without rules, which tables cannot hold, got RestrictedEnergy")
    raise TypeError(
        f"energy: expected a pairwise, clique, chain, tree or factor energy, got {type(energy).__name__}"
    )


def to_clique(energy: FactorEnergy) -> CliqueEnergy:
    """Convert a factor graph of binary labels with finite tables to a Boltzmann machine with cliques.

        weight_S = Σ_{c ⊇ S} 2^−|c| Σ_{y_c} table_c(y_c) Π_{i ∈ S} s_i

    with S a clique, c the scopes and s the spins. For scopes of at most two labels,
    ``to_clique(energy).to_pairwise()`` gives a pairwise energy.

    Raises:
        ValueError: the graphs are packed, a label has not two states, or a log-potential is −∞.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import FactorEnergy, to_clique
        >>> to_clique(FactorEnergy.of((2,), [((0,), torch.tensor([0.0, 1.0]))])).weight
        tensor([[0.5000]])
    """
    structure = _one_graph(energy, "cliques")
    if {*structure.num_states} != {2}:
        raise ValueError(f"energy: expected labels of two states, got a label of {max(structure.num_states)}")
    if bool((energy.table == -torch.inf).any()):
        raise ValueError("energy: expected finite tables for cliques, got log-potentials of −∞")
    weights: dict[tuple[int, ...], Tensor] = {}
    for scope, first in zip(structure.every_scope, structure.first.tolist(), strict=False):
        table = energy.table[:, first : first + 2 ** len(scope)].reshape(-1, *[2] * len(scope))
        for axis in range(len(scope)):
            low, high = table.unbind(axis + 1)
            table = torch.stack([(high + low) / 2, (high - low) / 2], axis + 1)
        for number, weight in enumerate(table.reshape(len(table), -1).unbind(1)):
            bits = [number >> len(scope) - 1 - place & 1 for place in range(len(scope))]
            subset = tuple(sorted(label for label, bit in zip(scope, bits, strict=True) if bit))
            weights[subset] = weights[subset] + weight if subset in weights else weight
    constant = weights.pop((), energy.table.new_zeros(energy.batch_size))
    return CliqueEnergy(
        tuple(weights), torch.stack([*weights.values()], 1), constant, structure.num_variables
    )


def to_tree(energy: FactorEnergy) -> TreeEnergy:
    """Convert a factor graph that is a forest to a tree energy; a variable's earlier neighbour is the parent.

    All labels need the same number of states, since trees cannot forbid states by −∞.

    Raises:
        ValueError: the graphs are packed, labels have different numbers of states, a scope has not two
            labels, or a label has two earlier neighbours.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import FactorEnergy, to_tree
        >>> to_tree(FactorEnergy.of((2, 2), [((1, 0), torch.eye(2))])).parents
        tensor([-1,  0])
    """
    energy = energy.without_constants()
    structure = _one_graph(energy, "a tree")
    states, nodes = structure.num_states[0], structure.num_variables
    if len({*structure.num_states}) > 1:
        raise ValueError(f"energy: expected equal numbers of states, got {structure.num_states[:10]}")
    parents = [-1] * nodes
    tables = energy.table.new_zeros(energy.batch_size, nodes, states, states)
    for scope, first in zip(structure.scopes, structure.first[nodes:].tolist(), strict=False):
        if len(scope) != 2 or parents[max(scope)] not in (-1, min(scope)):
            raise ValueError(f"energy: expected pairs that form a forest with parents first, got {scope}")
        table = energy.table[:, first : first + states**2].view(-1, states, states)
        parents[max(scope)] = min(scope)
        tables[:, max(scope)] = tables[:, max(scope)] + (table if scope[0] < scope[1] else table.mT)
    unary = energy.table[:, : structure.num_unary].view(-1, nodes, states)
    return TreeEnergy(unary, tables, torch.tensor(parents, device=energy.device))


def to_chain(energy: FactorEnergy) -> ChainEnergy:
    """Convert a factor graph that couples only successive labels to chains of the same length.

    Raises:
        ValueError: see :func:`to_tree`; a scope has two labels that are not successive.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import FactorEnergy, to_chain
        >>> to_chain(FactorEnergy.of((2, 2), [((0, 1), torch.eye(2))])).transition.shape
        torch.Size([1, 1, 2, 2])
    """
    tree = to_tree(energy)
    for node, parent in enumerate(tree.parents.tolist()):
        if parent not in (-1, node - 1):
            raise ValueError(f"energy: expected pairs of successive labels, got {(parent, node)}")
    return ChainEnergy(tree.unary, tree.tables[:, 1:])


def to_networkx(energy: FactorEnergy) -> Any:
    """Convert a factor graph of one example to a ``networkx.Graph`` with log-potentials as attributes.

    Nodes are the variables, 0 … variables − 1, with ``unary`` (states,). A pair of variables is an edge with
    the ``scope`` (two variables, in the order of the axes) and the ``table`` (the sum of the pair's tables).
    A larger scope is a node ``("table", number)`` with ``scope``, ``table`` and edges to the variables.

    Raises:
        ValueError: the batch has more than one example.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import FactorEnergy, to_networkx
        >>> to_networkx(FactorEnergy.of((2, 2), [((0, 1), torch.eye(2))])).edges
        EdgeView([(0, 1)])
    """
    import networkx

    if energy.batch_size != 1:
        raise ValueError(f"energy: expected one example, got {energy.batch_size}; use energy.select")
    (energy,) = energy.without_constants().examples()
    structure, graph = energy.structure, networkx.Graph()
    values = energy.table[0].detach().cpu().numpy()
    for number, scope in enumerate(structure.every_scope):
        own = values[structure.first[number] : structure.first[number + 1]]
        table = own.reshape([structure.num_states[each] for each in scope])
        if len(scope) == 1:
            graph.add_node(number, unary=table)
        elif len(scope) == 2:
            known = graph.get_edge_data(*scope)
            if known is not None:
                table = known["table"] + (table if known["scope"] == scope else table.T)
                scope = known["scope"]
            graph.add_edge(*scope, scope=scope, table=table)
        else:
            graph.add_node(("table", number), scope=scope, table=table)
            graph.add_edges_from((("table", number), variable) for variable in scope)
    return graph


def _one_graph(energy: FactorEnergy, what: str) -> FactorScopes:
    if energy.is_packed:
        raise ValueError(f"energy: expected one graph for {what}, got packed graphs; use energy.examples()")
    return energy.structure


def _each(tables: Tensor, energy: Any) -> Tensor:
    return tables.expand(energy.batch_size, *tables.shape[1:])


def _from_chain(energy: ChainEnergy) -> FactorEnergy:
    lengths = energy.lengths.tolist()
    if len({*lengths}) > 1:
        return FactorEnergy.packed(
            [_from_chain(_cut(energy.select(slice(row, row + 1)))) for row in range(energy.batch_size)]
        )
    energy = _cut(energy)
    steps = torch.arange(energy.max_length - 1, device="cpu")
    edges = torch.stack([steps, steps + 1], 1)
    return FactorEnergy.from_edges(energy.unary, edges, energy.transition)


def _cut(energy: ChainEnergy) -> ChainEnergy:
    """Cut off the padding of chains that all have the same length."""
    length = int(energy.lengths[0])
    transition = energy.transition if energy.is_shared else energy.transition[:, : length - 1]
    return ChainEnergy(energy.unary[:, :length], transition)


def _from_pairwise(energy: PairwiseEnergy) -> FactorEnergy:
    coupled = (energy.pairwise.detach() != 0).reshape(-1, *energy.pairwise.shape[-2:]).any(0)
    edges = coupled.triu(1).nonzero()
    spins = energy.unary.new_tensor([-1, 1])
    weight = energy.pairwise[..., edges[:, 0], edges[:, 1]]
    tables = weight[..., None, None] * (spins[:, None] * spins)
    found = FactorEnergy.from_edges(energy.unary[..., None] * spins, edges, tables)
    # Add the constant to both states of the first label, so that scores stay equal.
    constant = energy.constant[:, None].expand(-1, 2)
    return FactorEnergy(torch.cat([found.table[:, :2] + constant, found.table[:, 2:]], 1), found.structure)


def _from_clique(energy: CliqueEnergy) -> FactorEnergy:
    weight = energy.weight if energy.weight.ndim == 2 else energy.weight[None]
    factors: list[tuple[tuple[int, ...], Tensor]] = [((0,), energy.constant[:, None].expand(-1, 2))]
    for clique, own in zip(energy.cliques, weight.unbind(1), strict=True):
        sign = np.ones(1)
        for _ in clique:
            sign = np.concatenate([-sign, sign])
        parity = own.new_tensor(sign).view(*[2] * len(clique))
        factors.append((clique, own.view(-1, *[1] * len(clique)) * parity))
    return FactorEnergy.of((2,) * energy.num_labels, factors)
