"""Belief propagation on one restricted Boltzmann machine with a :class:`~.state.State`.

An iteration is a pass over all rows (:func:`iterate`), then new beliefs of visible units (:func:`believe`).
"""

from __future__ import annotations

import math

import numpy as np

from lmbm_torch.kernels.jit import compiled, compiled_part, fast_part
from lmbm_torch.kernels.matrix_bp.compiled.rows import (
    TILE,
    add_pairs_log_odds,
    add_pairs_odds,
    answer_maxima,
    answer_odds,
    copy,
    difference,
    exp,
    exponent,
    first_answer_maxima,
    first_answer_odds,
    flush,
    gains,
    hear_maxima,
    hear_odds,
    log_of_ratio,
    mantissa,
    power_of_two,
    renew,
    tell_odds,
    weigh_odds,
)
from lmbm_torch.kernels.matrix_bp.compiled.vectors import pointer

# Rows are padded with neutral messages to a multiple of this length, which is a few vector registers.
PADDING = 32

# Powers of 2 are clipped to ±this, so that neither a probability nor its complement is 0 in float64.
_POWERS = 1000.0

# Largest number of rows processed together; they hide latencies, and fit into the first-level cache.
MOST_ROWS = 4

# Number of rows whose messages are summed in the precision of the weights before they are added in float64.
_SUMMED_ROWS = 64

_LOG_2 = math.log(2.0)


@compiled
def set_messages(model, messages, bounds, part):
    """Set a part of the rows to neutral messages if there are no initial messages."""
    if not model.warm:
        messages[bounds[part] : bounds[part + 1]] = 1.0 if model.in_odds else 0.0


@compiled
def start(model, state, instances, row, messages):
    """Compute the beliefs before the first iteration from the initial messages."""
    _set_biases(model, state.visible, instances.visible[row])
    _set_biases(model, state.hidden, instances.hidden[row])
    copy(instances.init[row] if len(instances.init) > 0 else instances.hidden[row], state.hidden.field)
    known = state.known
    copy(instances.known[row % len(instances.known)], known)
    state.product[:] = 1.0
    state.total[:] = 0.0
    if not model.warm:
        for i in range(len(known)):
            state.visible.own[i] = model.most_odds if known[i] > 0 else 0.0
            state.visible.field[i] = np.inf if known[i] > 0 else -np.inf
        return
    for j in range(len(messages)):
        if model.in_odds:
            state.product[0] *= messages[j]
            flush(state.product[0], state.total[0])
        else:
            state.total[0] += messages[j]
    believe(model, state)


@compiled_part
def _set_biases(model, units, bias):
    for i in range(len(bias)):
        units.bias_mantissa[i], units.bias_power[i] = 1.0, bias[i]
        if model.in_odds:
            units.bias_power[i] = np.floor(bias[i] / _LOG_2)
            # This value is from −log 2 to 0, except after rounding of a huge bias.
            below = bias[i] - (units.bias_power[i] + 1) * _LOG_2
            units.bias_mantissa[i] = 2 * exp(min(max(below, -_LOG_2), 0.0))


@compiled
def believe(model, state):
    """Compute the beliefs of visible units from the messages of all rows, and the odds used for messages."""
    units, known, product, total = state.visible, state.known, state.product, state.total
    mantissas, powers, own, field = units.mantissa, units.power, units.own, units.field
    copy(units.bias_mantissa, mantissas)
    copy(units.bias_power, powers)
    for part in range(len(product)):
        for i in range(len(known)):
            mantissas[i] *= product[part, i]
            powers[i] += total[part, i]
    for i in range(len(known)):
        powers[i] += exponent(mantissas[i])
        mantissas[i] = mantissa(mantissas[i])
        field[i] = powers[i]
    if model.in_odds:
        for i in range(len(known)):
            own[i] = min(_odds(mantissas[i], powers[i]), model.most_odds)
    if model.decide:
        for i in range(len(known)):
            # The sum has the sign of the log-odds: the power is an integer, and the mantissa in [1, 2).
            is_one = powers[i] + (mantissas[i] - 1) > 0
            own[i], field[i] = model.most_odds if is_one else 0.0, np.inf if is_one else -np.inf
    for i in range(len(known)):
        free = known[i] != known[i]
        own[i] = own[i] if free else model.most_odds * known[i]
        field[i] = field[i] if free else (np.inf if known[i] > 0 else -np.inf)


