"""Sum-product messages of all tables at once, as tensors on any device, for a graph. Internal.

Messages are probabilities in the energy's precision. Zeros stay exact: before logarithms are added, zeros are
replaced, and the number of zeros is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from lmbm_torch.energies import FactorEnergy, FactorScopes
from lmbm_torch.shapes import Float, Int

# Smallest tolerance of a message's change, in units in the last place of 1: smaller changes are round-off.
ROUND_OFF = 8


class Group(NamedTuple):
    """Tables of the same shape.

    Args:
        values: (tables, states of each axis, batch), exp(log-potentials), scaled to a largest entry of 1 in
            each table. The batch is the last axis: sums over few states run along many examples.
        low: the number of the group's first message: first the messages of all tables' first axes, then of
            the second axes, and so on.
    """

    values: Tensor
    low: int

    def incoming(self, sums: Tensor) -> list[Tensor]:
        """Return the messages to each axis of the tables, each (tables, states, batch)."""
        tables, *sizes, _ = self.values.shape
        starts = [self.low + place * tables for place in range(len(sizes))]
        return [sums[start : start + tables, :size] for start, size in zip(starts, sizes, strict=True)]

    def outgoing(self, own: list[Tensor], place: int) -> Tensor:
        """Return the unnormalised messages from the tables to the variables of axis ``place``."""
        if len(own) == 2 and self.values.shape[-1] == 1:
            # A row times a matrix takes a quarter of the time of a matrix times a column
            # (scripts/bench/grid_messages.py).
            matrices = self.values.squeeze(-1)
            return (own[1 - place].mT @ (matrices if place else matrices.mT)).mT
        found = self.values
        for other in reversed(range(len(own))):
            if other != place:
                shape = *(1,) * other, -1, *(1,) * (place > other)
                found = (found * own[other].unflatten(1, shape)).sum(1 + other)
        return found


class Messages:
    """Messages between variables and tables of a graph, (messages, states, batch).

    Args:
        energy: one graph, not packed.
    """

    def __init__(self, energy: FactorEnergy) -> None:
        structure, table, scopes = energy.structure, energy.table, energy.structure.every_scope
        unary = energy.padded(table[:, : structure.num_unary], -torch.inf)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        constant = table.new_zeros(energy.batch_size)
        for number, scope in enumerate(scopes):
            if not scope:
                constant += table[:, int(structure.first[number])]
            elif number >= structure.num_variables:
                shape = tuple(structure.num_states[each] for each in scope)
                by_shape.setdefault(shape, []).append(number)
        self.groups: list[Group] = []
        variables: list[int] = []
        for shape, numbers in by_shape.items():
            entries = _entries(table, structure, numbers).permute(1, 2, 0)
            most = entries.amax(1, keepdim=True)
            most = most.where(most > -torch.inf, 0.0)
            self.groups.append(Group((entries - most).exp().contiguous().unflatten(1, shape), len(variables)))
            constant += most.sum((0, 1))
            for place in range(len(shape)):
                variables += [scopes[number][place] for number in numbers]
        self.unary, self.constant = unary.permute(1, 2, 0).contiguous(), constant
        self.variable: Int[Tensor, " messages"] = torch.tensor(variables, device=energy.device).long()
        self._sizes = structure.tensor("num_states", energy.device)[self.variable]
        # Sort messages by variable, so that the messages of each variable can be summed as one slice.
        self._order = self.variable.argsort(stable=True)
        count = self.variable.bincount(minlength=structure.num_variables)
        self._first = count.cumsum(0) - count

    def start(self) -> Float[Tensor, "messages states batch"]:
        """Return uniform messages to the variables, padded with 1 beyond a variable's states."""
        inside = torch.arange(self.unary.shape[1], device=self.unary.device) < self._sizes[:, None]
        share = (1.0 / self._sizes[:, None]).to(self.unary.dtype).where(inside, 1.0)
        return share[..., None].expand(-1, -1, self.unary.shape[2])

    def to_variables(self, sums: Tensor) -> Tensor:
        """Return the messages from the tables to the variables, given the messages ``sums`` to the tables."""
        found, states = [], sums.shape[1]
        for group in self.groups:
            own = group.incoming(sums)
            for place in range(len(own)):
                message = group.outgoing(own, place)
                # If no entry of a table is allowed, the message is 0: avoid a division by 0.
                message = message / message.sum(1, keepdim=True).clamp(min=torch.finfo(message.dtype).tiny)
                missing = states - message.shape[1]
                found.append(pad(message, (0, 0, 0, missing), value=1.0) if missing else message)
        return torch.cat(found) if found else sums

    def to_tables(self, messages: Tensor) -> tuple[Tensor, Tensor]:
        """Return the messages from the variables to the tables, and the log-marginals, unnormalised."""
        logs = messages.log()
        if not len(messages) or messages.min() > 0:
            field = self.unary + self._sum(logs)
            return _normal(field.index_select(0, self.variable) - logs), field
        zero = (messages == 0).to(logs.dtype)
        logs = logs.where(zero == 0, 0.0)
        field, zeros = self.unary + self._sum(logs), self._sum(zero)
        others = zeros[self.variable] - zero
        rest = (field[self.variable] - logs).where(others == 0, -torch.inf)
        return _normal(rest), field.where(zeros == 0, -torch.inf)

    def bethe(self, messages: Tensor) -> Float[Tensor, " batch"]:
        """Return the Bethe approximation of log Z, see :mod:`lmbm_torch.kernels.search.factor_graphs`."""
        sums, field = self.to_tables(messages)
        total = self.constant + field.logsumexp(1).sum(0)
        for group in self.groups:
            own = group.incoming(sums)
            total = total + (group.outgoing(own, 0) * own[0]).sum(1).log().sum(0)
            for sent, got in zip(own, group.incoming(messages), strict=True):
                total = total - (sent * got).sum(1).log().sum(0)
        return total

    def _sum(self, values: Tensor) -> Tensor:
        """Sum the values of the messages to each variable, (variables, states, batch)."""
        if not len(values):
            return torch.zeros_like(self.unary)
        return embedding_bag(self._order, values.flatten(1), self._first, mode="sum").view_as(self.unary)


