"""CUDA kernels of matrix belief propagation, and the mathematics of messages.

Messages are a matrix with a row for each hidden unit and a column for each visible unit. A program (a block
of threads) loads tiles of whole rows of one instance into registers. The order of every sum depends only on
sizes. No sum loses digits by cancellation: in log-odds, sums are float64; in odds, integer powers of 2 are
summed separately from small logarithms, which avoids the slow float64 of most devices.
"""

# pyright: reportGeneralTypeIssues=false
# Only Triton's compiler understands the functions below.

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

LOG_2 = tl.constexpr(0.6931471805599453)

# Difference between the bit patterns of 1 and √½ in float32.
ABOVE_SINGLE = tl.constexpr(0x3F800000 - 0x3F3504F3)
ABOVE_DOUBLE = tl.constexpr(0x3FF0000000000000 - 0x3FE6A09E667F3BCD)

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # pyright: ignore[reportAttributeAccessIssue]


class State(NamedTuple):
    """The arrays for some instances: the problem, and the state of :func:`iterate`."""

    messages: Any  # (batch, hidden, columns), odds or log-odds
    weight: Any  # (hidden, columns), padded to whole tiles
    hidden: Any  # (batch, hidden): biases, float64 in log-odds
    visible: Any  # (batch, columns) float64: biases
    known: Any  # (batch, columns) of {0, 1, NaN}
    sent: Any  # (batch, columns): log-odds of visible units, as used for messages; float64 in log-odds
    fields: Any  # (batch, columns) float64: log-odds of visible units
    totals: Any  # (batch, parts, 1, columns) float64: sums of each part's messages; in odds
    # (batch, parts, 2, columns): log2 of the products, as whole numbers and remainders
    changes: Any  # (batch, parts)
    arrived: Any  # (batch,) int32: number of finished parts
    moving: Any  # (batch,) int32: whether the instance has not converged
    num_iters: Any  # (batch,) int64
    residual: Any  # (batch,)
    settings: Any  # (2,): tolerance, damping


class Conclusions(NamedTuple):
    """The outputs of :func:`conclude`, and the weights of instances in the sum of pairwise beliefs."""

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
    in_range,  # rows whose product by columns stays in range: a power of two
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
    """Run an iteration for a part of the rows; the last part of an instance computes the new beliefs.

    Neighbouring programs process the same rows of different instances, and read the same weights.
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
            # Set padding to exactly 1, the neutral message.
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

    # After the barrier and the atomic addition, the last part can read what all other parts have stored.
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
    """Compute beliefs of hidden units, and other requested outputs, for some rows of some instances."""
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
            # Each factor is the normaliser of a pair, times the message.
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
    """Return a unit's outgoing message for an incoming one, in odds; P(1) is ``own``, P(0) is ``rest``."""
    other = message * rest
    return quotient(other + weight * own, other + own)


@triton.jit
def quotient(above, below):
    """Return above / below up to about one unit in the last place; ``below`` must be a normal number."""
    return above * reciprocal(below)


@triton.jit
def reciprocal(x):
    """Return 1 / x of normal numbers within two units in the last place, by PTX's ``rcp.approx``.

    For float64 the instruction gives 20 bits, and two Newton steps follow.
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
    """Return log₂ x; in float32 by PTX's ``lg2.approx``, with an absolute error of 2^−22 near 1."""
    if INTERPRETED or x.dtype == tl.float64:
        return tl.log2(x)
    else:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def gain(field, weight, MAXIMISE: tl.constexpr):
    """Return log(1 + e^(field + weight)) − log(1 + e^field), or the max-product form, accurately."""
    up = tl.minimum(tl.maximum(field + weight, 0.0), weight)
    down = tl.maximum(-tl.maximum(field, 0.0), weight)
    gained = tl.where(weight > 0, up, down)
    if not MAXIMISE:
        one, other = tl.exp(-tl.abs(field + weight)), tl.exp(-tl.abs(field))
        gained += log1p((one - other) / (1.0 + other))
    return gained


