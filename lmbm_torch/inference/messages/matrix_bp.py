"""Belief propagation on restricted Boltzmann machines; all messages of one side are computed at once.

Sum-, max- and mixed-product (belief_propagation_in_crbms_2017, section 5 and Algorithm 1): in each iteration
the hidden units answer the visible units, then the visible units answer the new messages. Messages start as
log-odds of 0 (probability 0.5 in the paper). The result is exact if the coupling is a forest and propagation
has converged. A fixed point of sum-product is a stationary point of the Bethe free energy.

Compiled kernels exist for CPUs and for GPUs. Without them, a plain implementation in torch runs, which can
also be called for differentiation through every iteration
(:func:`lmbm_torch.kernels.matrix_bp.plain.propagate`). A second GPU kernel
(:mod:`lmbm_torch.kernels.matrix_bp.compiled.resident`) runs if a model's messages fit on the chip.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmbm_torch.checks import check_known
from lmbm_torch.energies.bipartite import BipartiteEnergy, softplus
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.inference.common.given import clamp
from lmbm_torch.inference.common.iterations import Settings
from lmbm_torch.inference.common.results import BipartiteMarginals, BipartiteMessages, Decoding, Status
from lmbm_torch.inference.trees.triangulation import is_forest
from lmbm_torch.kernels.matrix_bp.choosing import Propagation, propagate
from lmbm_torch.kernels.matrix_bp.plain import Beliefs, Problem, Product, pairwise_beliefs
from lmbm_torch.kernels.operators import is_kept
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import foresee, is_traced, number, one_door

__all__ = ["marginal_map", "marginals", "max_marginals", "moments"]

EDGES = "couplings that are not 0"


@one_door
def marginals(
    energy: BipartiteEnergy,
    *,
    num_iters: int = 50,
    tol: float = 1e-6,
    damping: float = 0.0,
    known: Known | None = None,
    init: Float[Tensor, "batch hidden"] | None = None,
    messages: BipartiteMessages | None = None,
    keep_messages: bool = False,
    backend: str = "auto",
    message_dtype: torch.dtype | None = None,
) -> BipartiteMarginals:
    """Return sum-product marginals, and the Bethe approximation of the log partition.

    ``log_partition`` is differentiable in the energy's tensors. At a fixed point the gradient consists of the
    marginals: no iteration is stored. Away from a fixed point (``status.converged`` false) the same
    formula is used, as in the paper's training, although it is not the gradient of the returned value.

    Args:
        energy: a bipartite energy in float32 or float64, on any device.
        num_iters: the largest number T of iterations.
        tol: an example has converged, and takes no more time, once an iteration changes no message to a
            visible unit by more than ``tol``, in log-odds. With 0, messages must repeat to the last bit.
        damping: the share of the old log-odds in a message to a visible unit, in [0, 1). Damping is slower.
        known: {0, 1, NaN}, NaN for a free visible unit; the results are conditional on the known units.
        init: the hidden units' first probabilities, for instance ``hidden`` of an earlier result: nearly as
            good a start as messages, with a number for each unit instead of each coupling. By default
            σ(energy.hidden), given the known units.
        messages: the first messages, for instance of an earlier result. Only the messages to the visible
            units are read; those to the hidden units follow from them.
        keep_messages: return ``messages``, two tensors (batch, visible, hidden), which ``pairwise()`` needs.
        backend: ``"auto"``: the fastest for the energy and device. ``"plain"``: the reference in torch, on
            any device. ``"streaming"``: the compiled kernel of numba or, on GPUs, of Triton. ``"resident"``:
            the kernel for GPUs of compute capability 9.0 with all messages on the chip, for models of at most
            832 × 256 units in float32, without gradients, damping, ``init`` or ``messages``; other requests
            are refused. Convergence is tested only in every fourth iteration.
        message_dtype: float32 or float64, in which everything is computed; results have the energy's
            precision. None: the energy's precision. In float32, log-odds from messages u have errors of about
            6e-8 times Σ|u| at most. With 784 × 256 units, weights N(0, 0.1²), biases N(0, 1) and 10
            iterations, the errors of probabilities were 2e-6, of ``log_partition`` 4e-4. ``tol`` must be
            larger than the rounding errors of messages.

    Returns:
        Marginals. ``status.residual``: the last change of messages, infinite after a single iteration without
        ``init`` or ``messages``; ``status.exact``: propagation converged on a forest.

    Raises:
        ValueError: NaN or infinity in the energy or in ``messages``; another dtype; ``num_iters`` below 1; a
            negative ``tol``; ``damping`` outside [0, 1); ``known`` of another shape than (batch, labels), or
            with impossible values; ``messages`` or ``init`` of another shape, dtype or device, or both given,
            or ``init`` outside [0, 1]; an unknown ``backend`` or ``message_dtype``, or a backend that does
            not support the request.
        ImportError: ``backend="resident"`` without NVRTC.
    """
    propagation = Propagation(backend, message_dtype)
    settings = Settings(num_iters, tol, damping, known, messages, keep_messages, init)
    problem = _problem(Product.SUM, energy, settings, propagation)
    learnt = first_order(energy, "matrix_bp.marginals")
    tensors = learnt.visible, learnt.hidden, learnt.coupling
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if needs_gradient and backend == "resident":
        raise ValueError("backend: 'resident' has no gradient: call it under torch.no_grad()")
    if needs_gradient and is_traced() and not is_kept(energy.device):
        return _compiled_marginals(problem, learnt, keep_messages, propagation)
    if needs_gradient:
        weights = torch.ones_like(problem.visible[:, 0]) if energy.coupling.requires_grad else None
        visible, hidden, coupling = tensors
        learnable = problem._replace(visible=visible, hidden=hidden, coupling=coupling, pair_weights=weights)
        return _marginals(problem, propagate(learnable, propagation))
    return _marginals(problem, propagate(problem, propagation))


@one_door
@torch.no_grad()
def max_marginals(
    energy: BipartiteEnergy,
    *,
    num_iters: int = 50,
    tol: float = 1e-6,
    damping: float = 0.0,
    known: Known | None = None,
    init: Float[Tensor, "batch hidden"] | None = None,
    messages: BipartiteMessages | None = None,
    keep_messages: bool = False,
    backend: str = "auto",
    message_dtype: torch.dtype | None = None,
) -> BipartiteMarginals:
    """Return max-product marginals: how much better the best labelling with a unit at 1 is than with 0.

    ``visible`` is σ(m_1 − m_0), where m_y is the largest score of any (v, h) with v_i = y. Above ½, every
    best labelling has v_i = 1; ``hidden`` likewise. ``log_partition`` is the largest score. Both are exact on
    a forest; on other graphs they are the zero-temperature Bethe approximation.

    Args:
        energy: see :func:`marginals`, also for all other arguments; ``known`` restricts the labellings.

    Returns:
        As :func:`marginals`, without gradient; ``pairwise()`` has no meaning.

    Raises:
        ValueError: see :func:`marginals`.
    """
    settings = Settings(num_iters, tol, damping, known, messages, keep_messages, init)
    propagation = Propagation(backend, message_dtype)
    problem = _problem(Product.MAX, energy, settings, propagation)
    return _marginals(problem, propagate(problem, propagation))


@one_door
@torch.no_grad()
def marginal_map(
    energy: BipartiteEnergy,
    *,
    num_iters: int = 50,
    tol: float = 1e-6,
    damping: float = 0.0,
    known: Known | None = None,
    init: Float[Tensor, "batch hidden"] | None = None,
    messages: BipartiteMessages | None = None,
    backend: str = "auto",
    message_dtype: torch.dtype | None = None,
) -> Decoding:
    """Return labels of high probability with hidden units summed out, by mixed-product BP (Equation 15).

    On this graph, an iteration sets every v_i at once to the best value given the others, starting from v =
    0. Propagation can alternate between two labellings, even on a tree, and does not converge then.
    :func:`lmbm_torch.inference.messages.conditional_modes.marginal_map` can improve the labels further.

    Args:
        energy: see :func:`marginals`, also for all other arguments.

    Returns:
        Visible labels with the objective −free_energy(labels) = log Σ_h exp(score(labels, h)) and a loose
        bound of the best objective; ``status.residual`` is the last change of messages.

    Raises:
        ValueError: see :func:`marginals`.
    """
    settings = Settings(num_iters, tol, damping, known, messages, init=init)
    propagation = Propagation(backend, message_dtype)
    problem = _problem(Product.MIXED, energy, settings, propagation)
    beliefs = propagate(problem, propagation)
    labels = clamp((beliefs.visible > 0).long(), known)
    objective = -energy.free_energy(labels)
    bound = torch.maximum(_bound(energy, known), objective)
    status = Status(objective == bound, beliefs.residual <= tol, beliefs.num_iters, beliefs.residual)
    return Decoding(labels, objective, bound, status)


@one_door
@torch.no_grad()
def moments(
    energy: BipartiteEnergy,
    *,
    num_iters: int = 50,
    tol: float = 1e-6,
    known: Known | None = None,
    init: Float[Tensor, "batch hidden"] | None = None,
    backend: str = "auto",
    message_dtype: torch.dtype | None = None,
) -> tuple[BipartiteMarginals, Float[Tensor, "visible hidden"]]:
    """Return :func:`marginals` and Σ_b P(v_i = 1, h_j = 1) over the batch (paper, Equation 18).

    Both together are the gradient of Σ_b ``log_partition`` with respect to the energy's tensors. Pairwise
    marginals of single examples are never stored. On a forest, entries are exact where the coupling is not 0.

    Args:
        energy: see :func:`marginals`, also for all other arguments.

    Raises:
        ValueError: see :func:`marginals`.
    """
    propagation = Propagation(backend, message_dtype)
    settings = Settings(num_iters, tol, 0.0, known, None, init=init)
    problem = _problem(Product.SUM, energy, settings, propagation)
    weighted = problem._replace(pair_weights=torch.ones_like(problem.visible[:, 0]))
    beliefs = propagate(weighted, propagation)
    assert beliefs.pair_sum is not None
    return _marginals(problem, beliefs), beliefs.pair_sum


def _compiled_marginals(
    problem: Problem, learnt: BipartiteEnergy, keep_messages: bool, propagation: Propagation
) -> BipartiteMarginals:
    """Return the result of :func:`marginals` in traced code, by PyTorch's own operators."""
    problem = problem._replace(keep_messages=True)
    beliefs = propagation(problem)
    assert beliefs.to_visible is not None
    result = _marginals(problem, beliefs)
    pairs = pairwise_beliefs(problem, beliefs.visible, beliefs.hidden, beliefs.to_visible)
    singles = (learnt.visible * result.visible).sum(1) + (learnt.hidden * result.hidden).sum(1)
    # Linear in the energy's tensors with marginals as factors, so that marginals become the gradient.
    linear = singles + torch.einsum("bvh,vh->b", pairs, learnt.coupling)
    log_partition = linear + (result.log_partition - linear).detach()
    if not keep_messages:
        result = replace(result, messages=None, coupling=None)
    return replace(result, log_partition=log_partition)