@compiled_part
def _odds(value, power):
    return value * power_of_two(min(max(power, -_POWERS), _POWERS))


@compiled_part
def _largest(values):
    """Return the maximum of a matrix with rows of whole blocks, by a vectorised loop."""
    largest = np.zeros(PADDING)
    for row in range(values.shape[0]):
        for start in range(0, values.shape[1], PADDING):
            for i in range(PADDING):
                largest[i] = max(largest[i], values[row, start + i])
    return largest.max()


@compiled
def judge(model, state, iteration):
    """Return the largest change of a message; infinity if there was no previous iteration."""
    change = _largest(state.change)
    if model.in_odds:
        change = math.log1p(change)
    return change if iteration > 1 or model.warm else np.inf


@compiled
def begin(model, state, messages, bounds, part):
    """Run the first iteration for a part of the rows if there are no messages from visible units."""
    state.product[part] = 1.0
    state.total[part] = 0.0
    if model.in_odds:
        _begin_odds(model, state, messages, bounds[part], bounds[part + 1], part)
    elif model.maximise:
        _begin_maxima(model, state, messages, bounds[part], bounds[part + 1], part)
    else:
        _begin_log_odds(model, state, messages, bounds[part], bounds[part + 1], part)


@compiled_part
def _begin_odds(model, state, messages, first, last, part):
    product, total, units = state.product[part], state.total[part], state.hidden
    weights, told, gathered = pointer(model.weight), pointer(messages), pointer(product)
    own, rest, field, columns = units.own, units.rest, units.field, np.uint64(messages.shape[1])
    for j in range(first, last):
        odds = exp(min(max(field[j], -_POWERS * _LOG_2), _POWERS * _LOG_2))
        own[j], rest[j] = odds / (1 + odds), 1 / (1 + odds)
        offset = np.uint64(j) * columns
        first_answer_odds(told, weights, offset, np.uint64(0), columns, own[j], rest[j], gathered)
        if (j + 1 - first) % model.rows_per_flush == 0:
            flush(product, total)
    flush(product, total)


@compiled_part
def _begin_maxima(model, state, messages, first, last, part):
    total, summed = state.total[part], state.product[part]
    units, first_field, columns = state.hidden, state.hidden.field, np.uint64(messages.shape[1])
    units.rest[:] = model.damping
    told, weights, gathered = pointer(messages), pointer(model.weight), pointer(summed)
    for block in range(first, last, _SUMMED_ROWS):
        summed[:] = 0.0
        for j in range(block, min(block + _SUMMED_ROWS, last)):
            units.own[j] = first_field[j]
            offset = np.uint64(j) * columns
            first_answer_maxima(told, weights, offset, columns, units.own[j], units.rest[j], gathered)
        for i in range(len(total)):
            total[i] += summed[i]
    summed[:] = 1.0


@compiled_part
def _begin_log_odds(model, state, messages, first, last, part):
    total, change = state.total[part], state.change[part]
    field, told = np.empty(messages.shape[1]), np.empty(messages.shape[1])
    for j in range(first, last):
        field[:], messages[j] = state.hidden.field[j], 0.0
        gains(field, model.weight[j], told)
        renew(told, model.damping, messages[j], total, change)


@compiled
def iterate(model, state, messages, bounds, part):
    """Run an iteration for a part of the rows."""
    state.product[part] = 1.0
    state.total[part] = 0.0
    state.change[part] = 0.0
    first, last = bounds[part], bounds[part + 1]
    if model.in_odds:
        _iterate_odds(model, state, messages, first, last, part)
    elif model.maximise:
        _iterate_maxima(model, state, messages, first, last, part)
    else:
        _iterate_log_odds(model, state, messages, first, last, part)


# Arrays are taken out of their tuples before loops, and loops pass pointers. Otherwise numba would count
# references to the arrays inside loops, which takes a third of the time with 800 units.