@triton.jit
def probabilities(log_odds):
    """Return the probabilities of 1 and of 0, both with full precision."""
    tail = tl.exp(-tl.abs(log_odds))
    one = reciprocal(1.0 + tail)
    less = tail * one
    return tl.where(log_odds > 0, one, less), tl.where(log_odds > 0, less, one)


@triton.jit
def log1p(x):
    """Return log(1 + x) for x > −1, with a correction for the rounding of 1 + x."""
    total = 1.0 + x
    return tl.log(total) + (x - (total - 1.0)) / total


@triton.jit
def columns_of_a_tile(COLUMNS: tl.constexpr, NEIGHBOURS: tl.constexpr):
    """Return the column numbers with shape (groups, neighbours).

    Tiles have the axes (rows, groups, neighbours); sums of rows then need no reshaping.
    """
    return tl.arange(0, COLUMNS // NEIGHBOURS)[:, None] * NEIGHBOURS + tl.arange(0, NEIGHBOURS)[None]


@triton.jit
def sum_of_row(x):
    """Return Σ x of each row, in float64."""
    return tl.sum(tl.sum(x.to(tl.float64), axis=2), axis=1)


@triton.jit
def log2_of_product(x):
    """Return Σ log₂ x of each row; for float32 as integer multiples of 2^−24, to avoid cancellation."""
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
    """Return bias + log 2 · total for a result of :func:`log2_of_product`, accurate despite cancellation."""
    if bias.dtype == tl.float64:
        return bias + total * LOG_2
    else:
        whole = (total >> 24).to(tl.int32).to(tl.float32)
        part = (total.to(tl.int32) & 0xFFFFFF).to(tl.float32)
        # 0.6875 has so few digits that the product with a whole number below 2^20 is exact. The sum with a
        # bias that nearly cancels the product is exact, too.
        return (bias + whole * 0.6875) + (whole * (LOG_2 - 0.6875) + part * (LOG_2 / 0x1000000))


@triton.jit
def largest_of_columns(x):
    """Return the maximum of each group of neighbouring columns."""
    return tl.max(tl.max(x, axis=2), axis=0)


@triton.jit
def multiply_neighbours(x):
    """Return the product along the last axis of a tile, of length a power of two up to 16."""
    for _ in tl.static_range(4):
        if x.shape[2] > 1:
            one, other = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // 2, 2)))
            x = one * other
    return tl.reshape(x, (x.shape[0], x.shape[1]))


@triton.jit
def multiply_rows(x):
    """Return the product along the first axis of a tile, of length a power of two up to 32."""
    for _ in tl.static_range(5):
        if x.shape[0] > 1:
            pairs = tl.reshape(x, (x.shape[0] // 2, 2, x.shape[1], x.shape[2]))
            one, other = tl.split(tl.permute(pairs, (0, 2, 3, 1)))
            x = one * other
    return tl.reshape(x, (x.shape[1], x.shape[2]))


@triton.jit
def exponent(x):
    """Return log₂ x of positive normal numbers, rounded to the nearest integer."""
    if x.dtype == tl.float64:
        return (((x.to(tl.int64, bitcast=True) + ABOVE_DOUBLE) >> 52) - 1023).to(tl.int32)
    else:
        return ((x.to(tl.int32, bitcast=True) + ABOVE_SINGLE) >> 23) - 127


@triton.jit
def mantissa(x):
    """Return x / 2^exponent(x), in [√½, √2), of positive normal numbers; the logarithm is near 0."""
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        bits = ((bits + ABOVE_DOUBLE) & 0xFFFFFFFFFFFFF) + (0x3FF0000000000000 - ABOVE_DOUBLE)
    else:
        bits = x.to(tl.int32, bitcast=True)
        bits = ((bits + ABOVE_SINGLE) & 0x7FFFFF) + (0x3F800000 - ABOVE_SINGLE)
    return bits.to(x.dtype, bitcast=True)
