"""Matrix belief propagation on restricted Boltzmann machines in torch: the reference for the kernels.

The functions run on any device, and autograd can differentiate through the iterations. Messages are log-odds,
or odds if no overflow is possible (belief_propagation_in_crbms_2017, section 5.2, in other variables):

* Without the message w_ij from visible unit i, hidden unit j has the log-odds c_ij = θ_j − w_ij, and sends
  the message u_ij = log(1 + e^{c_ij + W_ij}) − log(1 + e^{c_ij}) to unit i. This outgoing message is called
  the answer to w_ij. Maxima instead of sums give max-product.
* In odds r = e^u, with τ = σ(θ_j) and a = e^W: r_out = (r_in (1 − τ) + a τ) / (r_in (1 − τ) + τ), without
  exponentials or logarithms of messages, and without cancellation.
* A known unit, or a visible unit decided by mixed-product BP, has infinite log-odds, and sends W or 0.

An iteration (Algorithm 1) computes messages from hidden to visible units, then messages from visible to
hidden units. Only the messages from hidden to visible units are stored between iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmbm_torch.energies.bipartite import softplus
from lmbm_torch.memory import part_bytes
from lmbm_torch.verdicts import foresee, is_supposing, is_traced, number

# Largest |message| for which odds are used, so that products and quotients of a few odds stay in range. At
# 35, float32 has errors of up to 4e-6 in log-odds.
ODDS_LIMIT = {torch.float32: 35.0, torch.float64: 280.0}

# The kernels multiply as many messages as can be without leaving e^±this.
LOG_RANGE = {torch.float32: 80.0, torch.float64: 640.0}

# Bytes of a tensor (instances, visible, hidden) in a chunk; about eight such tensors exist at a time. A CPU
# is fastest if they fit its cache; other devices need larger chunks, as launches cost time.
CPU_CHUNK_BYTES = 2**20
DEVICE_CHUNK_BYTES = 64 * 2**20
# Number of iterations between two checks of convergence on a device, for which the CPU must wait.
LOOK_EVERY = 8


class Product(Enum):
    """The treatment of hidden and visible units: summed or maximised."""

    SUM = auto()
    MAX = auto()
    MIXED = auto()  # hidden units are summed, visible units decided by their beliefs


class Problem(NamedTuple):
    """A model, initial messages, and the settings of belief propagation.

    Args:
        visible: (batch, visible) log-potentials.
        hidden: (batch, hidden) log-potentials.
        coupling: (visible, hidden).
        known: (batch, visible) of {0, 1, NaN}, or None.
        start: (batch, visible, hidden) initial log-odds messages to the visible units; None: no messages yet,
            in either direction.
        num_iters: largest number of iterations.
        tol: an instance has converged if no message to a visible unit changes by more than this, in log-odds.
        damping: share of the old message (in log-odds) in each new message to a visible unit.
        product: sum-, max- or mixed-product.
        keep_messages: whether to return the last messages.
        pair_weights: (batch,) weights of the instances in the sum of pairwise beliefs, or None for no sum.
        init: (batch, hidden) probabilities of 1 of the hidden units for the messages of the first iteration,
            which then ignore known visible units; None: probabilities from messages. Not with ``start``.
    """

    visible: Tensor
    hidden: Tensor
    coupling: Tensor
    known: Tensor | None
    start: Tensor | None
    num_iters: int
    tol: float
    damping: float
    product: Product
    keep_messages: bool
    pair_weights: Tensor | None
    init: Tensor | None = None


class Beliefs(NamedTuple):
    """The result of belief propagation.

    Args:
        visible: (batch, visible) log-odds; for a known unit, log-odds without the known value.
        hidden: (batch, hidden) log-odds.
        log_partition: (batch,) Bethe approximation, at temperature 0 for maximised units.
        num_iters: (batch,) number of iterations.
        residual: (batch,) largest change of a message to a visible unit in the last iteration; infinite after
            the first iteration without initial messages.
        to_visible: (batch, visible, hidden) log-odds messages, if requested.
        to_hidden: (batch, visible, hidden) log-odds messages to the hidden units, if requested.
        pair_sum: (visible, hidden) weighted sum over the batch of P(v_i = 1, h_j = 1), if requested.
    """

    visible: Tensor
    hidden: Tensor
    log_partition: Tensor
    num_iters: Tensor
    residual: Tensor
    to_visible: Tensor | None
    to_hidden: Tensor | None
    pair_sum: Tensor | None


def propagate(problem: Problem) -> Beliefs:
    """Run belief propagation on chunks of a few instances."""
    hidden = problem.hidden.shape[1]
    budget = CPU_CHUNK_BYTES if problem.visible.device.type == "cpu" else DEVICE_CHUNK_BYTES
    size = max(1, part_bytes(budget) // (problem.visible[0].nbytes * hidden))
    form = _form(problem)
    return in_chunks(problem, size, lambda chunk: _propagate_chunk(chunk, form))


def in_chunks(problem: Problem, size: int, run: Callable[[Problem], Beliefs]) -> Beliefs:
    """Run ``run`` on chunks of at most ``size`` instances, and join the results."""
    chunks, pair_sum = [], None
    for first in range(0, len(problem.visible), size):
        chunk = run(select(problem, slice(first, first + size)))
        if chunk.pair_sum is not None:
            pair_sum = chunk.pair_sum if pair_sum is None else pair_sum + chunk.pair_sum
        chunks.append(chunk._replace(pair_sum=None))
    joined: dict[str, Any] = {
        name: None if parts[0] is None else torch.cat(parts)
        for name, parts in zip(Beliefs._fields, zip(*chunks, strict=True), strict=True)
    }
    return Beliefs(**joined)._replace(pair_sum=pair_sum)


def converted(record: Any, dtype: torch.dtype | None) -> Any:
    """Convert the floating-point tensors of a record to another precision."""
    return record._make(
        value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in record
    )


def select(problem: Problem, rows: slice) -> Problem:
    """Return the problem for some of the instances."""
    per_instance = ("visible", "hidden", "known", "start", "pair_weights", "init")
    values = {name: getattr(problem, name) for name in per_instance}
    return problem._replace(
        **{name: None if value is None else value[rows] for name, value in values.items()}
    )


def spread(problem: Problem) -> float:
    """Return the largest possible |message|."""
    given = [problem.coupling] if problem.start is None else [problem.coupling, problem.start]
    largest = [(values, lambda values=values: values.abs().amax()) for values in given]
    for values, compute in largest:
        foresee("largest message", (values,), compute)
    return max(number("largest message", (values,), compute) for values, compute in largest)


class _Form(NamedTuple):
    """The representation of messages.

    Args:
        encode: conversion from log-odds.
        decode: conversion to log-odds.
        change: change of log-odds from the second message to the first.
        answer: (incoming message, log-odds of the unit, encoded weight) → outgoing message.
    """

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]
    change: Callable[[Tensor, Tensor], Tensor]
    answer: Callable[[Tensor, Tensor, Tensor], Tensor]


def _form(problem: Problem) -> _Form:
    # Traced code cannot check the range of messages, so it always uses log-odds.
    is_asked = not is_traced()
    limit = ODDS_LIMIT[problem.visible.dtype]
    if problem.product is not Product.MAX and is_asked and spread(problem) <= limit:
        return _Form(torch.exp, torch.log, lambda new, old: (new / old).log(), _odds_answer)
    gain = max_gain if problem.product is Product.MAX else sum_gain
    return _Form(
        lambda log_odds: log_odds,
        lambda log_odds: log_odds,
        torch.sub,
        lambda message, field, weight: gain(field - message, weight),
    )


def _odds_answer(message: Tensor, field: Tensor, weight: Tensor) -> Tensor:
    """Return (r (1 − τ) + a τ) / (r (1 − τ) + τ) for τ = σ(field)."""
    own, rest = torch.sigmoid(field), message * torch.sigmoid(-field)
    return (rest + weight * own) / (rest + own)


def max_gain(field: Tensor, weight: Tensor) -> Tensor:
    """Return max(field + weight, 0) − max(field, 0), without cancellation."""
    up = torch.minimum((field + weight).clamp(min=0), weight)
    down = torch.maximum(-field.clamp(min=0), weight)
    return torch.where(weight > 0, up, down)


def sum_gain(field: Tensor, weight: Tensor) -> Tensor:
    """Return log(1 + e^(field + weight)) − log(1 + e^field), without cancellation."""
    tails = torch.log1p((-(field + weight).abs()).exp()) - torch.log1p((-field.abs()).exp())
    return max_gain(field, weight) + tails


def _propagate_chunk(problem: Problem, form: _Form) -> Beliefs:
    """Run belief propagation; converged instances stay unchanged, so instances do not affect each other."""
    visible, hidden = problem.visible, problem.hidden
    weight = form.encode(problem.coupling)
    if problem.start is None:
        messages = form.encode(torch.zeros_like(problem.coupling)).repeat(len(visible), 1, 1)
    else:
        messages = form.encode(problem.start)
    sent = first_sent(problem)
    residual = torch.full_like(visible[:, 0], math.inf)
    iterations = torch.zeros_like(residual, dtype=torch.int64)
    # On a GPU, convergence is checked less often, because each check waits for the device.
    look_every = 1 if visible.device.type == "cpu" else LOOK_EVERY
    is_asked = not (is_traced() or is_supposing())
    for iteration in range(problem.num_iters):
        moving = residual > problem.tol
        is_time = iteration % look_every == 0 and 0 < iteration <= problem.num_iters - look_every
        if is_asked and is_time and not bool(moving.any()):
            break
        to_hidden = form.answer(messages, sent[..., None], weight)
        hidden_fields = hidden + form.decode(to_hidden).sum(1)
        if iteration == 0 and problem.init is not None:
            to_hidden, hidden_fields = messages, torch.logit(problem.init)
        new = form.answer(to_hidden, hidden_fields[:, None], weight)
        if problem.damping > 0:
            kept = problem.damping * form.decode(messages)
            new = form.encode(kept + (1 - problem.damping) * form.decode(new))
        # The first iteration without initial messages ignores the visible units, and proves nothing.
        if iteration > 0 or problem.start is not None:
            residual = torch.where(moving, form.change(new, messages).abs().amax((1, 2)), residual)
        iterations = iterations + moving
        messages = torch.where(moving[:, None, None], new, messages)
        sent = _sent(visible + form.decode(messages).sum(2), problem)
    return _finish(problem, form, messages, iterations, residual)


def _finish(problem: Problem, form: _Form, messages: Tensor, iterations: Tensor, residual: Tensor) -> Beliefs:
    """Compute the beliefs of both sides; the last messages to hidden units are computed from ``messages``.

    The Bethe log partition is Σ_i log Z_i + Σ_j log Z_j + Σ_ij log R_ij, where Z normalises a unit's belief,
    and R_ij a pair's belief given the beliefs of both units. At a fixed point the value is stationary in the
    messages. If the messages to hidden units are computed from the messages to visible units, R_ij is 1 − τ_i
    + τ_i e^{−u_ij} with τ_i = P(v_i = 1), and log R_ij is minus the message that a weight u_ij would give.
    """
    to_visible = form.decode(messages)
    visible_fields = problem.visible + to_visible.sum(2)
    sent = _sent(visible_fields, problem)[..., None]
    to_hidden = form.decode(form.answer(messages, sent, form.encode(problem.coupling)))
    hidden_fields = problem.hidden + to_hidden.sum(1)

    gain = max_gain if problem.product is Product.MAX else sum_gain
    pairs = -gain(sent - to_visible, to_visible).sum((1, 2))
    pair_sum = None
    if problem.pair_weights is not None:
        joint = pairwise_beliefs(problem, visible_fields, hidden_fields, to_visible)
        pair_sum = torch.einsum("b,bvh->vh", problem.pair_weights, joint)
    return Beliefs(
        visible=visible_fields,
        hidden=hidden_fields,
        log_partition=log_partition(problem, visible_fields, hidden_fields, pairs),
        num_iters=iterations,
        residual=residual,
        to_visible=to_visible if problem.keep_messages else None,
        to_hidden=to_hidden if problem.keep_messages else None,
        pair_sum=pair_sum,
    )


def pairwise_beliefs(
    problem: Problem, visible_fields: Tensor, hidden_fields: Tensor, to_visible: Tensor
) -> Tensor:
    """Return P(h_j = 1) P(v_i = 1 | h_j = 1), (batch, visible, hidden), from log-odds and messages.

    This is Equation 18, if the messages to hidden units are computed from those to visible units.
    """
    sent = _sent(visible_fields, problem)[..., None]
    return torch.sigmoid(hidden_fields)[:, None] * torch.sigmoid(sent - to_visible + problem.coupling)


def first_sent(problem: Problem) -> Tensor:
    """Return the log-odds of visible units, (batch, visible), for the first messages."""
    if problem.start is None:
        return _fixed(torch.full_like(problem.visible, -math.inf), problem.known)
    return _sent(problem.visible + problem.start.sum(2), problem)


def log_partition(problem: Problem, visible_fields: Tensor, hidden_fields: Tensor, pairs: Tensor) -> Tensor:
    """Return the Bethe log partition (batch,) from log-odds and Σ_ij log R_ij (batch,)."""
    visible = _normaliser(visible_fields, problem.product is Product.SUM)
    if problem.known is not None:
        known = problem.known.nan_to_num().to(visible_fields.dtype)
        visible = torch.where(problem.known.isnan(), visible, known * visible_fields)
    return visible.sum(1) + _normaliser(hidden_fields, problem.product is not Product.MAX).sum(1) + pairs


def _sent(fields: Tensor, problem: Problem) -> Tensor:
    """Return the log-odds of visible units as used for messages: infinite for known or decided units."""
    if problem.product is Product.MIXED:
        fields = torch.where(fields > 0, math.inf, -math.inf).to(fields.dtype)
    return _fixed(fields, problem.known)


def _fixed(fields: Tensor, known: Tensor | None) -> Tensor:
    """Return the log-odds, infinite for known units."""
    if known is None:
        return fields
    certain = torch.where(known > 0, math.inf, -math.inf).to(fields.dtype)
    return torch.where(known.isnan(), fields, certain)


def _normaliser(fields: Tensor, summed_out: bool) -> Tensor:
    """Return log(1 + e^field) if the units are summed out, else max(0, field)."""
    return softplus(fields) if summed_out else fields.clamp(min=0)
