"""Exact inference in trees by dynamic programming: messages from the leaves to the roots, and back.

Let up_t(s) be the log-sum (or maximum) over all nodes below node t, given state s of t. Node t sends the
message m_t(r) = log Σ_s exp(transition_t(r, s) + up_t(s)) to its parent
(max_margin_markov_networks_survey_2003, section 4.2). Each step computes one node of all examples. Parents
have smaller numbers than children: one pass goes through the nodes backwards, and the other forwards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmbm_torch.energies.tree import TreeEnergy
from lmbm_torch.inference.common.results import Decoding, StateMarginals, Status
from lmbm_torch.shapes import Float
from lmbm_torch.verdicts import one_door

__all__ = ["decode", "log_partition", "marginals"]

Combine = Callable[[int, Tensor], Tensor]
"""Function from a node and the table (batch, parent's states, states) to the message (batch, states)."""


@one_door
def log_partition(energy: TreeEnergy) -> Float[Tensor, " batch"]:
    """Return log Σ_y exp(score(y)), differentiable; the gradient is the marginals.

    Args:
        energy: trees in float32 or float64, on any device.

    Raises:
        ValueError: NaN or infinity in the energy.
    """
    below, _ = _upward(energy, _sum)
    return _total(energy, below)


@one_door
@torch.no_grad()
def marginals(energy: TreeEnergy) -> StateMarginals:
    """Return P(y_t) and P(y_{parent of t}, y_t), and the log partition.

    Args:
        energy: see :func:`log_partition`.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    below, messages = _upward(energy, _sum)
    log_nodes: list[Tensor] = []
    edges = energy.unary.new_zeros(*energy.unary.shape, energy.num_states)
    for node, (parent, table) in enumerate(_nodes(energy)):
        if parent < 0:
            log_nodes.append(below[node].log_softmax(-1))
            continue
        before = log_nodes[parent] - messages[node]
        log_edge = before[..., None] + (table + below[node][:, None])
        edges[:, node] = log_edge.exp()
        log_nodes.append(log_edge.logsumexp(-2))
    nodes, status = torch.stack(log_nodes, 1).exp(), Status.certain(energy, energy.num_nodes)
    return StateMarginals(nodes, status, _total(energy, below), edges)


@one_door
@torch.no_grad()
def decode(energy: TreeEnergy) -> Decoding:
    """Return the labelling with the largest score (MAP); ties are broken arbitrarily.

    Args:
        energy: see :func:`log_partition`.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    pointers: dict[int, Tensor] = {}

    def largest(node: int, table: Tensor) -> Tensor:
        best, pointers[node] = table.max(-1)
        return best

    below, _ = _upward(energy, largest)
    labels: list[Tensor] = []
    for node, (parent, _) in enumerate(_nodes(energy)):
        if parent < 0:
            labels.append(below[node].argmax(-1))
        else:
            labels.append(pointers[node].gather(-1, labels[parent][:, None])[:, 0])
    found = torch.stack(labels, 1)
    objective = energy.score(found)
    return Decoding(found, objective, objective.clone(), Status.certain(energy, energy.num_nodes))


def _nodes(energy: TreeEnergy) -> list[tuple[int, Tensor]]:
    """Return for each node the parent's number, and the transitions from the parent."""
    return list(zip(energy.parents.tolist(), energy.tables.unbind(1), strict=True))


def _upward(energy: TreeEnergy, combine: Combine) -> tuple[list[Tensor], dict[int, Tensor]]:
    """Return the log-potentials of each node including all nodes below, (batch, states), and the messages
    from each node to its parent.
    """
    energy.check_values()
    below = list(energy.unary.unbind(1))
    messages: dict[int, Tensor] = {}
    for node, (parent, table) in reversed(list(enumerate(_nodes(energy)))):
        if parent >= 0:
            messages[node] = combine(node, table + below[node][:, None])
            below[parent] = below[parent] + messages[node]
    return below, messages


def _sum(node: int, table: Tensor) -> Tensor:
    return table.logsumexp(-1)


def _total(energy: TreeEnergy, below: list[Tensor]) -> Float[Tensor, " batch"]:
    """Return the log partition from the log-potentials of the roots and all nodes below."""
    roots = (energy.parents < 0).nonzero()[:, 0].tolist()
    return torch.stack([below[root] for root in roots]).logsumexp(-1).sum(0)
