"""The inner loops of :mod:`~lmbm_torch.kernels.matrix_bp.compiled.groups` on one row of messages.

A row holds the messages between one hidden unit and all visible units (the columns). For odds and maxima,
loops access memory through pointers, one vector register at a time
(:mod:`~lmbm_torch.kernels.matrix_bp.compiled.vectors`). LLVM vectorises all other loops, which run along
padded rows, without branches or calls (polynomials approximate exponential and logarithm).
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

# Number of columns that are processed together. Their data stay in the first-level cache, and the product of
# mantissas (each below 2) in a lane of a vector does not overflow float32.
TILE = 1024

# Side of the squares in which a matrix is transposed, so that a square fits into the first-level cache.
_BLOCK = 64

_LOG_2_HIGH, _LOG_2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
# exp(−708) is about the smallest normal float64.
_LEAST = -708.0


def exponent(x: Any) -> Any:
    """Return ⌊log₂ x⌋ of a positive normal number, in the type of the number."""
    raise TypeError(f"x: expected float32 or float64 in compiled code, got {x!r}")


def mantissa(x: Any) -> Any:
    """Return x / 2^exponent(x), in [1, 2), of a positive normal number."""
    raise TypeError(f"x: expected float32 or float64 in compiled code, got {x!r}")


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
    """Return 2^x for a whole number x (as float64) for which the result is a normal number."""
    return np.int64((np.int64(x) + 1023) << 52).view(np.float64)


@inlined
def _sums(messages, weight, offset, own):
    """Return m + w own and m + own for a vector of messages; the ratio is the message to a hidden unit."""
    message = load(messages, offset)
    return message + load(weight, offset) * own, message + own


@inlined
def hear_odds(messages, weight, offset, start, stop, own):
    """Return the product of messages from visible units (some columns) of a row, as mantissa and exponent.

    The row begins at ``offset``; ``own`` has the odds of the units. The product is Π (m + w own) / Π (m +
    own); products of two factors do not overflow.
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
    """Return mantissa and exponent of the product of :func:`hear_odds`, and of the denominator."""
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
    """Compute the new messages of a row to visible units (some columns), and multiply them into ``product``.

    The largest max(new / old, old / new) − 1 is collected in the first vector of ``change``.
    """
    step = lanes(own)
    largest = load(change, np.uint64(0))
    hidden_one, hidden_other = broadcast(hidden_own), broadcast(hidden_rest)
    for i in range(start, stop, step):
        one, w, old = load(own, i), load(weight, offset + i), load(messages, offset + i)
        above, below = (old + w * one) * hidden_other, (old + one) * hidden_one
        answer = (above + w * below) / (above + below)
        low, high = least(answer, old), greatest(answer, old)
        # This branch is rare after the first rows; without it, the second division would double the time.
        if any_above(high - low, largest * low):
            largest = greatest(largest, (high - low) / low)
        store(messages, offset + i, answer)
        store(product, i, load(product, i) * answer)
    store(change, np.uint64(0), largest)


@inlined
def first_answer_odds(messages, weight, offset, start, stop, hidden_own, hidden_rest, product):
    """Compute the new messages as :func:`answer_odds` does, but ignore messages from visible units."""
    step = lanes(messages)
    hidden_one, hidden_other = broadcast(hidden_own), broadcast(hidden_rest)
    for i in range(start, stop, step):
        answer = hidden_other + load(weight, offset + i) * hidden_one
        store(messages, offset + i, answer)
        store(product, i, load(product, i) * answer)


@inlined
def tell_odds(messages, weight, offset, start, stop, own, told):
    """Compute messages (odds) of the visible units ``start`` to ``stop`` to the hidden unit of a row."""
    step = lanes(own)
    for i in range(start, stop, step):
        above, below = _sums(messages, weight, offset + i, load(own, i))
        store(told, offset + i, above / below)


@inlined
def _max_gains(field, weight, zero):
    """Return max(field + weight, 0) − max(field, 0) of vectors, elementwise; fields may be infinite."""
    # If the weight is positive, ``down`` is the weight; if the weight is negative, ``up`` is the weight.
    up, down = least(greatest(field + weight, zero), weight), greatest(least(zero - field, zero), weight)
    return up + (down - weight)


