"""Depth-first branch and bound for the hinge rule on Boltzmann machines: the readable reference.

It minimises Σ_i [γ − s_i z_i]_+ with z_i = field_i + Σ_j J_ij s_j. Every z depends on all other labels, so
the loss of a decided label still depends on the undecided ones: when the labels before position d are
decided, the others can change z_i by at most R_di, the sum of its absolute couplings with those from d on. So
the loss of label i is at least [γ − s_i z_i − R_di]_+, or [γ − |z_i| − R_di]_+ while its own spin is open.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class UndirectedProblem(NamedTuple):
    """Labels are counted by position; arrays are float64.

    Args:
        fields: (batch, labels).
        couplings: (batch, labels, labels), J, symmetric with a zero diagonal.
        known: (batch, labels), given spins; 0 where a label is free.
        margin: γ.
        round_off: improvements below this share of the largest loss that one label can have do not count.
        node_limit: nodes after which a search ends, once it has completed a labelling.
    """

    fields: np.ndarray
    couplings: np.ndarray
    known: np.ndarray
    margin: float
    round_off: float
    node_limit: int


class Best(NamedTuple):
    """The labelling of least loss, the first in depth-first order of those that tie.

    Args:
        spins: (batch, labels), by position.
        bound: (batch,), no labelling has a lower loss, up to rounding.
        proven: (batch,), whether the search has ended by itself.
        nodes: (batch,), partial labellings whose bound was computed.
    """

    spins: np.ndarray
    bound: np.ndarray
    proven: np.ndarray
    nodes: np.ndarray


def start(problem: UndirectedProblem) -> Best:
    """The record that the searches of all examples write into."""
    batch = len(problem.fields)
    return Best(
        spins=np.zeros(problem.fields.shape),
        bound=np.zeros(batch),
        proven=np.zeros(batch, np.bool_),
        nodes=np.zeros(batch, np.int64),
    )


def search(problem: UndirectedProblem) -> Best:
    """The labellings of least loss."""
    best = start(problem)
    for example in range(len(problem.fields)):
        search_example(problem, best, example)
    return best


def search_example(problem, best, example):
    """Search one example's labellings; loops are written out because numba compiles this function too."""
    couplings, known, margin = problem.couplings[example], problem.known[example], problem.margin
    fields, labels = problem.fields[example], len(known)
    waiting, settled = np.zeros((labels + 1, labels)), np.zeros((labels + 1, labels))
    for position in range(labels - 1, -1, -1):
        for i in range(labels):
            waiting[position, i] = waiting[position + 1, i] + abs(couplings[position, i])
    settled[0] = fields
    spins, is_last_branch = np.zeros(labels), np.zeros(labels, np.bool_)
    # The bound of the partial labelling before each position.
    bounds = np.empty(labels + 1)
    bounds[0] = np.maximum(margin - np.abs(fields) - waiting[0], 0.0).sum()
    slack = problem.round_off * (margin + (np.abs(fields) + waiting[0]).max())
    least, threshold, nodes, position, is_new = np.inf, np.inf, 0, 0, True
    while position >= 0 and not (nodes >= problem.node_limit and least < np.inf):
        if is_new:
            agreeing = 1.0 if settled[position, position] >= 0 else -1.0
            spins[position] = agreeing if known[position] == 0 else known[position]
            is_last_branch[position] = known[position] != 0
        else:
            spins[position] *= -1
            is_last_branch[position] = True
        depth = position + 1
        spin, row, bound = spins[position], couplings[position], 0.0
        before, after, undecided = settled[position], settled[depth], waiting[depth]
        for i in range(labels):
            field = before[i] + spin * row[i]
            after[i] = field
            agreement = abs(field) if spins[i] == 0 else spins[i] * field
            bound += max(margin - agreement - undecided[i], 0.0)
        bounds[depth] = bound
        nodes += 1
        is_new = bound < threshold and depth < labels
        if is_new:
            position = depth
            continue
        if bound < threshold:
            least, threshold = bound, bound - slack
            best.spins[example] = spins
        while position >= 0 and (is_last_branch[position] or bounds[position] >= threshold):
            spins[position] = 0
            position -= 1
    # Left open are the branches to come here and, before that, those of all earlier decisions.
    for earlier in range(position):
        if not is_last_branch[earlier]:
            position = earlier
            break
    best.nodes[example], best.proven[example] = nodes, position < 0
    best.bound[example] = least if position < 0 else min(least, bounds[position])
