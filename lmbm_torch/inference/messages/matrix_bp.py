"""Belief propagation on restricted Boltzmann machines, all messages of a side at once.

Sum-, max- and mixed-product (belief_propagation_in_crbms_2017, section 5 and Algorithm 1): in each iteration
the hidden units answer the visible ones, then the visible ones the hidden ones with what is fresh. Messages
start as log-odds of 0, the paper's 0.5. It is exact where the coupling is a forest and propagation has
converged; elsewhere a fixed point of sum-product is a stationary point of the Bethe free energy.

CPUs and CUDA devices each have a compiled kernel, which runs where its requirements are installed; elsewhere
the plain reference does, which may also be called for differentiation through every iteration
(:func:`lmbm_torch.kernels.matrix_bp.plain.propagate`). A second kernel for CUDA devices
(:mod:`lmbm_torch.kernels.matrix_bp.compiled.resident`) runs where a model's messages stay on the chip.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmbm_torch.checks import check_known
from lmbm_torch.energies.bipartite import BipartiteEnergy, softplus
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.inference.common.given import clamp
from lmbm_torch.inference.common.iterations import Settings
from lmbm_torch.inference.results import BipartiteMarginals, BipartiteMessages, Decoding, Status
from lmbm_torch.kernels.matrix_bp.choosing import Propagation
from lmbm_torch.kernels.matrix_bp.plain import Beliefs, Problem, Product, pairwise_beliefs
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import foresee, is_traced, number, one_door

__all__ = ["expected_pairwise_sum", "marginal_map", "marginals", "max_marginals", "moments"]

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
    """Sum-product marginals, and the Bethe approximation of the log partition.

    ``log_partition`` is differentiable in the energy's tensors: at a fixed point its gradient is the beliefs,
    so none of the iterations is stored. Away from one (``status.converged`` false) this is not the gradient
    of what is returned, but what the paper trains with.

    Args:
        energy: a bipartite energy in float32 or float64, on any device.
        num_iters: iterations T, at most.
        tol: an example has converged, and costs nothing further, once no message to a visible unit changes by
            more in an iteration, in log-odds. 0 asks for messages that repeat to the last bit.
        damping: share of its old log-odds that a message to a visible unit keeps, at least 0 and below 1.
            Slower: the fast odds form has none.
        known: {0, 1, NaN}, NaN for a free visible unit; the results are conditional on the others. These send
            their messages from the start.
        init: probabilities by which the hidden units answer in the first iteration, for instance an earlier
            result's ``hidden``: nearly as good a start as its messages, in a number for each unit in place of
            one for each coupling. By default σ(energy.hidden), and what is known.
        messages: where to start, for instance from an earlier result's; those to the hidden units follow from
            those to the visible ones.
        keep_messages: return ``messages``, of (batch, visible, hidden) twice; ``pairwise()`` takes them.
        backend: ``"auto"``: the fastest for the energy and its device. ``"plain"``: the reference in torch,
            on any device. ``"streaming"``: the compiled one, of numba or on CUDA devices of Triton, and never
            the next one. ``"resident"``: one for CUDA devices of compute capability 9.0 that keeps all
            messages on the chip, for models of at most 832 × 256 units in float32, without gradients, damping
            or a start; what else is asked for is refused. It looks whether an example has converged in every
            fourth iteration alone.
        message_dtype: float32 or float64, in which all is computed, or float16 or bfloat16, to which the
            log-odds of messages are rounded between iterations; results have the energy's precision. None:
            the energy's. Beliefs that hear messages u are off by about Σ|u| times 6e-8 in float32, 5e-4 in
            float16 and 4e-3 in bfloat16, at worst: at 784 × 256 units, weights N(0, 0.1²), biases N(0, 1) and
            10 iterations, probabilities by 2e-6, 2e-4 and 1.4e-3, and ``log_partition``, which is stationary
            in the messages, by 4e-4, 4e-7 and 3e-5. Changes below the last digit of a message are not seen,
            so that ``tol`` should be above it. Half precision saves memory on CUDA devices, where
            ``"streaming"`` has bfloat16; elsewhere it is the plain reference that rounds, as its emulation.

    Returns:
        Marginals with the change of messages in the last iteration as ``status.residual``, infinite after one
        iteration from nothing; ``status.exact`` where it converged on a forest.

    Raises:
        ValueError: NaN or infinity in the energy or in ``messages``; another dtype; ``num_iters`` below 1; a
            negative ``tol``; ``damping`` outside [0, 1); ``known`` of another shape or with other values;
            ``messages`` or ``init`` of another shape, dtype or device, both, or ``init`` outside [0, 1];
            another ``backend`` or ``message_dtype``, or a backend that cannot do what is asked for.
        ImportError: ``backend="resident"`` where NVRTC is not installed.
    """
    propagate = Propagation(backend, message_dtype)
    settings = Settings(num_iters, tol, damping, known, messages, keep_messages, init)
    problem = _problem(Product.SUM, energy, settings, propagate)
    learnt = first_order(energy, "matrix_bp.marginals")
    tensors = learnt.visible, learnt.hidden, learnt.coupling
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if needs_gradient and backend == "resident":
        raise ValueError("backend: 'resident' has no gradient: call it under torch.no_grad()")
    if needs_gradient and energy.coupling.requires_grad:
        problem = problem._replace(pair_weights=torch.ones_like(problem.visible[:, 0]))
    if needs_gradient and is_traced():
        return _compiled_marginals(problem, learnt, keep_messages, propagate)
    beliefs = propagate(problem)
    result = _marginals(problem, beliefs)
    if not needs_gradient:
        return result
    return replace(
        result, log_partition=_AtFixedPoint.apply(*tensors, problem, propagate, result, beliefs.pair_sum)
    )


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
    """Max-product beliefs, those of temperature 0: how much better the best labelling with a unit at 1 is.

    ``visible`` is σ(m_1 − m_0) with m_y the largest score of any (v, h) with v_i = y, so that above ½ every
    best labelling has v_i = 1 (``hidden`` likewise), and ``log_partition`` is the largest score itself: both
    exactly on a forest, in the zero-temperature Bethe approximation elsewhere.

    Args:
        energy: see :func:`marginals`, also for all other arguments; ``known`` restricts the labellings.

    Returns:
        Same as :func:`marginals`, without gradient; ``pairwise()`` has no meaning.

    Raises:
        ValueError: see :func:`marginals`.
    """
    settings = Settings(num_iters, tol, damping, known, messages, keep_messages, init)
    propagate = Propagation(backend, message_dtype)
    problem = _problem(Product.MAX, energy, settings, propagate)
    return _marginals(problem, propagate(problem))


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
    """Labels of high probability with the hidden units summed out, by mixed-product BP (paper, Equation 15).

    On this graph that is to move every v_i at once to what is best given the others, from v = 0 on: it can
    end in a cycle of two labellings, even on a tree, and then has not converged. Sequential moves from its
    labels (:func:`lmbm_torch.inference.messages.conditional_modes.marginal_map`) never make them worse.

    Args:
        energy: see :func:`marginals`, also for all other arguments.

    Returns:
        Visible labels with the objective −free_energy(labels) = log Σ_h exp(score(labels, h)) and a loose
        bound on the best one; ``status.residual`` is the last change of messages.

    Raises:
        ValueError: see :func:`marginals`.
    """
    settings = Settings(num_iters, tol, damping, known, messages, init=init)
    propagate = Propagation(backend, message_dtype)
    problem = _problem(Product.MIXED, energy, settings, propagate)
    beliefs = propagate(problem)
    labels = clamp((beliefs.visible > 0).long(), known)
    objective = -energy.free_energy(labels)
    bound = torch.maximum(_bound(energy, known), objective)
    status = Status(objective == bound, beliefs.residual <= tol, beliefs.num_iters, beliefs.residual)
    return Decoding(labels, objective, bound, status)


@one_door
@torch.no_grad()
def expected_pairwise_sum(
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
) -> Float[Tensor, "visible hidden"]:
    """Σ_b P(v_i = 1, h_j = 1) over the batch (paper, Equation 18), as in the gradient of a likelihood.

    The pairwise beliefs of all examples are never stored; on a forest they are exact where the coupling is
    not 0. Whether propagation converged is told by :func:`marginals`, the gradient of whose ``log_partition``
    has this sum as well.

    Args:
        energy: see :func:`marginals`, also for all other arguments.

    Raises:
        ValueError: see :func:`marginals`.
    """
    settings = Settings(num_iters, tol, damping, known, messages, init=init)
    propagate = Propagation(backend, message_dtype)
    problem = _problem(Product.SUM, energy, settings, propagate)
    return _pair_sum(problem, propagate, torch.ones_like(problem.visible[:, 0]))


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
    """:func:`marginals` and :func:`expected_pairwise_sum` by one propagation.

    Together they are the gradient of Σ_b ``log_partition`` in the energy's tensors, for those who take their
    steps by hand.

    Args:
        energy: see :func:`marginals`, also for all other arguments.

    Raises:
        ValueError: see :func:`marginals`.
    """
    propagate = Propagation(backend, message_dtype)
    settings = Settings(num_iters, tol, 0.0, known, None, init=init)
    problem = _problem(Product.SUM, energy, settings, propagate)
    beliefs = propagate(problem._replace(pair_weights=torch.ones_like(problem.visible[:, 0])))
    assert beliefs.pair_sum is not None
    return _marginals(problem, beliefs), beliefs.pair_sum


def _compiled_marginals(
    problem: Problem, learnt: BipartiteEnergy, keep_messages: bool, propagate: Propagation
) -> BipartiteMarginals:
    """The result of :func:`marginals` by compiled code; every example's pairwise beliefs are stored."""
    problem = problem._replace(keep_messages=True, pair_weights=None)
    beliefs = propagate(problem)
    assert beliefs.to_visible is not None
    result = _marginals(problem, beliefs)
    pairs = pairwise_beliefs(problem, beliefs.visible, beliefs.hidden, beliefs.to_visible)
    singles = (learnt.visible * result.visible).sum(1) + (learnt.hidden * result.hidden).sum(1)
    # Linear in the energy's tensors, with the fixed point's beliefs as their factors.
    linear = singles + torch.einsum("bvh,vh->b", pairs, learnt.coupling)
    log_partition = linear + (result.log_partition - linear).detach()
    if not keep_messages:
        result = replace(result, messages=None, coupling=None)
    return replace(result, log_partition=log_partition)


