"""Check decodings: no label set does better than an instance's answers.

The proof is a search tree whose leaves cover all label sets that agree with the known labels, each leaf with
a right bound. Sums are floating-point sums with a bound on rounding errors. Where the bound does not decide,
sums are computed again in fractions or with 60 digits; exp and log are computed here.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

from certificate_checker import semidefinite
from certificate_checker.fields import CHUNK, afford, array, excess, held, require, table

RULE, ANSWER, SEMIDEFINITE = -2, -3, -4  # leaves; -1 are closed by their bounds, others branch on a label
# Answers that another labelling beats by no more than this share of all weights are taken for the best.
ROUND_OFF = 1e-12


class Problem:
    """Losses over spins, Σ_i φ(s_i z_i) − constant, or minus the score of a pairwise Boltzmann machine.

    z_i = unary_i + Σ_j pair_ij s_j + Σ_c weight_c Π_{j in c, not i} s_j, the last over cliques that i owns:
    as their last label; for hinges of Boltzmann machines all of its own. φ(m) is [margin − m]_+ ("hinge"),
    log(1 + exp(−2m)) ("log_prob") or −m ("score").
    """

    def __init__(self, problem, messages=None):
        energy, self.objective = problem["energy"], problem["objective"]
        kind, self.sign = energy["kind"], 1 if self.objective == "hinge" else -1
        likely = {"directed": "log_prob", "pairwise": "score", "clique": "score"}[kind]
        require(self.objective in ("hinge", likely), f"{kind}: a strange objective")
        self.margin = float(problem["margin"]) if self.objective == "hinge" else 0.0
        require(0 < self.margin < np.inf or self.objective != "hinge", "margin: expected one above 0")
        known = array(problem["known"], "int8", None, None)
        require(known.size > 0, "known: expected labels of one example at least")
        require(np.isin(known, (-1, 0, 1)), "known: expected 0, 1 or -1 for free")
        self.known = np.where(known < 0, 0, 2 * known - 1).astype(np.int8)
        batch, labels = self.known.shape
        self.held = held([problem, messages or 0])
        afford(4 * labels**2, self.held)
        self.unary, self.pair = np.zeros((batch, labels)), np.zeros((1, labels, labels))
        self.constant, place = np.zeros(batch), np.arange(labels)
        if kind != "clique":
            self.unary = array(energy["unary"], "float64", batch, labels)
            self.pair = table(energy["pair"], batch, labels, labels)
        if kind == "directed":
            place = np.argsort(energy["ordering"])
            require(np.sort(energy["ordering"]) == np.arange(labels), "the ordering is no permutation")
            require(self.pair[:, place[None, :] >= place[:, None]] == 0, "a parent comes after its child")
        else:
            self.constant = array(energy["constant"], "float64", batch)
            require(self.pair == self.pair.transpose(0, 2, 1), "couplings are not symmetric")
            require(self.pair[:, place, place] == 0, "a label is coupled with itself")
        members = [tuple(clique) for clique in energy.get("cliques", ())]
        plain = [{*c} <= {*range(labels)} and len({*c}) == max(len(c), 1) for c in members]
        require(plain, "a strange clique")
        weights = table(energy["weight"], batch, len(members)) if members else np.zeros((1, 0))
        every = kind == "clique" and self.objective == "hinge"
        owners = [c if every else (max(c, key=lambda label: place[label]),) for c in members]
        self.cliques = [(*both, weights[:, [c]]) for c, both in enumerate(zip(members, owners, strict=True))]
        scored = (kind, self.objective) == ("pairwise", "score")
        self.messages = array(messages, "float64", batch, labels, labels) if scored else None
        parts = [self.unary, self.pair, self.constant[:, None]] + [w * len(c) for c, _, w in self.cliques]
        parts += [] if self.messages is None else [2 * self.messages]
        mass = sum(np.abs(part).reshape(len(part), -1).sum(1) for part in parts) + np.zeros(batch)
        self.mass = mass + labels * (1.0 if self.objective == "log_prob" else self.margin)
        require(self.mass < 1e100, "enormous weights")
        # Rounding changes fields and scores by less: nothing takes more than a quarter as many roundings.
        self.error = self.mass * (labels + len(self.cliques) + 16) * 2.0**-50
        self.share = 1e-10 if self.objective == "log_prob" else 2.0**-40  # of losses, beside that
        # Multiples of 2^-q add up without rounding as long as no sum has more than 53 binary digits.
        unit = 2.0 ** np.clip(np.floor(48 - np.log2(np.maximum(self.mass, 1e-300)).max()), -900, 900)
        parts.append(np.array(self.margin))
        if self.objective != "log_prob" and all((part * unit % 1 == 0).all() for part in parts):
            self.error, self.share = np.zeros(batch), 0

    def exactly(self, row):
        """Return a copy of one instance with fractions as numbers."""
        one = object.__new__(Problem)

        def of(values):
            own = [Fraction(value) for value in values[row % len(values)].flat]
            return np.array(own).reshape(1, *values.shape[1:])

        one.objective, one.margin, one.error = self.objective, Fraction(self.margin), of(np.zeros((1, 1)))[0]
        one.share = Fraction(1, 10**45) if self.objective == "log_prob" else Fraction(0)
        one.unary, one.pair, one.constant = of(self.unary), of(self.pair), of(self.constant[:, None])[0]
        one.messages = None if self.messages is None else of(self.messages)
        one.cliques = [(members, owners, of(weight)) for members, owners, weight in self.cliques]
        return one

    def losses(self, rows, spins):
        """Bound the least loss of each leaf's labellings from both sides; spins of free labels are 0."""
        together = len(self.pair) == 1 and self.messages is None
        order = np.arange(len(rows)) if together else np.argsort(rows, kind="stable")
        edges = np.arange(CHUNK, len(rows), CHUNK)
        edges = edges if together else np.union1d(edges, np.flatnonzero(np.diff(rows[order])) + 1)
        ends = np.empty((2, len(rows)), self.unary.dtype)
        bounds = self.margin_losses if self.messages is None else self.score_losses
        for part in np.split(order, edges) if len(order) else ():
            own, pair = spins[part].astype(self.unary.dtype), self.pair[rows[part[0]] % len(self.pair)]
            ends[:, part] = bounds(rows[part], own, 1 - abs(own), pair)
        return ends

    def margin_losses(self, rows, spins, free, pair):
        known, open_ = spins.any(0).astype(bool), free.any(0).astype(bool)  # half of all, at most depths
        fields = self.unary[rows] + spins[:, known] @ pair[:, known].T
        free = free[:1] if not self.cliques and (free == free[:1]).all() else free  # on most levels
        waiting = free[:, open_] @ abs(pair[:, open_]).T
        for members, owners, weight in self.cliques:
            weight = weight[rows % len(weight), 0]
            for owner in owners:
                others = [label for label in members if label != owner]
                fields[:, owner] = fields[:, owner] + weight * spins[:, others].prod(1)
                waiting[:, owner] = waiting[:, owner] + abs(weight) * free[:, others].any(1)
        reach, error = np.where(free == 1, abs(fields), spins * fields) + waiting, self.error[rows]
        if self.objective == "score":
            return [-reach.sum(1) - self.constant[rows] + sign * error for sign in (-1, 1)]
        if self.objective == "hinge":
            short = self.margin - reach
            hinges, error = np.maximum(short, 0).sum(1), error * (short > -error[:, None]).sum(1)
            return (hinges - error) * (1 - self.share), (hinges + error) * (1 + self.share)
        least = (softplus if reach.dtype == float else exact_softplus)(2 * reach).sum(1)
        error = reach.shape[1] * (2 * error + self.share) + self.share * least
        return least - error, least + error

    def score_losses(self, rows, spins, free, pair):
        """Bound scores: a pair gives the field m_ij to label i and keeps the largest of its four values."""
        assert self.messages is not None
        given, settled, own = self.messages[rows[0]], spins @ pair.T, self.unary[rows]
        most = np.maximum(pair + abs(given + given.T), abs(given - given.T) - pair)
        score = self.constant[rows] + (spins * (2 * own + settled) + (free @ most) * free).sum(1) / 2
        least = -(score + (free * abs(own + settled + free @ given.T)).sum(1))
        return least - self.error[rows], least + self.error[rows]