@compiled_part
def _iterate_odds(model, state, messages, first, last, part):
    product, total, units = state.product[part], state.total[part], state.hidden
    one, zero, bias_mantissa, bias_power = units.own, units.rest, units.bias_mantissa, units.bias_power
    own, weights = pointer(state.visible.own), pointer(model.weight)
    told, gathered, change = pointer(messages), pointer(product), pointer(state.change[part])
    ratio, power = np.empty(MOST_ROWS), np.empty(MOST_ROWS)
    rows, columns, tile = model.rows_at_a_time, np.uint64(messages.shape[1]), np.uint64(TILE)
    for block in range(first, last, rows):
        end = min(block + rows, last)
        for row in range(rows):
            ratio[row], power[row] = 1.0, 0.0
        for start in range(np.uint64(0), columns, tile):
            stop = min(start + tile, columns)
            for j in range(block, end):
                factor, factor_power = hear_odds(told, weights, np.uint64(j) * columns, start, stop, own)
                factor *= ratio[j - block]
                ratio[j - block] = mantissa(factor)
                power[j - block] += factor_power + exponent(factor)
        for j in range(block, end):
            odds = _odds(ratio[j - block] * bias_mantissa[j], power[j - block] + bias_power[j])
            one[j], zero[j] = odds / (1 + odds), 1 / (1 + odds)
        for start in range(np.uint64(0), columns, tile):
            stop = min(start + tile, columns)
            for j in range(block, end):
                answer_odds(
                    told, weights, np.uint64(j) * columns, start, stop, own, one[j], zero[j], gathered, change
                )
        if (end - first) % model.rows_per_flush < rows:
            flush(product, total)
    flush(product, total)


@compiled_part
def _iterate_log_odds(model, state, messages, first, last, part):
    weight, visible_field, bias = model.weight, state.visible.field, state.hidden.bias_power
    total, change = state.total[part], state.change[part]
    field, told = np.empty_like(visible_field), np.empty_like(visible_field)
    for j in range(first, last):
        difference(visible_field, messages[j], field)
        hidden_field = bias[j] + gains(field, weight[j], told)
        field[:] = hidden_field
        difference(field, told, field)
        gains(field, weight[j], told)
        renew(told, model.damping, messages[j], total, change)


@compiled_part
def _iterate_maxima(model, state, messages, first, last, part):
    total, summed = state.total[part], state.product[part]
    units, bias, columns = state.hidden, state.hidden.bias_power, np.uint64(messages.shape[1])
    copy(state.visible.field, state.visible.own)
    units.rest[:] = model.damping
    field, told, weights = pointer(state.visible.own), pointer(messages), pointer(model.weight)
    gathered, change = pointer(summed), pointer(state.change[part])
    heard = np.empty_like(state.visible.own)
    buffer = pointer(heard)
    for block in range(first, last, _SUMMED_ROWS):
        summed[:] = 0.0
        for j in range(block, min(block + _SUMMED_ROWS, last)):
            offset = np.uint64(j) * columns
            units.own[j] = bias[j] + hear_maxima(told, weights, offset, columns, field, buffer)
            answer_maxima(
                told, weights, offset, columns, buffer, units.own[j], units.rest[j], gathered, change
            )
        for i in range(len(total)):
            total[i] += summed[i]
    summed[:] = 1.0


@compiled
def finish(model, state, instances, row, messages, pair_sum, bounds, part):
    """Compute the beliefs of hidden units and the requested outputs for a part of the rows."""
    to_hidden, pair_weight = instances.to_hidden[row], instances.pair_weights[row]
    first, last = bounds[part], bounds[part + 1]
    if model.in_odds:
        _finish_odds(model, state, messages, to_hidden, pair_weight, pair_sum, first, last)
    elif model.maximise:
        _finish_maxima(model, state, messages, to_hidden, first, last)
    else:
        _finish_log_odds(model, state, messages, to_hidden, pair_weight, pair_sum, first, last)


