"""Inner loops for training chains: steps on dual variables, likelihoods and their gradients."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.kernels.jit import SUMS, fast, fast_part, njit, part
from lmbm_torch.kernels.sums import LEAST_SUM, MOST_FORBIDDEN, joins

# Smallest marginal of a position for which mass can be taken from a labelling.
NEGLIGIBLE = 1e-12
# Largest number of halvings of a step size; below, the factor by which a step size grows after a success.
HALVINGS = 20
FASTER = 1.1
# Largest range of log-potentials for which sums are computed from exponentials instead of logarithms: such
# sums are above e^−NARROW, and terms that underflow are below e^−700.
NARROW = 300.0
# Terms of a sum below e^−SEEN times the largest term are left out, because they do not change the last digit.
SEEN = 40.0


class Chains(NamedTuple):
    """The chains; chain x has the positions from ``start[x]`` up to ``start[x + 1]``."""

    gram: np.ndarray
    start: np.ndarray
    labels: np.ndarray
    upper: np.ndarray
    coupling_penalty: float


def compilable(problem: Any) -> Chains:
    """Convert the solver's problem to a record that compiled code can read."""
    return Chains(*(getattr(problem, name) for name in Chains._fields))


@part
def best_path(fields, transition, support, sign, origin, path):
    """Write the allowed labelling of largest sign · score to ``path``; return the score.

    ``support`` has marginals (length, states) and (length − 1, states, states); states and transitions with
    marginals above ``NEGLIGIBLE`` are allowed. Empty arrays allow everything.
    """
    nodes, edges = support
    length, states = fields.shape
    before, after = np.empty(states), np.empty(states)
    for s in range(states):
        allowed = len(nodes) == 0 or nodes[0, s] > NEGLIGIBLE
        before[s] = sign * fields[0, s] if allowed else -np.inf
    for t in range(1, length):
        after[:] = -np.inf
        for r in range(states):
            for s in range(states):
                if len(edges) and edges[t - 1, r, s] <= NEGLIGIBLE:
                    continue
                value = before[r] + sign * transition[r, s]
                if value > after[s]:
                    after[s] = value
                    origin[t, s] = r
        for s in range(states):
            before[s] = after[s] + sign * fields[t, s]
    path[length - 1] = np.argmax(before)
    for t in range(length - 1, 0, -1):
        path[t - 1] = origin[t, path[t]]
    return sign * before[path[length - 1]]


@part
def longest_step(nodes, edges, up, down):
    """Return the largest mass that can be moved from the labelling ``down`` to the labelling ``up``."""
    length = len(up)
    longest = np.inf
    for t in range(length):
        if up[t] != down[t]:
            longest = min(longest, nodes[t, down[t]])
        if t + 1 < length and (up[t] != down[t] or up[t + 1] != down[t + 1]):
            longest = min(longest, edges[t, down[t], down[t + 1]])
    return longest


@part
def count_pairs(path, amount, pairs):
    """Add ``amount`` to the entry of ``pairs`` for each transition of a labelling."""
    for t in range(len(path) - 1):
        pairs[path[t], path[t + 1]] += amount


@part
def curvature(gram, up, down, penalty, pairs):
    """Return ‖F(up) − F(down)‖², with transitions divided by the penalty; ``pairs`` is zeros, as scratch."""
    total = 0.0
    for t in range(len(up)):
        if up[t] == down[t]:
            continue
        for u in range(len(up)):
            if up[u] != down[u]:
                agree = 1.0 * (up[t] == up[u]) + (down[t] == down[u])
                total += gram[t, u] * (agree - (up[t] == down[u]) - (down[t] == up[u]))
    count_pairs(up, 1.0, pairs)
    count_pairs(down, -1.0, pairs)
    for path in (up, down):
        for t in range(len(path) - 1):
            value = pairs[path[t], path[t + 1]]
            total += value * value / penalty
            pairs[path[t], path[t + 1]] = 0.0
    return total


@part
def move(nodes, edges, path, amount):
    """Add ``amount`` to the marginals of a labelling; no marginal falls below zero."""
    for t in range(len(path)):
        nodes[t, path[t]] = max(nodes[t, path[t]] + amount, 0.0)
        if t + 1 < len(path):
            edges[t, path[t], path[t + 1]] = max(edges[t, path[t], path[t + 1]] + amount, 0.0)