@inlined
def hear_maxima(messages, weight, offset, columns, field, told):
    """Write max-product messages from visible units of log-odds ``field`` to ``told``; return their sum."""
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
    """Compute the new messages as :func:`answer_maxima` does, but ignore messages from visible units."""
    zero, heard = ones(messages) - ones(messages), broadcast(hidden_field)
    renewed = ones(messages) - broadcast(damping)
    for i in range(np.uint64(0), columns, lanes(messages)):
        answer = renewed * _max_gains(heard, load(weight, offset + i), zero)
        store(messages, offset + i, answer)
        store(total, i, load(total, i) + answer)


@inlined
def answer_maxima(messages, weight, offset, columns, told, hidden_field, damping, total, change):
    """Compute the new max-product messages of a row to visible units, and add them to ``total``.

    The largest changes are collected in the first vector of ``change``.
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
    """Move the exponents of ``product`` to ``total``; further products then do not overflow."""
    for i in range(product.shape[0]):
        total[i] += exponent(product[i])
        product[i] = mantissa(product[i])


@inlined
def add_pairs_odds(messages, weight, j, own, scale, pairs):
    """Add scale · P(v_i = 1 | h_j = 1) to row j, from messages in odds."""
    for i in range(pairs.shape[1]):
        one = weight[j, i] * own[i]
        pairs[j, i] += scale * (one / (messages[j, i] + one))


# Reordering of operations is not allowed, because it would destroy the two-step reduction of the argument.
@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def exp(x):
    """Return e^x for x ≤ 0 up to a few units in the last place, by e^x = 2^whole · e^rest and a series."""
    x = max(x, _LEAST)
    whole = float(int(x * 1.4426950408889634 - 0.5))
    x = (x - whole * _LOG_2_HIGH) - whole * _LOG_2_LOW
    tail = 1 / 362880 + x * (1 / 3628800 + x * (1 / 39916800 + x * (1 / 479001600 + x / 6227020800)))
    series = 1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040 + x * (1 / 40320 + x * tail))))
    series = 1 + x * (1 + x * (1 / 2 + x * (1 / 6 + x * series)))
    return series * power_of_two(whole)


@fast
def log_of_ratio(one, other):
    """Return log((1 + x) / (1 + y)) for x = ``one`` and y = ``other`` in [0, 1], by the series of arctanh."""
    z = (one - other) / (2 + one + other)
    y = z * z
    high = 1 / 17 + y * (
        1 / 19 + y * (1 / 21 + y * (1 / 23 + y * (1 / 25 + y * (1 / 27 + y * (1 / 29 + y / 31)))))
    )
    low = 1 / 5 + y * (1 / 7 + y * (1 / 9 + y * (1 / 11 + y * (1 / 13 + y * (1 / 15 + y * high)))))
    return 2 * z * (1 + y * (1 / 3 + y * low))


@fast
def encode(log_odds, in_odds, rows, first, last):
    """Write columns of ``log_odds`` to padded ``rows``, as odds or unchanged."""
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


# Copy by a loop instead of by slices, whose error message about shapes takes longer to compile.
@inlined
def copy(source, target):
    """Copy the first entries of ``source`` to ``target``."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@fast_part
def difference(fields, messages, left):
    """Write fields − messages to ``left``."""
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
    """Write log(1 + e^(field + weight)) − log(1 + e^field) to ``gained``; return the sum."""
    for i in range(field.shape[0]):
        tails = log_of_ratio(exp(-abs(field[i] + weight[i])), exp(-abs(field[i])))
        gained[i] = _max_gain(field[i], float(weight[i])) + tails
    total = 0.0
    for i in range(field.shape[0]):
        total += gained[i]
    return total


@fast_part
def renew(answer, damping, messages, total, change):
    """Replace messages by the log-odds ``answer``; collect sums and largest changes for each column."""
    for i in range(messages.shape[0]):
        old = messages[i]
        messages[i] = answer[i] + damping * (old - answer[i])
        # Compare the stored numbers, so that rounding does not count as a change.
        change[i] = max(change[i], abs(messages[i] - old))
        total[i] += messages[i]


@fast_part
def add_pairs_log_odds(field, weight, scale, pairs):
    """Add scale · P(v_i = 1 | h_j = 1) to ``pairs``, from messages in log-odds."""
    for i in range(pairs.shape[0]):
        log_odds = field[i] + weight[i]
        tail = exp(-abs(log_odds))
        pairs[i] += scale * ((1.0 if log_odds > 0 else tail) / (1 + tail))
