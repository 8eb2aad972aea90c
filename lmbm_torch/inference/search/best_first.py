"""Best-first search for the most probable labellings of directed models, exact and with a certificate.

The search extends prefixes of labellings label by label (uniform-cost search, Mena et al. 2015). No labelling
is more probable than its prefixes: a labelling at least as probable as every open (not yet extended)
prefix is the most probable of all. A round goes through the positions once. At each position, the round
expands all open prefixes that are at least half as probable as the example's best prefix, for all examples
together: so each round computes each label's distribution once. Expanded prefixes are at most twice as
improbable as in a search that expands one prefix at a time. Open prefixes bound all unvisited labellings.

Depth-first search needs less memory, but expands more prefixes: every round follows each example's deepest
open prefix greedily to a labelling, and prefixes no more probable than the best labelling are dropped. Only a
few open prefixes are kept for each label. Belief networks have better bounds: see ``branch_and_bound``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_not_negative, count_limit
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.inference.common.results import Decoding, Status, joined
from lmbm_torch.inference.search.sequential import Prefixes, Sequential, largest_by_row, ranks
from lmbm_torch.memory import limit_bytes
from lmbm_torch.shapes import Bool, Float, Int, Known
from lmbm_torch.verdicts import searched_on_host

__all__ = ["decode", "decode_depth_first"]

# Largest bytes of open prefixes: if more, the batch is halved, and the search of a single example ends.
OPEN_BYTES = 2**29


@dataclass
class Front:
    """State of a search for the ``top_k`` most probable labellings.

    Args:
        model: the directed model.
        open: for each length, the prefixes that are not yet expanded.
        best: log P of the most probable labellings found, best first; −∞ for labellings not yet found.
        labels: the labellings in topological order; −1 for labellings not yet found.
        nodes: the number of expanded prefixes of each example.
        limit: the largest number of ``nodes``.
    """

    model: Sequential
    open: list[Prefixes]
    best: Float[Tensor, "batch top_k"]
    labels: Int[Tensor, "batch top_k labels"]
    nodes: Int[Tensor, " batch"]
    limit: int

    @classmethod
    def at_roots(cls, model: Sequential, top_k: int, limit: int) -> Front:
        """Return the state before the search: only the empty prefix of each example is open."""
        roots, batch = model.roots(), model.batch_size
        none = roots.where(roots.rows < 0)
        return cls(
            model=model,
            open=[roots, *[none] * (model.num_labels - 1)],
            best=torch.full((batch, top_k), -torch.inf, dtype=torch.float64, device=model.device),
            labels=torch.full((batch, top_k, model.num_labels), -1, device=model.device),
            nodes=torch.zeros(batch, dtype=torch.int64, device=model.device),
            limit=limit,
        )

    @property
    def bound(self) -> Float[Tensor, " batch"]:
        """Return an upper bound of log P of all unvisited labellings; −∞ if none is left."""
        every = torch.cat([prefixes.log_prob for prefixes in self.open])
        rows = torch.cat([prefixes.rows for prefixes in self.open])
        return largest_by_row(rows, every, self.model.batch_size)

    @property
    def has_open(self) -> Bool[Tensor, " batch"]:
        """Return whether each example has open prefixes, including prefixes of probability 0."""
        left = torch.zeros(self.model.batch_size, dtype=torch.bool, device=self.model.device)
        for prefixes in self.open:
            left[prefixes.rows] = True
        return left

    @property
    def is_full(self) -> Bool[Tensor, " batch"]:
        """Return whether each example has the requested number of labellings."""
        return self.labels[:, -1, 0] >= 0

    @property
    def worst(self) -> Float[Tensor, " batch"]:
        """Return the log P that a new labelling must exceed; −∞ for examples with too few labellings."""
        return self.best[:, -1]

    def may_win(self, prefixes: Prefixes) -> Bool[Tensor, " nodes"]:
        """Return whether each prefix may lead to one of the requested labellings."""
        rows = prefixes.rows
        return (prefixes.log_prob > self.worst[rows]) | ~self.is_full[rows]

    def is_going(self, tolerance: float) -> Bool[Tensor, " batch"]:
        """Return whether each example's answer is still unproven to within ``tolerance``."""
        return self.has_open & (~self.is_full | (self.bound > self.worst + tolerance))

    def prune(self) -> None:
        """Drop the prefixes that cannot lead to a requested labelling."""
        self.open = [prefixes.where(self.may_win(prefixes)) for prefixes in self.open]

    def decoding(self, tolerance: float) -> Decoding:
        """Return the result, with labels in the energy's order and numbers in the energy's precision."""
        is_going = self.is_going(tolerance)
        worst = self.worst
        bound = self.bound.maximum(worst)
        dtype = self.model.dtype
        residual = torch.where(bound > worst, bound - worst, 0)
        status = Status(bound <= worst, ~is_going, self.nodes, residual.to(dtype))
        labels, objective = self.labels.index_select(2, self.model.positions), self.best.to(dtype)
        if labels.shape[1] == 1:
            labels, objective = labels.squeeze(1), objective.squeeze(1)
        return Decoding(labels, objective, bound.to(dtype), status, self.nodes)

    @property
    def size(self) -> int:
        """Return the bytes of the open prefixes."""
        each = 16 + 2 * self.model.num_labels
        return each * sum(len(prefixes.rows) for prefixes in self.open)

    def expand(self, position: int, chosen: Bool[Tensor, " nodes"]) -> Prefixes:
        """Replace the chosen open prefixes by their extensions by one label, and return the extensions."""
        prefixes = self.open[position]
        parents = prefixes.where(chosen)
        self.nodes.index_add_(0, parents.rows, torch.ones_like(parents.rows))
        self.open[position] = prefixes.where(~chosen)
        children = self.model.children(parents, position)
        if position + 1 == self.model.num_labels:
            self._keep(children)
        else:
            self.open[position + 1] = self.open[position + 1].joined(children)
        return children

    def _keep(self, leaves: Prefixes) -> None:
        """Update the best labellings by new ones; at ties, keep earlier labellings."""
        batch, top_k = self.best.shape
        found = self.labels[:, :, 0] >= 0
        rows = torch.arange(batch, device=self.best.device)[:, None].expand(-1, top_k)[found]
        before = Prefixes(rows, self.best[found], self.labels[found].to(leaves.values.dtype))
        every = before.joined(leaves)
        place = ranks(every.rows, every.log_prob)
        kept = place < top_k
        self.best[every.rows[kept], place[kept]] = every.log_prob[kept]
        self.labels[every.rows[kept], place[kept]] = every.values[kept].long()


