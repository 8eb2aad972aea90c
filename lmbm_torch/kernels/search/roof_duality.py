"""Roof duality: the tightest upper bound on the score of a Boltzmann machine from messages between pairs.

The term J_ij s_i s_j of a pair can be reparametrised by adding fields m_ij to label i and m_ji to label j, if
|m_ij| ≤ |J_ij| and m_ji = −m_ij (J_ij > 0) or m_ij (J_ij < 0). The maximum of the remaining term is then
|J_ij| for both spins of i. Therefore, with fields z_i = b_i + Σ_j m_ij, no score exceeds Σ_i |z_i| + Σ_{i<j}
|J_ij|. The smallest of these bounds is the bound of the local polytope. It is found by a maximum flow of
field through the pairs (Boros and Hammer, "Pseudo-Boolean optimization", Discrete Applied Mathematics 123,
2002, section 5; Kolmogorov and Rother, "Minimizing nonsubmodular functions with graph cuts", PAMI 29, 2007).
All messages give a valid bound, even if the flow is not maximal.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import compiled

# Largest number of rounds of shortest paths, as a safeguard; a hundred labels take about thirty rounds.
MAX_ROUNDS = 1000


@compiled
def messages(fields, couplings, known, least):
    """Return messages m (labels, labels); row i has the fields that label i receives from its pairs.

    Positive and negative field flows along the pairs, and changes sign at negative couplings, until field of
    the opposite sign is met and cancelled. A node 2i of the flow network is positive field at label i, a node
    2i + 1 negative field. Each round finds shortest paths and then augments the flow by depth-first search,
    until there is no path (Dinic's algorithm).

    Args:
        fields: (labels,), with the effects of known labels.
        couplings: (labels, labels).
        known: (labels,), known spins, 0 for free labels; pairs of a known label have no messages.
        least: absolute values up to ``least`` count as zero.
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
                # If a path meets both nodes of a label, it may use a pair twice.
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
    """Return spins that all labellings of the largest score share; 0 if roof duality does not decide a label.

    After a maximum flow, remaining field decides its label, and all labels that the field can reach.

    Args:
        fields: (labels,).
        couplings: (labels, labels).
        messages: (labels, labels), the result of :func:`messages`.
        least: absolute values up to ``least`` count as zero.
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
