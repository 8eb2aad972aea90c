"""The inner loops of :mod:`~lmbm_torch.kernels.matrix_bp.compiled.groups` on one row of messages.

A row holds the messages between one hidden unit and all visible units (the columns). For odds and maxima,
loops access memory through pointers, vector by vector
(:mod:`~lmbm_torch.kernels.matrix_bp.compiled.vectors`): the two products of a hidden unit's incoming messages
take two multiplications and six integer operations on exponents for every two vectors, and nothing is stored.
Every further loop runs along a row without a branch or a library call, so LLVM vectorises the loop: hence
polynomials for exponential and logarithm, and padded rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from lmbm_torch.kernels.jit import fast, fast_part, inlined, njit
from lmbm_torch.kernels.matrix_bp.compiled.vectors import (
    any_above,
    broadcast,
    exponents,
    greatest,
    lanes,
    least,
    load,
    mantissas,
    ones,
    product_of_lanes,
    store,
    sum_of_lanes,
)

# Columns that rows go through together: what belongs to them stays in the first-level cache, and what a lane
# multiplies of mantissas, below 2 each, does not overflow a float32.
TILE = 1024

# A square of so many messages is transposed within the first-level cache.
_BLOCK = 64

_LOG_2_HIGH, _LOG_2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
# Its exponential is about the least normal float64.
_LEAST = -708.0


def exponent(x: Any) -> Any:
    """Return ⌊log₂ x⌋ of a positive normal number, in the number's type."""
    raise TypeError(f"x: expected compiled code's float32 or float64, got {x!r}")


def mantissa(x: Any) -> Any:
    """Return x / 2^exponent(x), in [1, 2), of a positive normal number."""
    raise TypeError(f"x: expected compiled code's float32 or float64, got {x!r}")


@overload(exponent)
def _exponent(x):
    def single(x):
        return np.float32(np.int32((np.float32(x).view(np.int32) >> 23) - 127))

    def double(x):
        return np.float64((np.float64(x).view(np.int64) >> 52) - 1023)

    return {types.float32: single, types.float64: double}[x]


