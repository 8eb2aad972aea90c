"""Tree-reweighted belief propagation on Boltzmann machines: an upper bound of the log partition.

Pairs count as often as they are on a random spanning tree, drawn with a chance proportional to the product of
the tree's weights (of a tree for each connected part; Wainwright, Jaakkola and Willsky 2005). By the
effective resistance R_ij this is ρ_ij = w_ij R_ij, on a complete graph with equal weights (labels − 1) /
pairs.

The bound holds at any messages, converged or not. Let r_i be the chance of label i to be the tree's root,
drawn uniformly, and ρ_{i|j} the chance of j to be the parent of i, ρ_{i|j} + ρ_{j|i} = ρ_ij. Then H(y) is at
most Σ_i r_i H(y_i) + Σ_ij ρ_{i|j} H(y_i | y_j), since conditioning on fewer labels can only add to an
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
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lmbm_torch.checks import check_finite, check_like, check_shape
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.common.iterations import Settings
from lmbm_torch.inference.common.results import Marginals, PairwiseMessages
from lmbm_torch.inference.messages.pairwise_messages import Graph, propagate, sum_tail
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import one_door

__all__ = ["marginals"]

# Largest ratio of tree weights: beyond, the chances of trees lose all digits on long chains.
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

    The bound holds whatever ``status`` says: at convergence the bound is the least for these trees, and exact
    on a forest. Differentiable as :func:`lmbm_torch.inference.messages.pairwise_bp.marginals` is.

    Args:
        energy: see :func:`lmbm_torch.inference.messages.pairwise_bp.marginals`, also for every argument
            without an entry here.
        damping: by default larger than there, against oscillation of strong couplings.
        tree_weights: symmetric, above 0 for coupled labels, arbitrary elsewhere; of the batch or of each
            example. By default all trees are equally likely.

    Raises:
        ValueError: as there; ``tree_weights`` of another shape, dtype or device, not symmetric, or not above
            0 and within a factor of 10⁶ of each other for coupled labels.
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
    # Examples with the same trees are computed once.
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
        raise ValueError("tree_weights: expected a symmetric matrix, got differences")
    if len(weights) and not 0 < weights.max() <= MAX_WEIGHT_RATIO * weights.min():
        raise ValueError(
            f"tree_weights: expected weights above 0 and within a factor of {MAX_WEIGHT_RATIO:g} of each "
            f"other where labels are coupled, got {float(weights.min())} to {float(weights.max())}"
        )


def _random_tree(graph: Graph, weights: Float[Tensor, "rows labels neighbours"]) -> tuple[Tensor, Tensor]:
    """Return the chance of each message's sender to be the receiver's child, and of each label to be a root.

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
    # The change of the messages adds 0 to the roots' fields at a fixed point.
    news = (child * (graph.answers(cavities, scaled) - messages)).sum(-1)
    return graph.constant + pairs.sum((-2, -1)) + (root * graph.size(fields + news / root)).sum(-1)
