"""Messages along the couplings of a Boltzmann machine, for plain and for tree-reweighted propagation.

With s = 2y − 1 messages are local fields, half a log-odds each. Label j, with the field c without the message
from i, sends to a neighbour i, with coupling J,

    u = ½ size(c + J) − ½ size(c − J),     size(x) = log 2cosh(x) for sums, |x| for maxima,

and log Σ or max over both spins of a pair are sizes as well: sums and maxima differ by ``size`` alone. A
pair's appearance ρ, the chance to be on a random tree, reweighs propagation: u is then of J/ρ, and counts ρ
times in the field of i. For plain propagation ρ is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lmbm_torch.checks import check_known
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.common import iterations as ascent
from lmbm_torch.inference.common.given import clamp, free_part
from lmbm_torch.inference.common.iterations import Settings
from lmbm_torch.inference.common.results import Marginals, PairwiseMessages, Status
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Bool, Float, Int, Known

# Bytes of the messages that are iterated together on the CPU, in the cache with all intermediate values (20
# examples of 400 labels, 13 MB in all, take 30 ns a message and step together, 10 ns in parts of 1 to 3 MB).
CPU_CHUNK_BYTES = 2**20

# size(x) − |x|: apart from the rest, so that messages of weak couplings lose no digits to strong fields.
Tail = Callable[[Tensor], Tensor]


def sum_tail(values: Tensor) -> Tensor:
    """Return log 2cosh(x) − |x|."""
    return softplus(-2 * values.abs())


def max_tail(values: Tensor) -> Tensor:
    """Return |x| − |x|."""
    return torch.zeros_like(values)


@dataclass(frozen=True)
class Graph:
    """Batch of models as a table with a row of neighbours for each label, and the arithmetic of messages.

    An axis ``rows`` has one entry if all examples share the values. A label with fewer neighbours than others
    has a row that ends in the label itself, with coupling 0.

    Args:
        unary: fields without neighbours.
        constant: the known labels' part of the log partition, and the energy's own constant.
        neighbours: two places for every pair that is coupled in any example.
        reverse: the place of the message in the other direction, places counted row by row.
        coupling: J.
        appearance: ρ, 0 for pairs without a coupling in the example.
        tail: of the size for sums or maxima.
    """

    unary: Float[Tensor, "batch labels"]
    constant: Float[Tensor, " batch"]
    neighbours: Int[Tensor, "labels neighbours"]
    reverse: Int[Tensor, " places"]
    coupling: Float[Tensor, "rows labels neighbours"]
    appearance: Float[Tensor, "#rows labels neighbours"]
    tail: Tail

    @classmethod
    def of(cls, energy: PairwiseEnergy, known: Known | None, tail: Tail) -> Graph:
        """Return the graph of the free labels of ``energy``, with appearances of 1.

        Raises:
            ValueError: NaN or infinity in the energy, or couplings that are not symmetric; another dtype;
                ``known`` of another shape or with other values.
        """
        energy.check_values()
        check_known(known, energy.device, energy.batch_size, energy.num_labels)
        free = free_part(energy, known)
        coupled = energy.pairwise != 0
        neighbours, reverse = _neighbours(coupled if coupled.ndim == 2 else coupled.any(0))
        label = torch.arange(len(neighbours), device=neighbours.device)[:, None]
        coupling = free.pairwise[..., label, neighbours].reshape(-1, *neighbours.shape)
        constant = free.constant
        if known is not None:
            # With neither field nor coupling a label still has two states.
            constant = constant - (tail(torch.zeros_like(known, dtype=free.dtype)) * ~known.isnan()).sum(1)
        appearance = (coupling != 0).to(free.dtype)
        return cls(free.unary, constant, neighbours, reverse, coupling, appearance, tail)

    def select(self, rows: slice) -> Graph:
        """Return the graph of some of the batch's examples."""
        coupling, appearance = (
            values if len(values) == 1 else values[rows] for values in (self.coupling, self.appearance)
        )
        return replace(
            self,
            unary=self.unary[rows],
            constant=self.constant[rows],
            coupling=coupling,
            appearance=appearance,
        )

    def at_places(
        self, matrix: Float[Tensor, "*rows labels labels"]
    ) -> Float[Tensor, "*rows labels neighbours"]:
        """Return the entries of a (to label, from label) matrix, one for each message."""
        label = torch.arange(len(self.neighbours), device=matrix.device)[:, None]
        return matrix[..., label, self.neighbours]

    def reversed(self, values: Float[Tensor, "_ labels neighbours"]) -> Float[Tensor, "_ labels neighbours"]:
        """Return for each message the value of the message in the other direction."""
        return values.flatten(1).index_select(1, self.reverse).view_as(values)

    @property
    def scaled_coupling(self) -> Float[Tensor, "_ labels neighbours"]:
        """Return J/ρ, and 0 without a coupling."""
        return self.coupling / torch.where(self.appearance > 0, self.appearance, 1)

    def size(self, values: Tensor) -> Tensor:
        """Return log 2cosh(x) for sums, |x| for maxima."""
        return values.abs() + self.tail(values)

    def fields(self, messages: Float[Tensor, "batch labels neighbours"]) -> Float[Tensor, "batch labels"]:
        """Return each label's belief: half the log-odds."""
        return self.unary + (self.appearance * messages).sum(-1)

    def cavities(
        self, fields: Float[Tensor, "batch labels"], messages: Float[Tensor, "batch labels neighbours"]
    ) -> Float[Tensor, "batch labels neighbours"]:
        """Return for each message the sender's field without the receiver's message: c."""
        return fields[:, self.neighbours] - self.reversed(messages)

    def answers(
        self, cavities: Float[Tensor, "batch labels neighbours"], scaled: Float[Tensor, "_ labels neighbours"]
    ) -> Float[Tensor, "batch labels neighbours"]:
        """Return the messages of these cavity fields."""
        most = scaled.abs()
        hard = scaled.sign() * cavities.clamp(-most, most)
        return hard + (self.tail(cavities + scaled) - self.tail(cavities - scaled)) / 2

    def is_forest(self) -> Bool[Tensor, " rows"]:
        """Return whether the couplings close no cycle: leaf after leaf is cut off until no label is left."""
        coupled = self.coupling != 0
        left = torch.ones_like(coupled[..., 0])
        while True:
            inner = left & ((coupled & left[:, self.neighbours]).sum(-1) > 1)
            if torch.equal(inner, left):
                return ~left.any(-1)
            left = inner


