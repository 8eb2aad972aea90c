"""CUDA kernels of matrix belief propagation, and the mathematics of messages.

Messages are rows, one per hidden unit, with a column per visible unit. A program loads a tile of whole rows
of one instance at a time into registers. The order of every sum depends on sizes only, and no sum loses
digits by cancellation: in log-odds sums are float64, and in odds integer powers of 2 are summed separately
from small logarithms, without float64, of low throughput on most devices.
"""

# pyright: reportGeneralTypeIssues=false
# What follows is Python to Triton's compiler alone.

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

LOG_2 = tl.constexpr(0.6931471805599453)

# What the bits of √½ lack to those of 1.
ABOVE_SINGLE = tl.constexpr(0x3F800000 - 0x3F3504F3)
ABOVE_DOUBLE = tl.constexpr(0x3FF0000000000000 - 0x3FE6A09E667F3BCD)

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # pyright: ignore[reportAttributeAccessIssue]


class State(NamedTuple):
    """The arrays of a chunk of instances: the state of :func:`iterate`, and the problem."""

    messages: Any  # (batch, hidden, columns), as stored
    weight: Any  # (hidden, columns), filled up to whole tiles
    hidden: Any  # (batch, hidden): biases, float64 in log-odds
    visible: Any  # (batch, columns) float64: biases
    known: Any  # (batch, columns) of {0, 1, NaN}
    sent: Any  # (batch, columns): the visible units' log-odds as their messages see them, float64 in log-odds
    fields: Any  # (batch, columns) float64: the same, as they are
    totals: Any  # (batch, parts, 1, columns) float64: sums of what a part of the rows answers; in odds
    # (batch, parts, 2, columns): the logarithms to base 2 of the products, whole numbers and what remains
    changes: Any  # (batch, parts)
    arrived: Any  # (batch,) int32: parts that are done
    moving: Any  # (batch,) int32: whether to go on
    num_iters: Any  # (batch,) int64
    residual: Any  # (batch,)
    settings: Any  # (2,): tolerance, damping


class Conclusions(NamedTuple):
    """The outputs of :func:`conclude`, and the weights of the instances in the sum of pairwise beliefs."""

    pair_weights: Any  # (batch,)
    fields: Any  # (batch, hidden) float64: the hidden units' log-odds
    row_values: Any  # (batch, hidden) float64: each row's part of the log partition
    to_hidden: Any  # (batch, hidden, columns), if KEEP
    pair_sums: Any  # (groups, hidden, columns), if PAIRS