@part
def visit(gram, fields, transition, nodes, edges, upper, penalty, steps, change, pairs):
    """Run up to ``steps`` steps on one chain; add the changes of marginals to ``change``."""
    length, states = fields.shape
    everything = (nodes[:0], edges[:0])
    up, down = np.empty(length, np.int64), np.empty(length, np.int64)
    origin = np.empty((length, states), np.int64)
    first = 0.0
    for step in range(steps):
        rise = best_path(fields, transition, everything, 1.0, origin, up)
        rise -= best_path(fields, transition, (nodes, edges), -1.0, origin, down)
        if step == 0:
            first = rise
        # End if a step can raise the dual only by rounding errors, or by little compared with the first step.
        if rise <= max(1e-12, 0.05 * first):
            return
        square = upper * curvature(gram, up, down, penalty, pairs)
        longest = longest_step(nodes, edges, up, down)
        amount = min(longest, rise / square) if square > 0.0 else longest
        # Add before subtracting, because shared positions may have less mass than the step.
        move(nodes, edges, up, amount)
        move(nodes, edges, down, -amount)
        count_pairs(up, -upper * amount / penalty, transition)
        count_pairs(down, upper * amount / penalty, transition)
        for t in range(length):
            if up[t] == down[t]:
                continue
            change[t, up[t]] += amount
            change[t, down[t]] -= amount
            for u in range(length):
                fields[u, up[t]] -= upper * amount * gram[t, u]
                fields[u, down[t]] += upper * amount * gram[t, u]


@part(fastmath=SUMS)
def add_row(row, amount, scores):
    """Add amount · row to the scores."""
    for i in range(len(row)):
        scores[i] += amount * row[i]


@part
def read_fields(scores, labels, first, last, fields):
    """Copy a chain's scores (states, positions) to (length, states), and add 1 for all wrong labels."""
    for t in range(first, last):
        for s in range(len(scores)):
            fields[t - first, s] = scores[s, t] + (labels[t] != s)


def smo_sweep(problem, nodes, edges, scores, transition, order, steps):
    """Run pairwise steps on the chains in the given order.

    Args:
        problem: a :class:`lmbm_torch.solvers.chains.kernel_problem.ChainKernelProblem`.
        nodes: (positions, states), changed in place.
        edges: (steps, states, states), changed in place.
        scores: (states, positions), changed in place.
        transition: (states, states), changed in place.
        order: chains in the order of the steps.
        steps: largest number of steps on a chain at a time.
    """
    _pair_sweep(compilable(problem), nodes, edges, scores, transition, order, steps)


@njit(nogil=True, cache=True)
def _pair_sweep(chains, nodes, edges, scores, transition, order, steps):
    gram, start, labels, upper, penalty = chains
    states = len(scores)
    longest = np.max(start[1:] - start[:-1])
    all_fields, all_change = np.empty((longest, states)), np.empty((longest, states))
    pairs = np.zeros((states, states))
    for x in order:
        if upper[x] <= 0.0:
            continue
        first, last = start[x], start[x + 1]
        fields, change = all_fields[: last - first], all_change[: last - first]
        read_fields(scores, labels, first, last, fields)
        change[:] = 0.0
        own = gram[first:last, first:last]
        visit(
            own,
            fields,
            transition,
            nodes[first:last],
            edges[first - x : last - x - 1],
            upper[x],
            penalty,
            steps,
            change,
            pairs,
        )
        for t in range(last - first):
            for s in range(states):
                if change[t, s] != 0.0:
                    add_row(gram[first + t], -upper[x] * change[t, s], scores[s])


# The following functions use loops instead of array expressions, because the error messages of array
# expressions would triple the compilation time.
@part
def largest_of(values):
    """Return max_s values_s."""
    largest = values[0]
    for s in range(1, len(values)):
        largest = max(largest, values[s])
    return largest


@part
def weights_after(log_row, row, message, odds, is_narrow, weights):
    """Write weights_s = exp(log_row_s + message_s − c); return c and the sum of weights.

    If ``is_narrow`` (a small range of values), ``row`` and ``odds`` are exp(log_row) and exp(message).
    """
    largest, total = 0.0, 0.0
    if not is_narrow:
        for s in range(len(weights)):
            weights[s] = log_row[s] + message[s]
        largest = largest_of(weights)
    for s in range(len(weights)):
        weights[s] = row[s] * odds[s] if is_narrow else np.exp(weights[s] - largest)
        total += weights[s]
    return largest, total