def propagate(
    graph: Graph,
    log_partition: Callable[[Graph, Float[Tensor, "batch labels neighbours"]], Float[Tensor, " batch"]],
    settings: Settings,
    finish: Callable[[Graph, Tensor, Status], tuple[Tensor, Status]] | None = None,
) -> Marginals:
    """Pass messages until convergence; return the beliefs, and ``log_partition`` of the last messages.

    ``log_partition`` is differentiable with constant messages.

    Args:
        finish: improves the last messages, with their status.

    Raises:
        ValueError: ``num_iters`` below 1; a negative ``tol``; ``damping`` outside [0, 1); ``messages`` of
            another graph, shape, dtype or device, or not finite.
    """
    messages, status = _fixed_point(graph, settings)
    if finish is not None:
        messages, status = finish(graph, messages, status)
    beliefs = torch.sigmoid(2 * graph.fields(messages).detach())
    return Marginals(
        labels=clamp(beliefs, settings.known),
        log_partition=log_partition(graph, messages),
        status=status,
        messages=PairwiseMessages(graph.neighbours, messages) if settings.keep_messages else None,
    )


@torch.no_grad()
def _fixed_point(graph: Graph, settings: Settings) -> tuple[Tensor, Status]:
    """Return the last messages of all examples, in chunks that fit into the cache."""
    start = _start(graph, settings)
    batch, chunk = len(start), len(start)
    if start.device.type == "cpu":
        chunk = max(1, part_bytes(CPU_CHUNK_BYTES) // (start[0].numel() * start.itemsize))
    parts = [
        _iterate(graph.select(rows), start[rows], settings)
        for rows in (slice(first, first + chunk) for first in range(0, batch, chunk))
    ]
    messages, statuses = zip(*parts, strict=True)
    parts = ("exact", "converged", "num_iters", "residual")
    together = [torch.cat([getattr(status, part) for status in statuses]) for part in parts]
    return torch.cat(messages), Status(*together)


def _iterate(graph: Graph, start: Tensor, settings: Settings) -> tuple[Tensor, Status]:
    scaled, kept = graph.scaled_coupling, settings.damping

    def update(flat: Tensor) -> Tensor:
        messages = flat.view_as(start)
        answers = graph.answers(graph.cavities(graph.fields(messages), messages), scaled)
        return torch.lerp(answers, messages, kept).flatten(1)

    # The damped share of a message must not count as convergence: the tolerance limits the distance of
    # messages from the undamped messages.
    moves = 1 - kept
    flat, status = ascent.repeat(
        update, start.flatten(1), num_iters=settings.num_iters, tol=settings.tol * moves
    )
    exact = status.converged & graph.is_forest()
    return flat.view_as(start), replace(status, exact=exact, residual=status.residual / moves)


def _start(graph: Graph, settings: Settings) -> Float[Tensor, "batch labels neighbours"]:
    settings.check()
    shape = (len(graph.unary), *graph.neighbours.shape)
    to_labels = settings.start("to_labels", graph.unary, *shape)
    if to_labels is None:
        return graph.unary.new_zeros(shape)
    if not torch.equal(settings.messages.neighbours, graph.neighbours):
        raise ValueError("messages.neighbours: expected the pairs that the energy couples, got others")
    # No message passes without a coupling in this example, whatever the start.
    return to_labels * (graph.coupling != 0)


def _neighbours(
    coupled: Bool[Tensor, "labels labels"],
) -> tuple[Int[Tensor, "labels neighbours"], Int[Tensor, " places"]]:
    """Return the table of neighbours, and each message's reverse; fillers are their own reverse."""
    degree = coupled.sum(1)
    most = max(1, int(degree.max()))
    label = torch.arange(len(coupled), device=coupled.device)[:, None]
    place = torch.arange(most, device=coupled.device)
    is_filler = place >= degree[:, None]
    first = coupled.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
    neighbours = torch.where(is_filler, label, first)
    place_there = (coupled.cumsum(1) - 1)[neighbours, label]
    reverse = neighbours * most + torch.where(is_filler, place, place_there)
    return neighbours, reverse.flatten()
