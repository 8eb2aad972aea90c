"""Check certificates of max-margin Markov networks of chains.

The objective is ½ ‖w‖² + Σ_x C_x max_y [Δ(y_x, y) + score(x, y) − score(x, y_x)], where Δ counts the labels
that differ, score(x, y) = Σ_t f_{y_t}(x_t) + Σ_t v_{y_t, y_{t+1}}, and ‖w‖² is Σ_s ‖f_s‖² + η Σ v². Dynamic
programming finds the maximum.
"""

from __future__ import annotations

import numpy as np

from certificate_checker.fields import afford, array, held, require
from certificate_checker.rows import Rows, Values, same

CONSISTENT = 1e-9  # by how much marginals may miss those of the distribution that is made of them
KERNEL = 1e-8  # by how much, as a share of the largest value, a matrix may miss one that is a kernel's


class Chains:
    """Labels of chains, one after another, and the losses' weights."""

    def __init__(self, problem, proof):
        self.states = int(problem["states"])
        self.labels = array(problem["labels"], "int32", None)
        self.positions = len(self.labels)
        self.transition = array(proof["transition_weights"], "float64", self.states, self.states)
        afford(4 * self.positions * self.states, held([problem, proof]))
        self.chains = array(problem["chains"], "int64", None)
        self.lengths = np.diff(self.chains)
        require(self.chains[[0, -1]] == (0, self.positions), "strange chains")
        require(self.lengths > 0, "strange chains")
        require((self.labels >= 0) & (self.labels < self.states), "a label that is no state")
        self.batch = len(self.lengths)
        self.chain = np.arange(self.batch).repeat(self.lengths)
        self.steps = np.flatnonzero(self.chain[1:] == self.chain[:-1])  # from here to the next position
        self.pairs = self.labels[self.steps], self.labels[self.steps + 1]
        self.truth = np.eye(self.states)[self.labels]
        self.upper, self.penalty = array(problem["upper"], "float64", self.batch), float(problem["penalty"])
        require(self.upper >= 0, "a negative weight of a loss")
        require(0 < self.penalty < np.inf, "a penalty that is not above 0")

    def table(self, first, second, weights):
        """Sum the weights of each pair of states, (states, states)."""
        places = first.astype(np.int64) * self.states + second
        return np.bincount(places, weights, self.states**2).reshape(self.states, -1)

    def loss(self, fields, transition, sizes):
        """Return Σ_x C_x hinge_x, and an upper bound on the sum of the terms' absolute values."""
        own = np.bincount(self.chain, fields[np.arange(self.positions), self.labels], self.batch)
        own += np.bincount(self.chain[self.steps], transition[self.pairs], self.batch)
        hinges = self.best(fields + 1 - self.truth, transition) - own
        each = np.bincount(self.chain, 1 + 2 * sizes.max(1), self.batch)
        largest = each + 2 * self.lengths * abs(transition).max()
        return self.upper @ np.maximum(hinges, 0), self.upper @ largest

    def best(self, fields, transition):
        """Return the largest score of each chain's labellings."""
        value = fields[self.chains[:-1]]
        for t in range(1, self.lengths.max()):
            on = np.flatnonzero(self.lengths > t)
            reached = np.stack([(value[on] + column).max(1) for column in transition.T], 1)
            value[on] = reached + fields[self.chains[on] + t]
        return value.max(1)


def linear(problem, proof):
    """Return both values: f_s(x) = w_s·x, duals α of labellings y of x, Σ_y α_x(y) ≤ C_x."""
    data = Chains(problem, proof)
    rows = Rows(problem, data.positions)
    features = array(proof["feature_weights"], "float64", rows.size, data.states)
    duals = array(proof["duals"], "float64", None)
    example = array(proof["example"], "int64", len(duals))
    require((example >= 0) & (example < data.batch), "a chain that there is not")
    lengths = data.lengths[example]
    others = array(proof["labellings"], "int32", lengths.sum())
    require((others >= 0) & (others < data.states), "labellings: expected states")
    require(duals >= 0, "the duals are not feasible")
    plane = np.arange(len(duals)).repeat(lengths)
    position = np.arange(len(plane)) - (lengths.cumsum() - lengths - data.chains[example]).repeat(lengths)
    truth = data.labels[position]
    wrong = truth != others
    loss = np.bincount(plane, wrong, len(duals))
    total = np.bincount(example, duals * (loss > 0), data.batch)
    require(total <= data.upper * (1 + 1e-12), "the duals are not feasible")
    # Where a labelling is right nothing is added and taken away again.
    mass = duals[plane] * wrong
    right = np.bincount(position, mass, data.positions)[:, None] * data.truth
    taken = np.bincount(position * data.states + others, mass, data.positions * data.states)
    taken = taken.reshape(data.positions, data.states)
    step = np.flatnonzero((plane[1:] == plane[:-1]) & (wrong[1:] | wrong[:-1]))
    steps = duals[plane[step]]
    gained = data.table(truth[step], truth[step + 1], steps)
    lost = data.table(others[step], others[step + 1], steps)
    made = rows.sums(right - taken, rows.x), (gained - lost) / data.penalty
    sizes = rows.sums(right + taken, abs(rows.x)), (gained + lost) / data.penalty
    transition = data.transition
    same((features, transition), made, sizes)

    def square(features, transition):
        return ((features**2).sum() + data.penalty * (transition**2).sum()) / 2

    fields, largest = rows.fields(features, rows.x), rows.fields(abs(features), abs(rows.x))
    losses, most = data.loss(fields, transition, largest)
    own, gain = square(features, transition), duals @ loss
    # Duals that are too large by a share of 1e-12 lose no more when they are made smaller by it.
    mass = own + most + 2 * gain + 2 * square(*sizes)
    roundings = data.positions + data.batch + rows.size + len(plane)
    return Values(data.batch, roundings, own + losses, gain - square(*made), mass)


