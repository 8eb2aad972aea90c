"""Check certificates of trainings.

Feasible duals bound the least objective from below. The dual value, the weights that the duals make and the
objective of the weights are computed anew from the data, with a bound on all rounding errors.
"""

from __future__ import annotations

import numpy as np

from certificate_checker import chains
from certificate_checker.fields import afford, array, held, require, table
from certificate_checker.rows import Rows, Values, same

MOST_LABELS = 18  # of structural SVMs, whose labellings are enumerated
CHUNK = 2**22


def check(problem, proof):
    """Return the number of instances, and an upper bound on the relative duality gap."""
    found = PROOFS[problem["kind"]](problem, proof)
    require(found.mass < 1e100, "enormous weights")
    # Nothing takes more than a quarter as many roundings, one after another.
    error = found.mass * (found.roundings + 2**12) * 2.0**-50
    for name, value in (("primal", found.primal), ("dual", found.dual)):
        require(abs(proof[name] - value) <= error + 1e-12 * abs(value), f"the {name} value is wrong")
    return found.instances, (found.primal - found.dual + error + found.slack) / max(found.primal, 1e-300)


class Data(Rows):
    """Instances with label vectors, and the weights that a certificate has of them and of cliques."""

    def __init__(self, problem, proof):
        labels = array(problem["labels"], "int8", None, None)
        require((labels == 0) | (labels == 1), "labels: expected 0 or 1")
        self.spins, self.cliques = 2.0 * labels - 1, problem["cliques"]
        self.batch, self.labels = labels.shape
        super().__init__(problem, self.batch)
        strange = any(len({*c} & {*range(self.labels)}) != len(c) or not c for c in self.cliques)
        require(not strange, "a strange clique")
        self.penalty = array(problem["penalty"], "float64", len(self.cliques))
        require(self.penalty > 0, "a penalty that is not above 0")
        features = array(proof["feature_weights"], "float64", self.size, self.labels)
        self.weights = features, array(proof["clique_weights"], "float64", len(self.cliques))
        afford(2 * self.batch * len(self.cliques), held([problem, proof]))

    def products(self, spins):
        """Return Π_{j in c} s_j, (labellings, cliques)."""
        each = [spins[:, clique].prod(1) for clique in self.cliques]
        return np.stack(each, 1) if each else np.zeros((len(spins), 0))

    def square(self, features, cliques):
        return ((features**2).sum() + (self.penalty * cliques**2).sum()) / 2


def local_hinges(problem, proof) -> Values:
    """Return ½ Σ_j η_j w_j² + Σ_li C_li [γ − m_li]_+ (LMSBN, LMBM).

    m_li = s_li x_l·w_i + Σ_c w_c Π_{j in c} s_lj over the cliques that label i owns; 0 ≤ α_li ≤ C_li.
    """
    data = Data(problem, proof)
    spins, margin, shape = data.spins, float(problem["margin"]), data.spins.shape
    upper, duals = table(problem["upper"], *shape), array(proof["duals"], "float64", *shape)
    require(0 < margin < np.inf, "margin: expected one above 0")
    require((duals >= 0) & (duals <= upper), "the duals are not feasible")
    owns = np.zeros((data.labels, len(data.cliques)))
    for c, (clique, owners) in enumerate(zip(data.cliques, problem["owners"], strict=True)):
        require({*owners} <= {*clique}, "an owner outside its clique")
        owns[owners, c] = 1
    products, weights = data.products(spins), data.weights
    made = data.sums(duals * spins, data.x), (products * (duals @ owns)).sum(0) / data.penalty
    sizes = data.sums(duals, abs(data.x)), (duals @ owns).sum(0) / data.penalty
    same(weights, made, sizes)
    margins = spins * data.fields(weights[0], data.x) + products @ (owns * weights[1]).T
    largest = margin + data.fields(abs(weights[0]), abs(data.x)) + owns @ abs(weights[1])
    primal = data.square(*weights) + (upper * np.maximum(margin - margins, 0)).sum()
    dual = margin * duals.sum() - data.square(*made)
    mass = data.square(*weights) + (upper * largest).sum() + margin * duals.sum() + 2 * data.square(*sizes)
    return Values(data.batch, data.batch + data.size + len(data.cliques), primal, dual, mass)


def structural(problem, proof) -> Values:
    """Return ½ Σ_j η_j w_j² + Σ_l C_l max_y [Δ(y_l, y) + score(x_l, y) − score(x_l, y_l)].

    Δ counts the labels that differ. Duals α belong to labellings y of instances l, Σ_y α_l(y) ≤ C_l.
    """
    data = Data(problem, proof)
    truth, labels = data.spins, data.labels
    require(labels <= MOST_LABELS, f"expected at most {MOST_LABELS} labels")
    upper = array(problem["upper"], "float64", data.batch)
    duals = array(proof["duals"], "float64", None)
    example = array(proof["example"], "int64", len(duals))
    others = array(proof["labellings"], "int8", len(duals), labels)
    afford(4 * len(duals) * (labels + len(data.cliques)), held([problem, proof]))
    require((example >= 0) & (example < data.batch), "an instance that there is not")
    require((others == 0) | (others == 1), "labellings: expected 0 or 1")
    require(duals >= 0, "the duals are not feasible")
    spins = 2.0 * others - 1
    wrong = (spins != truth[example]).sum(1)
    total = np.bincount(example, duals * (wrong > 0), data.batch)
    require(total <= upper * (1 + 1e-12), "the duals are not feasible")
    signed = [np.bincount(example, duals * (truth[example] - spins)[:, i], data.batch) for i in range(labels)]
    changed = data.products(truth)[example] - data.products(spins)
    made = data.sums(np.stack(signed, 1), data.x), duals @ changed / data.penalty
    sizes = data.sums(np.abs(np.stack(signed, 1)), abs(data.x)), duals @ abs(changed) / data.penalty
    weights = data.weights
    same(weights, made, sizes)
    fields, best = data.fields(weights[0], data.x), np.full(data.batch, -np.inf)
    step = max(1, CHUNK // max(data.batch, len(data.cliques), 1))
    for start in range(0, 2**labels, step):
        codes = np.arange(start, min(start + step, 2**labels))
        every = 2.0 * ((codes[:, None] >> np.arange(labels)) & 1) - 1
        # Labels that differ are (labels − Σ s_i s'_i) / 2.
        scores = (fields - truth / 2) @ every.T + data.products(every) @ weights[1]
        best = np.maximum(best, scores.max(1) + labels / 2)
    hinge = best - (truth * fields).sum(1) - data.products(truth) @ weights[1]
    largest = labels + 2 * data.fields(abs(weights[0]), abs(data.x)).sum(1) + 2 * np.abs(weights[1]).sum()
    primal = data.square(*weights) + upper @ np.maximum(hinge, 0)
    dual = duals @ wrong - data.square(*made)
    # Duals that are too large by a share of 1e-12 lose no more when they are made smaller by it.
    mass = data.square(*weights) + upper @ largest + 2 * duals @ wrong + 2 * data.square(*sizes)
    roundings = data.batch + data.size + len(data.cliques) + len(duals)
    return Values(data.batch, roundings, primal, dual, mass)


PROOFS = {"local hinges": local_hinges, "structural": structural, **chains.PROOFS}
