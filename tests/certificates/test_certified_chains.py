"""Trainings of chains are proven by labellings' duals and by marginals, and no liar gets through."""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import pytest
from forgeries import (
    CHECKER,
    anywhere,
    changed,
    checker,
    entry,
    off,
    read,
    replaced,
    said,
    setting,
    shifted,
    twice,
)
from scipy import sparse

from lmbm_torch import certificates
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import exponentiated_gradient, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.structural import frank_wolfe

sys.path.insert(0, str(CHECKER.parent))
CHECK = checker()
STATES = 3
NUM_CHAINS = 12


def data(seed: int = 0):
    """Features (positions, 4), labels that depend on them, starts of chains of 1 to 5 positions, settings."""
    random = np.random.default_rng(seed)
    start = np.concatenate([[0], np.array([1, 5, *random.integers(1, 6, NUM_CHAINS - 2)]).cumsum()])
    features = random.normal(size=(start[-1], 4))
    noisy = features @ random.normal(size=(4, STATES)) + random.normal(size=(start[-1], STATES))
    weight = random.uniform(0.5, 2, NUM_CHAINS)
    return features, noisy.argmax(1), start, {"C": 0.3, "sample_weight": weight, "coupling_penalty": 2.0}


def linear(seed: int = 0, *, is_sparse=False):
    features, labels, start, settings = data(seed)
    rows = sparse.csr_array(features * (np.abs(features) > 0.5)) if is_sparse else features
    problem = chain_problem(rows, labels, start, num_states=STATES, **settings)
    return problem, run(frank_wolfe, problem, tol=1e-4, max_iter=100)


def kernel_problem(seed: int = 0) -> ChainKernelProblem:
    features, labels, start, settings = data(seed)
    distances = np.square(features[:, None] - features).sum(-1)
    return ChainKernelProblem(np.exp(-distances / 4) + 1, labels, start, STATES, **settings)


def kernel(solver, seed: int = 0):
    problem = kernel_problem(seed)
    return problem, run(solver, problem, tol=1e-3, max_iter=1000)


TRAININGS = {
    "features": linear,
    "sparse features": lambda: linear(is_sparse=True),
    "kernel, SMO": lambda: kernel(smo),
    "kernel, exponentiated gradient": lambda: kernel(exponentiated_gradient),
}


def record_of(problem, state, path):
    certificates.write_training(problem, state, path, mode="w")
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", TRAININGS)
def test_chains_are_accepted_with_their_gap(tmp_path, kind, capsys):
    problem, state = TRAININGS[kind]()
    name = certificates.write_training(problem, state, tmp_path / "a.jsonl")
    assert CHECK.main([str(tmp_path / "a.jsonl"), "--digest", name]) == 0
    out = capsys.readouterr().out
    assert f"training on {NUM_CHAINS} instances proven to within" in out
    assert 0 < float(out.split("within ")[1].split()[0]) == pytest.approx(state.gap, rel=0.1, abs=1e-8)


@pytest.mark.parametrize("solver", [frank_wolfe, smo, exponentiated_gradient])
def test_the_first_state_has_a_proof_that_says_little(tmp_path, solver, capsys):
    problem = linear()[0] if solver is frank_wolfe else kernel_problem()
    out = said(record_of(problem, solver.init(problem), tmp_path / "a.jsonl"), tmp_path / "a.jsonl", capsys)
    assert float(out.split("within ")[1].split()[0]) > 0.5


def objective(fields, transition, square, record):
    """½‖w‖² + Σ_x C_x max_y [Δ + score − score of the truth], each labelling by itself."""
    labels, start = (read(record["problem"][name]) for name in ("labels", "chains"))
    upper, total = read(record["problem"]["upper"]), square / 2
    for x, (first, last) in enumerate(itertools.pairwise(start.tolist())):

        def value(y, own=fields[first:last], truth=labels[first:last]):
            steps = sum(transition[r, s] for r, s in itertools.pairwise(y))
            return own[np.arange(len(y)), list(y)].sum() + steps + sum(np.array(y) != truth)

        every = [value(y) for y in itertools.product(range(STATES), repeat=last - first)]
        total += upper[x] * (max(every) - value(tuple(labels[first:last])))
    return total


def test_the_primal_value_is_that_of_all_labellings(tmp_path, capsys):
    features, *_ = data()
    record = record_of(*linear(), tmp_path / "a.jsonl")
    weights, transition = (read(record["proof"][name]) for name in ("feature_weights", "transition_weights"))
    square = (weights**2).sum() + 2 * (transition**2).sum()
    fields = np.column_stack([features, np.ones(len(features))]) @ weights
    assert record["proof"]["primal"] == pytest.approx(objective(fields, transition, square, record), 1e-12)
    assert "rejected" not in said(record, tmp_path / "a.jsonl", capsys)

    problem, state = kernel(smo)
    record = record_of(problem, state, tmp_path / "a.jsonl")
    nodes, transition = read(record["proof"]["nodes"]), read(record["proof"]["transition_weights"])
    each = problem.upper.repeat(np.diff(problem.start))[:, None]
    coef = each * (np.eye(STATES)[problem.labels] - nodes)
    square = (coef * (problem.gram @ coef)).sum() + 2 * (transition**2).sum()
    whole = objective(problem.gram @ coef, transition, square, record)
    assert record["proof"]["primal"] == pytest.approx(whole, 1e-12)
    assert "rejected" not in said(record, tmp_path / "a.jsonl", capsys)


def moved(values, _):
    values[2] -= 1


def one_state_on(values, random):
    where = anywhere(values, random)
    values[where] = (values[where] + 1) % STATES


