"""Local search for labellings of Boltzmann machines by flips of single labels, to start exact searches."""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import fast_part

# Largest number of unsuccessful forced flips (labels with the smallest cost first) before the search ends.
PATIENCE = 10
# Smallest gain of a flip as a share of the loss; smaller gains could be round-off, and cause cycles.
LEAST_GAIN = 1e-12
# Tabu search: number of flips per label without improvement before a restart; number of flips for which a
# label is not flipped again; number of restarts without improvement before the end. This takes 1 ms of CPU
# time for 80 labels (scripts/bench/undirected_decoding.py).
TABU_PATIENCE, TABU_TENURE, TABU_STARTS = 20, 10, 3


@fast_part
def improved(fields, couplings, margin, known):
    """Return spins (labels,) of low hinge loss Σ_i [γ − s_i z_i]_+.

    The search starts from the signs of the fields, from all labels 0 and from all labels 1. The best flip is
    made until no flip reduces the loss. Then each label of the best labelling is flipped and held while other
    labels are optimised, as long as better labellings are found.

    Args:
        fields: (labels,).
        couplings: (labels, labels).
        margin: the margin γ.
        known: (labels,), fixed spins; 0 for a free label.
    """
    labels = len(fields)
    spins, held, is_kicked = np.empty(labels), np.empty(labels, np.bool_), np.empty(labels, np.bool_)
    best, best_costs, costs, least = np.empty(labels), np.empty(labels), np.empty(labels), np.inf
    start, failures = 0, 0
    while (start < 3 or failures < PATIENCE) and least > 0:
        kicked = -1
        for i in range(labels):
            held[i] = known[i] != 0
            if start < 3:
                own = 1.0 if fields[i] >= 0 else -1.0
                spins[i] = known[i] if held[i] else (own if start == 0 else 2.0 * start - 3.0)
            else:
                spins[i] = best[i]
                if not is_kicked[i] and (kicked < 0 or best_costs[i] < best_costs[kicked]):
                    kicked = i
        start += 1
        if kicked >= 0:
            spins[kicked] *= -1
            held[kicked] = is_kicked[kicked] = True
        elif start > 3:
            break
        while True:
            local, loss = fields.copy(), 0.0
            for j in range(labels):
                for i in range(labels):
                    local[i] += couplings[j, i] * spins[j]
            for i in range(labels):
                loss += max(margin - spins[i] * local[i], 0.0)
            while True:
                lowest = -1
                for j in range(labels):
                    if held[j]:
                        continue
                    total, row, change = 0.0, couplings[j], -2 * spins[j]
                    for i in range(labels):
                        total += max(margin - spins[i] * (local[i] + change * row[i]), 0.0)
                    agreement = spins[j] * local[j]
                    costs[j] = total - max(margin - agreement, 0.0) + max(margin + agreement, 0.0)
                    if lowest < 0 or costs[j] < costs[lowest]:
                        lowest = j
                if lowest < 0 or not costs[lowest] < loss * (1 - LEAST_GAIN):
                    break
                loss, change = costs[lowest], -2 * spins[lowest]
                spins[lowest] *= -1
                for i in range(labels):
                    local[i] += change * couplings[lowest, i]
            if kicked < 0 or not held[kicked]:
                break
            held[kicked] = False
        failures += 1
        if least == np.inf or loss < least * (1 - LEAST_GAIN):
            least, failures = loss, 0
            for i in range(labels):
                best[i], best_costs[i], is_kicked[i] = spins[i], costs[i], known[i] != 0
    return best


