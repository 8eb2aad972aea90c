"""Belief propagation on many small restricted Boltzmann machines in parallel, with messages in odds.

A lane is one number of a vector register. If rows are short, the lanes of a register hold the same message of
several instances, instead of several messages of one instance. For the mathematics see
:mod:`~lmbm_torch.kernels.matrix_bp.compiled.groups`. Lanes do not affect each other: a converged instance
stays unchanged until all instances of the block have converged.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.kernels.jit import compiled, compiled_part, fast_part, inlined
from lmbm_torch.kernels.matrix_bp.compiled.rows import exp, exponent, log_of_ratio, mantissa, power_of_two
from lmbm_torch.kernels.matrix_bp.plain import Beliefs, Problem, Product
from lmbm_torch.kernels.threads import interruptible, share

# The number of lanes is a multiple of this, which fills a vector register; shorter loops are inefficient.
_REGISTER = 16
_MOST_LANES = 64

# Bytes for the messages of all instances of a block, so that they stay in the second-level cache.
_CACHE_BYTES = 2**19

# Smallest number of instances; with fewer instances, too many lanes would be empty.
_FEWEST = 16

# If there are enough instances, there are at least this number of blocks, which threads share.
_BLOCKS = 4

# Number of factors after which the exponent of a product is extracted, which bounds the rounding error.
_MOST_FACTORS = 16

# Exponents are clipped to ±this, so that no probability of 0 or 1 is exact in float64.
_POWERS = 1000.0
_LOG_2 = math.log(2.0)

# With fewer messages in all iterations, the call takes about 0.1 s, and need not be interruptible.
LONG_WORK = 2**28


class _Model(NamedTuple):
    """The model and the settings shared by all instances."""

    weight: np.ndarray  # (hidden, visible), as odds
    warm: bool  # whether there are initial messages
    decide: bool  # whether visible units are maximised instead of summed (mixed product)
    factors: int  # number of messages that can be multiplied without overflow
    num_iters: int
    tol: float


class _Instances(NamedTuple):
    """Inputs and outputs of all instances; float64 unless another type is given.

    The first axis, before the shapes below, is the block of lanes.
    """

    visible: np.ndarray  # (visible, lanes) log-potentials
    hidden: np.ndarray  # (hidden, lanes) log-potentials
    init: np.ndarray  # (hidden or 0, lanes) log-odds of hidden units for the first messages
    known: np.ndarray  # (visible, lanes) of {0, 1, NaN}
    pair_weights: np.ndarray  # (lanes,) of the weights' type
    moving: np.ndarray  # (lanes,) bool
    to_hidden: np.ndarray  # (hidden or 0, visible, lanes) of the weights' type
    pair_sum: np.ndarray  # (hidden or 0, visible) of the weights' type
    visible_out: np.ndarray  # (visible, lanes) log-odds
    hidden_out: np.ndarray  # (hidden, lanes) log-odds
    log_partition: np.ndarray  # (lanes,)
    num_iters: np.ndarray  # (lanes,)
    residual: np.ndarray  # (lanes,)
    stop: np.ndarray  # (1,) bool: if it becomes true, the work ends early


class _Visible(NamedTuple):
    """The visible units of a block; odds are mantissa · 2^power."""

    bias_mantissa: np.ndarray
    bias_power: np.ndarray
    product: np.ndarray  # product of all messages to a unit, with ``power``
    power: np.ndarray
    own: np.ndarray  # probability of 1, as used for messages
    rest: np.ndarray  # 1 − own


def suits(problem: Problem) -> bool:
    """Return whether there are many small instances, for which this kernel is fastest."""
    return len(problem.visible) >= _FEWEST and _fitting(problem) >= 2 * _REGISTER


def _fitting(problem: Problem) -> int:
    fitting = _CACHE_BYTES // problem.coupling.nbytes
    return fitting - fitting % _REGISTER


def propagate(problem: Problem, factors: int) -> Beliefs:
    """Run belief propagation in odds; products of up to ``factors`` odds must not overflow or underflow."""
    (batch, num_visible), num_hidden = problem.visible.shape, problem.hidden.shape[1]
    dtype, keeps = problem.visible.dtype, problem.keep_messages
    lanes = min(_fitting(problem), _MOST_LANES, -(-batch // (_BLOCKS * _REGISTER)) * _REGISTER)

    def side_by_side(values: Tensor, filler: float) -> np.ndarray:
        """Convert (batch, …) to (blocks, …, lanes), with padding in the last lanes."""
        missing = values.new_full((-len(values) % lanes, *values.shape[1:]), filler)
        joined = torch.cat([values, missing]).unflatten(0, (-1, lanes))
        return joined.movedim(1, -1).contiguous().numpy()

    def one_by_one(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).movedim(-1, 1).flatten(0, 1)[:batch]

    weight = problem.coupling.mT.exp().contiguous().numpy()
    known = torch.full_like(problem.visible, math.nan) if problem.known is None else problem.known
    weights = torch.zeros(batch, device="cpu") if problem.pair_weights is None else problem.pair_weights
    visible = side_by_side(problem.visible.double(), 0.0)
    blocks, matrix = len(visible), (num_hidden, num_visible, lanes)
    kept, summed = num_hidden * keeps, 0 if problem.pair_weights is None else num_hidden
    log_partition, num_iters, residual = np.empty((3, blocks, lanes))
    instances = _Instances(
        visible=visible,
        hidden=side_by_side(problem.hidden.double(), 0.0),
        init=side_by_side(_first_fields(problem), 0.0),
        known=side_by_side(known.double(), math.nan),
        pair_weights=side_by_side(weights.to(dtype), 0.0),
        moving=side_by_side(torch.ones(batch, dtype=torch.bool, device="cpu"), 0.0),
        to_hidden=np.empty((blocks, kept, num_visible, lanes), weight.dtype),
        pair_sum=np.zeros((blocks, summed, num_visible), weight.dtype),
        visible_out=np.empty((blocks, num_visible, lanes)),
        hidden_out=np.empty((blocks, num_hidden, lanes)),
        log_partition=log_partition,
        num_iters=num_iters,
        residual=residual,
        stop=np.zeros((blocks, 1), np.bool_),
    )
    to_visible = np.empty((blocks if keeps else 0, *matrix), weight.dtype)
    if problem.start is not None:
        to_visible = side_by_side(problem.start.mT.exp(), 1.0)
    model = _Model(
        weight=weight,
        warm=problem.start is not None,
        decide=problem.product is Product.MIXED,
        factors=min(factors, _MOST_FACTORS),
        num_iters=problem.num_iters,
        tol=problem.tol,
    )

    def propagate_block(block: int) -> None:
        messages = to_visible[block] if len(to_visible) > 0 else np.empty(matrix, weight.dtype)
        _propagate_block(model, _Instances(*(array[block] for array in instances)), messages)

    if batch * num_hidden * num_visible * problem.num_iters > LONG_WORK:
        interruptible(lambda: share(range(blocks), propagate_block), lambda: instances.stop.fill(True))
    else:
        share(range(blocks), propagate_block)
    pair_sum = torch.from_numpy(instances.pair_sum)
    return Beliefs(
        visible=one_by_one(instances.visible_out).to(dtype),
        hidden=one_by_one(instances.hidden_out).to(dtype),
        log_partition=one_by_one(log_partition).to(dtype),
        num_iters=one_by_one(num_iters).long(),
        residual=one_by_one(residual).to(dtype),
        to_visible=one_by_one(to_visible).mT.log() if keeps else None,
        to_hidden=one_by_one(instances.to_hidden).mT.log() if keeps else None,
        pair_sum=None if problem.pair_weights is None else pair_sum.sum(0).mT.contiguous(),
    )


def _first_fields(problem: Problem) -> Tensor:
    """Return the given log-odds for the first messages, clipped to the range of odds in float64."""
    if problem.init is None:
        return problem.hidden[:, :0].double()
    return problem.init.double().logit().clamp(-_POWERS * _LOG_2, _POWERS * _LOG_2)


@compiled
def _propagate_block(model, instances, messages):
    kind, shape, hidden = model.weight.dtype, instances.visible.shape, instances.hidden.shape
    visible = _Visible(
        np.empty(shape),
        np.empty(shape),
        np.empty(shape, kind),
        np.empty(shape),
        np.empty(shape, kind),
        np.empty(shape, kind),
    )
    hidden_mantissa, hidden_power = np.empty(hidden), np.empty(hidden)
    _split(instances.visible, visible.bias_mantissa, visible.bias_power)
    _split(instances.hidden, hidden_mantissa, hidden_power)
    moving, num_iters, residual = instances.moving, instances.num_iters, instances.residual
    change = np.empty(len(moving), kind)
    num_iters[:], residual[:] = 0.0, np.inf
    if model.warm:
        _gather(messages, model.factors, visible.product, visible.power)
        _believe(visible, instances.known, model.decide)
    else:
        messages[:] = 1.0
        for i in range(shape[0]):
            for lane in range(shape[1]):
                visible.own[i, lane] = len(instances.init) == 0 and instances.known[i, lane] > 0
                visible.rest[i, lane] = 1 - visible.own[i, lane]
        _split(instances.init, hidden_mantissa, hidden_power)
    for iteration in range(model.num_iters):
        if instances.stop[0]:
            break
        _iterate(model, messages, visible, hidden_mantissa, hidden_power, moving, change)
        if iteration == 0:
            _split(instances.hidden, hidden_mantissa, hidden_power)
        _believe(visible, instances.known, model.decide)
        remain = False
        for lane in range(len(moving)):
            if moving[lane]:
                num_iters[lane] = iteration + 1
                # The first iteration without initial messages ignores visible units, and proves nothing.
                if iteration > 0 or model.warm:
                    residual[lane] = math.log1p(change[lane])
                moving[lane] = residual[lane] > model.tol
                remain |= moving[lane]
        if not remain:
            break
    _finish(model, instances, messages, visible.own, visible.rest)
    _conclude(instances, visible, model.decide)


@compiled_part
def _split(fields, mantissas, powers):
    """Convert log-odds to odds mantissa · 2^power."""
    for i in range(fields.shape[0]):
        for lane in range(fields.shape[1]):
            powers[i, lane] = np.floor(fields[i, lane] / _LOG_2)
            # The difference is from 0 to log 2, except after rounding of a huge field.
            mantissas[i, lane] = math.exp(min(max(fields[i, lane] - powers[i, lane] * _LOG_2, 0.0), _LOG_2))


@fast_part
def _gather(messages, factors, product, power):
    """Compute the product of the messages of all rows."""
    product[:], power[:] = 1.0, 0.0
    for j in range(messages.shape[0]):
        for i in range(messages.shape[1]):
            for lane in range(messages.shape[2]):
                product[i, lane] *= messages[j, i, lane]
        if (j + 1) % factors == 0:
            _flush(product, power)
    _flush(product, power)


@inlined
def _flush(product, power):
    """Move the exponents of ``product`` to ``power``; further products then do not overflow."""
    for i in range(product.shape[0]):
        for lane in range(product.shape[1]):
            power[i, lane] += exponent(product[i, lane])
            product[i, lane] = mantissa(product[i, lane])


@fast_part
def _believe(visible, known, decide):
    """Compute the probabilities of visible units, as used for messages, from the messages of all rows."""
    bias_mantissa, bias_power, product, power, own, rest = visible
    for i in range(own.shape[0]):
        for lane in range(own.shape[1]):
            value = bias_mantissa[i, lane] * product[i, lane]
            whole = bias_power[i, lane] + power[i, lane] + exponent(value)
            odds = mantissa(value) * power_of_two(min(max(whole, -_POWERS), _POWERS))
            none = 1 / (1 + odds)
            one = odds * none
            if decide:
                # This sum has the sign of the log-odds, whole + log2(mantissa), because whole is an integer
                # and the mantissa is in [1, 2).
                one = 1.0 if whole + (mantissa(value) - 1) > 0 else 0.0
                none = 1 - one
            free = known[i, lane] != known[i, lane]
            own[i, lane] = one if free else known[i, lane]
            rest[i, lane] = none if free else 1 - known[i, lane]


@inlined
def _align(product, power):
    for lane in range(product.shape[0]):
        power[lane] += exponent(product[lane])
        product[lane] = mantissa(product[lane])


@inlined
def _hear(weight, messages, own, rest, factors, above, below, above_power, below_power):
    """Compute the product of messages to a hidden unit, above / below · 2^(above_power − below_power)."""
    above[:], below[:], above_power[:], below_power[:] = 1.0, 1.0, 0.0, 0.0
    for i in range(np.uint64(own.shape[0])):
        w = weight[i]
        for lane in range(np.uint64(own.shape[1])):
            other = messages[i, lane] * rest[i, lane]
            above[lane] *= other + w * own[i, lane]
            below[lane] *= other + own[i, lane]
        if (i + np.uint64(1)) % factors == 0:
            _align(above, above_power)
            _align(below, below_power)
    _align(above, above_power)
    _align(below, below_power)


@fast_part
def _iterate(model, messages, visible, bias_mantissa, bias_power, moving, change):
    weight, factors, own, rest = model.weight, model.factors, visible.own, visible.rest
    product, power = visible.product, visible.power
    rows, units, lanes = np.uint64(weight.shape[0]), np.uint64(own.shape[0]), np.uint64(own.shape[1])
    above, below = np.empty(lanes, own.dtype), np.empty(lanes, own.dtype)
    above_power, below_power = np.empty(lanes), np.empty(lanes)
    one, none = np.empty(lanes, own.dtype), np.empty(lanes, own.dtype)
    product[:], power[:], change[:] = 1.0, 0.0, 0.0
    for j in range(rows):
        _hear(weight[j], messages[j], own, rest, factors, above, below, above_power, below_power)
        for lane in range(lanes):
            whole = min(max(bias_power[j, lane] + above_power[lane] - below_power[lane], -_POWERS), _POWERS)
            value = bias_mantissa[j, lane] * above[lane] * power_of_two(whole)
            total = 1 / (value + below[lane])
            one[lane], none[lane] = value * total, below[lane] * total
        for i in range(units):
            w = weight[j, i]
            for lane in range(lanes):
                old = messages[j, i, lane]
                other = old * rest[i, lane]
                numerator = (other + w * own[i, lane]) * none[lane]
                denominator = (other + own[i, lane]) * one[lane]
                answer = (numerator + w * denominator) / (numerator + denominator)
                answer = answer if moving[lane] else old
                change[lane] = max(change[lane], abs(answer - old) / min(answer, old))
                messages[j, i, lane] = answer
                product[i, lane] *= answer
        if (j + np.uint64(1)) % factors == 0:
            _flush(product, power)
    _flush(product, power)


@fast_part
def _finish(model, instances, messages, own, rest):
    """Compute log-odds of hidden units, their part of the log partition, and the requested outputs."""
    weight, factors, hidden, pair_weights = (
        model.weight,
        model.factors,
        instances.hidden,
        instances.pair_weights,
    )
    to_hidden, pair_sum, hidden_out = instances.to_hidden, instances.pair_sum, instances.hidden_out
    log_partition = instances.log_partition
    rows, units, lanes = np.uint64(weight.shape[0]), np.uint64(own.shape[0]), np.uint64(own.shape[1])
    above, below = np.empty(lanes, own.dtype), np.empty(lanes, own.dtype)
    above_power, below_power = np.empty(lanes), np.empty(lanes)
    log_partition[:] = 0.0
    for j in range(rows):
        _hear(weight[j], messages[j], own, rest, factors, above, below, above_power, below_power)
        for lane in range(lanes):
            normaliser = log_of_ratio(below[lane] - 1.0, 0.0) + below_power[lane] * _LOG_2
            field = hidden[j, lane] + log_of_ratio(above[lane] - 1.0, 0.0)
            field += above_power[lane] * _LOG_2 - normaliser
            hidden_out[j, lane] = field
            log_partition[lane] += normaliser + max(field, 0.0) + log_of_ratio(exp(-abs(field)), 0.0)
        if len(to_hidden) > 0:
            for i in range(units):
                for lane in range(lanes):
                    other = messages[j, i, lane] * rest[i, lane]
                    to_hidden[j, i, lane] = (other + weight[j, i] * own[i, lane]) / (other + own[i, lane])
        if len(pair_sum) > 0:
            for lane in range(lanes):
                tail = exp(-abs(hidden_out[j, lane]))
                above[lane] = pair_weights[lane] * ((1.0 if hidden_out[j, lane] > 0 else tail) / (1 + tail))
            for i in range(units):
                for lane in range(lanes):
                    one = weight[j, i] * own[i, lane]
                    pair_sum[j, i] += above[lane] * (one / (messages[j, i, lane] * rest[i, lane] + one))


@fast_part
def _conclude(instances, visible, decide):
    """Compute log-odds of visible units, and their part of the log partition."""
    bias_mantissa, bias_power, product, power, _, _ = visible
    bias, known, log_partition = instances.visible, instances.known, instances.log_partition
    field_out = instances.visible_out
    for i in range(bias.shape[0]):
        for lane in range(bias.shape[1]):
            value = bias_mantissa[i, lane] * product[i, lane]
            whole = bias_power[i, lane] + power[i, lane] + exponent(value)
            field = log_of_ratio(mantissa(value) - 1.0, 0.0) + whole * _LOG_2
            field_out[i, lane] = field
            tail = 0.0 if decide else log_of_ratio(exp(-abs(field)), 0.0)
            free = known[i, lane] != known[i, lane]
            # The parts of the rows contain the messages, which are subtracted here.
            log_partition[lane] += (max(field, 0.0) + tail if free else known[i, lane] * field) - (
                field - bias[i, lane]
            )