@overload(mantissa)
def _mantissa(x):
    def single(x):
        return np.int32((np.float32(x).view(np.int32) & 0x7FFFFF) | 0x3F800000).view(np.float32)

    def double(x):
        return np.int64((np.float64(x).view(np.int64) & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(
            np.float64
        )

    return {types.float32: single, types.float64: double}[x]


@fast_part
def power_of_two(x):
    """Return 2^x for a whole float64 within the normal exponents."""
    return np.int64((np.int64(x) + 1023) << 52).view(np.float64)


@inlined
def _sums(messages, weight, offset, own):
    """Return m + w own and m + own of a vector; the ratio is the message to a hidden unit."""
    message = load(messages, offset)
    return message + load(weight, offset) * own, message + own


@inlined
def hear_odds(messages, weight, offset, start, stop, own):
    """Return mantissa and exponent of the product of a row's messages from visible units of some columns.

    The row begins at ``offset``; ``own`` are the units' odds. The product is Π (m + w own) / Π (m + own); no
    two factors of either product overflow.
    """
    step = lanes(own)
    numerator, denominator, power = ones(own), ones(own), exponents(ones(own))
    for i in range(start, stop, step + step):
        k = i + step
        above, below = _sums(messages, weight, offset + i, load(own, i))
        other_above, other_below = _sums(messages, weight, offset + k, load(own, k))
        above, below = above * other_above, below * other_below
        numerator, denominator = numerator * mantissas(above), denominator * mantissas(below)
        power += exponents(above) - exponents(below)
    ratio = numerator / denominator
    return float(product_of_lanes(mantissas(ratio))), float(sum_of_lanes(power + exponents(ratio)))


@inlined
def weigh_odds(messages, weight, offset, start, stop, own):
    """Return mantissas and exponents of the product in :func:`hear_odds`, and of the denominator alone."""
    step = lanes(own)
    numerator, denominator = ones(own), ones(own)
    power_above, power_below = exponents(ones(own)), exponents(ones(own))
    for i in range(start, stop, step + step):
        k = i + step
        above, below = _sums(messages, weight, offset + i, load(own, i))
        other_above, other_below = _sums(messages, weight, offset + k, load(own, k))
        above, below = above * other_above, below * other_below
        numerator, denominator = numerator * mantissas(above), denominator * mantissas(below)
        power_above += exponents(above)
        power_below += exponents(below)
    ratio = numerator / denominator
    power = sum_of_lanes(power_above - power_below + exponents(ratio))
    below_power = sum_of_lanes(power_below + exponents(denominator))
    return (
        float(product_of_lanes(mantissas(ratio))),
        float(power),
        float(product_of_lanes(mantissas(denominator))),
        float(below_power),
    )


@inlined
def answer_odds(messages, weight, offset, start, stop, own, hidden_own, hidden_rest, product, change):
    """Compute a row's answers to the visible units of some columns, and gather by columns.

    Gathered are products of the answers and, in the first vector of ``change``, the largest max(new / old,
    old / new) − 1.
    """
    step = lanes(own)
    largest = load(change, np.uint64(0))
    hidden_one, hidden_other = broadcast(hidden_own), broadcast(hidden_rest)
    for i in range(start, stop, step):
        one, w, old = load(own, i), load(weight, offset + i), load(messages, offset + i)
        above, below = (old + w * one) * hidden_other, (old + one) * hidden_one
        answer = (above + w * below) / (above + below)
        low, high = least(answer, old), greatest(answer, old)
        # Seldom, after the first rows: the other division takes as long as all the rest.
        if any_above(high - low, largest * low):
            largest = greatest(largest, (high - low) / low)
        store(messages, offset + i, answer)
        store(product, i, load(product, i) * answer)
    store(change, np.uint64(0), largest)


@inlined
def first_answer_odds(messages, weight, offset, start, stop, hidden_own, hidden_rest, product):
    """Compute the answers of :func:`answer_odds` without messages from visible units."""
    step = lanes(messages)
    hidden_one, hidden_other = broadcast(hidden_own), broadcast(hidden_rest)
    for i in range(start, stop, step):
        answer = hidden_other + load(weight, offset + i) * hidden_one
        store(messages, offset + i, answer)
        store(product, i, load(product, i) * answer)


@inlined
def tell_odds(messages, weight, offset, start, stop, own, told):
    """Compute the messages, as odds, of visible units ``start`` to ``stop`` to the hidden unit of a row."""
    step = lanes(own)
    for i in range(start, stop, step):
        above, below = _sums(messages, weight, offset + i, load(own, i))
        store(told, offset + i, above / below)


@inlined
def _max_gains(field, weight, zero):
    """Return max(field + weight, 0) − max(field, 0), lane by lane; fields may be infinite."""
    # Where the weight is positive the second is the weight, where negative the first.
    up, down = least(greatest(field + weight, zero), weight), greatest(least(zero - field, zero), weight)
    return up + (down - weight)


@inlined
def hear_maxima(messages, weight, offset, columns, field, told):
    """Return the sum of a row's messages from visible units of log-odds ``field``, written to ``told``."""
    zero = ones(field) - ones(field)
    total = zero
    for i in range(np.uint64(0), columns, lanes(field)):
        left = load(field, i) - load(messages, offset + i)
        gain = _max_gains(left, load(weight, offset + i), zero)
        store(told, i, gain)
        total = total + gain
    return float(sum_of_lanes(total))


@inlined
def first_answer_maxima(messages, weight, offset, columns, hidden_field, damping, total):
    """Compute the answers of :func:`answer_maxima` without messages from visible units."""
    zero, heard = ones(messages) - ones(messages), broadcast(hidden_field)
    renewed = ones(messages) - broadcast(damping)
    for i in range(np.uint64(0), columns, lanes(messages)):
        answer = renewed * _max_gains(heard, load(weight, offset + i), zero)
        store(messages, offset + i, answer)
        store(total, i, load(total, i) + answer)


@inlined
def answer_maxima(messages, weight, offset, columns, told, hidden_field, damping, total, change):
    """Compute a row's answers to visible units, and gather sums by columns and the largest changes.

    The largest changes are in the first vector of ``change``.
    """
    zero, heard, kept = ones(told) - ones(told), broadcast(hidden_field), broadcast(damping)
    largest = load(change, np.uint64(0))
    for i in range(np.uint64(0), columns, lanes(told)):
        old, w = load(messages, offset + i), load(weight, offset + i)
        answer = _max_gains(heard - load(told, i), w, zero)
        answer = answer + kept * (old - answer)
        store(messages, offset + i, answer)
        store(total, i, load(total, i) + answer)
        largest = greatest(largest, greatest(answer - old, old - answer))
    store(change, np.uint64(0), largest)


@inlined
def flush(product, total):
    """Move the exponents of ``product`` to ``total``."""
    for i in range(product.shape[0]):
        total[i] += exponent(product[i])
        product[i] = mantissa(product[i])


@inlined
def add_pairs_odds(messages, weight, j, own, scale, pairs):
    """Add scale · P(v_i = 1 | h_j = 1) to row j."""
    for i in range(pairs.shape[1]):
        one = weight[j, i] * own[i]
        pairs[j, i] += scale * (one / (messages[j, i] + one))


# Without reassociation, which would undo the reduction in two steps.
@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def exp(x):
    """Return e^x for x ≤ 0, to a few units in the last place, by e^x = 2^whole e^rest and the series."""
    x = max(x, _LEAST)
    whole = float(int(x * 1.4426950408889634 - 0.5))
    x = (x - whole * _LOG_2_HIGH) - whole * _LOG_2_LOW
    tail = 1 / 362880 + x * (1 / 3628800 + x * (1 / 39916800 + x * (1 / 479001600 + x / 6227020800)))
    series = 1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040 + x * (1 / 40320 + x * tail))))
    series = 1 + x * (1 + x * (1 / 2 + x * (1 / 6 + x * series)))
    return series * power_of_two(whole)