@njit(nogil=True, cache=True)
def chain_marginals(log_nodes, log_pairs, nodes, pairs):
    """Compute P(y_t) and Σ_t P(y_t, y_{t+1}) for log-potentials of any range; steps share ``log_pairs``."""
    length, states = log_nodes.shape
    log_table, table = np.empty((states, states)), np.empty((states, states))
    largest, least = -np.inf, np.inf
    for r in range(states):
        for s in range(states):
            largest, least = max(largest, log_pairs[r, s]), min(least, log_pairs[r, s])
    for r in range(states):
        for s in range(states):
            log_table[r, s] = log_pairs[r, s] - largest
            table[r, s] = np.exp(log_table[r, s])
            pairs[r, s] = 0.0
    is_narrow = least - largest > -NARROW
    weights = np.empty(states)
    # Backward messages as logarithms of at most 0, and their exponentials.
    messages, odds = np.empty((length, states)), np.empty((length, states))
    for t in range(length - 1, -1, -1):
        for r in range(states):
            messages[t, r] = log_nodes[t, r]
            if t + 1 < length:
                shift, total = weights_after(
                    log_table[r], table[r], messages[t + 1], odds[t + 1], is_narrow, weights
                )
                messages[t, r] += shift + np.log(total)
        largest = largest_of(messages[t])
        for r in range(states):
            messages[t, r] -= largest
            odds[t, r] = np.exp(messages[t, r])
    total = 0.0
    for s in range(states):
        total += odds[0, s]
    for s in range(states):
        nodes[0, s] = odds[0, s] / total
    for t in range(1, length):
        for s in range(states):
            nodes[t, s] = 0.0
        for r in range(states):
            if nodes[t - 1, r] > 0.0:
                _, total = weights_after(log_table[r], table[r], messages[t], odds[t], is_narrow, weights)
                for s in range(states):
                    share = weights[s] * nodes[t - 1, r] / total
                    pairs[r, s] += share
                    nodes[t, s] += share


@part
def rise(gram, fields, transition, node_step, pair_step, upper, penalty):
    """Return by how much a step raises the dual, divided by C."""
    gain, square = 0.0, 0.0
    length, states = node_step.shape
    for t in range(length):
        for s in range(states):
            gain += fields[t, s] * node_step[t, s]
        for u in range(length):
            product = 0.0
            for s in range(states):
                product += node_step[t, s] * node_step[u, s]
            square += gram[t, u] * product
    for r in range(states):
        for s in range(states):
            gain += transition[r, s] * pair_step[r, s]
            square += pair_step[r, s] * pair_step[r, s] / penalty
    return gain - 0.5 * upper * square


@part
def moved(values, rate, direction, out):
    """Write values + rate · direction, a matrix, to ``out``."""
    for t in range(out.shape[0]):
        for s in range(out.shape[1]):
            out[t, s] = values[t, s] + rate * direction[t, s]


def gradient_sweep(problem, marginals, scores, transition, order):
    """Run exponentiated-gradient steps on the chains in the given order.

    Args:
        problem: a :class:`lmbm_torch.solvers.chains.kernel_problem.ChainKernelProblem`.
        marginals: a :class:`~lmbm_torch.kernels.dual.records.Marginals`, changed in place.
        scores: (states, positions), changed in place.
        transition: (states, states), changed in place.
        order: chains in the order of the steps.
    """
    _gradient_sweep(compilable(problem), marginals, scores, transition, order)


@part
def copied(values, out):
    """Copy a matrix to ``out``."""
    for t in range(out.shape[0]):
        for s in range(out.shape[1]):
            out[t, s] = values[t, s]


