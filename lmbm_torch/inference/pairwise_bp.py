"""Belief propagation on Boltzmann machines with couplings of pairs, all messages at once.

Exact where the couplings form a forest and propagation has converged, which takes about as many iterations as
its longest path has couplings; elsewhere a fixed point of sum-product is a stationary point of the Bethe free
energy. A graph costs what its label with most neighbours does, times the number of labels.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lmbm_torch.checks import check_not_negative
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.parts.ascent import Settings
from lmbm_torch.inference.parts.bethe_descent import descended
from lmbm_torch.inference.parts.pairwise_messages import Graph, max_tail, propagate, sum_tail
from lmbm_torch.inference.results import Marginals, PairwiseMessages
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import one_door

__all__ = ["marginals", "max_marginals"]


@one_door
def marginals(
    energy: PairwiseEnergy,
    *,
    num_iters: int = 100,
    tol: float = 1e-6,
    damping: float = 0.0,
    newton_iters: int = 100,
    known: Known | None = None,
    messages: PairwiseMessages | None = None,
    keep_messages: bool = False,
) -> Marginals:
    """Sum-product marginals, and the Bethe approximation of the log partition.

    Examples whose messages do not come to rest, as where strong couplings of both signs close many cycles, go
    on by descent of the Bethe free energy from the beliefs that they had by then. Its value falls in every
    step, so that it ends at a fixed point, too; for 400 labels a step takes some 20 ms.

    ``log_partition`` is differentiable in the energy's tensors with the messages taken as constants. That is
    its gradient at a fixed point, where it is stationary in the messages: the beliefs of labels and pairs.
    That gradient is not differentiable in its turn.

    Args:
        energy: a Boltzmann machine in float32 or float64, on any device.
        num_iters: iterations at most.
        tol: an example has converged, and stays as it is, once no message differs by more from
            the one that its cavity field asks for, in units of the local fields.
        damping: share of its old value that a message keeps in an iteration, at least 0 and below 1.
        newton_iters: steps of descent at most, in float64 on the CPU, 0 for none; there is none for ``tol`` =
            0 or more than 2,000 labels either, whose Hessian would be large.
        known: {0, 1, NaN}, NaN for a free label; the results are conditional on the others.
        messages: where to start, for instance from an earlier result's, of the same couples of labels.
        keep_messages: return ``messages``.

    Returns:
        Marginals with ``status.residual`` as ``tol`` has it, ``status.exact`` where it converged on a forest.
        ``status.num_iters`` is above ``num_iters`` by the steps of descent where there were any.

    Raises:
        ValueError: NaN or infinity in the energy or in ``messages``, or couplings that are not symmetric;
            another dtype; ``num_iters`` below 1; a negative ``tol`` or ``newton_iters``; ``damping`` outside
            [0, 1); ``known`` of another shape or with other values; ``messages`` of another shape, dtype,
            device or graph.
        RuntimeError: in the backward pass of a gradient.
    """
    graph = Graph.of(first_order(energy, "pairwise_bp.marginals"), known, sum_tail)
    check_not_negative("newton_iters", newton_iters)
    settings = Settings(num_iters, tol, damping, known, messages, keep_messages)
    finish = partial(descended, tol=tol, num_iters=newton_iters)
    return propagate(graph, _bethe, settings, finish if newton_iters and tol else None)


@one_door
@torch.no_grad()
def max_marginals(
    energy: PairwiseEnergy,
    *,
    num_iters: int = 100,
    tol: float = 1e-6,
    damping: float = 0.0,
    known: Known | None = None,
    messages: PairwiseMessages | None = None,
    keep_messages: bool = False,
) -> Marginals:
    """Max-product beliefs, those of temperature 0: how much better the best labelling with a label at 1 is.

    ``labels`` is σ(m_1 − m_0) with m_y the largest score of any labelling with y_i = y, so that above ½ every
    best labelling has y_i = 1, and ``log_partition`` is the largest score itself: both exactly on a forest,
    in the zero-temperature Bethe approximation elsewhere.

    Args:
        energy: see :func:`marginals`, also for all other arguments; ``known`` restricts the labellings.

    Returns:
        Same as :func:`marginals`, without gradient.

    Raises:
        ValueError: see :func:`marginals`.
    """
    graph = Graph.of(energy, known, max_tail)
    return propagate(graph, _bethe, Settings(num_iters, tol, damping, known, messages, keep_messages))


def _bethe(graph: Graph, messages: Float[Tensor, "batch labels neighbours"]) -> Float[Tensor, " batch"]:
    """Σ_i (1 − degree_i) log Z_i + Σ_ij log Z_ij, labels having their fields and pairs their cavities."""
    fields = graph.fields(messages)
    cavities = graph.cavities(fields, messages)
    back = graph.reversed(cavities)
    # Spins that agree, then spins that differ; log(e^a + e^b) is (a + b)/2 + size((a − b)/2).
    agree, differ = graph.size(cavities + back), graph.size(cavities - back)
    pairs = (agree + differ) / 2 + graph.size(graph.coupling + (agree - differ) / 2)
    labels = (1 - graph.appearance.sum(-1)) * graph.size(fields)
    return graph.constant + labels.sum(-1) + (graph.appearance * pairs).sum((-2, -1)) / 2
