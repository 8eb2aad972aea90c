"""Messages along the couplings of a Boltzmann machine, and a bound of the log partition by random trees.

With spins s = 2y − 1, messages are local fields: half log-odds. Label j, with the field c without the message
from i, sends to a neighbour i, with coupling J,

    u = ½ size(c + J) − ½ size(c − J),     size(x) = log 2cosh(x) for sums, |x| for maxima,

and log Σ or max over both spins of a pair are sizes as well: sum-product and max-product differ only in
``size``. A pair's appearance ρ is the probability that a random tree contains the pair. In reweighted
propagation u is computed with J/ρ, and counts ρ times in the field of i. For plain propagation ρ is 1.

The random spanning tree is drawn with a probability proportional to the product of the weights (one tree for
each connected part; Wainwright, Jaakkola and Willsky 2005). By the effective resistance R_ij this is ρ_ij =
w_ij R_ij, on a complete graph with equal weights (labels − 1) / pairs.

The bound holds at any messages, converged or not. Let r_i be the probability that label i is the tree's root,
drawn uniformly, and ρ_{i|j} the probability that j is the parent of i, ρ_{i|j} + ρ_{j|i} = ρ_ij. Then H(y) is
at most Σ_i r_i H(y_i) + Σ_ij ρ_{i|j} H(y_i | y_j), since conditioning on fewer labels can only add to an
entropy, and log Z = E[score] + H(y) is at most E[score] plus this sum. With any numbers c_ij the score is
Σ_ij ρ_{i|j} (J_ij s_j / ρ_ij + c_ij) s_i + Σ_i (unary_i − Σ_j ρ_{i|j} c_ij) s_i. Maximising over each p(y_i |
y_j) alone, then over each p(y_i), gives

    log Z ≤ Σ_ij ρ_{i|j} A_ij + Σ_i r_i log 2cosh((unary_i − Σ_j ρ_{i|j} c_ij + Σ_j ρ_{j|i} u_ji) / r_i),

where A_ij ± u_ij = log 2cosh(c_ij ± J_ij/ρ_ij) (the dual of Globerson and Jaakkola 2007). The field of i
without the message from j serves as c_ij, and u_ij is then the message from i to j. At a fixed point the
bound is stationary and, being convex in c, the least bound for these trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lmbm_torch.checks import check_finite, check_known, check_like, check_shape
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.common import iterations as ascent
from lmbm_torch.inference.common.given import clamp, free_part
from lmbm_torch.inference.common.iterations import Settings
from lmbm_torch.inference.common.results import Marginals, PairwiseMessages, Status
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Bool, Float, Int, Known
from lmbm_torch.verdicts import one_door

__all__ = ["marginals"]

# Largest bytes of the messages that are iterated together on the CPU, so they and all intermediate
# values fit into the cache (for 20 examples of 400 labels, 13 MB in all, a message takes 30 ns a step; in
# parts of 1 to 3 MB 10 ns).
CPU_CHUNK_BYTES = 2**20

# size(x) − |x|, computed apart from |x|: so messages of weak couplings stay precise in strong fields.
Tail = Callable[[Tensor], Tensor]


def sum_tail(values: Tensor) -> Tensor:
    """Return log 2cosh(x) − |x|."""
    return softplus(-2 * values.abs())


def max_tail(values: Tensor) -> Tensor:
    """Return |x| − |x|."""
    return torch.zeros_like(values)


@dataclass(frozen=True)
class Graph:
    """Batch of models as a table with a row of neighbours for each label, with functions on messages.

    An axis ``rows`` has one entry if all examples share the values. Shorter rows are filled up with the label
    itself, with coupling 0.

    Args:
        unary: the labels' unary log-potentials.
        constant: the known labels' part of the log partition, and the energy's own constant.
        neighbours: the neighbours of each label: pairs that are coupled in any example.
        reverse: the index of the message in the other direction; indices count row by row.
        coupling: J.
        appearance: ρ, 0 for pairs that the example does not couple.
        tail: :func:`sum_tail` or :func:`max_tail`.
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
                ``known`` of another shape than (batch, labels), or with impossible values.
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
            # Known labels have no field and no coupling, but still two states in the sums: subtract them.
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
        """Return the entry of a (to label, from label) matrix for each message."""
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
        """Return the messages that senders with these cavity fields send."""
        most = scaled.abs()
        hard = scaled.sign() * cavities.clamp(-most, most)
        return hard + (self.tail(cavities + scaled) - self.tail(cavities - scaled)) / 2

    def is_forest(self) -> Bool[Tensor, " rows"]:
        """Return whether the couplings close no cycle: cut off leaves until nothing is left."""
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

    ``log_partition`` is differentiable, with messages held constant.

    Args:
        finish: a function that improves the last messages and their status.

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

    # Damping makes changes small without convergence: so the tolerance is for the difference to the undamped
    # messages.
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
        raise ValueError("messages.neighbours: expected the pairs that the energy couples, got other pairs")
    # Pairs that an example does not couple have messages of 0, also at the start.
    return to_labels * (graph.coupling != 0)


def _neighbours(
    coupled: Bool[Tensor, "labels labels"],
) -> tuple[Int[Tensor, "labels neighbours"], Int[Tensor, " places"]]:
    """Return the table of neighbours, and the index of each message's reverse (for fillers, of itself)."""
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


# Largest ratio of two tree weights: beyond, the probabilities of trees lose all digits on long chains.
MAX_WEIGHT_RATIO = 1e6