@njit(nogil=True, cache=True)
def _gradient_sweep(chains, marginals, scores, transition, order):
    gram, start, labels, upper, penalty = chains
    log_nodes, log_pairs, nodes, pairs, rates = marginals
    states, longest = len(scores), 0
    for x in order:
        longest = max(longest, start[x + 1] - start[x])
    all_fields, all_log_nodes, all_nodes, all_steps = np.empty((4, longest, states))
    log_p, new_pairs, pair_step = np.empty((3, states, states))
    for x in order:
        if upper[x] <= 0.0:
            continue
        first, last = start[x], start[x + 1]
        length = last - first
        fields, log_n = all_fields[:length], all_log_nodes[:length]
        new_nodes, node_step = all_nodes[:length], all_steps[:length]
        read_fields(scores, labels, first, last, fields)
        own = gram[first:last, first:last]
        for _ in range(HALVINGS):
            moved(log_nodes[first:last], rates[x], fields, log_n)
            moved(log_pairs[x], rates[x], transition, log_p)
            chain_marginals(log_n, log_p, new_nodes, new_pairs)
            moved(new_nodes, -1.0, nodes[first:last], node_step)
            moved(new_pairs, -1.0, pairs[x], pair_step)
            if rise(own, fields, transition, node_step, pair_step, upper[x], penalty) > 0.0:
                copied(log_n, log_nodes[first:last])
                copied(log_p, log_pairs[x])
                copied(new_nodes, nodes[first:last])
                copied(new_pairs, pairs[x])
                moved(transition, -upper[x] / penalty, pair_step, transition)
                for t in range(length):
                    for s in range(states):
                        if node_step[t, s] != 0.0:
                            add_row(gram[first + t], -upper[x] * node_step[t, s], scores[s])
                rates[x] *= FASTER
                break
            rates[x] *= 0.5


def loss_and_gradient(scores, transition, start, labels, upper, errors, pairs):
    """Return Σ_x upper_x (log Σ_y exp(score(y)) − score(y_x)); add the gradient to ``errors`` and ``pairs``.

    Args:
        scores: (positions, states), unary log-potentials; −1e30 forbids.
        transition: (states, states); −1e30 forbids.
        start: (chains + 1,), the first row of ``scores`` of each chain, then the number of rows.
        labels: (positions,), the true states.
        upper: (chains,), weights of the losses; if a weight is 0, the gradient is 0.
        errors: (positions, states), the gradient by ``scores``, written at the positions of the chains.
        pairs: (states, states), to which the gradient by ``transition`` is added.
    """
    total, are_left = 0.0, np.ones(len(upper), np.bool_)
    allowed = transition[transition > MOST_FORBIDDEN]
    if not len(allowed) or np.ptp(allowed) <= NARROW:
        total = _by_probabilities(scores, transition, start, labels, upper, errors, pairs, are_left)
    if are_left.any():
        total += _by_logarithms(scores, transition, start, labels, upper, errors, pairs, are_left)
    return total


@fast
def _by_probabilities(scores, transition, start, labels, upper, errors, pairs, are_left):
    """Compute the loss with messages that are probabilities, for transitions of a small range.

    ``are_left`` stays true for chains whose sums may have lost terms by underflow.
    """
    states, longest = scores.shape[1], 0
    for x in range(len(upper)):
        longest = max(longest, start[x + 1] - start[x])
    forward, odds = np.empty((longest, states)), np.empty((longest, states))
    # Forward messages with the unary factor of each position, backward messages, and normalising constants.
    ahead, behind, norms = np.empty((longest, states)), np.empty((longest, states)), np.empty(longest + 1)
    is_reached, was_reached = np.empty(states, np.bool_), np.empty(states, np.bool_)
    # Sums of products of messages for each transition, before multiplication by the factor of the transition.
    products, table, highest = np.zeros((states, states)), np.empty((states, states)), transition[0, 0]
    for r in range(states):
        for s in range(states):
            highest = max(highest, transition[r, s])
    for r in range(states):
        for s in range(states):
            table[r, s] = np.exp(transition[r, s] - highest)
    total = 0.0
    for x in range(len(upper)):
        first, length, weight = start[x], start[x + 1] - start[x], upper[x]
        are_left[x] = False
        if weight == 0.0:
            errors[first : first + length] = 0.0
            continue
        loss = highest * (length - 1)
        for t in range(length):
            row, label, message = scores[first + t], labels[first + t], forward[t]
            largest, norm, is_lost = row[0], 0.0, False
            for s in range(states):
                largest = max(largest, row[s])
            loss += largest - row[label]
            for s in range(states):
                odds[t, s], is_reached[s] = np.exp(row[s] - largest), row[s] > MOST_FORBIDDEN
                message[s] = 1.0 if t == 0 else 0.0
            if t > 0:
                loss -= transition[labels[first + t - 1], label]
                for r in range(states):
                    for s in range(states):
                        message[s] += forward[t - 1, r] * table[r, s]
                for s in range(states):
                    if message[s] < LEAST_SUM and is_reached[s]:
                        is_reached[s] = joins(table[:, s], was_reached)
                        is_lost |= is_reached[s]
            for s in range(states):
                was_reached[s] = is_reached[s]
                message[s] *= odds[t, s]
                norm += message[s]
            if is_lost or norm < LEAST_SUM:
                are_left[x] = True
                break
            for s in range(states):
                message[s] /= norm
            loss += math.log(norm)
        if are_left[x]:
            continue
        norms[length] = 1.0
        for s in range(states):
            behind[length - 1, s] = 1.0
        for t in range(length - 1, 0, -1):
            largest, norms[t] = 0.0, 0.0
            for s in range(states):
                ahead[t, s] = odds[t, s] * behind[t, s]
                largest = max(largest, ahead[t, s])
            for s in range(states):
                ahead[t, s] /= largest
            for r in range(states):
                sums = 0.0
                for s in range(states):
                    sums += table[r, s] * ahead[t, s]
                behind[t - 1, r] = sums
                norms[t] += forward[t - 1, r] * sums
            if norms[t] < LEAST_SUM:
                are_left[x] = True
                break
        if are_left[x]:
            continue
        total += weight * loss
        for t in range(length):
            label = labels[first + t]
            for s in range(states):
                errors[first + t, s] = weight * forward[t, s] * behind[t, s] / norms[t + 1]
            errors[first + t, label] -= weight
            if t == 0:
                continue
            pairs[labels[first + t - 1], label] -= weight
            for r in range(states):
                share = weight * forward[t - 1, r] / norms[t]
                for s in range(states):
                    products[r, s] += share * ahead[t, s]
    for r in range(states):
        for s in range(states):
            pairs[r, s] += products[r, s] * table[r, s]
    return total