class _AtFixedPoint(torch.autograd.Function):
    """The log partition, with the gradient that it has at a fixed point: marginals and pairwise beliefs."""

    @staticmethod
    def forward(ctx, visible, hidden, coupling, problem, propagate, result, pair_sum):
        ctx.problem, ctx.propagate, ctx.result, ctx.pair_sum = problem, propagate, result, pair_sum
        return result.log_partition.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        by_visible = by_hidden = by_coupling = None
        if ctx.needs_input_grad[0]:
            by_visible = grad[:, None] * ctx.result.visible
        if ctx.needs_input_grad[1]:
            by_hidden = grad[:, None] * ctx.result.hidden
        if ctx.needs_input_grad[2]:
            # A mean or a sum weighs all examples alike; for anything else propagation is repeated, because
            # the pairwise beliefs of single examples were not kept.
            # Those of a sum are one number in memory.
            alike = grad.stride(0) == 0 or bool((grad == grad[0]).all())
            by_coupling = grad[0] * ctx.pair_sum if alike else _pair_sum(ctx.problem, ctx.propagate, grad)
        return by_visible, by_hidden, by_coupling, None, None, None, None


def _problem(
    product: Product, energy: BipartiteEnergy, settings: Settings, propagation: Propagation
) -> Problem:
    """Check what came; nothing of it is differentiated through."""
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
    """The beliefs as probabilities, with their status."""
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