@fast_part
def _finish_odds(model, state, messages, to_hidden, pair_weight, pair_sum, first, last):
    weight, own, units = model.weight, state.visible.own, state.hidden
    ones, weights = pointer(own), pointer(weight)
    told, answers = pointer(messages), pointer(to_hidden)
    columns, tile = np.uint64(len(own)), np.uint64(TILE)
    for j in range(first, last):
        offset = np.uint64(j) * columns
        units.mantissa[j], units.power[j] = units.bias_mantissa[j], units.bias_power[j]
        state.row_value[j] = 0.0
        for start in range(np.uint64(0), columns, tile):
            stop = min(start + tile, columns)
            ratio, power, normaliser, normaliser_power = weigh_odds(told, weights, offset, start, stop, ones)
            units.power[j] += power + exponent(units.mantissa[j] * ratio)
            units.mantissa[j] = mantissa(units.mantissa[j] * ratio)
            state.row_value[j] += math.log(normaliser) + normaliser_power * _LOG_2
            if len(to_hidden) > 0:
                tell_odds(told, weights, offset, start, stop, ones, answers)
        if len(pair_sum) > 0:
            odds = _odds(units.mantissa[j], units.power[j])
            units.own[j] = odds / (1 + odds)
            add_pairs_odds(messages, weight, j, own, pair_weight * units.own[j], pair_sum)


@compiled_part
def _finish_maxima(model, state, messages, to_hidden, first, last):
    units, columns = state.hidden, np.uint64(messages.shape[1])
    copy(state.visible.field, state.visible.own)
    field, told, weights = pointer(state.visible.own), pointer(messages), pointer(model.weight)
    heard = np.empty_like(state.visible.own)
    buffer = pointer(heard)
    for j in range(first, last):
        offset = np.uint64(j) * columns
        units.mantissa[j] = 1.0
        state.row_value[j] = -hear_maxima(told, told, offset, columns, field, buffer)
        units.power[j] = units.bias_power[j] + hear_maxima(told, weights, offset, columns, field, buffer)
        if len(to_hidden) > 0:
            for i in range(len(heard)):
                to_hidden[j, i] = heard[i]


@compiled_part
def _finish_log_odds(model, state, messages, to_hidden, pair_weight, pair_sum, first, last):
    weight, visible_field, units = model.weight, state.visible.field, state.hidden
    field, told = np.empty_like(visible_field), np.empty_like(visible_field)
    for j in range(first, last):
        difference(visible_field, messages[j], field)
        units.mantissa[j] = 1.0
        units.power[j] = units.bias_power[j] + gains(field, weight[j], told)
        if len(to_hidden) > 0:
            to_hidden[j] = told
        if len(pair_sum) > 0:
            scale = pair_weight / (1 + math.exp(-units.power[j]))
            add_pairs_log_odds(field, weight[j], scale, pair_sum[j])
        state.row_value[j] = -gains(field, messages[j], told)


@compiled
def conclude(model, state, instances, row):
    """Write the beliefs and the log partition, defined in :mod:`~lmbm_torch.kernels.matrix_bp.plain`."""
    unit = _LOG_2 if model.in_odds else 1.0
    visible, hidden = instances.visible_out[row], instances.hidden_out[row]
    _log_odds(state.visible, unit, visible)
    _log_odds(state.hidden, unit, hidden)
    value = state.row_value.sum()
    value += _normalisers(visible, state.known, model.decide or model.maximise)
    value += _normalisers(hidden, np.full(len(hidden), np.nan), model.maximise)
    if model.in_odds:
        # The values of the rows contain the messages, which are subtracted here.
        value -= _sum_of_differences(visible, instances.visible[row])
        value -= len(state.row_value) * _sum_of_log_complements(state.visible.own)
    instances.log_partition[row] = value


@fast_part
def _log_odds(units, unit, fields):
    mantissas, powers = units.mantissa, units.power
    for i in range(len(fields)):
        fields[i] = log_of_ratio(mantissas[i] - 1, 0.0) + unit * powers[i]


@fast_part
def _normalisers(fields, known, maximised):
    total = 0.0
    for i in range(len(fields)):
        total += max(fields[i], 0.0) if known[i] != known[i] else known[i] * fields[i]
    if not maximised:
        for i in range(len(fields)):
            tail = log_of_ratio(exp(-abs(fields[i])), 0.0)
            total += tail if known[i] != known[i] else 0.0
    return total


@fast_part
def _sum_of_log_complements(odds):
    """Return Σ log(1 + odds)."""
    total = 0.0
    for i in range(len(odds)):
        whole = 1 + float(odds[i])
        total += log_of_ratio(mantissa(whole) - 1, 0.0) + _LOG_2 * exponent(whole)
    return total


@fast_part
def _sum_of_differences(fields, others):
    total = 0.0
    for i in range(len(fields)):
        total += fields[i] - others[i]
    return total