@fast_part
def log_sum(values):
    """Return log Σ_s exp(values_s)."""
    largest = values[0]
    for s in range(1, len(values)):
        largest = max(largest, values[s])
    total = 0.0
    for s in range(len(values)):
        if values[s] > largest - SEEN:
            total += math.exp(values[s] - largest)
    # If all log-potentials are forbidden, the sum is 0, whose logarithm Python refuses.
    return largest + (math.log(total) if total > 0.0 else -np.inf)


@fast_part
def lower(values):
    """Subtract the largest value from all values; return the largest."""
    largest = values[0]
    for s in range(1, len(values)):
        largest = max(largest, values[s])
    for s in range(len(values)):
        values[s] -= largest
    return largest


@fast
def _by_logarithms(scores, transition, start, labels, upper, errors, pairs, are_left):
    """Compute the loss of the chains ``are_left`` with messages that are logarithms, for any transitions."""
    states, longest = scores.shape[1], 0
    for x in range(len(upper)):
        longest = max(longest, start[x + 1] - start[x])
    forward, values = np.empty((longest, states)), np.empty((states, states))
    ahead, behind, sums, into = np.empty(states), np.empty(states), np.empty(states), transition.T.copy()
    total = 0.0
    for x in range(len(upper)):
        first, length, weight = start[x], start[x + 1] - start[x], upper[x]
        if not are_left[x]:
            continue
        if weight == 0.0:
            errors[first : first + length] = 0.0
            continue
        loss = 0.0
        for t in range(length):
            row, label, message = scores[first + t], labels[first + t], forward[t]
            loss -= row[label]
            if t > 0:
                loss -= transition[labels[first + t - 1], label]
            for s in range(states):
                message[s] = row[s]
                if t > 0:
                    for r in range(states):
                        sums[r] = forward[t - 1, r] + into[s, r]
                    message[s] += log_sum(sums)
            loss += lower(message)
        loss += log_sum(forward[length - 1])
        total += weight * loss
        behind[:] = 0.0
        for t in range(length - 1, -1, -1):
            label = labels[first + t]
            for s in range(states):
                sums[s] = forward[t, s] + behind[s]
            norm = log_sum(sums)
            for s in range(states):
                errors[first + t, s] = weight * math.exp(sums[s] - norm)
            errors[first + t, label] -= weight
            if t == 0:
                break
            pairs[labels[first + t - 1], label] -= weight
            for s in range(states):
                ahead[s] = scores[first + t, s] + behind[s]
            for r in range(states):
                for s in range(states):
                    values[r, s] = transition[r, s] + ahead[s]
                behind[r] = log_sum(values[r])
                sums[r] = forward[t - 1, r] + behind[r]
            norm = log_sum(sums)
            for r in range(states):
                if sums[r] > norm - SEEN:
                    for s in range(states):
                        exponent = forward[t - 1, r] + values[r, s] - norm
                        if exponent > -SEEN:
                            pairs[r, s] += weight * math.exp(exponent)
            lower(behind)
    return total
