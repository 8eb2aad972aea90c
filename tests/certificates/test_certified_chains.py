"""Trainings of chains are proven by labellings' duals and by marginals, and no liar gets through."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from types import ModuleType

import numpy as np
import pytest
from forgeries import (
    CHECK,
    anywhere,
    changed,
    entry,
    larger,
    off,
    read,
    replaced,
    said,
    setting,
    shifted,
    smaller,
    twice,
)
from scipy import sparse

from lmbm_torch import certificates
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import exponentiated_gradient, multi_class, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.structural import frank_wolfe

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


def test_a_multi_class_svm_is_accepted_with_its_gap(tmp_path, capsys):
    features, labels, *_ = data()
    gram = 1 + features @ features.T
    problem = ChainKernelProblem(gram, labels, np.arange(len(labels) + 1), STATES, C=0.3)
    state = run(multi_class, problem, tol=1e-3)
    said_of_it = said(record_of(problem, state, tmp_path / "a.jsonl"), tmp_path / "a.jsonl", capsys)
    assert float(said_of_it.split("within ")[1].split()[0]) == pytest.approx(state.gap, rel=0.1, abs=1e-8)


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
    "larger weights of transitions": (
        changed("transition_weights", larger),
        "weights that the duals do not make",
    ),
    "smaller weights of transitions": (
        changed("transition_weights", smaller),
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


def parts() -> tuple[ModuleType, ModuleType]:
    """What the checker knows of trainings, and of those of chains."""
    return CHECK.training, CHECK.training.chains


def test_duals_are_made_of_edges_that_only_nearly_agree(tmp_path):
    record = record_of(*kernel(smo), tmp_path / "a.jsonl")
    _, module = parts()
    chains, random = module.Chains(record["problem"], record["proof"]), np.random.default_rng(0)
    given = [read(record["proof"][name]) for name in ("nodes", "edges")]
    nodes, edges = module.distribution(
        chains, *(part * random.uniform(0.9, 1.1, part.shape) for part in given)
    )
    assert min(nodes.min(), edges.min()) >= 0
    np.testing.assert_allclose(nodes.sum(1), 1, rtol=1e-14)
    np.testing.assert_allclose(edges.sum(2), nodes[chains.steps], rtol=1e-13)
    np.testing.assert_allclose(edges.sum(1), nodes[chains.steps + 1], rtol=1e-13)


def test_a_matrix_that_nearly_belongs_to_a_kernel_costs_some_of_the_gap(tmp_path, capsys):
    """Most of its eigenvalues are -1e-9: proven is the training with zeros for them."""
    features, labels, start, settings = data()
    gram = features @ features.T - 1e-9 * np.eye(len(features))
    problem = ChainKernelProblem(gram, labels, start, STATES, **settings)
    values, vectors = np.linalg.eigh(gram)
    nearest = (vectors * values.clip(0)) @ vectors.T
    state = run(smo, problem, tol=1e-3, max_iter=100)
    record = record_of(problem, state, tmp_path / "a.jsonl")
    module = parts()[1]
    found, missing = module.kernel(record["problem"], record["proof"]), module.factored(problem.gram)
    other = ChainKernelProblem(nearest, labels, start, STATES, **settings).certify(
        state.nodes, np.tensordot(problem.upper[problem.chain[problem.step_starts]], state.edges, 1)
    )
    changed_by = other.primal - state.primal - (other.dual - state.dual)
    assert 1e-12 < abs(changed_by) <= found.slack <= 1e-6
    assert (abs(nearest - gram) <= missing).all()
    # All but rounding goes to the gap that is printed.
    gap = parts()[0].check(record["problem"], record["proof"])[1] * found.primal
    assert gap >= found.primal - found.dual + found.slack


def test_rounding_of_factors_is_counted():
    factors = np.random.default_rng(0).normal(size=(30, 40))
    gram = factors @ factors.T
    assert (parts()[1].factored(gram) >= 30 * 2.0**-52 * np.abs(gram)).all()


@pytest.mark.parametrize("kind", ["features", "kernel, SMO"])
def test_rounding_errors_are_measured_by_all_terms(tmp_path, kind):
    """Every term of either value without its sign, each labelling by itself."""
    record = record_of(*TRAININGS[kind](), tmp_path / "a.jsonl")
    found = parts()[1].PROOFS[record["problem"]["kind"]](record["problem"], record["proof"])
    features, _, start, settings = data()
    rows = np.column_stack([features, np.ones(len(features))])
    upper, transition = read(record["problem"]["upper"]), read(record["proof"]["transition_weights"])
    if kind == "features":
        weights = read(record["proof"]["feature_weights"])
        sizes, square = np.abs(rows) @ np.abs(weights), (weights**2).sum()
        gain = found.dual + square / 2 + (transition**2).sum()
    else:
        coef = np.abs(kernel_problem().coef(read(record["proof"]["nodes"])))
        sizes = np.abs(kernel_problem().gram) @ coef
        square, gain = (coef * sizes).sum(), coef.sum() / 2
    # The larger of what a labelling's terms can be, and those of the truth, which are no more.
    largest = [
        sum(1 + 2 * sizes[t].max() for t in range(*ends))
        + 2 * (ends[1] - ends[0] - 1) * np.abs(transition).max()
        for ends in itertools.pairwise(start.tolist())
    ]
    own = square / 2 + settings["coupling_penalty"] * (transition**2).sum() / 2
    assert found.mass >= own + upper @ largest + 2 * gain + 2 * own * (1 - 1e-9)
    assert found.roundings >= len(features) + len(upper)


def test_states_are_no_more_than_weights_are_for(tmp_path):
    """Before positions get a number for each of them."""
    record = record_of(*linear(), tmp_path / "a.jsonl")
    record["problem"]["states"] = 10**6
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    tracemalloc.start()
    try:
        assert CHECK.main([str(tmp_path / "a.jsonl")]) == 1
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()