def _pair_sum(problem: Problem, propagate: Propagation, weights: Tensor) -> Float[Tensor, "visible hidden"]:
    pair_sum = propagate(problem._replace(pair_weights=weights, keep_messages=False)).pair_sum
    assert pair_sum is not None
    return pair_sum


def _is_forest(coupling: Tensor) -> bool:
    """Whether the non-zero weights close no cycle; compiled code does not say so."""
    if is_traced():
        return False
    num_visible, num_hidden = coupling.shape
    if number(EDGES, (coupling,), coupling.count_nonzero) >= num_visible + num_hidden:
        return False
    parent = list(range(num_visible + num_hidden))

    def root(unit: int) -> int:
        while parent[unit] != unit:
            parent[unit] = parent[parent[unit]]
            unit = parent[unit]
        return unit

    for i, j in coupling.nonzero().tolist():
        one, other = root(i), root(num_visible + j)
        if one == other:
            return False
        parent[one] = other
    return True


def _bound(energy: BipartiteEnergy, known: Tensor | None) -> Float[Tensor, " batch"]:
    """At least max_v −free_energy(v): every bias and every weight counts where it adds to it."""
    most = clamp(torch.ones_like(energy.visible), known)
    own = torch.where(energy.visible > 0, most, clamp(torch.zeros_like(most), known)) * energy.visible
    reachable = energy.hidden + most @ energy.coupling.clamp(min=0)
    if known is not None:
        reachable = reachable + known.nan_to_num().to(energy.dtype) @ energy.coupling.clamp(max=0)
    return own.sum(-1) + softplus(reachable).sum(-1)
