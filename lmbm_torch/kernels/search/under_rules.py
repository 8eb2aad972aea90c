"""Depth-first search for the labellings of least loss that obey linear rules.

The loss is Σ_t ℓ(s_t z_t) with fields z_t that depend on the spins of all labels. After each decision, the
implications of the rules are fixed. If undecided labels can change the field of label t by R_t, its loss is
at least ℓ(s_t z_t + R_t), for a free label at least ℓ(|z_t| + R_t); the opposite spin costs δ_t more. If the
spins of least loss break a rule, some labels must take the opposite spin and cost δ. The smallest such cost
for the rule is added to the bound, and subtracted from the δ of these labels; the next rule uses only the
remainder (dual ascent for the covering problem).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from lmbm_torch.kernels.jit import compiled, part
from lmbm_torch.kernels.search.directed import nothing
from lmbm_torch.kernels.search.losses import record
from lmbm_torch.kernels.search.records import Found
from lmbm_torch.kernels.threads import share, stoppable

HINGE, LOGISTIC, LINEAR = 0, 1, 2
FREE = -1


class Rows(NamedTuple):
    """Rules Σ weights · labels ≤ bounds; rule r has the entries from starts[r] up to starts[r + 1].

    Args:
        starts: (rows + 1,), first entry of each row: the rules, then rows that follow from the rules.
        columns: (entries,), the label of each entry.
        weights: (entries,), the weight of each entry.
        bounds: (rows,), the right-hand sides.
        num_rules: number of rules; rows that follow from the rules are used only for bounds.
        order: order of the rows in the computation of a bound.
        label_starts: (labels + 1,), the first entry of each label in ``label_rows``.
        label_rows: the rules of each label.
        label_weights: the weights of the label in these rules.
    """

    starts: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    bounds: np.ndarray
    num_rules: int
    order: np.ndarray
    label_starts: np.ndarray
    label_rows: np.ndarray
    label_weights: np.ndarray


class RuledProblem(NamedTuple):
    """The problem min Σ_t ℓ(s_t z_t) over labels that obey rules; an axis ``batch | 1`` may be shared.

    Args:
        fields: (batch, labels), fields z without the effects of spins.
        effects: (batch | 1, labels, labels), row j has the effects of label j's spin on the fields.
        order: (labels,), the order of decisions.
        known: (batch | 1, labels) of int8: 0, 1, or −1 for a free label.
        rows: the rules.
        loss: ``HINGE``, [margin − m]_+; ``LOGISTIC``, log(1 + exp(−2 m)); or ``LINEAR``, −m.
        margin: margin of the hinge loss.
        round_off: improvements below this share of the largest loss of a label do not count.
        node_limit: number of nodes after which a search ends.
        top_k: number of labellings to keep.
    """

    fields: np.ndarray
    effects: np.ndarray
    order: np.ndarray
    known: np.ndarray
    rows: Rows
    loss: int
    margin: float
    round_off: float
    node_limit: int
    top_k: int


class _Path(NamedTuple):
    """The nodes from the root to the current node, by depth, and scratch memory for one node."""

    labels: np.ndarray  # (labels + 1, labels) of int8
    fields: np.ndarray  # (labels + 1, labels), decided part of fields; next, how much they can change
    undecided: np.ndarray
    least: np.ndarray  # (labels + 1, rules), least possible sum of each rule
    suspect: np.ndarray  # (labels + 1,), a free label of the only broken rule, or −1
    label: np.ndarray  # (labels,), the label decided at each depth
    other: np.ndarray  # (labels,), the other value of this label
    right: np.ndarray  # (labels,), bound for the other value, infinite if it is already searched
    fixed: np.ndarray  # (labels,), labels that the last decision has fixed
    preferred: np.ndarray  # (labels,), the values of least loss
    turning: np.ndarray  # (labels,), cost δ of the opposite value
    place: np.ndarray  # (labels,), scratch
    weight: np.ndarray  # (labels,), scratch


def search(problem: RuledProblem) -> Found:
    """Return the labellings of least loss that obey the rules; if there are fewer, losses are infinite."""
    (batch, labels), top_k = problem.fields.shape, problem.top_k
    found: Any = nothing(batch, top_k, labels)
    size = max(1, batch // (8 * torch.get_num_threads()))
    stoppable(
        lambda stop: share(
            range(0, batch, size),
            lambda start: _search_rows(problem, found, start, min(start + size, batch), stop),
        )
    )
    return found


@compiled
def _search_rows(problem, found, first, last, stop):
    labels, rules = problem.fields.shape[1], problem.rows.num_rules
    path = _Path(
        labels=np.empty((labels + 1, labels), np.int8),
        fields=np.empty((labels + 1, labels)),
        undecided=np.empty((labels + 1, labels)),
        least=np.empty((labels + 1, rules)),
        suspect=np.empty(labels + 1, np.int64),
        label=np.empty(labels, np.int64),
        other=np.empty(labels, np.int8),
        right=np.empty(labels),
        fixed=np.empty(labels, np.int64),
        preferred=np.empty(labels, np.int8),
        turning=np.empty(labels),
        place=np.empty(labels, np.int64),
        weight=np.empty(labels),
    )
    for example in range(first, last):
        _search_example(problem, path, found, example, stop)


@part(error_model="numpy")
def _loss(kind, margin, agreement):
    if kind == HINGE:
        return max(margin - agreement, 0.0)
    if kind == LINEAR:
        return -agreement
    return max(-2 * agreement, 0.0) + np.log1p(np.exp(-2 * abs(agreement)))


@part(error_model="numpy")
def _force(rows, labels, least, row, fixed, count):
    """Fix free labels of which one value would break a rule; return how many, or −1 for a broken rule."""
    room = rows.bounds[row] - least[row]
    if room < 0:
        return -1
    for each in range(rows.starts[row], rows.starts[row + 1]):
        column = rows.columns[each]
        if labels[column] == FREE and abs(rows.weights[each]) > room:
            labels[column] = 1 if rows.weights[each] < 0 else 0
            fixed[count] = column
            count += 1
    return count


@part(error_model="numpy")
def _propagate(rows, labels, least, fixed, count):
    """Fix labels that follow from the first ``count`` labels of ``fixed``; return the new count, or −1."""
    done = 0
    while done < count:
        label = fixed[done]
        done += 1
        for entry in range(rows.label_starts[label], rows.label_starts[label + 1]):
            row, weight = rows.label_rows[entry], rows.label_weights[entry]
            least[row] += weight * labels[label] - min(weight, 0.0)
            count = _force(rows, labels, least, row, fixed, count)
            if count < 0:
                return -1
    return count


@part(error_model="numpy")
def _settle(effects, labels, fields, undecided, fixed, count):
    """Add the effects of the fixed labels to the fields."""
    for index in range(count):
        label = fixed[index]
        sign = 2.0 * labels[label] - 1.0
        for t in range(len(fields)):
            fields[t] += sign * effects[label, t]
            undecided[t] -= abs(effects[label, t])


@part(error_model="numpy")
def _start(problem, path, example):
    """Set up the root from known labels and their implications; return whether no rule is broken."""
    rows, labels, fixed = problem.rows, path.labels[0], path.fixed
    effects = problem.effects[min(example, len(problem.effects) - 1)]
    labels[:] = problem.known[min(example, len(problem.known) - 1)]
    path.fields[0], path.undecided[0], path.least[0] = problem.fields[example], 0.0, 0.0
    for j in range(len(labels)):
        for t in range(len(labels)):
            path.undecided[0, t] += abs(effects[j, t])
    count = 0
    for label in range(len(labels)):
        if labels[label] != FREE:
            fixed[count] = label
            count += 1
    for row in range(rows.num_rules):
        for each in range(rows.starts[row], rows.starts[row + 1]):
            path.least[0, row] += min(rows.weights[each], 0.0)
    for row in range(rows.num_rules):
        count = _force(rows, labels, path.least[0], row, fixed, count)
        if count < 0:
            return False
    count = _propagate(rows, labels, path.least[0], fixed, count)
    if count >= 0:
        _settle(effects, labels, path.fields[0], path.undecided[0], fixed, count)
    return count >= 0


@part(error_model="numpy")
def _decide(problem, path, effects, depth, label, value):
    """Set up the node at the next depth with ``label`` at ``value``; return whether no rule is broken."""
    labels = path.labels[depth + 1]
    labels[:] = path.labels[depth]
    path.least[depth + 1] = path.least[depth]
    labels[label], path.fixed[0] = value, label
    count = _propagate(problem.rows, labels, path.least[depth + 1], path.fixed, 1)
    if count < 0:
        return False
    path.fields[depth + 1], path.undecided[depth + 1] = path.fields[depth], path.undecided[depth]
    _settle(effects, labels, path.fields[depth + 1], path.undecided[depth + 1], path.fixed, count)
    return True


@part(error_model="numpy")
def _bound(problem, path, depth, threshold):
    """Return the bound of a node, and whether the values of least loss reach the bound.

    They do if no rule is broken and undecided effects cannot change the loss; the path stores the values.
    """
    labels, fields, undecided = path.labels[depth], path.fields[depth], path.undecided[depth]
    kind, margin, preferred = problem.loss, problem.margin, path.preferred
    bound, open_loss, path.suspect[depth] = 0.0, 0.0, -1
    for t in range(len(labels)):
        field, room = fields[t], max(undecided[t], 0.0)
        agreement = abs(field)
        if labels[t] == FREE:
            preferred[t] = 1 if field > 0 else 0
            least = _loss(kind, margin, agreement + room)
            path.turning[t] = _loss(kind, margin, room - agreement) - least
        else:
            preferred[t] = labels[t]
            agreement = field if labels[t] == 1 else -field
            least = _loss(kind, margin, agreement + room)
        bound += least
        if room > 0:
            open_loss += _loss(kind, margin, agreement - room) - least
    if bound >= threshold:
        return bound, False
    obeys = True
    for row in problem.rows.order:
        excess = _excess(problem.rows, preferred, row)
        if excess > 0:
            if obeys and open_loss <= 0:
                path.suspect[depth] = _free_label(problem.rows, labels, row)
            obeys = False
            bound += _repair(problem.rows, path, labels, row, excess)
            if bound >= threshold:
                return bound, False
    return bound, obeys and open_loss <= 0


@part(error_model="numpy")
def _excess(rows, labels, row):
    """Return the amount by which a rule is broken."""
    total = -rows.bounds[row]
    for each in range(rows.starts[row], rows.starts[row + 1]):
        total += rows.weights[each] * labels[rows.columns[each]]
    return total


@part(error_model="numpy")
def _repair(rows, path, labels, row, excess):
    """Return the least cost of changing free labels to obey a rule; subtract it from δ.

    Labels may change fractionally. A change beyond the excess counts as the excess.
    """
    count, place, weight, turning = 0, path.place, path.weight, path.turning
    for each in range(rows.starts[row], rows.starts[row + 1]):
        label, own = rows.columns[each], rows.weights[each]
        if labels[label] == FREE and (own > 0) == (path.preferred[label] == 1) and own != 0:
            place[count], weight[count] = label, min(abs(own), excess)
            count += 1
    prices = np.empty(count)
    for index in range(count):
        prices[index] = turning[place[index]] / weight[index]
    paid, price = 0.0, np.inf
    for index in np.argsort(prices):
        if weight[index] >= excess:
            price = prices[index]
            paid += price * excess
            break
        paid += turning[place[index]]
        excess -= weight[index]
    if price == np.inf:
        return np.inf
    for index in range(count):
        label = place[index]
        turning[label] = max(0.0, turning[label] - price * weight[index])
    return paid


@part(error_model="numpy")
def _free_label(rows, labels, row):
    for each in range(rows.starts[row], rows.starts[row + 1]):
        if labels[rows.columns[each]] == FREE:
            return rows.columns[each]
    return -1


@part(error_model="numpy")
def _next_free(suspect, order, labels):
    if suspect >= 0:
        return suspect
    for label in order:
        if labels[label] == FREE:
            return label
    return -1


@part(error_model="numpy")
def _largest_loss(problem, path):
    largest = 0.0
    for t in range(problem.fields.shape[1]):
        largest = max(largest, abs(path.fields[0, t]) + path.undecided[0, t])
    return abs(_loss(problem.loss, problem.margin, -largest))


@part(error_model="numpy")
def _search_example(problem, path, found, example, stop):
    if not _start(problem, path, example):
        return
    effects = problem.effects[min(example, len(problem.effects) - 1)]
    losses = found.losses[example]
    slack = problem.round_off * _largest_loss(problem, path)
    depth, threshold = 0, np.inf
    bound, solved = _bound(problem, path, 0, threshold)
    nodes = 1
    while not stop[0]:
        label = _next_free(path.suspect[depth], problem.order, path.labels[depth])
        if label < 0 or (solved and problem.top_k == 1):
            _bound(problem, path, depth, np.inf)
            if bound < threshold:
                record(losses, found.labels[example], bound, path.preferred)
                threshold = losses[-1] - slack
            bound = np.inf
        if bound < threshold:
            if nodes >= problem.node_limit:
                found.limited[example] = True
                break
            # Set up the node of the more promising value last, because the search continues from there.
            value = 1 if path.fields[depth, label] > 0 else 0
            bounds = np.full(2, np.inf)
            for each in (1 - value, value):
                nodes += 1
                solved = False
                if _decide(problem, path, effects, depth, label, each):
                    bounds[each], solved = _bound(problem, path, depth + 1, threshold)
            if bounds[1 - value] < bounds[value]:
                value = 1 - value
                _decide(problem, path, effects, depth, label, value)
                bounds[value], solved = _bound(problem, path, depth + 1, threshold)
            path.label[depth], path.other[depth] = label, 1 - value
            path.right[depth] = bounds[1 - value]
            bound = bounds[value]
            depth += 1
        if bound >= threshold:
            depth -= 1
            while depth >= 0 and path.right[depth] >= threshold:
                depth -= 1
            if depth < 0:
                break
            bound, path.right[depth] = path.right[depth], np.inf
            _decide(problem, path, effects, depth, path.label[depth], path.other[depth])
            bound, solved = _bound(problem, path, depth + 1, threshold)
            depth += 1
    found.nodes[example] = nodes
    found.bound[example] = losses[-1]
    if found.limited[example]:
        found.bound[example] = min(bound, losses[-1])
        for each in range(depth):
            found.bound[example] = min(found.bound[example], path.right[each])