def _problem(
    product: Product, energy: BipartiteEnergy, settings: Settings, propagation: Propagation
) -> Problem:
    propagation.check()
    energy.check_values()
    settings.check()
    check_known(settings.known, energy.device, *energy.visible.shape)
    coupling = energy.coupling.detach()
    foresee(EDGES, (coupling,), coupling.count_nonzero)
    return Problem(
        visible=energy.visible.detach(),
        hidden=energy.hidden.detach(),
        coupling=coupling,
        known=settings.known,
        start=settings.start("to_visible", energy.visible, *energy.visible.shape, energy.num_hidden),
        num_iters=settings.num_iters,
        tol=float(settings.tol),
        damping=float(settings.damping),
        product=product,
        keep_messages=settings.keep_messages,
        pair_weights=None,
        init=settings.beliefs(energy.hidden),
    )


def _marginals(problem: Problem, beliefs: Beliefs) -> BipartiteMarginals:
    converged = beliefs.residual <= problem.tol
    exact = converged & _is_forest(problem.coupling)
    messages = None
    if beliefs.to_visible is not None and beliefs.to_hidden is not None:
        messages = BipartiteMessages(to_hidden=beliefs.to_hidden, to_visible=beliefs.to_visible)
    return BipartiteMarginals(
        visible=clamp(torch.sigmoid(beliefs.visible), problem.known),
        hidden=torch.sigmoid(beliefs.hidden),
        log_partition=beliefs.log_partition,
        status=Status(exact, converged, beliefs.num_iters, beliefs.residual),
        messages=messages,
        coupling=None if messages is None else problem.coupling,
    )


def _is_forest(coupling: Tensor) -> bool:
    """Return whether the nonzero weights form no cycle; False in traced code."""
    if is_traced():
        return False
    num_visible, num_hidden = coupling.shape
    if number(EDGES, (coupling,), coupling.count_nonzero) >= num_visible + num_hidden:
        return False
    edges = ((i, num_visible + j) for i, j in coupling.nonzero().tolist())
    return is_forest(num_visible + num_hidden, edges)


def _bound(energy: BipartiteEnergy, known: Tensor | None) -> Float[Tensor, " batch"]:
    """Return a bound of −free_energy(v): positive biases and weights only, with log-sums of hidden units."""
    most = clamp(torch.ones_like(energy.visible), known)
    own = torch.where(energy.visible > 0, most, clamp(torch.zeros_like(most), known)) * energy.visible
    reachable = energy.hidden + most @ energy.coupling.clamp(min=0)
    if known is not None:
        reachable = reachable + known.nan_to_num().to(energy.dtype) @ energy.coupling.clamp(max=0)
    return own.sum(-1) + softplus(reachable).sum(-1)
