"""Directed models in a common form for searches that build labellings label by label."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lmbm_torch.checks import check_device, check_labels, check_shape
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.shapes import Float, Int, Known

LogConditional = Callable[[int, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sequential:
    """Directed model for searches: labels in topological order, probabilities in float64.

    Args:
        batch_size: the number of examples.
        num_states: the number of values of the label at each position.
        positions: (labels,), the position of each label in the topological order.
        log_conditional: see :meth:`SequentialEnergy.log_conditional`.
        known: (batch, labels), the known values in topological order; −1 for free labels.
        dtype: the data type of results.
    """

    batch_size: int
    num_states: tuple[int, ...]
    positions: Int[Tensor, " labels"]
    log_conditional: LogConditional
    known: Int[Tensor, "batch labels"]
    dtype: torch.dtype

    @classmethod
    def of(cls, energy: DirectedEnergy | SequentialEnergy, known: Known | None) -> Sequential:
        """Check the input, and return the model.

        Raises:
            ValueError: the energy has NaN, infinity or a parent after its child; ``known`` has another shape
                than (batch, labels), or impossible values.
        """
        energy.check_values()
        states = energy.num_states if isinstance(energy, SequentialEnergy) else (2,) * energy.num_labels
        given = _known_values(energy, known, states)
        order = torch.argsort(energy.positions)
        return cls(
            batch_size=energy.batch_size,
            num_states=tuple(states[label] for label in order.tolist()),
            positions=energy.positions,
            log_conditional=(
                energy.log_conditional if isinstance(energy, SequentialEnergy) else _of_network(energy)
            ),
            known=given[:, order],
            dtype=energy.dtype,
        )

    @property
    def num_labels(self) -> int:
        return len(self.num_states)

    @property
    def device(self) -> torch.device:
        return self.positions.device

    def select(self, rows: Int[Tensor, " _rows"]) -> Sequential:
        """Return the model for the examples ``rows``."""

        def log_conditional(position: int, own: Tensor, earlier: Tensor) -> Tensor:
            return self.log_conditional(position, rows[own], earlier)

        return replace(self, batch_size=len(rows), known=self.known[rows], log_conditional=log_conditional)

    def roots(self) -> Prefixes:
        """Return the empty prefix of each example, from which a search starts."""
        rows = torch.arange(self.batch_size, device=self.device)
        values = torch.zeros(self.batch_size, self.num_labels, dtype=torch.int16, device=self.device)
        return Prefixes(rows, torch.zeros(self.batch_size, dtype=torch.float64, device=self.device), values)

    def children(self, parents: Prefixes, position: int) -> Prefixes:
        """Extend each prefix by every value of the next label that agrees with ``known``."""
        values, states = parents.values, self.num_states[position]
        factors = self.log_conditional(position, parents.rows, values[:, :position].long())
        choice = torch.arange(states, device=self.device)
        given = self.known[parents.rows, position, None]
        node, state = ((given < 0) | (choice == given)).nonzero(as_tuple=True)
        longer = values[node]
        longer[:, position] = state.to(values.dtype)
        return Prefixes(parents.rows[node], parents.log_prob[node] + factors[node, state], longer)

    def labellings(self) -> Int[Tensor, " batch"]:
        """Return the number of labellings that agree with ``known``, at most the largest int64."""
        states = torch.tensor(self.num_states, device=self.device).double()
        logs = torch.where(self.known < 0, states.log(), 0).sum(1)
        exact = torch.where(self.known < 0, states.long(), 1).prod(1)
        return torch.where(logs < math.log(2**62), exact, torch.iinfo(torch.int64).max)


class Prefixes(NamedTuple):
    """Prefixes of labellings, all of the same length; ``values`` of later labels have no meaning.

    Args:
        rows: the example of each prefix.
        log_prob: log P(prefix).
        values: the labels in topological order.
    """

    rows: Int[Tensor, " nodes"]
    log_prob: Float[Tensor, " nodes"]
    values: Int[Tensor, "nodes labels"]

    def where(self, chosen: Tensor) -> Prefixes:
        """Return the prefixes that a mask or an index selects."""
        return Prefixes(*(tensor[chosen] for tensor in self))

    def joined(self, others: Prefixes) -> Prefixes:
        """Return these prefixes, followed by ``others``."""
        return Prefixes(*(torch.cat(pair) for pair in zip(self, others, strict=True)))


def largest_by_row(rows: Tensor, values: Tensor, batch_size: int) -> Float[Tensor, " batch"]:
    """Return the largest value of each example; −∞ for an example without values."""
    none = values.new_full((batch_size,), -torch.inf)
    return none.scatter_reduce(0, rows, values, "amax")


def sum_by_row(rows: Tensor, values: Tensor, batch_size: int) -> Tensor:
    """Return the sum of each example's values."""
    return values.new_zeros((batch_size,)).index_add(0, rows, values)


