"""CUDA kernels of matrix belief propagation, and the mathematics of their messages.

Messages are rows, one per hidden unit, with a column per visible unit. A program owns a tile of whole rows of
one instance at a time and keeps it in registers. Only messages are of a tile's size: fields, beliefs and sums
are one number per row or column, so they are float64 at no cost that shows, and cancelling fields lose
nothing. Every sum is taken in an order that depends on the sizes alone.
"""

# pyright: reportGeneralTypeIssues=false
# What follows is Python to Triton's compiler alone.

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

LOG_2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)


class State(NamedTuple):
    """The arrays of a chunk of instances: what :func:`iterate` goes on from, and the problem itself."""

    messages: Any  # (batch, hidden, columns), as stored
    weight: Any  # (hidden, columns)
    hidden: Any  # (batch, hidden) float64: biases
    visible: Any  # (batch, columns) float64: biases
    known: Any  # (batch, columns) of {0, 1, NaN}
    sent: Any  # (batch, columns) float64: the visible units' log-odds as their messages see them
    fields: Any  # (batch, columns) float64: the same, as they are
    totals: Any  # (batch, parts, columns) float64: of the log-odds that a part of the rows answers
    changes: Any  # (batch, parts)
    arrived: Any  # (batch,) int32: parts that are done
    moving: Any  # (batch,) int32: whether to go on
    num_iters: Any  # (batch,) int64
    residual: Any  # (batch,)
    settings: Any  # (2,): tolerance, damping