def later(record, _):
    """Edges that agree with the nodes that they lead to, and not with those that they come from."""
    nodes, start = read(record["proof"]["nodes"]), read(record["problem"]["chains"])
    to = np.delete(np.arange(len(nodes)), start[:-1])
    return replaced(record, "edges", np.repeat(nodes[to][:, None] / STATES, STATES, 1))


def earlier(record, _):
    """Edges that agree with the nodes that they come from, and not with those that they lead to."""
    nodes, start = read(record["proof"]["nodes"]), read(record["problem"]["chains"])
    come = np.delete(np.arange(len(nodes)), start[1:] - 1)
    return replaced(record, "edges", np.repeat(nodes[come][:, :, None] / STATES, STATES, 2))


def sharpened(record, _):
    """Nodes whose sums are 1, as they were, and which no edges have."""
    nodes = read(record["proof"]["nodes"])
    return replaced(record, "nodes", 0.5 * nodes + 0.5 * (nodes == nodes.max(1, keepdims=True)))


def fewer(values, _):
    return values[:-1]


EVERY = {
    "the primal value off": (shifted("primal"), "the primal value is wrong"),
    "the dual value off": (shifted("dual"), "the dual value is wrong"),
    "a weight of a transition off": (
        changed("transition_weights", off),
        "weights that the duals do not make",
    ),
    "a label that there is not": (changed("labels", entry(STATES)), "a label that is no state"),
    "a label below all": (changed("labels", entry(-1)), "a label that is no state"),
    "another label": (changed("labels", one_state_on), ""),
    "a chain cut off later": (changed("chains", moved), ""),
    "a chain without a position": (changed("chains", twice), "strange chains"),
    "chains that begin early": (changed("chains", lambda v, _: np.append([-1], v[1:])), "strange chains"),
    "chains that end early": (changed("chains", fewer), "strange chains"),
    "larger weights of losses": (changed("upper", lambda v, _: v * 1.001), "value is wrong"),
    "a weight of a loss below 0": (changed("upper", entry(-0.1)), "a negative weight of a loss"),
    "an enormous weight of a loss": (changed("upper", entry(1e200)), ""),
    "another penalty": (setting("penalty", 2.1), "weights that the duals do not make"),
    "a penalty below 0": (setting("penalty", -2.0), "a penalty that is not above 0"),
    "a penalty without end": (setting("penalty", float("inf")), "a penalty that is not above 0"),
    "another kind": (setting("kind", "chains of another kind"), "chains of another kind"),
}
LINEAR = EVERY | {
    "an enormous weight of a loss": (changed("upper", entry(1e200)), "enormous weights"),
    "a dual off": (changed("duals", off), ""),
    "a dual below 0": (changed("duals", entry(-1e-9)), "the duals are not feasible"),
    "a dual too large": (changed("duals", entry(2.0)), "the duals are not feasible"),
    "a weight of a feature off": (changed("feature_weights", off), "weights that the duals do not make"),
    "another labelling": (changed("labellings", one_state_on), ""),
    "a labelling of no state": (changed("labellings", entry(STATES)), "labellings: expected states"),
    "a labelling below all": (changed("labellings", entry(-1)), "labellings: expected states"),
    "a chain that there is not": (changed("example", entry(NUM_CHAINS)), "a chain that there is not"),
    "a chain below all": (changed("example", entry(-1)), "a chain that there is not"),
    "a feature off": (changed("values", off), ""),
    "a feature that there is not": (changed("columns", entry(5)), "a feature that there is not"),
    "a feature below all": (changed("columns", entry(-1)), "a feature that there is not"),
    "a feature twice": (changed("columns", twice), "a feature comes twice"),
    "rows that go back": (changed("starts", entry(-1)), "strange rows"),
    "rows that begin late": (changed("starts", lambda v, _: np.append([1], v[1:])), "strange rows"),
}
KERNEL = EVERY | {
    "larger weights of losses": (changed("upper", lambda v, _: v * 1.001), ""),
    "a node off": (changed("nodes", off), "the duals are no marginals"),
    "a node below 0": (changed("nodes", entry(-1e-12)), "the duals are not feasible"),
    "an edge off": (changed("edges", lambda v, _: v + 1e-6), "the duals are no marginals"),
    "an edge below 0": (changed("edges", entry(-1e-12)), "the duals are not feasible"),
    "edges right at their ends": (later, "the duals are no marginals"),
    "edges right at their beginnings": (earlier, "the duals are no marginals"),
    "nodes without edges": (sharpened, "the duals are no marginals"),
    "another kernel": (changed("gram", lambda v, _: v * (1 + 1e-6)), "the primal value is wrong"),
    "no kernel": (changed("gram", lambda v, _: v - 0.5 * np.eye(len(v))), "the matrix is no kernel's"),
    "a kernel of one side": (changed("gram", off), "the matrix is no kernel's"),
}


@pytest.mark.parametrize(("kind", "forgeries"), [("features", LINEAR), ("kernel, SMO", KERNEL)])
def test_forged_chains_are_refused(tmp_path, kind, forgeries, capsys):
    record = record_of(*TRAININGS[kind](), tmp_path / "a.jsonl")
    for what, (forge, message) in forgeries.items():
        out = said(forge(record, np.random.default_rng(0)), tmp_path / "a.jsonl", capsys)
        assert out.startswith("rejected: "), what
        assert message in out, (what, out)


def test_duals_of_larger_losses_are_not_feasible(tmp_path, capsys):
    """All numbers fit each other, the values are right, and the gap would be too small."""
    problem, state = linear()
    record = record_of(problem, frank_wolfe.scaled(problem, state, 1.01), tmp_path / "a.jsonl")
    assert "the duals are not feasible" in said(record, tmp_path / "a.jsonl", capsys)