@one_door
def marginals(
    energy: PairwiseEnergy,
    *,
    num_iters: int = 100,
    tol: float = 1e-6,
    damping: float = 0.5,
    tree_weights: Float[Tensor, "*rows labels labels"] | None = None,
    known: Known | None = None,
    messages: PairwiseMessages | None = None,
    keep_messages: bool = False,
) -> Marginals:
    """Return tree-reweighted marginals; ``log_partition`` is never below the exact value, up to rounding.

    The bound holds with and without convergence. At convergence the bound is the least for the trees, and
    exact on a forest. Gradients are as for :func:`lmbm_torch.inference.messages.pairwise_bp.marginals`.

    Args:
        energy: see :func:`lmbm_torch.inference.messages.pairwise_bp.marginals`, also for every argument
            without an entry here.
        damping: as there; the default is larger, because strong couplings make undamped messages oscillate.
        tree_weights: symmetric weights, above 0 for coupled labels and arbitrary for others; one matrix for
            the batch or one for each example. By default all trees are equally likely.

    Raises:
        ValueError: see :func:`lmbm_torch.inference.messages.pairwise_bp.marginals`; ``tree_weights`` of
            another shape, dtype or device, not symmetric, or not above 0 and within a factor of 10⁶ of each
            other for coupled labels.
    """
    learnt = first_order(energy, "tree_reweighted.marginals")
    graph, bound = _reweighted(learnt, known, tree_weights)
    return propagate(graph, bound, Settings(num_iters, tol, damping, known, messages, keep_messages))


def _reweighted(
    energy: PairwiseEnergy, known: Tensor | None, tree_weights: Tensor | None
) -> tuple[Graph, Callable[[Graph, Tensor], Tensor]]:
    """Return the graph with the pairs' appearances on random trees, and the bound for the graph."""
    graph = Graph.of(energy, known, sum_tail)
    if tree_weights is not None:
        _check_weights(tree_weights, energy)
    # The trees are computed once for examples that share them.
    coupled = graph.coupling.detach() != 0
    if bool((coupled == coupled[:1]).all()):
        coupled = coupled[:1]
    weights = coupled.double()
    if tree_weights is not None:
        weights = torch.where(coupled, graph.at_places(tree_weights.detach()).double(), 0)
    child, root = _random_tree(graph, weights)
    reweighted = replace(graph, appearance=child + graph.reversed(child))
    return reweighted, partial(_upper_bound, child=child, root=root)


def _check_weights(tree_weights: Tensor, energy: PairwiseEnergy) -> None:
    square = (energy.num_labels, energy.num_labels)
    check_shape(
        "tree_weights", tree_weights, *(square if tree_weights.ndim == 2 else (energy.batch_size, *square))
    )
    check_like("tree_weights", tree_weights, "unary", energy.unary)
    coupled = (energy.pairwise != 0).expand(torch.broadcast_shapes(energy.pairwise.shape, tree_weights.shape))
    weights = tree_weights.expand_as(coupled)[coupled]
    check_finite("tree_weights", weights)
    if not torch.equal(tree_weights.mT.expand_as(coupled)[coupled], weights):
        raise ValueError("tree_weights: expected a symmetric matrix, got different entries [i, j] and [j, i]")
    if len(weights) and not 0 < weights.max() <= MAX_WEIGHT_RATIO * weights.min():
        raise ValueError(
            f"tree_weights: expected weights above 0 and within a factor of {MAX_WEIGHT_RATIO:g} of each "
            f"other where labels are coupled, got {float(weights.min())} to {float(weights.max())}"
        )


def _random_tree(graph: Graph, weights: Float[Tensor, "rows labels neighbours"]) -> tuple[Tensor, Tensor]:
    """Return the probability that a message's sender is the receiver's child, and that each label is a root.

    With the pseudo-inverse L⁺ of the weights' Laplacian, ρ_{i|j} = w_ij (L⁺_ii − L⁺_ij): the path from i to a
    root begins with j as often as a unit current from i to the root flows to j (Wilson's algorithm).
    """
    labels = len(graph.neighbours)
    to_neighbours = weights.new_zeros(len(weights), labels, labels)
    to_neighbours.scatter_(2, graph.neighbours.expand(weights.shape), weights)
    laplacian = torch.diag_embed(to_neighbours.sum(-1)) - to_neighbours
    resistance = torch.linalg.pinv(laplacian, hermitian=True)
    own = resistance.diagonal(dim1=-2, dim2=-1)[..., graph.neighbours]
    child = weights * (own - graph.at_places(resistance))
    root = 1 - graph.reversed(child).sum(-1)
    return child.to(graph.unary.dtype), root.to(graph.unary.dtype)


def _upper_bound(
    graph: Graph,
    messages: Float[Tensor, "batch labels neighbours"],
    child: Float[Tensor, "rows labels neighbours"],
    root: Float[Tensor, "rows labels"],
) -> Float[Tensor, " batch"]:
    """Return the right-hand side of the module's inequality, with c from the messages."""
    fields, scaled = graph.fields(messages), graph.scaled_coupling
    cavities = graph.cavities(fields, messages)
    pairs = child * (graph.size(cavities + scaled) + graph.size(cavities - scaled)) / 2
    # Away from a fixed point, the change of the messages is added to the roots' fields.
    news = (child * (graph.answers(cavities, scaled) - messages)).sum(-1)
    return graph.constant + pairs.sum((-2, -1)) + (root * graph.size(fields + news / root)).sum(-1)