class FixedPoint(NamedTuple):
    """Messages after the last update, and what follows from them.

    Args:
        states: (batch, labels, states), the marginals.
        converged, sweeps, residual, log_partition: (batch,).
    """

    states: Tensor
    converged: Tensor
    sweeps: Tensor
    residual: Tensor
    log_partition: Tensor


def fixed_point(energy: FactorEnergy, damping: float, num_iters: int, tol: float) -> FixedPoint:
    """Update all messages at once, until no message of an example changes by more than ``tol``.

    Args:
        energy: one graph, not packed.
        damping, num_iters, tol: see :func:`lmbm_torch.inference.graphs.belief_propagation.marginals`.
    """
    passed = Messages(energy)
    tol = max(tol, ROUND_OFF * torch.finfo(energy.dtype).eps)
    sweeps = torch.zeros(energy.batch_size, dtype=torch.int64, device=energy.device)
    messages = passed.start()
    found = passed.to_variables(passed.to_tables(messages)[0])
    residual = _moved(messages, found)
    for _ in range(num_iters):
        # Freeze examples that have converged, so that an answer does not depend on the rest of the batch.
        moves = residual > tol
        if not moves.any():
            break
        sweeps += moves
        new = found if damping == 0 else damping * messages + (1 - damping) * found
        messages = new if moves.all() else new.where(moves, messages)
        found = passed.to_variables(passed.to_tables(messages)[0])
        residual = _moved(messages, found)
    states = _normal(passed.to_tables(messages)[1]).permute(2, 0, 1)
    return FixedPoint(states, residual <= tol, sweeps, residual, passed.bethe(messages))


def _moved(messages: Tensor, found: Tensor) -> Float[Tensor, " batch"]:
    """Return the largest change of a message in each example; 0 without messages."""
    if not len(found):
        return found.new_zeros(found.shape[2])
    return (found - messages).abs_().amax((0, 1))


def _normal(log_values: Tensor) -> Tensor:
    """Return the softmax over states; 0 where all values are −∞."""
    return log_values.softmax(1).nan_to_num(0.0)


def _entries(
    table: Tensor, structure: FactorScopes, numbers: list[int]
) -> Float[Tensor, "batch tables entries"]:
    """Return the entries of the tables ``numbers``, which have the same number of entries."""
    first = structure.first[numbers]
    size = int(structure.first[numbers[0] + 1] - first[0])
    if (first[1:] - first[:-1] == size).all():
        # Tables that follow one another are a view, without a copy.
        return table[:, first[0] : first[0] + size * len(numbers)].unflatten(1, (-1, size))
    index = torch.from_numpy(first[:, None]).to(table.device) + torch.arange(size, device=table.device)
    return table[:, index]