def softplus(x):
    """Return log(1 + exp(−x)) with an absolute and a relative error of at most 10^-10, by counting."""
    step, power = np.minimum(np.abs(x), 40) / 64, 1.0
    for n in range(12, 0, -1):  # exp(step) by its series, whose terms are all positive
        power = 1 + power * step / n
    for _ in range(6):
        power = power * power
    ratio, total = 1 / (2 * power + 1), 0.0  # log(1 + t) = 2 artanh(t / (2 + t)), of t = 1 / power
    for n in range(10, -1, -1):
        total = total * ratio * ratio + 1 / (2 * n + 1)
    return np.maximum(-x, 0) + 2 * ratio * total


@np.vectorize
def exact_softplus(x):
    """Return log(1 + exp(−x)) of a fraction, with 60 digits."""
    with localcontext(prec=60):
        size = Decimal(abs(x).numerator) / Decimal(abs(x).denominator)
        return max(-x, Fraction(0)) + Fraction((1 + (-size).exp()).ln())


def leaves_of(tree, known):
    """Return row, kind and spins of each leaf of all instances' trees, whose nodes come level by level.

    A node that branches on a label has two children on the next level, where it is 0 and where it is 1, so
    that leaves are all of the labellings, whatever the tree.
    """
    rows, spins, found = np.arange(len(known)), known, []
    while len(rows):
        nodes, tree = tree[: len(rows)], tree[len(rows) :]
        require(len(nodes) == len(rows), "the tree is too short")
        require((nodes >= SEMIDEFINITE) & (nodes < known.shape[1]), "the tree has a strange entry")
        inner = nodes >= 0
        found.append((rows[~inner], nodes[~inner], spins[~inner]))
        rows, spins, labels = rows[inner].repeat(2), spins[inner].repeat(2, 0), nodes[inner].repeat(2)
        entry = np.arange(len(rows))
        require(spins[entry, labels] == 0, "the tree branches on a label that is decided")
        spins[entry, labels] = 2 * (entry % 2) - 1
    require(len(tree) == 0, "the tree is too long")
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def check(given, proof):
    """Return the number of instances with proven answers, the largest gap, and the number of gaps."""
    problem = Problem(given, proof.get("messages"))
    (batch, width), size = problem.known.shape, problem.held + held(proof)
    answers = array(proof["labels"], "int8", batch, None, width)
    require(answers.shape[1] > 0 and np.isin(answers, (0, 1)), "labels: expected 0 or 1")
    top, answers = answers.shape[1], 2 * answers - 1
    values = problem.sign * array(proof["values"], "float64", batch, top)
    require((problem.known[:, None] == 0) | (answers == problem.known[:, None]), "an answer is not as known")
    for k in range(top):
        require((answers[:, k, None] != answers[:, :k]).any(2), "an answer comes twice")
        low, best = problem.losses(np.arange(batch), answers[:, k])
        require((low <= values[:, k]) & (values[:, k] <= best), "a value is wrong")
    require(np.diff(values, axis=1) >= 0, "answers are not sorted")
    if "rules" in given:
        require(excess(given["rules"], answers.reshape(-1, width))[1] <= 0, "an answer breaks a rule")
    tree = array(proof["tree"], "int16", None)
    afford(len(tree) * width / 2, size)
    rows, kinds, spins = leaves_of(tree, problem.known)
    bounds = problem.sign * array(proof["bounds"], "float64", len(rows), finite=False)
    is_rule, is_answer, is_dual = (kinds == kind for kind in (RULE, ANSWER, SEMIDEFINITE))
    if is_rule.any():
        require("rules" in given, "a leaf is closed by a rule that there is not")
        require(excess(given["rules"], spins[is_rule])[0] > 0, "a leaf obeys the rules")
        require(bounds[is_rule] == np.inf, "a leaf's bound is wrong")
    afford(is_answer.sum() * top * width / 2, size)
    require((spins[is_answer][:, None] == answers[rows[is_answer]]).all(2).any(1), "a leaf is not an answer")
    rows, spins, bounds, is_answer, is_dual = (a[~is_rule] for a in (rows, spins, bounds, is_answer, is_dual))
    low, high = problem.losses(rows, spins)
    require((low <= bounds) & (bounds <= high), "a leaf's bound is wrong")
    if is_dual.any():
        multipliers = proof["semidefinite"], best, given.get("rules")
        spins[is_dual], is_forbidden = semidefinite.leading(
            problem, rows[is_dual], spins[is_dual], *multipliers
        )
        low[is_dual] = problem.losses(rows[is_dual], spins[is_dual])[0]
        is_answer[is_dual] = (spins[is_dual, None] == answers[rows[is_dual]]).all(2).any(1) | is_forbidden
    gaps, doubtful = np.zeros(batch), ~is_answer & (low < best[rows])
    for row in np.unique(rows[doubtful]):
        one, parts = problem.exactly(row), spins[doubtful & (rows == row)]
        best_exactly = one.losses(np.zeros(1, int), answers[row, -1:])[1, 0]
        gaps[row] = gap = max(best_exactly - one.losses(np.zeros(len(parts), int), parts)[0].min(), 0)
        require(gap <= ROUND_OFF * problem.mass[row], f"row {row}: a leaf is not closed, by {float(gap):.1e}")
    return batch, gaps.max(initial=0), int((gaps > 0).sum())
