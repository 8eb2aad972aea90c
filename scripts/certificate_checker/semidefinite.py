"""Check leaves that semidefinite bounds close.

Of a leaf's spins x, the first of which is 1 and carries the fields, the score is constant + xᵀ C x. An odd
number of signs never adds up to zero, (b_t·x)² ≥ 1, so that for all y and all z ≥ 0

    xᵀ C x ≤ Σ_i y_i + Σ_t z_t (k_t − 1)/2 + xᵀ M x,    M = C − Diag(y) + Σ_t z_t offdiag(b_t b_tᵀ)/2.

Spins other than the signs of a vector v and their opposites have |v·x| ≤ ‖v‖₁ − 2 min |v_i|; what v says is
looked at by itself.
Where a rule a·y ≤ b is obeyed, b − a·y times 1, y_j or 1 − y_j is not below 0, and may be added to the score.
Eigenvalues are a hint alone: xᵀ M x = μ n + τ (v·x)² − ‖Lᵀx‖² − xᵀ E x for any numbers
μ and τ, vector v and matrix L with the E that is left, which is measured, its rounding errors included.
"""

from __future__ import annotations

import numpy as np

from certificate_checker.fields import afford, array, excess, held, require

ROUNDING = 2.0**-52  # twice that of one operation


def leading(problem, rows, spins, leaves, best, rules):
    """Return the one labelling that each leaf's bound does not close, and whether that breaks a rule."""
    require(problem.objective == "score" and not problem.cliques, "leaves of another problem")
    require(len(leaves) == len(rows), "expected multipliers for each semidefinite leaf")
    found = np.empty_like(spins)
    for place, (row, own, leaf) in enumerate(zip(rows, spins, leaves, strict=True)):
        least, found[place] = others(problem, row, own, leaf, rules)
        unit = float(leaf["unit"])
        tables = problem.unary[row], problem.pair[row % len(problem.pair)]
        if unit:  # scores differ by twice the unit at least, where they differ
            require(unit > 0, "a strange unit")
            require(all((np.fmod(table, unit) == 0).all() for table in tables), "a strange unit")
        gap = best[row] - least
        require(gap <= 0 or gap < 2 * unit, f"row {row}: a semidefinite leaf is not closed, by {gap:.1e}")
    if rules is None:
        return found, np.zeros(len(found), bool)
    return found, excess(rules, found)[0] > 0


def others(problem, row, spins, leaf, rules=None):
    """Return a lower bound on the losses of all labellings of a leaf but one, and the exception."""
    free, known = np.flatnonzero(spins == 0), spins.astype(float)
    size = len(free) + 1
    diagonal, prices = array(leaf["diagonal"], "float64", size), array(leaf["prices"], "float64", None)
    require(prices >= 0, "a negative multiplier")
    afford(4 * size * (size + len(prices)), problem.held + held(leaf))
    signs = signs_of(array(leaf["members"], "int16", len(prices), None), size)
    unary, pair, constant, of_weights = slacks(leaf, rules, len(known))
    unary, pair = problem.unary[row] + unary, problem.pair[row % len(problem.pair)] + pair
    constant += problem.constant[row]
    fields = unary + pair @ known
    form, bounds = np.zeros((size, size)), prices * (abs(signs).sum(1) - 1) / 2
    form[0, 1:] = form[1:, 0] = fields[free] / 2
    form[1:, 1:] = pair[np.ix_(free, free)] / 2
    odd, of_odd = (signs.T * prices) @ signs / 2, (abs(signs).T * prices) @ abs(signs) / 2
    matrix = form + odd - np.diag(diagonal + odd.diagonal())
    values, vectors = np.linalg.eigh(matrix)
    second, vector = values[-2], vectors[:, -1]
    # Below 0 it would need the least (v·x)².
    spread, square = max(values[-1] - second, 0.0), np.outer(vector, vector)
    factor = vectors * np.sqrt(np.maximum(second - values, 0))
    left = second * np.eye(size) + spread * square - matrix - factor @ factor.T
    terms = abs(form) + np.diag(abs(diagonal)) + abs(second) * np.eye(size) + spread * abs(square)
    terms += abs(factor) @ abs(factor).T + of_odd * (2 + len(prices) / size)
    errors = (size + 16) * ROUNDING * terms
    of_fields = (len(known) + 8) * ROUNDING * (abs(constant) + (abs(unary) + abs(pair) @ abs(known)).sum())
    reach = abs(vector).sum() - 2 * abs(vector).min()
    constant += known @ (unary + fields) / 2
    parts = [
        constant,
        *diagonal,
        *bounds,
        second * size,
        spread * reach**2,
        (abs(left) + errors).sum(),
        of_fields,
        of_weights,
    ]
    score = sum(parts) + (len(parts) + 2 * size + 16) * ROUNDING * sum(map(abs, parts)) + problem.error[row]
    own = spins.copy()
    own[free] = np.where((vector[1:] < 0) == (vector[0] < 0), 1, -1)
    return -score, own


def slacks(leaf, rules, size):
    """Return weights of a score that is not negative where rules hold, and the rounding errors."""
    if rules is None:
        return 0.0, 0.0, 0.0, 0.0
    matrix = array(rules["matrix"], "float64", None, size)
    bounds = array(rules["bounds"], "float64", len(matrix))
    which = array(leaf["rules"], "int64", None, 2)
    prices, (rule, literal) = array(leaf["rule_prices"], "float64", len(which)), which.T
    afford(8 * len(which) * (size + 1), held([leaf, rules]))
    require(prices >= 0, "a negative multiplier")
    require((rule >= 0) & (rule < len(matrix)) & (abs(literal) <= size), "a product of strange rules")
    # Of spins s the slack is first + rest·s, and its factor (1 ± s_j) / 2, or 1.
    first, rest = (bounds - matrix.sum(1) / 2)[rule], -matrix[rule] / 2
    level, tilt = prices * np.where(literal == 0, 1.0, 0.5), np.zeros((len(which), size + 1))
    tilt[np.arange(len(which)), abs(literal)] = prices * np.sign(literal) / 2
    tilt = tilt[:, 1:]
    both = rest.T @ tilt
    constant = level @ first + np.trace(both)
    error = prices @ (abs(bounds) + abs(matrix).sum(1))[rule]
    pair = both + both.T
    np.fill_diagonal(pair, 0)
    return level @ rest + first @ tilt, pair, constant, 8 * (len(which) + size + 16) * ROUNDING * error


def signs_of(members, size):
    """Read the signs b_t of each inequality, (inequalities, spins)."""
    require(abs(members) <= size, "an inequality of strange spins")
    signs, counts = np.zeros((len(members), size)), (members != 0).sum(1)
    rows, columns = np.nonzero(members)
    signs[rows, abs(members[rows, columns]) - 1] = np.sign(members[rows, columns])
    require((abs(signs).sum(1) == counts) & (counts % 2 == 1), "an inequality that does not hold of spins")
    return signs
