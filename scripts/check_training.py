"""Check certificates of trainings: what check_certificate.py, the script to be called, knows of them."""

from __future__ import annotations

import numpy as np
from check_certificate import array, require, table


def check(problem, proof):
    """The number of instances, and an upper end of the duality gap as a share of the primal value.

    min_w ½ Σ_j η_j w_j² + Σ_li C_li [γ − m_li]_+ with m_li = s_li x_l·w_i + Σ_c w_c Π_{j in c} s_lj over the
    cliques that label i owns; the weights of features have η = 1. Any feasible duals bound it from below.
    """
    labels, margin = array(problem["labels"], "int8", None, None), float(problem["margin"])
    (batch, width), spins, members = labels.shape, 2.0 * labels - 1, problem["cliques"]
    starts = array(problem["starts"], "int64", batch + 1)
    columns = array(problem["columns"], "int64", starts[-1])
    x = array(problem["values"], "float64", starts[-1])
    features = array(proof["feature_weights"], "float64", None, width)
    cliques = array(proof["clique_weights"], "float64", len(members))
    upper, duals = table(problem["upper"], batch, width), array(proof["duals"], "float64", batch, width)
    penalty, size = array(problem["penalty"], "float64", len(members)), len(features)
    require(((labels == 0) | (labels == 1)).all() and 0 < margin < np.inf, "strange labels or margin")
    require(
        (np.diff(starts) >= 0).all() and starts[0] == 0 and (penalty > 0).all(), "strange rows or penalties"
    )
    require((columns >= 0) & (columns < size), "a feature that there is not")
    require((duals >= 0) & (duals <= upper), "the duals are not feasible")
    owns, products = np.zeros((width, len(members))), np.ones((batch, len(members)))
    for c, (clique, owners) in enumerate(zip(members, problem["owners"], strict=True)):
        require(
            {*owners} <= {*clique} <= {*range(width)} and len({*clique}) == len(clique), "a strange clique"
        )
        owns[owners, c], products[:, c] = 1, spins[:, clique].prod(1)
    rows = np.arange(batch).repeat(np.diff(starts))

    def made(x, spins, products):
        each = [np.bincount(columns, x * (duals * spins)[rows, i], size) for i in range(width)]
        return np.stack(each, 1), (products * (duals @ owns)).sum(0) / penalty

    def square(features, cliques):
        return ((features**2).sum() + (penalty * cliques**2).sum()) / 2

    def margins(x, spins, products, features, cliques):
        each = [np.bincount(rows, x * features[columns, i], batch) for i in range(width)]
        return spins * np.stack(each, 1) + products @ (owns * cliques).T

    own, least = made(x, spins, products), made(abs(x), 1, 1)
    for weights, exactly, size_of in zip((features, cliques), own, least, strict=True):
        require(np.abs(weights - exactly) <= 1e-9 * size_of, "weights that the duals do not make")
    hinges = np.maximum(margin - margins(x, spins, products, features, cliques), 0)
    primal, dual = square(features, cliques) + (upper * hinges).sum(), margin * duals.sum() - square(*own)
    largest = margin + margins(abs(x), 1, np.ones_like(products), abs(features), abs(cliques))
    mass = square(features, cliques) + (upper * largest).sum() + margin * duals.sum() + 2 * square(*least)
    require(mass < 1e100, "enormous weights")
    error = mass * (batch + width + len(members) + size + 16) * 2.0**-50
    for name, value in (("primal", primal), ("dual", dual)):
        require(abs(proof[name] - value) <= error + 1e-12 * abs(value), f"the {name} value is wrong")
    return batch, (primal - dual + error) / max(primal, 1e-300)