def kernel(problem, proof):
    """Return both values: f_s(x) = Σ_t k(x, x_t) c_ts with c = C (truth − μ).

    Duals are marginals μ of nodes and edges of a distribution over each chain's labellings (Taskar, Guestrin
    and Koller, "Max-margin Markov networks", NIPS 2003). The kernel is the one nearby that ``factored`` has.
    """
    data = Chains(problem, proof)
    gram = array(problem["gram"], "float64", data.positions, data.positions)
    nodes = array(proof["nodes"], "float64", data.positions, data.states)
    edges = array(proof["edges"], "float64", len(data.steps), data.states, data.states)
    transition = data.transition
    require((nodes >= 0).all() and (edges >= 0).all(), "the duals are not feasible")
    exact, exact_edges = distribution(data, nodes, edges)
    near = [(abs(one - two) <= CONSISTENT).all() for one, two in ((exact, nodes), (exact_edges, edges))]
    require(near, "the duals are no marginals")
    each, upper = data.upper[data.chain][:, None], data.upper[data.chain[data.steps]]
    seen, pairs = data.table(*data.pairs, upper), np.tensordot(upper, exact_edges, 1)
    made, size = (seen - pairs) / data.penalty, (seen + pairs) / data.penalty
    same([transition], [made], [size + upper.sum() / data.penalty])

    def square(coef, scores, transition):
        return ((coef * scores).sum() + data.penalty * (transition**2).sum()) / 2

    # The truth's 1 − μ is the mass of the other states, in which no digit is lost.
    wrong = [each * part * (1 - data.truth) for part in (nodes, exact)]
    own, best = (data.truth * part.sum(1)[:, None] - part for part in wrong)
    fields, sizes = gram @ own, abs(gram) @ abs(own)
    losses, most = data.loss(fields, transition, sizes)
    gain = wrong[1].sum()
    primal = square(own, fields, transition) + losses
    dual = gain - square(best, gram @ best, made)
    mass = square(abs(own), sizes, transition) + most + 2 * gain
    mass += 2 * square(abs(best), abs(gram) @ abs(best), size)
    # Another kernel changes both squares, and the scores of the truth and of another labelling.
    missing = factored(gram)
    off = missing @ abs(own)
    slack = (abs(own) * off).sum() + (abs(best) * (missing @ abs(best))).sum() + 2 * (each[:, 0] @ off.max(1))
    roundings = data.positions + data.batch + data.lengths.max() * (2 * data.states + 4)
    return Values(data.batch, roundings, primal, dual, mass, slack)


def distribution(data, nodes, edges):
    """Return node and edge marginals of the Markov chains given by the first nodes and by the edges."""
    first, onward = data.chains[:-1], np.full_like(edges, 1 / data.states)
    total = edges.sum(2, keepdims=True)
    np.divide(edges, total, out=onward, where=total > 0)
    exact, exact_edges = np.zeros_like(nodes), np.zeros_like(edges)
    exact[first] = nodes[first] / nodes[first].sum(1, keepdims=True)
    for t in range(1, data.lengths.max()):
        on = np.flatnonzero(data.lengths > t)
        here = first[on] + t
        steps = here - 1 - on  # a chain has one step fewer than positions
        exact_edges[steps] = exact[here - 1][:, :, None] * onward[steps]
        exact[here] = exact_edges[steps].sum(1)
    return exact, exact_edges


def factored(gram):
    """Return bounds on |gram − F Fᵀ|, where F Fᵀ is positive semidefinite, rounding included."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    factor = vectors * np.sqrt(np.maximum(values, 0))
    terms = abs(gram) + abs(factor) @ abs(factor).T
    missing = abs(gram - factor @ factor.T) + (len(gram) + 16) * 2.0**-52 * terms
    require(missing <= KERNEL * abs(gram).max(), "the matrix is no kernel's")
    return missing


PROOFS = {"chains": linear, "chains with a kernel": kernel}
