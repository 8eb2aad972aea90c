"""Roof duality: the tightest bound on a Boltzmann machine's score from messages between pairs.

A pair's term J_ij s_i s_j may move field m_ij to label i and m_ji to label j, if |m_ij| ≤ |J_ij| and m_ji =
−m_ij (J_ij > 0) or m_ij (J_ij < 0): the pair then still has the largest value |J_ij| at either spin of i. So
for fields z_i = b_i + Σ_j m_ij no score exceeds Σ_i |z_i| + Σ_{i<j} |J_ij|. The least such bound, the bound
of the local polytope, is a maximum flow of field through the pairs (Boros and Hammer, "Pseudo-Boolean
optimization", Discrete Applied Mathematics 123, 2002, section 5; Kolmogorov and Rother, "Minimizing
nonsubmodular functions with graph cuts", PAMI 29, 2007). Any messages give a valid bound, however the flow
was computed.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import compiled

# Most rounds of shortest paths, a safeguard: a hundred labels take thirty.
MAX_ROUNDS = 1000


@compiled
def messages(fields, couplings, known, least):
    """Return m (labels, labels), row i the fields that label i receives from the pairs.

    Field of either sign flows along the pairs, with the sign changed at negative couplings, until field of
    the opposite sign is met, and both cancel. A state 2i, or 2i + 1, stands for positive, or negative, field
    at label i; rounds of shortest paths are followed by depth-first search until no path is left (Dinic's
    algorithm).

    Args:
        fields: (labels,), known labels' effects included.
        couplings: (labels, labels).
        known: (labels,), spins; pairs of a label with a non-zero spin carry nothing.
        least: values up to ``least`` count as zero.
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
                # A path through both signs of a label may use a pair twice.
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


@compiled
def persistent(fields, couplings, messages, least):
    """Return each label's spin common to all labellings of the largest score, 0 for undecided labels.

    After the end of the flow, remaining field decides the own label, and every label still reachable.

    Args:
        fields: (labels,).
        couplings: (labels, labels).
        messages: (labels, labels), of :func:`messages`.
        least: values up to ``least`` count as zero.
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