Round = Callable[[Front, Tensor], None]
"""One round of a search, for the examples that a mask (batch,) selects."""


def best_first_round(front: Front, going: Bool[Tensor, " batch"]) -> None:
    """Expand the open prefixes that are at least half as probable as the example's best prefix."""
    least = front.bound - math.log(2)
    for position in range(front.model.num_labels):
        prefixes = front.open[position]
        chosen = going[prefixes.rows] & front.may_win(prefixes)
        chosen &= prefixes.log_prob >= least[prefixes.rows]
        # Expand only as many prefixes, best first, as the node limit leaves.
        left = (front.limit - front.nodes)[prefixes.rows]
        chosen &= ranks(prefixes.rows, torch.where(chosen, prefixes.log_prob, -torch.inf)) < left
        if bool(chosen.any()):
            front.expand(position, chosen)


def dive(front: Front, going: Bool[Tensor, " batch"]) -> None:
    """Extend each example's deepest open prefix to a labelling, by the most probable value at each label."""
    depth = torch.full((front.model.batch_size,), front.model.num_labels, device=front.model.device)
    for position, prefixes in enumerate(front.open):
        depth[prefixes.rows[going[prefixes.rows]]] = position
    for position in range(front.model.num_labels):
        prefixes = front.open[position]
        # From the deepest prefix on, all longer open prefixes are its own extensions.
        chosen = (depth <= position)[prefixes.rows] & (ranks(prefixes.rows, prefixes.log_prob) == 0)
        chosen &= front.may_win(prefixes)
        # The node limit ends a search only once ``top_k`` labellings are found.
        chosen &= ((front.nodes < front.limit) | ~front.is_full)[prefixes.rows]
        if bool(chosen.any()):
            front.expand(position, chosen)