class Conclusions(NamedTuple):
    """What :func:`conclude` writes, and the weights of the instances in the sum of pairwise beliefs."""

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
    PROVEN: tl.constexpr,
    IN_ODDS: tl.constexpr,
    MAXIMISE: tl.constexpr,
    DECIDE: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
):
    """An iteration for a part of an instance's rows; the last part to end finds the new beliefs.

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
    own, rest = own.to(state.weight.dtype.element_ty), rest.to(state.weight.dtype.element_ty)
    damping = tl.load(state.settings + 1)

    product, power = tl.full(own.shape, 1.0, own.dtype), tl.zeros(own.shape, tl.int32)
    total, change = tl.zeros_like(field), tl.zeros([COLUMNS // NEIGHBOURS], own.dtype)
    for first in range(part * PART_ROWS, tl.minimum((part + 1) * PART_ROWS, num_hidden), ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < num_hidden)[:, None, None] & in_row[None]
        by_row = instance.to(tl.int64) * num_hidden + rows
        bias = tl.load(state.hidden + by_row, mask=rows < num_hidden, other=0.0)
        weights = tl.load(
            state.weight + rows[:, None, None].to(tl.int64) * num_columns + columns[None],
            mask=inside,
            other=1.0 if IN_ODDS else 0.0,
        )
        place = state.messages + by_row[:, None, None] * num_columns + columns[None]
        old = unpacked(tl.load(place, mask=inside), inside, weights, IN_ODDS)
        if IN_ODDS:
            told = answer_odds(old, weights, own[None], rest[None])
            row_field = bias + log_of_product(told)
            row_own, row_rest = probabilities(row_field)
            new = answer_odds(
                told,
                weights,
                row_own.to(weights.dtype)[:, None, None],
                row_rest.to(weights.dtype)[:, None, None],
            )
            # As they are stored, or rounding would count as change.
            stored = packed(new, state.messages.dtype.element_ty)
            new = unpacked(stored, inside, weights, IN_ODDS)
            inverse = tl.rsqrt(tl.minimum(new, old))
            change = tl.maximum(change, largest_of_columns(tl.abs(new - old) * inverse * inverse))
            product *= multiply_rows(new)
            power += exponent(product)
            product = mantissa(product)
        else:
            told = gain((field[None] - old.to(tl.float64)).to(weights.dtype), weights, MAXIMISE)
            row_field = bias + sum_of_row(told)
            new = gain((row_field[:, None, None] - told.to(tl.float64)).to(weights.dtype), weights, MAXIMISE)
            stored = (new + damping * (old - new)).to(state.messages.dtype.element_ty)
            new = stored.to(weights.dtype)
            change = tl.maximum(change, largest_of_columns(tl.abs(new - old)))
            total += tl.sum(new.to(tl.float64), axis=0)
        tl.store(place, stored, mask=inside)
    if IN_ODDS:
        total = power.to(tl.float64) * LOG_2 + log(product)
    by_part = instance.to(tl.int64) * parts + part
    tl.store(state.totals + by_part * num_columns + columns, total, mask=in_row)
    tl.store(state.changes + by_part, tl.max(change, axis=0))

    # What all threads of all parts have stored is seen by those of the part that comes last.
    tl.debug_barrier()
    if tl.atomic_add(state.arrived + instance, 1, sem="acq_rel") == parts - 1:
        tl.store(state.arrived + instance, 0)
        tl.store(state.num_iters + instance, tl.load(state.num_iters + instance) + 1)
        field = tl.load(state.visible + by_column, mask=in_row, other=0.0)
        largest = tl.zeros([], state.weight.dtype.element_ty)
        for other in range(parts):
            by_part = instance.to(tl.int64) * parts + other
            field += tl.load(
                state.totals + by_part * num_columns + columns, mask=in_row, other=0.0, cache_modifier=".cg"
            )
            largest = tl.maximum(largest, tl.load(state.changes + by_part, cache_modifier=".cg"))
        tl.store(state.fields + by_column, field, mask=in_row)
        if DECIDE:
            field = tl.where(field > 0, float("inf"), float("-inf")).to(tl.float64)
        fixed = tl.load(state.known + by_column, mask=in_row, other=0.0)
        certain = tl.where(fixed > 0, float("inf"), float("-inf")).to(tl.float64)
        tl.store(state.sent + by_column, tl.where(fixed == fixed, certain, field), mask=in_row)
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
    """The hidden units' beliefs, and what else is asked for, of a few rows of a group of the instances."""
    group, tile = (tl.program_id(0) % groups).to(tl.int64), tl.program_id(0) // groups
    columns, rows = columns_of_a_tile(COLUMNS, NEIGHBOURS), tile * ROWS + tl.arange(0, ROWS)
    in_row, in_column = columns < num_columns, rows < num_hidden
    inside = in_column[:, None, None] & in_row[None]
    place = rows[:, None, None].to(tl.int64) * num_columns + columns[None]
    weights = tl.load(state.weight + place, mask=inside, other=1.0 if IN_ODDS else 0.0)
    pair_sum = tl.zeros_like(weights)
    for instance in range(group * batch // groups, (group + 1) * batch // groups):
        by_row = instance * num_hidden + rows
        entries = by_row[:, None, None] * num_columns + columns[None]
        by_column = instance * num_columns + columns
        field = tl.load(state.sent + by_column, mask=in_row, other=0.0)
        bias = tl.load(state.hidden + by_row, mask=in_column, other=0.0)
        old = unpacked(tl.load(state.messages + entries, mask=inside), inside, weights, IN_ODDS)
        if IN_ODDS:
            own, rest = probabilities(field)
            own, rest = own.to(weights.dtype)[None], rest.to(weights.dtype)[None]
            told = answer_odds(old, weights, own, rest)
            row_field = bias + log_of_product(told)
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
        tl.store(sums.pair_sums + group * size + place, pair_sum, mask=inside)


@triton.jit
def unpacked(stored, inside, weights, IN_ODDS: tl.constexpr):
    """Messages as they are computed with, of the weights' type and neutral outside the matrix."""
    messages = stored.to(weights.dtype)
    if IN_ODDS and stored.dtype == tl.bfloat16:
        messages = tl.exp2(messages * LOG2_E)
    return tl.where(inside, messages, 1.0 if IN_ODDS else 0.0)


@triton.jit
def packed(odds, dtype: tl.constexpr):
    """Odds as they are stored: in half the size as log-odds, whose rounding is the less the less they say."""
    if dtype == tl.bfloat16:
        return (tl.log2(odds) * LOG_2).to(dtype)
    else:
        return odds


@triton.jit
def answer_odds(message, weight, own, rest):
    """The answer of a unit of probability ``own`` and complement ``rest``, all messages in odds."""
    other = message * rest
    return quotient(other + weight * own, other + own)


@triton.jit
def quotient(above, below):
    """above / below to about a unit in the last place, for a positive ``below`` that is far from every limit.

    A reciprocal root, squared, and a step of Newton's: five instructions where a division is eight.
    """
    root = tl.rsqrt(below)
    inverse = root * root
    inverse += inverse * (1.0 - below * inverse)
    return above * inverse


@triton.jit
def gain(field, weight, MAXIMISE: tl.constexpr):
    """log(1 + e^(field + weight)) − log(1 + e^field), or the same of maxima, without cancellation."""
    up = tl.minimum(tl.maximum(field + weight, 0.0), weight)
    down = tl.maximum(-tl.maximum(field, 0.0), weight)
    gained = tl.where(weight > 0, up, down)
    if not MAXIMISE:
        one, other = tl.exp(-tl.abs(field + weight)), tl.exp(-tl.abs(field))
        gained += log1p((one - other) / (1.0 + other))
    return gained


@triton.jit
def probabilities(log_odds):
    """The probability of 1 and its complement, as precise."""
    tail = tl.exp(-tl.abs(log_odds))
    one = 1.0 / (1.0 + tail)
    less = tail * one
    return tl.where(log_odds > 0, one, less), tl.where(log_odds > 0, less, one)


@triton.jit
def log1p(x):
    """log(1 + x) for x > −1: what the sum rounds off is put back."""
    total = 1.0 + x
    return tl.log(total) + (x - (total - 1.0)) / total


@triton.jit
def columns_of_a_tile(COLUMNS: tl.constexpr, NEIGHBOURS: tl.constexpr):
    """Numbers of the columns, neighbours along a second axis.

    All of a tile has these two axes after that of its rows, so that what a row's sums leave is where the tile
    is: a tile that was reshaped for them went through shared memory, in code compiled for 9.0.
    """
    return tl.arange(0, COLUMNS // NEIGHBOURS)[:, None] * NEIGHBOURS + tl.arange(0, NEIGHBOURS)[None]


@triton.jit
def sum_of_row(x):
    """Σ x of each row, in float64."""
    return tl.sum(tl.sum(x.to(tl.float64), axis=2), axis=1)


@triton.jit
def log_of_product(x):
    """Σ log x of each row, in float64, with a logarithm for the product of a few neighbours."""
    return tl.sum(log(multiply_neighbours(x)), axis=1)


@triton.jit
def largest_of_columns(x):
    """Of each group of neighbours."""
    return tl.max(tl.max(x, axis=2), axis=0)


@triton.jit
def multiply_neighbours(x):
    """The product along a tile's last axis, of a power of two, 16 at most."""
    for _ in tl.static_range(4):
        if x.shape[2] > 1:
            one, other = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // 2, 2)))
            x = one * other
    return tl.reshape(x, (x.shape[0], x.shape[1]))


@triton.jit
def multiply_rows(x):
    """The product along a tile's first axis, of a power of two, 16 at most."""
    for _ in tl.static_range(4):
        if x.shape[0] > 1:
            pairs = tl.reshape(x, (x.shape[0] // 2, 2, x.shape[1], x.shape[2]))
            one, other = tl.split(tl.permute(pairs, (0, 2, 3, 1)))
            x = one * other
    return tl.reshape(x, (x.shape[1], x.shape[2]))


@triton.jit
def log(x):
    """log x of positive normal numbers in float64, as precise as x: only its mantissa's is of x's type."""
    return exponent(x).to(tl.float64) * LOG_2 + tl.log(mantissa(x)).to(tl.float64)


@triton.jit
def exponent(x):
    """⌊log₂ x⌋ of positive normal numbers."""
    if x.dtype == tl.float64:
        return ((x.to(tl.int64, bitcast=True) >> 52) - 1023).to(tl.int32)
    else:
        return (x.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def mantissa(x):
    """x / 2^exponent(x), in [1, 2), of positive normal numbers."""
    if x.dtype == tl.float64:
        bits = (x.to(tl.int64, bitcast=True) & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000
    else:
        bits = (x.to(tl.int32, bitcast=True) & 0x7FFFFF) | 0x3F800000
    return bits.to(x.dtype, bitcast=True)
