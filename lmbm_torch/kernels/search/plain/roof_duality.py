"""Roof duality: the tightest bound on a Boltzmann machine's score that messages between pairs give.

A pair's term J_ij s_i s_j may take field m_ij from neither, as long as |m_ij| ≤ |J_ij| and m_ji = −m_ij
(J_ij > 0) or m_ij (J_ij < 0): the pair then still has its largest value |J_ij| at either spin of i. So for
fields z_i = b_i + Σ_j m_ij no score exceeds Σ_i |z_i| + Σ_{i<j} |J_ij|, and the least such bound, that of the
local polytope, is a maximum flow of field through the pairs (Boros and Hammer, "Pseudo-Boolean optimization",
Discrete Applied Mathematics 123, 2002, section 5; Kolmogorov and Rother, "Minimizing nonsubmodular functions
with graph cuts", PAMI 29, 2007). Any messages give a bound: it is right however the flow was found.
"""

from __future__ import annotations

import numpy as np

# Rounds of shortest paths: a guard, for a hundred labels take thirty.
MAX_ROUNDS = 1000


def messages(fields, couplings, known, least):
    """m (labels, labels): row i, what label i's field is given by its pairs; numba compiles this too.

    Field of either sign goes along the pairs, turning its sign at negative couplings, until it meets field of
    the other sign, and both vanish. A state 2i, or 2i + 1, stands for positive, or negative, field at label
    i; rounds of shortest paths are followed by depth-first search until there are none (Dinic's algorithm).

    Args:
        fields: (labels,), what is known included.
        couplings: (labels, labels).
        known: (labels,), spins; pairs of a label that is not free, not 0, give nothing.
        least: what is no larger counts as zero.
    """
    labels = len(fields)
    z, m, queue = fields.copy(), np.zeros((labels, labels)), np.zeros(2 * labels, np.int64)
    level, pointer = np.zeros(2 * labels, np.int64), np.zeros(2 * labels, np.int64)
    path = np.zeros(2 * labels + 1, np.int64)
    for _ in range(MAX_ROUNDS):
        level[:] = -1
        head, tail, last = 0, 0, -1
        for i in range(labels):
            if known[i] == 0 and abs(z[i]) > least:
                state = 2 * i + (0 if z[i] > 0 else 1)
                level[state], queue[tail], tail = 0, state, tail + 1
        while head < tail:
            state, head = queue[head], head + 1
            if last >= 0 and level[state] >= last:
                break
            i, sign = state // 2, 1 - 2 * (state % 2)
            for j in range(labels):
                weight = couplings[i, j]
                if known[j] != 0 or abs(weight) + sign * m[i, j] <= least:
                    continue
                there = 2 * j + (state % 2 if weight > 0 else 1 - state % 2)
                if level[there] < 0:
                    level[there], queue[tail], tail = level[state] + 1, there, tail + 1
                    if z[j] * (1 - 2 * (there % 2)) < -least and last < 0:
                        last = level[there]
        if last < 0:
            break
        pointer[:] = 0
        for source in range(labels):
            if known[source] != 0:
                continue
            while abs(z[source]) > least:
                path[0], length, arrived = 2 * source + (0 if z[source] > 0 else 1), 0, False
                while True:
                    state = path[length]
                    i, sign = state // 2, 1 - 2 * (state % 2)
                    if length > 0 and z[i] * sign < -least:
                        arrived = True
                        break
                    there = -1
                    while level[state] < last and pointer[state] < labels:
                        j = pointer[state]
                        weight = couplings[i, j]
                        if known[j] == 0 and abs(weight) + sign * m[i, j] > least:
                            there = 2 * j + (state % 2 if weight > 0 else 1 - state % 2)
                            if level[there] == level[state] + 1:
                                break
                            there = -1
                        pointer[state] += 1
                    if there >= 0:
                        length += 1
                        path[length] = there
                    elif length == 0:
                        break
                    else:
                        level[state] = -2
                        length -= 1
                        pointer[path[length]] += 1
                if not arrived:
                    break
                end = path[length] // 2
                amount = min(abs(z[source]), abs(z[end]))
                # A path that meets both signs of a label may use a pair twice.
                met_twice = False
                for step in range(length + 1):
                    for before in range(step):
                        met_twice = met_twice or path[before] // 2 == path[step] // 2
                for step in range(length):
                    i, sign = path[step] // 2, 1 - 2 * (path[step] % 2)
                    amount = min(
                        amount, abs(couplings[i, path[step + 1] // 2]) + sign * m[i, path[step + 1] // 2]
                    )
                if met_twice:
                    amount /= 2
                z[source] -= (1 - 2 * (path[0] % 2)) * amount
                z[end] += (1 - 2 * (path[length] % 2)) * amount
                for step in range(length):
                    i, j = path[step] // 2, path[step + 1] // 2
                    m[i, j] -= (1 - 2 * (path[step] % 2)) * amount
                    m[j, i] += (1 - 2 * (path[step + 1] % 2)) * amount
    return m


def persistent(fields, couplings, messages, least):
    """The spin that each label has in every labelling of the largest score, 0 where the bound does not say.

    Where the flow of field has ended, what is left of it decides its label, and every label that it could
    still go to; numba compiles this too.

    Args:
        fields: (labels,).
        couplings: (labels, labels).
        messages: (labels, labels), of :func:`messages`.
        least: what is no larger counts as zero.
    """
    labels = len(fields)
    reached, queue = np.zeros(2 * labels, np.bool_), np.zeros(2 * labels, np.int64)
    head, tail = 0, 0
    for i in range(labels):
        z = fields[i] + messages[i].sum()
        if abs(z) > least:
            state = 2 * i + (0 if z > 0 else 1)
            reached[state], queue[tail], tail = True, state, tail + 1
    while head < tail:
        state, head = queue[head], head + 1
        i, sign = state // 2, 1 - 2 * (state % 2)
        for j in range(labels):
            weight = couplings[i, j]
            if abs(weight) + sign * messages[i, j] > least:
                there = 2 * j + (state % 2 if weight > 0 else 1 - state % 2)
                if not reached[there]:
                    reached[there], queue[tail], tail = True, there, tail + 1
    spins = np.zeros(labels)
    for i in range(labels):
        spins[i] = int(reached[2 * i]) - int(reached[2 * i + 1])
    return spins
