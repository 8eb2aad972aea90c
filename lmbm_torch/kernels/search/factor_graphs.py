"""Algorithms for factor graphs: dual ascent with labellings, belief propagation and mean field.

A graph is stored in flat arrays (:class:`~lmbm_torch.kernels.search.records.Graph`). A place is an edge
between a table (factor) and a variable of the table. In the entries of a table, the last variable changes
fastest. Three nested loops run over the entries of each state of a place, without divisions.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import compiled, compiled_part, fast_part, finite_part
from lmbm_torch.kernels.sums import LEAST_SUM


@compiled_part
def max_marginal(graph, entries, place, out):
    """Set ``out`` to the max-marginals of a place: the largest entry of the table for each state."""
    states, inner = graph.states[graph.variable[place]], graph.inner[place]
    table = graph.table[place]
    begin, end = graph.first[table], graph.first[table + 1]
    for state in range(states):
        out[state] = -np.inf
    index = begin
    while index < end:
        for state in range(states):
            for _ in range(inner):
                if entries[index] > out[state]:
                    out[state] = entries[index]
                index += 1


@compiled_part
def add_unary(graph, entries, place, values, factor):
    """Add ``factor · values`` of each state of a place to the entries of its table with this state.

    A value of −∞ forbids these entries for any factor.
    """
    states, inner = graph.states[graph.variable[place]], graph.inner[place]
    table = graph.table[place]
    index, end = graph.first[table], graph.first[table + 1]
    while index < end:
        for state in range(states):
            change = factor * values[state] if values[state] > -np.inf else -np.inf
            for _ in range(inner):
                entries[index] += change
                index += 1


@compiled
def ascend(graph, unary, entries, order, rank, sweeps, tolerance, bounds):
    """Reparametrise a graph by sequential tree-reweighted message passing; return the number of sweeps.

    In the order of the variables, each variable collects the max-marginals of its tables, and gives equal
    shares to its tables with later variables. This lowers the bound Σ max unary + Σ max table (Kolmogorov,
    Convergent tree-reweighted message passing for energy minimization, 2006; Kolmogorov, A new look at
    reweighted message passing, 2015). Every second sweep has the reverse order.

    Args:
        unary, entries: log-potentials, changed in place; the score of each labelling stays equal.
        order: (variables,), the variables in the order of a sweep.
        rank: (variables,), the position of each variable in ``order``.
        sweeps: largest number of pairs of sweeps.
        tolerance: the ascent ends if a pair of sweeps gains less than this, relative to the bound.
        bounds: (2,), written: the bound before and after the last pair of sweeps.
    """
    most = 1
    for states in graph.states:
        most = max(most, states)
    out = np.empty(most)
    bounds[0] = bounds[1] = np.inf
    made = 0
    while made < sweeps:
        for direction in range(2):
            for step in range(len(order)):
                variable = order[step] if direction == 0 else order[len(order) - 1 - step]
                states, at = graph.states[variable], graph.at[variable]
                own = unary[at : at + states]
                later, earlier = 0, 0
                for index in range(graph.start[variable], graph.start[variable + 1]):
                    place = graph.around[index]
                    max_marginal(graph, entries, place, out)
                    add_unary(graph, entries, place, out, -1.0)
                    for state in range(states):
                        own[state] += out[state]
                    lowest, highest = rank[variable], rank[variable]
                    table = graph.table[place]
                    for other in range(graph.place[table], graph.place[table + 1]):
                        lowest = min(lowest, rank[graph.variable[other]])
                        highest = max(highest, rank[graph.variable[other]])
                    later += highest > rank[variable]
                    earlier += lowest < rank[variable]
                ahead = later if direction == 0 else earlier
                if ahead == 0:
                    continue
                share = 1.0 / max(later, earlier)
                for index in range(graph.start[variable], graph.start[variable + 1]):
                    place = graph.around[index]
                    table, goes = graph.table[place], False
                    for other in range(graph.place[table], graph.place[table + 1]):
                        away = rank[graph.variable[other]] - rank[variable]
                        goes = goes or (away > 0 if direction == 0 else away < 0)
                    if goes:
                        add_unary(graph, entries, place, own, share)
                for state in range(states):
                    if own[state] > -np.inf:
                        own[state] *= 1.0 - share * ahead
        made += 1
        bounds[0], bounds[1] = bounds[1], bound_of(graph, unary, entries)
        if bounds[0] - bounds[1] <= tolerance * (1.0 + abs(bounds[1])):
            break
    return made


@compiled_part
def bound_of(graph, unary, entries):
    """Return Σ max unary + Σ max table, which no score exceeds."""
    total = 0.0
    for variable in range(len(graph.states)):
        best = -np.inf
        for index in range(graph.at[variable], graph.at[variable + 1]):
            best = max(best, unary[index])
        total += best
    for table in range(len(graph.first) - 1):
        best = -np.inf
        for index in range(graph.first[table], graph.first[table + 1]):
            best = max(best, entries[index])
        total += best
    return total


@compiled_part
def conditional(graph, unary, entries, labels, variable, decided, out, most):
    """Set ``out`` to the best score of each state of a variable, given the decided variables of its tables.

    Undecided variables take the best state for each table separately. ``most`` is scratch memory.
    """
    states, at = graph.states[variable], graph.at[variable]
    for state in range(states):
        out[state] = unary[at + state]
    for index in range(graph.start[variable], graph.start[variable + 1]):
        place = graph.around[index]
        table = graph.table[place]
        begin, end = graph.first[table], graph.first[table + 1]
        inner = graph.inner[place]
        offset, free, fixed = begin, 0, 0
        for other in range(graph.place[table], graph.place[table + 1]):
            if other != place:
                name = graph.variable[other]
                if decided[name]:
                    offset += labels[name] * graph.inner[other]
                    fixed += 1
                else:
                    free += 1
        if free == 0:
            for state in range(states):
                out[state] += entries[offset + state * inner]
            continue
        if fixed == 0:
            max_marginal(graph, entries, place, most)
            for state in range(states):
                out[state] += most[state]
            continue
        for state in range(states):
            best = -np.inf
            for entry in range(begin, end):
                if (entry - begin) // inner % states != state:
                    continue
                fits = True
                for other in range(graph.place[table], graph.place[table + 1]):
                    name = graph.variable[other]
                    if other != place and decided[name]:
                        here = (entry - begin) // graph.inner[other] % graph.states[name]
                        if here != labels[name]:
                            fits = False
                            break
                if fits and entries[entry] > best:
                    best = entries[entry]
            out[state] += best


@compiled
def rounded(graph, unary, entries, order, labels):
    """Set the labels in order, each to the best state given the earlier labels (Kolmogorov 2006)."""
    decided = np.zeros(len(order), np.bool_)
    out, most = np.empty(len(unary)), np.empty(len(unary))
    for variable in order:
        conditional(graph, unary, entries, labels, variable, decided, out, most)
        best = 0
        for state in range(graph.states[variable]):
            if out[state] > out[best]:
                best = state
        labels[variable] = best
        decided[variable] = True


@compiled
def improved(graph, unary, entries, labels):
    """Change single labels as long as this raises the score."""
    decided = np.ones(len(labels), np.bool_)
    out, most = np.empty(len(unary)), np.empty(len(unary))
    changed = True
    while changed:
        changed = False
        for variable in range(len(labels)):
            conditional(graph, unary, entries, labels, variable, decided, out, most)
            best = labels[variable]
            for state in range(graph.states[variable]):
                if out[state] > out[best] + 1e-12 * (1.0 + abs(out[best])):
                    best = state
            if best != labels[variable]:
                labels[variable] = best
                changed = True


@compiled
def score_of(graph, unary, entries, labels):
    """Return the score of a labelling."""
    total = 0.0
    for variable in range(len(labels)):
        total += unary[graph.at[variable] + labels[variable]]
    for table in range(len(graph.first) - 1):
        index = graph.first[table]
        for place in range(graph.place[table], graph.place[table + 1]):
            index += labels[graph.variable[place]] * graph.inner[place]
        total += entries[index]
    return total


@fast_part
def to_variables(graph, values, table, sums, is_max, found):
    """Set ``found`` to the messages of a table to its places, from the messages ``sums`` to the table.

    Args:
        values: (entries,), exponentials of log-potentials.
        sums: (entries of all messages,), messages to the tables, as probabilities of states.
        is_max: whether entries are maximised instead of summed.
    """
    begin, end = graph.first[table], graph.first[table + 1]
    low, high = graph.place[table], graph.place[table + 1]
    for number in range(graph.slot[low], graph.slot[high]):
        found[number] = 0.0
    if high - low == 2:
        one, other, width = graph.slot[low], graph.slot[low + 1], graph.inner[low]
        if is_max:
            maxima_of_pairs(values, begin, end, width, sums, one, other, found)
        else:
            sums_of_pairs(values, begin, end, width, sums, one, other, found)
    for entry in range(begin, end if high - low != 2 else begin):
        if values[entry] == 0.0:
            continue
        for place in range(low, high):
            weight, own = values[entry], 0
            for other in range(low, high):
                state = (entry - begin) // graph.inner[other] % graph.states[graph.variable[other]]
                if other == place:
                    own = state
                else:
                    weight *= sums[graph.slot[other] + state]
            number = graph.slot[place] + own
            if is_max:
                found[number] = max(found[number], weight)
            else:
                found[number] += weight
    for place in range(low, high):
        total = 0.0
        for number in range(graph.slot[place], graph.slot[place + 1]):
            total += found[number]
        if total > 0.0:
            for number in range(graph.slot[place], graph.slot[place + 1]):
                found[number] /= total


@compiled_part
def maxima_of_pairs(values, begin, end, width, sums, one, other, found):
    """Set ``found`` to the largest products of a pairwise table: rows at ``one``, columns at ``other``."""
    for row in range((end - begin) // width):
        first, total = begin + row * width, 0.0
        for column in range(width):
            total = max(total, values[first + column] * sums[other + column])
            found[other + column] = max(found[other + column], values[first + column] * sums[one + row])
        found[one + row] = total


@fast_part
def sums_of_pairs(values, begin, end, width, sums, one, other, found):
    """Add the products of a pairwise table to ``found``: for rows at ``one``, for columns at ``other``."""
    for row in range((end - begin) // width):
        first, total, weight = begin + row * width, 0.0, sums[one + row]
        for column in range(width):
            value = values[first + column]
            total += value * sums[other + column]
            found[other + column] += value * weight
        found[one + row] = total


@fast_part
def to_tables(graph, unary, messages, variable, sums, belief):
    """Set the belief of a variable and its messages to tables; return log Σ of the unnormalised belief.

    A message to a table is the product of all other messages. If it underflows, logarithms are used.
    """
    at, end = graph.at[variable], graph.at[variable + 1]
    low, high = graph.start[variable], graph.start[variable + 1]
    largest, total, is_large = unary[at], 0.0, True
    for number in range(at, end):
        largest = max(largest, unary[number])
    for number in range(at, end):
        belief[number] = np.exp(unary[number] - largest)
    for index in range(low, high):
        shift = graph.slot[graph.around[index]] - at
        for number in range(at, end):
            belief[number] *= messages[shift + number]
    for number in range(at, end):
        total += belief[number]
        is_large &= belief[number] > LEAST_SUM
    if not is_large:
        return to_tables_by_logarithms(graph, unary, messages, variable, sums, belief)
    for index in range(low, high):
        shift, norm = graph.slot[graph.around[index]] - at, 0.0
        for number in range(at, end):
            value = belief[number] / messages[shift + number]
            sums[shift + number] = value
            norm += value
        for number in range(at, end):
            sums[shift + number] /= norm
    for number in range(at, end):
        belief[number] /= total
    return largest + np.log(total)


@compiled_part
def to_tables_by_logarithms(graph, unary, messages, variable, sums, belief):
    """Compute :func:`to_tables` by sums of logarithms.

    Products without one message are computed from prefixes and suffixes, which allows messages of 0.
    """
    states, at = graph.states[variable], graph.at[variable]
    low, high = graph.start[variable], graph.start[variable + 1]
    before = np.empty((high - low + 1, states))
    for state in range(states):
        before[0, state] = unary[at + state]
    for index in range(low, high):
        slot = graph.slot[graph.around[index]]
        for state in range(states):
            before[index - low + 1, state] = before[index - low, state] + np.log(messages[slot + state])
    largest, total = -np.inf, 0.0
    for state in range(states):
        largest = max(largest, before[high - low, state])
    for state in range(states):
        belief[at + state] = np.exp(before[high - low, state] - largest) if largest > -np.inf else 0.0
        total += belief[at + state]
    for state in range(states):
        belief[at + state] /= total if total > 0.0 else 1.0
    after = np.zeros(states)
    for index in range(high - 1, low - 1, -1):
        slot = graph.slot[graph.around[index]]
        most, norm = -np.inf, 0.0
        for state in range(states):
            most = max(most, before[index - low, state] + after[state])
        for state in range(states):
            value = before[index - low, state] + after[state]
            sums[slot + state] = np.exp(value - most) if most > -np.inf else 0.0
            norm += sums[slot + state]
        for state in range(states):
            sums[slot + state] /= norm if norm > 0.0 else 1.0
            after[state] += np.log(messages[slot + state])
    return largest + np.log(total) if total > 0.0 else -np.inf


@compiled
def propagate(graph, unary, values, messages, sums, belief, schedule, is_max, damping, tolerance, limit):
    """Run belief propagation until no message changes by more than ``tolerance``.

    Args:
        messages: (entries of messages,), messages of tables to variables, changed in place; uniform at first.
        sums: (entries of messages,), messages of variables to tables, written.
        belief: (unary entries,), written.
        schedule: 0 updates all tables at the same time, 1 one table after another, in alternating directions,
            and 2 always the table with the largest change (Elidan, McGraw and Koller, Residual belief
            propagation, 2006).
        limit: largest number of sweeps; in schedule 2, as many updates as there are tables count as a sweep.

    Returns:
        The number of sweeps, and the largest change of a message.
    """
    tables = len(graph.first) - 1
    for variable in range(len(graph.states)):
        to_tables(graph, unary, messages, variable, sums, belief)
    found = messages.copy()
    change = np.zeros(tables)
    for table in range(tables):
        to_variables(graph, values, table, sums, is_max, found)
        change[table] = moved(graph, table, messages, found)
    sweeps, largest = 0, change.max() if tables else 0.0
    while sweeps < limit and largest > tolerance:
        for step in range(tables):
            table = step if sweeps % 2 == 0 else tables - 1 - step
            if schedule == 2:
                table = np.argmax(change)
                if change[table] <= tolerance:
                    break
            if schedule == 1:
                to_variables(graph, values, table, sums, is_max, found)
            for number in range(graph.slot[graph.place[table]], graph.slot[graph.place[table + 1]]):
                messages[number] = damping * messages[number] + (1.0 - damping) * found[number]
            if schedule == 0:
                continue
            for place in range(graph.place[table], graph.place[table + 1]):
                variable = graph.variable[place]
                to_tables(graph, unary, messages, variable, sums, belief)
                if schedule == 2:
                    for index in range(graph.start[variable], graph.start[variable + 1]):
                        other = graph.table[graph.around[index]]
                        to_variables(graph, values, other, sums, is_max, found)
                        change[other] = moved(graph, other, messages, found)
        if schedule == 0:
            for variable in range(len(graph.states)):
                to_tables(graph, unary, messages, variable, sums, belief)
        if schedule < 2:
            for table in range(tables):
                to_variables(graph, values, table, sums, is_max, found)
                change[table] = moved(graph, table, messages, found)
        sweeps, largest = sweeps + 1, change.max()
    return sweeps, largest


@compiled
def double_loop(graph, unary, values, messages, sums, belief, tolerance, limit):
    """Find a stationary point of the Bethe free energy by a convergent double loop.

    An outer iteration replaces the convex part − Σ (tables of i) · entropy_i by its tangent at the last
    beliefs; the concave rest is optimised by sweeps over the variables (Yuille, CCCP algorithms to minimize
    the Bethe and Kikuchi free energies, 2002; Heskes, Stable fixed points of loopy belief propagation are
    minima of the Bethe free energy, 2003). For d tables, a belief is b ∝ (exp(unary) · old^d · Π m)^(1 / (1 +
    d)), and a message to a table is b / m.

    Args:
        messages, sums, belief: see :func:`propagate`; the iteration starts from ``messages``.
        limit: largest number of outer iterations.

    Returns:
        The number of outer iterations, and the largest change of a sum-product message.
    """
    tables, variables = len(graph.first) - 1, len(graph.states)
    for variable in range(variables):
        to_tables(graph, unary, messages, variable, sums, belief)
    old, found, by_product = belief.copy(), messages.copy(), sums.copy()
    made, largest = 0, np.inf
    while made < limit and largest > tolerance:
        for sweep in range(4):
            for step in range(variables):
                variable = step if sweep % 2 == 0 else variables - 1 - step
                for index in range(graph.start[variable], graph.start[variable + 1]):
                    to_variables(graph, values, graph.table[graph.around[index]], sums, False, messages)
                balance(graph, unary, messages, old, variable, sums, belief)
        old[:] = belief
        for table in range(tables):
            to_variables(graph, values, table, sums, False, messages)
        for variable in range(variables):
            to_tables(graph, unary, messages, variable, by_product, belief)
        largest = 0.0
        for table in range(tables):
            to_variables(graph, values, table, by_product, False, found)
            largest = max(largest, moved(graph, table, messages, found))
        made += 1
    return made, largest


@compiled_part
def balance(graph, unary, messages, old, variable, sums, belief):
    """Set the belief of a variable and its messages to tables; see :func:`double_loop`."""
    states, at = graph.states[variable], graph.at[variable]
    low, high = graph.start[variable], graph.start[variable + 1]
    most, total = -np.inf, 0.0
    for state in range(states):
        field = unary[at + state]
        if high > low:
            field += (high - low) * np.log(old[at + state])
        for index in range(low, high):
            field += np.log(messages[graph.slot[graph.around[index]] + state])
        belief[at + state] = field / (1.0 + high - low)
        most = max(most, belief[at + state])
    for state in range(states):
        belief[at + state] = np.exp(belief[at + state] - most) if most > -np.inf else 0.0
        total += belief[at + state]
    for state in range(states):
        belief[at + state] /= total if total > 0.0 else 1.0
    for index in range(low, high):
        slot, norm = graph.slot[graph.around[index]], 0.0
        for state in range(states):
            own = belief[at + state]
            sums[slot + state] = own / messages[slot + state] if own > 0.0 else 0.0
            norm += sums[slot + state]
        for state in range(states):
            sums[slot + state] /= norm if norm > 0.0 else 1.0


@finite_part
def moved(graph, table, messages, found):
    """Return the largest difference between old and new messages of a table."""
    largest = 0.0
    for number in range(graph.slot[graph.place[table]], graph.slot[graph.place[table + 1]]):
        largest = max(largest, abs(messages[number] - found[number]))
    return largest


@compiled
def bethe(graph, unary, values, messages, sums, belief):
    """Return the Bethe approximation of log Σ exp(score); the largest entry of each table must be 1.

    The formula is Σ_i log Σ_s exp(unary) Π m + Σ_c log Σ_y table_c Π n − Σ_places log Σ_s m n, with messages
    m to variables and n to tables (Yedidia, Freeman and Weiss,
    Constructing free-energy approximations and generalized belief propagation algorithms, 2005).
    """
    total = 0.0
    for variable in range(len(graph.states)):
        total += to_tables(graph, unary, messages, variable, sums, belief)
    for table in range(len(graph.first) - 1):
        begin, low, high = graph.first[table], graph.place[table], graph.place[table + 1]
        mass = 0.0
        for entry in range(begin, graph.first[table + 1]):
            weight = values[entry]
            for place in range(low, high):
                state = (entry - begin) // graph.inner[place] % graph.states[graph.variable[place]]
                weight *= sums[graph.slot[place] + state]
            mass += weight
        total += np.log(mass)
    for place in range(len(graph.variable)):
        mass = 0.0
        for number in range(graph.slot[place], graph.slot[place + 1]):
            mass += messages[number] * sums[number]
        total -= np.log(mass)
    return total


@compiled
def mean_field(graph, unary, entries, belief, limit, tolerance):
    """Improve a mean-field distribution by coordinate ascent; return (bound, sweeps, last gain).

    The bound E[score] + Σ entropies never falls, and is at most log Σ exp(score); −∞ · 0 counts as 0.
    """
    fields = np.empty(len(unary))
    last, bound, sweeps = -np.inf, -np.inf, 0
    while sweeps < limit:
        for variable in range(len(graph.states)):
            states, at = graph.states[variable], graph.at[variable]
            expected(graph, unary, entries, belief, variable, fields)
            largest, total = -np.inf, 0.0
            for state in range(states):
                largest = max(largest, fields[state])
            if largest == -np.inf:
                continue
            for state in range(states):
                belief[at + state] = np.exp(fields[state] - largest)
                total += belief[at + state]
            for state in range(states):
                belief[at + state] /= total
        last, bound = bound, free_energy(graph, unary, entries, belief)
        sweeps += 1
        if bound - last <= tolerance * (1.0 + abs(bound)):
            break
    return bound, sweeps, bound - last


@compiled_part
def expected(graph, unary, entries, belief, variable, fields):
    """Set ``fields`` to the expected score of each state, if other variables are drawn from their beliefs."""
    states, at = graph.states[variable], graph.at[variable]
    for state in range(states):
        fields[state] = unary[at + state]
    for index in range(graph.start[variable], graph.start[variable + 1]):
        place = graph.around[index]
        table = graph.table[place]
        begin, low, high = graph.first[table], graph.place[table], graph.place[table + 1]
        for entry in range(begin, graph.first[table + 1]):
            weight, own = 1.0, 0
            for other in range(low, high):
                name = graph.variable[other]
                state = (entry - begin) // graph.inner[other] % graph.states[name]
                if other == place:
                    own = state
                else:
                    weight *= belief[graph.at[name] + state]
            if weight > 0.0:
                fields[own] += weight * entries[entry]


@compiled_part
def free_energy(graph, unary, entries, belief):
    """Return E[score] + Σ entropies of a mean-field distribution (a product of beliefs)."""
    total = 0.0
    for index in range(len(unary)):
        if belief[index] > 0.0:
            total += belief[index] * (unary[index] - np.log(belief[index]))
    for table in range(len(graph.first) - 1):
        begin, low, high = graph.first[table], graph.place[table], graph.place[table + 1]
        for entry in range(begin, graph.first[table + 1]):
            weight = 1.0
            for place in range(low, high):
                name = graph.variable[place]
                state = (entry - begin) // graph.inner[place] % graph.states[name]
                weight *= belief[graph.at[name] + state]
            if weight > 0.0:
                total += weight * entries[entry]
    return total