@fast
def log_of_ratio(one, other):
    """Return log((1 + x) / (1 + y)) for x = ``one`` and y = ``other`` in [0, 1], by an arctanh series."""
    z = (one - other) / (2 + one + other)
    y = z * z
    high = 1 / 17 + y * (
        1 / 19 + y * (1 / 21 + y * (1 / 23 + y * (1 / 25 + y * (1 / 27 + y * (1 / 29 + y / 31)))))
    )
    low = 1 / 5 + y * (1 / 7 + y * (1 / 9 + y * (1 / 11 + y * (1 / 13 + y * (1 / 15 + y * high)))))
    return 2 * z * (1 + y * (1 / 3 + y * low))


@fast
def encode(log_odds, in_odds, rows, first, last):
    """Write columns of ``log_odds`` to some ``rows``, in odds or unchanged, padded with neutral messages."""
    for start in range(0, log_odds.shape[0], _BLOCK):
        stop = min(start + _BLOCK, log_odds.shape[0])
        for j in range(first, last):
            for i in range(start, stop):
                rows[j, i] = log_odds[i, j]
    for j in range(first, last):
        for i in range(log_odds.shape[0], rows.shape[1]):
            rows[j, i] = 0.0
        if in_odds:
            for i in range(rows.shape[1]):
                below = exp(-abs(float(rows[j, i])))
                rows[j, i] = 1 / below if rows[j, i] > 0 else below


# Slices that are assigned bring numpy's message about shapes, which takes longer to compile than all this.
@inlined
def copy(source, target):
    """Copy the first entries of ``source`` to ``target``."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@fast_part
def difference(fields, messages, left):
    """Write fields less messages to ``left``."""
    for i in range(messages.shape[0]):
        left[i] = fields[i] - messages[i]


@fast_part
def _max_gain(field, weight):
    """Return max(field + weight, 0) − max(field, 0)."""
    up = min(max(field + weight, 0.0), weight)
    down = max(-max(field, 0.0), weight)
    return up if weight > 0 else down


@fast_part
def gains(field, weight, gained):
    """Write log(1 + e^(field + weight)) − log(1 + e^field); return the sum."""
    for i in range(field.shape[0]):
        tails = log_of_ratio(exp(-abs(field[i] + weight[i])), exp(-abs(field[i])))
        gained[i] = _max_gain(field[i], float(weight[i])) + tails
    total = 0.0
    for i in range(field.shape[0]):
        total += gained[i]
    return total


@fast_part
def renew(answer, damping, messages, total, change):
    """Replace messages by the log-odds ``answer``, and gather sums and largest changes by columns."""
    for i in range(messages.shape[0]):
        old = messages[i]
        messages[i] = answer[i] + damping * (old - answer[i])
        # As they are stored, or rounding would count as change.
        change[i] = max(change[i], abs(messages[i] - old))
        total[i] += messages[i]


@fast_part
def add_pairs_log_odds(field, weight, scale, pairs):
    """Add scale · P(v_i = 1 | h_j = 1)."""
    for i in range(pairs.shape[0]):
        log_odds = field[i] + weight[i]
        tail = exp(-abs(log_odds))
        pairs[i] += scale * ((1.0 if log_odds > 0 else tail) / (1 + tail))