def ranks(rows: Tensor, values: Tensor) -> Int[Tensor, " nodes"]:
    """Return the rank of each value among the values of the example, 0 for the largest; stable at ties."""
    order = torch.argsort(values, descending=True, stable=True)
    order = order[torch.argsort(rows[order], stable=True)]
    sorted_rows = rows[order]
    counts = torch.unique_consecutive(sorted_rows, return_counts=True)[1]
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    place = torch.arange(len(rows), device=rows.device) - starts
    return torch.empty_like(place).scatter(0, order, place)


def _known_values(energy: DirectedEnergy | SequentialEnergy, known: Known | None, states: tuple) -> Tensor:
    """Check ``known``, and return it as integers (batch, labels), −1 for free labels."""
    shape = (energy.batch_size, energy.num_labels)
    if known is None:
        return torch.full(shape, -1, device=energy.device)
    check_shape("known", known, *shape)
    check_device("known", known, energy.device)
    limits = torch.tensor(states, device=energy.device)
    if max(states) <= 2:
        check_labels("known", known, allow_missing=True)
    is_free = known.isnan()
    is_value = (known >= 0) & (known < limits) & (known == known.round())
    if not bool((is_free | is_value).all()):
        raise ValueError(
            f"known: expected NaN (free) or values from 0 to states − 1, where states are {states}, "
            f"got {int((~is_free & ~is_value).sum())} other values"
        )
    return torch.where(is_free, -1, known.nan_to_num()).long()


def _of_network(energy: DirectedEnergy) -> LogConditional:
    ordered = energy.in_order().to(torch.float64)
    by_child: dict[int, list[int]] = {}
    for index, clique in enumerate(ordered.cliques):
        by_child.setdefault(clique[-1], []).append(index)

    def log_conditional(position: int, rows: Tensor, earlier: Tensor) -> Tensor:
        spins = to_spins(earlier, torch.float64)
        parents = ordered.parents[..., position, :position]
        field = ordered.unary[rows, position]
        field = field + (spins @ parents if parents.ndim == 1 else (spins * parents[rows]).sum(1))
        weight = ordered.clique_weight
        for index in by_child.get(position, ()):
            assert weight is not None
            own = weight[index] if weight.ndim == 1 else weight[rows, index]
            field = field + own * spins[:, ordered.cliques[index][:-1]].prod(1)
        return logsigmoid(torch.stack([-2 * field, 2 * field], 1))

    return log_conditional


class Sweep(NamedTuple):
    """Result of one pass through the labels, which keeps the best prefixes.

    Args:
        leaves: the complete labellings that were kept, each example's most probable labelling first.
        mass_left: the total probability of the dropped prefixes that agree with the known labels.
        largest_left: the log-probability of the most probable dropped prefix; −∞ if none was dropped.
        nodes: the number of expanded prefixes.
    """

    leaves: Prefixes
    mass_left: Float[Tensor, " batch"]
    largest_left: Float[Tensor, " batch"]
    nodes: Int[Tensor, " batch"]


def sweep(model: Sequential, least: Float[Tensor, " batch"], width: int) -> Sweep:
    """Extend prefixes label by label; keep at most ``width`` with log-probabilities of at least ``least``."""
    batch = model.batch_size
    kept = model.roots()
    mass = torch.zeros(batch, dtype=torch.float64, device=model.device)
    largest = torch.full_like(mass, -torch.inf)
    nodes = torch.zeros(batch, dtype=torch.int64, device=model.device)
    for position in range(model.num_labels):
        nodes += torch.bincount(kept.rows, minlength=batch)
        children = model.children(kept, position)
        is_kept = _kept(children, least, width)
        rows, log_prob = children.rows[~is_kept], children.log_prob[~is_kept]
        mass += sum_by_row(rows, log_prob.exp(), batch)
        largest = largest.maximum(largest_by_row(rows, log_prob, batch))
        kept = children.where(is_kept)
    order = torch.argsort(kept.log_prob, descending=True, stable=True)
    order = order[torch.argsort(kept.rows[order], stable=True)]
    return Sweep(kept.where(order), mass, largest, nodes)


def _kept(children: Prefixes, least: Tensor, width: int) -> Tensor:
    """Return which prefixes to keep, (nodes,); the best prefix of each example is always kept."""
    is_likely = children.log_prob >= least[children.rows]
    counts = torch.bincount(children.rows[is_likely], minlength=len(least))
    # Skip the ranks, a third of a pass's time, if all likely prefixes fit, as in most passes.
    if int(counts.min()) >= 1 and int(counts.max()) <= width:
        return is_likely
    place = ranks(children.rows, children.log_prob)
    return (is_likely & (place < width)) | (place == 0)
