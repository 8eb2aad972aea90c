"""Belief propagation on many small restricted Boltzmann machines side by side, in odds.

Where rows are short, what runs along a vector register are instances (its lanes) instead of visible units.
The mathematics is that of :mod:`~lmbm_torch.backends.matrix_bp.compiled.groups`, and no lane has a say in
another: an instance that has converged stays as it is until all those beside it have.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from lmbm_torch.backends.matrix_bp.compiled.rows import (
    FAST,
    exp,
    exponent,
    log_of_ratio,
    mantissa,
    power_of_two,
)
from lmbm_torch.backends.matrix_bp.plain import Beliefs, Problem, Product
from lmbm_torch.backends.threads import share

# Lanes are a multiple of what a register holds. To prepare a loop over few of them takes as long as the loop.
_REGISTER = 16
_MOST_LANES = 64

# All messages of the instances that are taken together stay in the second-level cache.
_CACHE_BYTES = 2**19

# With fewer instances too many lanes would be empty.
_FEWEST = 16

# Blocks of lanes, at least, where there are enough instances: to share among threads.
_BLOCKS = 4

# Factors between two looks at their product's exponent, which bounds what rounding adds up to.
_MOST_FACTORS = 16

# Odds of 2^±this have a complement that is not 0 in float64.
_POWERS = 1000.0
_LOG_2 = math.log(2.0)

_compiled = njit(cache=True, nogil=True, error_model="numpy")
_fast = njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
_inlined = njit(inline="always")


def suits(problem: Problem) -> bool:
    """Whether instances are many and small."""
    return len(problem.visible) >= _FEWEST and _fitting(problem) >= 2 * _REGISTER


def _fitting(problem: Problem) -> int:
    fitting = _CACHE_BYTES // problem.coupling.nbytes
    return fitting - fitting % _REGISTER


def propagate(problem: Problem, factors: int) -> Beliefs:
    """Run belief propagation in odds, of which any ``factors`` multiply to a normal number."""
    (batch, num_visible), num_hidden = problem.visible.shape, problem.hidden.shape[1]
    dtype, keeps = problem.visible.dtype, problem.keep_messages
    lanes = min(_fitting(problem), _MOST_LANES, -(-batch // (_BLOCKS * _REGISTER)) * _REGISTER)

    def side_by_side(values: Tensor, filler: float) -> Tensor:
        """(batch, …) as (blocks, …, lanes), of which the last are filled."""
        missing = values.new_full((-len(values) % lanes, *values.shape[1:]), filler)
        return torch.cat([values, missing]).unflatten(0, (-1, lanes)).movedim(1, -1).contiguous()

    def one_by_one(values: Tensor) -> Tensor:
        return values.movedim(-1, 1).flatten(0, 1)[:batch]

    known = torch.full_like(problem.visible, math.nan) if problem.known is None else problem.known
    weights = torch.zeros(batch) if problem.pair_weights is None else problem.pair_weights
    visible = side_by_side(problem.visible.double(), 0.0)
    blocks = len(visible)
    shape = (blocks if keeps or problem.start is not None else 0, num_hidden, num_visible, lanes)
    to_visible = torch.empty(shape, dtype=dtype)
    if problem.start is not None:
        to_visible = side_by_side(problem.start.mT.exp(), 1.0)
    scratch_shape = (num_hidden, num_visible, lanes)
    to_hidden = torch.empty(blocks, num_hidden if keeps else 0, num_visible, lanes, dtype=dtype)
    summed = 0 if problem.pair_weights is None else num_hidden
    pair_sums = torch.zeros(blocks, summed, num_visible, dtype=dtype)
    visible_out, hidden_out = (
        torch.empty(blocks, units, lanes, dtype=torch.float64) for units in (num_visible, num_hidden)
    )
    log_partition, num_iters, residual = torch.empty(3, blocks, lanes, dtype=torch.float64)
    arrays = [
        values.numpy()
        for values in (
            visible,
            side_by_side(problem.hidden.double(), 0.0),
            side_by_side(known.double(), math.nan),
            side_by_side(weights.to(dtype), 0.0),
            side_by_side(torch.ones(batch, dtype=torch.bool), 0.0),
            to_hidden,
            pair_sums,
            visible_out,
            hidden_out,
            log_partition,
            num_iters,
            residual,
        )
    ]
    weight, messages = problem.coupling.mT.exp().contiguous().numpy(), to_visible.numpy()
    warm, decide = problem.start is not None, problem.product is Product.MIXED
    factors = min(factors, _MOST_FACTORS)

    def propagate_block(block: int) -> None:
        own = messages[block] if len(messages) > 0 else np.empty(scratch_shape, weight.dtype)
        _propagate_block(
            weight,
            own,
            warm,
            decide,
            factors,
            problem.num_iters,
            problem.tol,
            *(array[block] for array in arrays),
        )

    share(range(blocks), propagate_block)
    return Beliefs(
        visible=one_by_one(visible_out).to(dtype),
        hidden=one_by_one(hidden_out).to(dtype),
        log_partition=one_by_one(log_partition).to(dtype),
        num_iters=one_by_one(num_iters).long(),
        residual=one_by_one(residual).to(dtype),
        to_visible=one_by_one(to_visible).mT.log() if keeps else None,
        to_hidden=one_by_one(to_hidden).mT.log() if keeps else None,
        pair_sum=None if problem.pair_weights is None else pair_sums.sum(0).mT.contiguous(),
    )


@_compiled
def _propagate_block(
    weight,
    messages,
    warm,
    decide,
    factors,
    most_iters,
    tol,
    visible,
    hidden,
    known,
    pair_weights,
    moving,
    to_hidden,
    pair_sum,
    visible_out,
    hidden_out,
    log_partition,
    num_iters,
    residual,
):
    kind, lanes = weight.dtype, len(moving)
    own, rest = np.empty(visible.shape, kind), np.empty(visible.shape, kind)
    product, power, change = np.empty(visible.shape, kind), np.empty(visible.shape), np.empty(lanes, kind)
    visible_mantissa, visible_power = np.empty(visible.shape), np.empty(visible.shape)
    hidden_mantissa, hidden_power = np.empty(hidden.shape), np.empty(hidden.shape)
    _split(visible, visible_mantissa, visible_power)
    _split(hidden, hidden_mantissa, hidden_power)
    num_iters[:], residual[:] = 0.0, np.inf
    if warm:
        _gather(messages, factors, product, power)
        _believe(visible_mantissa, visible_power, product, power, known, decide, own, rest)
    else:
        messages[:] = 1.0
        own[:] = known > 0
        rest[:] = 1 - own
    for iteration in range(most_iters):
        _iterate(
            weight,
            messages,
            own,
            rest,
            hidden_mantissa,
            hidden_power,
            factors,
            moving,
            product,
            power,
            change,
        )
        _believe(visible_mantissa, visible_power, product, power, known, decide, own, rest)
        remain = False
        for lane in range(lanes):
            if moving[lane]:
                num_iters[lane] = iteration + 1
                # From nothing, the first answers ignore the visible units: no change proves nothing.
                if iteration > 0 or warm:
                    residual[lane] = math.log1p(change[lane])
                moving[lane] = residual[lane] > tol
                remain |= moving[lane]
        if not remain:
            break
    _finish(
        weight,
        messages,
        own,
        rest,
        hidden,
        factors,
        pair_weights,
        to_hidden,
        pair_sum,
        hidden_out,
        log_partition,
    )
    _conclude(
        visible, visible_mantissa, visible_power, product, power, known, decide, visible_out, log_partition
    )


@_compiled
def _split(fields, mantissas, powers):
    """The odds of log-odds, as mantissa · 2^power."""
    for i in range(fields.shape[0]):
        for lane in range(fields.shape[1]):
            powers[i, lane] = math.floor(fields[i, lane] / _LOG_2)
            mantissas[i, lane] = math.exp(fields[i, lane] - powers[i, lane] * _LOG_2)


@_fast
def _gather(messages, factors, product, power):
    """The product of all rows' messages."""
    product[:], power[:] = 1.0, 0.0
    for j in range(messages.shape[0]):
        for i in range(messages.shape[1]):
            for lane in range(messages.shape[2]):
                product[i, lane] *= messages[j, i, lane]
        if (j + 1) % factors == 0:
            _flush(product, power)
    _flush(product, power)