@fast_part
def raised(fields, couplings, known):
    """Return spins (labels,) of high score Σ_i s_i (f_i + ½ Σ_j c_ij s_j), by the search of :func:`improved`.

    A flip changes all gains by a row of the couplings, so the best flip takes O(labels) operations.

    Args:
        fields: (labels,).
        couplings: (labels, labels), symmetric, without a diagonal.
        known: (labels,), fixed spins; 0 for a free label.
    """
    labels, size = len(fields), 0.0
    spins, held, is_kicked = np.empty(labels), np.empty(labels, np.bool_), np.empty(labels, np.bool_)
    best, best_local, local, highest = np.empty(labels), np.empty(labels), np.empty(labels), -np.inf
    for i in range(labels):
        size += abs(fields[i])
        for j in range(labels):
            size += abs(couplings[i, j]) / 2
    start, failures = 0, 0
    while start < 3 or failures < PATIENCE:
        kicked = -1
        for i in range(labels):
            held[i] = known[i] != 0
            if start < 3:
                own = 1.0 if fields[i] >= 0 else -1.0
                spins[i] = known[i] if held[i] else (own if start == 0 else 2.0 * start - 3.0)
                local[i] = fields[i]
            else:
                spins[i], local[i] = best[i], best_local[i]
                if not is_kicked[i] and (
                    kicked < 0 or spins[i] * local[i] < best[kicked] * best_local[kicked]
                ):
                    kicked = i
        if start < 3:
            for j in range(labels):
                for i in range(labels):
                    local[i] += couplings[j, i] * spins[j]
        elif kicked < 0:
            break
        start += 1
        flipped = kicked
        if kicked >= 0:
            held[kicked] = is_kicked[kicked] = True
        while True:
            if flipped >= 0:
                spins[flipped] *= -1
                for i in range(labels):
                    local[i] += 2 * spins[flipped] * couplings[flipped, i]
            flipped, gain = -1, LEAST_GAIN * size
            for i in range(labels):
                if not held[i] and -2 * spins[i] * local[i] > gain:
                    flipped, gain = i, -2 * spins[i] * local[i]
            if flipped < 0:
                if kicked < 0 or not held[kicked]:
                    break
                held[kicked] = False
        score = 0.0
        for i in range(labels):
            score += spins[i] * (fields[i] + local[i]) / 2
        failures += 1
        if highest == -np.inf or score > highest + LEAST_GAIN * size:
            highest, failures = score, 0
            for i in range(labels):
                best[i], best_local[i], is_kicked[i] = spins[i], local[i], known[i] != 0
    return best


@fast_part
def tabu(fields, couplings, known, spins, most_flips):
    """Raise the score of a labelling by tabu search: make the best flip of a label not flipped recently.

    The search continues even if all flips lower the score (Glover, 1989). It restarts from the best labelling
    with every second free label flipped.

    Args:
        fields: (labels,).
        couplings: (labels, labels), symmetric, without a diagonal.
        known: (labels,), fixed spins; 0 for a free label.
        spins: (labels,), the first labelling, replaced by the best one.
        most_flips: largest number of flips.
    """
    labels, size, highest, starts, failures, step = len(fields), 0.0, -np.inf, 0, 0, 0
    now, local, stays = np.empty(labels), np.empty(labels), np.empty(labels, np.int64)
    for i in range(labels):
        size += abs(fields[i])
        for j in range(labels):
            size += abs(couplings[i, j]) / 2
    while failures < TABU_STARTS and step < most_flips:
        place, score, before, last = starts, 0.0, highest, step
        for i in range(labels):
            place += known[i] == 0
            now[i], stays[i] = spins[i], 0
            if starts > 0 and known[i] == 0 and place % 2 == 0:
                now[i] *= -1
        for i in range(labels):
            local[i] = fields[i]
            for j in range(labels):
                local[i] += couplings[i, j] * now[j]
            score += now[i] * (fields[i] + local[i]) / 2
        highest, starts = score if starts == 0 else highest, starts + 1
        while step < most_flips and step - last < TABU_PATIENCE * labels:
            step += 1
            flipped, gain = -1, -np.inf
            for i in range(labels):
                own = -2 * now[i] * local[i]
                is_open = stays[i] < step or score + own > highest + LEAST_GAIN * size
                if known[i] == 0 and own > gain and is_open:
                    flipped, gain = i, own
            if flipped < 0:
                break
            now[flipped] *= -1
            stays[flipped], score = step + min(TABU_TENURE, labels // 4), score + gain
            for i in range(labels):
                local[i] += 2 * now[flipped] * couplings[flipped, i]
            if score > highest + LEAST_GAIN * size:
                highest, last = score, step
                for i in range(labels):
                    spins[i] = now[i]
        failures = 0 if highest > before else failures + 1