@torch.no_grad()
def search(
    energy: DirectedEnergy | SequentialEnergy,
    known: Known | None,
    top_k: int,
    node_limit: int | None,
    tolerance: float,
    one_round: Round,
) -> Decoding:
    """Search for the ``top_k`` most probable labellings: first a greedy dive, then rounds of ``one_round``.

    Raises:
        ValueError: input that :meth:`Sequential.of` refuses; a node limit or ``top_k`` that is no positive
            integer; more labellings requested than an example has; a negative tolerance.
    """
    limit = count_limit("node_limit", node_limit)
    check_count("top_k", top_k)
    check_not_negative("tolerance", tolerance)
    model = Sequential.of(energy, known)
    fewest = int(model.labellings().min())
    if top_k > fewest:
        raise ValueError(f"top_k: expected at most {fewest}, the least number of labellings, got {top_k}")
    front = Front.at_roots(model, top_k, limit)
    dive(front, front.has_open)
    while bool((going := front.is_going(tolerance)).any()):
        is_within = front.nodes < front.limit
        if bool((going & is_within).any()):
            one_round(front, going & is_within)
        # Examples at the node limit without ``top_k`` labellings are completed greedily.
        if bool((late := going & ~is_within & ~front.is_full).any()):
            dive(front, late)
        elif not bool((going & is_within).any()):
            break
        front.prune()
        if front.size > limit_bytes(OPEN_BYTES):
            if model.batch_size > 1:
                half = model.batch_size // 2
                parts = [
                    search(
                        energy.select(rows),
                        None if known is None else known[rows],
                        top_k,
                        node_limit,
                        tolerance,
                        one_round,
                    )
                    for rows in (slice(0, half), slice(half, None))
                ]
                return joined(parts)
            front.limit = int(front.nodes)
    return front.decoding(tolerance)


@searched_on_host
def decode(
    energy: DirectedEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: int | None = None,
    tolerance: float = 0.0,
) -> Decoding:
    """Return argmax_y log P(y), the most probable labelling, or the ``top_k`` most probable labellings.

    Args:
        energy: a directed model with labels of two or more values, on any device; the search runs on the CPU.
        known: the values of known labels, NaN for a free label; the answer keeps them.
        top_k: the number of labellings to return, best first; the bound then holds for all other labellings.
        node_limit: the number of expanded prefixes after which an example's search ends, if ``top_k``
            labellings were found.
        tolerance: ε ≥ 0; the search ends once no labelling is more than e^ε times as probable as the answer.

    Returns:
        The log-probability is the objective, bound ≥ objective, and no unvisited labelling is more probable
        than the bound. ``status.exact``: no labelling is better; ``status.converged``: the search ended
        before the node limit; ``status.residual``: the bound minus the objective of the last labelling.

    Raises:
        ValueError: NaN, infinity or a misplaced parent in the energy, or conditional probabilities that do
            not sum to 1; ``known`` of another shape than (batch, labels), or with impossible values; a node
            limit or ``top_k`` that is no positive integer; more labellings requested than an example has; a
            negative tolerance.
    """
    return search(energy, known, top_k, node_limit, tolerance, best_first_round)


@searched_on_host
def decode_depth_first(
    energy: DirectedEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: int | None = None,
    tolerance: float = 0.0,
) -> Decoding:
    """Return argmax_y log P(y) by depth-first search: less memory, more nodes; see :func:`decode`."""
    return search(energy, known, top_k, node_limit, tolerance, dive)