@_inlined
def _flush(product, power):
    """Move the exponents of ``product`` to ``power``."""
    for i in range(product.shape[0]):
        for lane in range(product.shape[1]):
            power[i, lane] += exponent(product[i, lane])
            product[i, lane] = mantissa(product[i, lane])


@_fast
def _believe(bias_mantissa, bias_power, product, power, known, decide, own, rest):
    """What the visible units' messages see of them, after what all rows have answered."""
    for i in range(own.shape[0]):
        for lane in range(own.shape[1]):
            value = bias_mantissa[i, lane] * product[i, lane]
            whole = bias_power[i, lane] + power[i, lane] + exponent(value)
            odds = mantissa(value) * power_of_two(min(max(whole, -_POWERS), _POWERS))
            none = 1 / (1 + odds)
            one = odds * none
            if decide:
                # Of the same sign as the log-odds: a mantissa is less than 2 and a power whole.
                one = 1.0 if whole + (mantissa(value) - 1) > 0 else 0.0
                none = 1 - one
            free = known[i, lane] != known[i, lane]
            own[i, lane] = one if free else known[i, lane]
            rest[i, lane] = none if free else 1 - known[i, lane]


@_inlined
def _align(product, power):
    for lane in range(product.shape[0]):
        power[lane] += exponent(product[lane])
        product[lane] = mantissa(product[lane])