@triton.jit
def iterate(
    state,  # State
    batch,
    num_hidden,
    num_columns,
    parts,
    in_range,  # the rows whose product is, by columns: a power of two
    PROVEN: tl.constexpr,
    IN_ODDS: tl.constexpr,
    MAXIMISE: tl.constexpr,
    DECIDE: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Run an iteration for a part of an instance's rows; the last part computes the new beliefs.

    Neighbouring programs have the same rows of different instances, hence the same weights.
    """
    instance, part = tl.program_id(0) % batch, tl.program_id(0) // batch
    if tl.load(state.moving + instance) == 0:
        return
    columns = columns_of_a_tile(COLUMNS, NEIGHBOURS)
    in_row = columns < num_columns
    by_column = instance.to(tl.int64) * num_columns + columns
    field = tl.load(state.sent + by_column, mask=in_row, other=0.0)
    own, rest = probabilities(field)
    damping = tl.load(state.settings + 1)

    number = state.weight.dtype.element_ty
    product, power = tl.full(own.shape, 1.0, number), tl.zeros(own.shape, tl.int32)
    total, change = tl.zeros(own.shape, tl.float64), tl.zeros([COLUMNS // NEIGHBOURS], number)
    in_tile = tl.arange(0, ROWS)
    wide_place = in_tile[:, None, None] * COLUMNS + columns[None]
    place = in_tile[:, None, None] * num_columns + columns[None]
    end = tl.minimum((part + 1) * PART_ROWS, num_hidden)
    for first in tl.range(part * PART_ROWS, end, ROWS, num_stages=STAGES):
        inside = (first + in_tile < num_hidden)[:, None, None] & in_row[None]
        by_row = instance.to(tl.int64) * num_hidden + first
        bias = tl.load(state.hidden + by_row + in_tile, mask=first + in_tile < num_hidden, other=0.0)
        weights = tl.load(state.weight + tl.cast(first, tl.int64) * COLUMNS + wide_place)
        tile = state.messages + by_row * num_columns
        old = tl.where(inside, tl.load(tile + place, mask=inside), 1.0 if IN_ODDS else 0.0)
        if IN_ODDS:
            told = answer_odds(old, weights, own[None], rest[None])
            row_own, row_rest = probabilities(with_log2(bias, log2_of_product(told)))
            new = answer_odds(told, weights, row_own[:, None, None], row_rest[:, None, None])
            # Outside neutral without rounding.
            new = tl.where(inside, new, 1.0)
            relative = tl.abs(new - old) * reciprocal(tl.minimum(new, old))
            change = tl.maximum(change, largest_of_columns(relative))
            product *= multiply_rows(new)
            if (first & (in_range - 1)) == 0:
                power += exponent(product)
                product = mantissa(product)
        else:
            told = gain((field[None] - old.to(tl.float64)).to(weights.dtype), weights, MAXIMISE)
            row_field = bias + sum_of_row(told)
            new = gain((row_field[:, None, None] - told.to(tl.float64)).to(weights.dtype), weights, MAXIMISE)
            new = new + damping * (old - new)
            change = tl.maximum(change, largest_of_columns(tl.abs(new - old)))
            total += tl.sum(new.to(tl.float64), axis=0)
        tl.store(tile + place, new, mask=inside)
    by_part = instance.to(tl.int64) * parts + part
    gathered = state.totals + by_part * (2 if IN_ODDS else 1) * num_columns + columns
    if IN_ODDS:
        tl.store(gathered, (power + exponent(product)).to(number), mask=in_row)
        tl.store(gathered + num_columns, tl.log2(mantissa(product)), mask=in_row)
    else:
        tl.store(gathered, total, mask=in_row)
    tl.store(state.changes + by_part, tl.max(change, axis=0))

    # After the barrier and the atomic sum, the part that comes last sees all that other parts have stored.
    tl.debug_barrier()
    if tl.atomic_add(state.arrived + instance, 1, sem="acq_rel") == parts - 1:
        tl.store(state.arrived + instance, 0)
        tl.store(state.num_iters + instance, tl.load(state.num_iters + instance) + 1)
        heard = tl.load(state.visible + by_column, mask=in_row, other=0.0)
        largest = tl.zeros([], state.weight.dtype.element_ty)
        for other in range(parts):
            by_part = instance.to(tl.int64) * parts + other
            gathered = state.totals + by_part * (2 if IN_ODDS else 1) * num_columns + columns
            said = tl.load(gathered, mask=in_row, other=0.0, cache_modifier=".cg")
            if IN_ODDS:
                logs = tl.load(gathered + num_columns, mask=in_row, other=0.0, cache_modifier=".cg")
                heard += (said.to(tl.float64) + logs.to(tl.float64)) * LOG_2
            else:
                heard += said
            largest = tl.maximum(largest, tl.load(state.changes + by_part, cache_modifier=".cg"))
        tl.store(state.fields + by_column, heard, mask=in_row)
        if DECIDE:
            heard = tl.where(heard > 0, float("inf"), float("-inf")).to(tl.float64)
        fixed = tl.load(state.known + by_column, mask=in_row, other=0.0)
        certain = tl.where(fixed > 0, float("inf"), float("-inf")).to(tl.float64)
        tl.store(state.sent + by_column, tl.where(fixed == fixed, certain, heard), mask=in_row)
        if PROVEN:
            if IN_ODDS:
                largest = log1p(largest)
            tl.store(state.residual + instance, largest)
            tl.store(state.moving + instance, (largest > tl.load(state.settings)).to(tl.int32))


@triton.jit
def conclude(
    state,  # State
    sums,  # Conclusions
    batch,
    num_hidden,
    num_columns,
    groups,
    IN_ODDS: tl.constexpr,
    MAXIMISE: tl.constexpr,
    KEEP: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
):
    """Compute hidden units' beliefs, and further requested outputs, of a few rows of some instances."""
    group, tile = (tl.program_id(0) % groups).to(tl.int64), tl.program_id(0) // groups
    columns, rows = columns_of_a_tile(COLUMNS, NEIGHBOURS), tile * ROWS + tl.arange(0, ROWS)
    in_row, in_column = columns < num_columns, rows < num_hidden
    inside = in_column[:, None, None] & in_row[None]
    weights = tl.load(state.weight + rows[:, None, None].to(tl.int64) * COLUMNS + columns[None])
    pair_sum = tl.zeros_like(weights)
    for instance in range(group * batch // groups, (group + 1) * batch // groups):
        by_row = instance * num_hidden + rows
        entries = by_row[:, None, None] * num_columns + columns[None]
        by_column = instance * num_columns + columns
        field = tl.load(state.sent + by_column, mask=in_row, other=0.0)
        bias = tl.load(state.hidden + by_row, mask=in_column, other=0.0)
        old = tl.where(inside, tl.load(state.messages + entries, mask=inside), 1.0 if IN_ODDS else 0.0)
        if IN_ODDS:
            own, rest = probabilities(field)
            own, rest = own[None], rest[None]
            told = answer_odds(old, weights, own, rest)
            row_field = bias.to(tl.float64) + log_of_product(told)
            # Of pairs times the messages in them.
            value = log_of_product(old * rest + own)
            given = weights * own / (old * rest + weights * own)
        else:
            cavity = (field[None] - old.to(tl.float64)).to(weights.dtype)
            told = gain(cavity, weights, MAXIMISE)
            row_field = bias + sum_of_row(told)
            value = -sum_of_row(gain(cavity, old, MAXIMISE))
            given, _ = probabilities(cavity + weights)
        tl.store(sums.fields + by_row, row_field, mask=in_column)
        tl.store(sums.row_values + by_row, value, mask=in_column)
        if KEEP:
            tl.store(sums.to_hidden + entries, told, mask=inside)
        if PAIRS:
            row_own, _ = probabilities(row_field)
            share = tl.load(sums.pair_weights + instance) * row_own
            pair_sum += share.to(weights.dtype)[:, None, None] * given
    if PAIRS:
        size = tl.cast(num_hidden, tl.int64) * num_columns
        place = rows[:, None, None].to(tl.int64) * num_columns + columns[None]
        tl.store(sums.pair_sums + group * size + place, pair_sum, mask=inside)


@triton.jit
def answer_odds(message, weight, own, rest):
    """Return the answer of a unit of probability ``own`` and complement ``rest``, all messages in odds."""
    other = message * rest
    return quotient(other + weight * own, other + own)


@triton.jit
def quotient(above, below):
    """Return above / below to about a unit in the last place, for ``below`` far from every limit."""
    return above * reciprocal(below)


@triton.jit
def reciprocal(x):
    """Return 1 / x within a unit or two in the last place, for normal numbers: PTX's ``rcp.approx``.

    For float64 the approximation has 20 bits, followed by two Newton steps.
    """
    if INTERPRETED:
        return 1.0 / x
    elif x.dtype == tl.float64:
        inverse = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f64 $0, $1;", "=d,d", [x], dtype=tl.float64, is_pure=True, pack=1
        )
        inverse += inverse * (1.0 - x * inverse)
        return inverse + inverse * (1.0 - x * inverse)
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def log2(x):
    """Return log₂ x: PTX's ``lg2.approx`` in float32, within 2^−22 near 1, relative elsewhere."""
    if INTERPRETED or x.dtype == tl.float64:
        return tl.log2(x)
    else:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def gain(field, weight, MAXIMISE: tl.constexpr):
    """Return log(1 + e^(field + weight)) − log(1 + e^field), or the same of maxima, without cancellation."""
    up = tl.minimum(tl.maximum(field + weight, 0.0), weight)
    down = tl.maximum(-tl.maximum(field, 0.0), weight)
    gained = tl.where(weight > 0, up, down)
    if not MAXIMISE:
        one, other = tl.exp(-tl.abs(field + weight)), tl.exp(-tl.abs(field))
        gained += log1p((one - other) / (1.0 + other))
    return gained


@triton.jit
def probabilities(log_odds):
    """Return the probability of 1 and the complement, equally precise."""
    tail = tl.exp(-tl.abs(log_odds))
    one = reciprocal(1.0 + tail)
    less = tail * one
    return tl.where(log_odds > 0, one, less), tl.where(log_odds > 0, less, one)


@triton.jit
def log1p(x):
    """Return log(1 + x) for x > −1, with a correction of the sum's rounding."""
    total = 1.0 + x
    return tl.log(total) + (x - (total - 1.0)) / total


@triton.jit
def columns_of_a_tile(COLUMNS: tl.constexpr, NEIGHBOURS: tl.constexpr):
    """Return the numbers of the columns, neighbours along a second axis.

    Tiles have the axes (rows, groups, neighbours), so a row's sums stay in the tile's layout: reshaping a
    tile went through shared memory, in code compiled for 9.0.
    """
    return tl.arange(0, COLUMNS // NEIGHBOURS)[:, None] * NEIGHBOURS + tl.arange(0, NEIGHBOURS)[None]


@triton.jit
def sum_of_row(x):
    """Return Σ x of each row, in float64."""
    return tl.sum(tl.sum(x.to(tl.float64), axis=2), axis=1)


@triton.jit
def log2_of_product(x):
    """Return Σ log₂ x of each row; for float32 in integer multiples of 2^−24, against cancellation."""
    product = multiply_neighbours(x)
    whole, part = exponent(product), log2(mantissa(product))
    if x.dtype == tl.float64:
        return tl.sum(whole + part, axis=1)
    else:
        return tl.sum(whole.to(tl.int64) * 0x1000000 + (part * 0x1000000).to(tl.int32), axis=1)


@triton.jit
def log_of_product(x):
    """Return Σ log x of each row, in float64."""
    product = multiply_neighbours(x)
    part = tl.log(mantissa(product)).to(tl.float64)
    return tl.sum(exponent(product).to(tl.float64) * LOG_2 + part, axis=1)


@triton.jit
def with_log2(bias, total):
    """Return bias + log 2 · total of :func:`log2_of_product`, accurate despite cancellation."""
    if bias.dtype == tl.float64:
        return bias + total * LOG_2
    else:
        whole = (total >> 24).to(tl.int32).to(tl.float32)
        part = (total.to(tl.int32) & 0xFFFFFF).to(tl.float32)
        # 0.6875 has so few digits that its product with a whole number below 2^20 is exact, and so is the sum
        # with a bias that nearly cancels it.
        return (bias + whole * 0.6875) + (whole * (LOG_2 - 0.6875) + part * (LOG_2 / 0x1000000))


@triton.jit
def largest_of_columns(x):
    """Return the maximum of each group of neighbours."""
    return tl.max(tl.max(x, axis=2), axis=0)


@triton.jit
def multiply_neighbours(x):
    """Return the product along a tile's last axis, of length a power of two, 16 at most."""
    for _ in tl.static_range(4):
        if x.shape[2] > 1:
            one, other = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // 2, 2)))
            x = one * other
    return tl.reshape(x, (x.shape[0], x.shape[1]))


@triton.jit
def multiply_rows(x):
    """Return the product along a tile's first axis, of length a power of two, 32 at most."""
    for _ in tl.static_range(5):
        if x.shape[0] > 1:
            pairs = tl.reshape(x, (x.shape[0] // 2, 2, x.shape[1], x.shape[2]))
            one, other = tl.split(tl.permute(pairs, (0, 2, 3, 1)))
            x = one * other
    return tl.reshape(x, (x.shape[1], x.shape[2]))


@triton.jit
def exponent(x):
    """Return log₂ x of positive normal numbers to the nearest integer, within 1/2."""
    if x.dtype == tl.float64:
        return (((x.to(tl.int64, bitcast=True) + ABOVE_DOUBLE) >> 52) - 1023).to(tl.int32)
    else:
        return ((x.to(tl.int32, bitcast=True) + ABOVE_SINGLE) >> 23) - 127


@triton.jit
def mantissa(x):
    """Return x / 2^exponent(x), in [√½, √2), of positive normal numbers: logarithms of many sum to little."""
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        bits = ((bits + ABOVE_DOUBLE) & 0xFFFFFFFFFFFFF) + (0x3FF0000000000000 - ABOVE_DOUBLE)
    else:
        bits = x.to(tl.int32, bitcast=True)
        bits = ((bits + ABOVE_SINGLE) & 0x7FFFFF) + (0x3F800000 - ABOVE_SINGLE)
    return bits.to(x.dtype, bitcast=True)