@_fast
def _iterate(weight, messages, own, rest, bias_mantissa, bias_power, factors, moving, product, power, change):
    rows, units, lanes = np.uint64(weight.shape[0]), np.uint64(own.shape[0]), np.uint64(own.shape[1])
    above, below = np.empty(lanes, own.dtype), np.empty(lanes, own.dtype)
    above_power, below_power = np.empty(lanes), np.empty(lanes)
    one, none = np.empty(lanes, own.dtype), np.empty(lanes, own.dtype)
    product[:], power[:], change[:] = 1.0, 0.0, 0.0
    for j in range(rows):
        above[:], below[:], above_power[:], below_power[:] = 1.0, 1.0, 0.0, 0.0
        for i in range(units):
            w = weight[j, i]
            for lane in range(lanes):
                other = messages[j, i, lane] * rest[i, lane]
                above[lane] *= other + w * own[i, lane]
                below[lane] *= other + own[i, lane]
            if (i + np.uint64(1)) % factors == 0:
                _align(above, above_power)
                _align(below, below_power)
        _align(above, above_power)
        _align(below, below_power)
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


@_fast
def _finish(
    weight, messages, own, rest, hidden, factors, pair_weights, to_hidden, pair_sum, hidden_out, log_partition
):
    """The hidden units' log-odds and the rows' part of the log partition, and what else is asked for."""
    rows, units, lanes = np.uint64(weight.shape[0]), np.uint64(own.shape[0]), np.uint64(own.shape[1])
    above, below = np.empty(lanes, own.dtype), np.empty(lanes, own.dtype)
    above_power, below_power = np.empty(lanes), np.empty(lanes)
    log_partition[:] = 0.0
    for j in range(rows):
        above[:], below[:], above_power[:], below_power[:] = 1.0, 1.0, 0.0, 0.0
        for i in range(units):
            w = weight[j, i]
            for lane in range(lanes):
                other = messages[j, i, lane] * rest[i, lane]
                above[lane] *= other + w * own[i, lane]
                below[lane] *= other + own[i, lane]
            if (i + np.uint64(1)) % factors == 0:
                _align(above, above_power)
                _align(below, below_power)
        _align(above, above_power)
        _align(below, below_power)
        for lane in range(lanes):
            normaliser = log_of_ratio(below[lane] - 1.0, 0.0) + below_power[lane] * _LOG_2
            field = (
                hidden[j, lane]
                + log_of_ratio(above[lane] - 1.0, 0.0)
                + above_power[lane] * _LOG_2
                - normaliser
            )
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


@_fast
def _conclude(bias, bias_mantissa, bias_power, product, power, known, decide, field_out, log_partition):
    """The visible units' log-odds, and their part of the log partition."""
    for i in range(bias.shape[0]):
        for lane in range(bias.shape[1]):
            value = bias_mantissa[i, lane] * product[i, lane]
            whole = bias_power[i, lane] + power[i, lane] + exponent(value)
            field = log_of_ratio(mantissa(value) - 1.0, 0.0) + whole * _LOG_2
            field_out[i, lane] = field
            tail = 0.0 if decide else log_of_ratio(exp(-abs(field)), 0.0)
            free = known[i, lane] != known[i, lane]
            # The rows' parts are of pairs times the messages in them.
            log_partition[lane] += (max(field, 0.0) + tail if free else known[i, lane] * field) - (
                field - bias[i, lane]
            )
