"""Duals bound how far a training is from its optimum, and whoever changes a number is found out."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from forgeries import CHECK, changed, entry, larger, off, said, setting, shifted, smaller, twice
from scipy import sparse

from lmbm_torch import certificates
from lmbm_torch.certificates.lines import field
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.machines import proximal_newton
from lmbm_torch.solvers.machines.problem import SharedProblem
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems
from lmbm_torch.solvers.structural import frank_wolfe
from lmbm_torch.solvers.structural.label_vectors import label_vector_problem


def data(seed: int = 0):
    """Features (40, 5) and labels (40, 4) that depend on them."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(40, 5))
    labels = (features @ random.normal(size=(5, 4)) + random.normal(size=(40, 4)) > 0).astype(np.float64)
    return features, labels


def network(seed: int = 0, *, is_sparse=False):
    features, labels = data(seed)
    rows = sparse.csr_array(features * (np.abs(features) > 0.5)) if is_sparse else features
    weight = np.random.default_rng(seed).uniform(0.5, 2, 40)
    settings = {"ordering": [2, 0, 3, 1], "cliques": [(0, 1, 2), (1, 3, 0)], "sample_weight": weight}
    problem = LabelProblems.from_labels(rows, labels, C=0.3, **settings)
    return problem, run(dual_coordinate, problem, tol=1e-4, max_iter=500)


def given_parents():
    features, labels = data()
    parents = np.zeros((4, 4), bool)
    parents[[1, 3, 3], [2, 0, 1]] = True
    settings: Any = {"ordering": [2, 0, 1, 3], "cliques": [(0, 1, 2)], "parents": parents, "C": 0.3}
    problem = LabelProblems.from_labels(features, labels, **settings)
    return problem, run(dual_coordinate, problem, tol=1e-4, max_iter=500)


def machine(seed: int = 0):
    features, labels = data(seed)
    problem = SharedProblem.from_labels(features, labels, C=0.3, coupling_penalty=5.0, margin=0.7)
    return problem, run(proximal_newton, problem, tol=1e-4, max_iter=500)


def structural(seed: int = 0):
    features, labels = data(seed)
    pairs = [(0, 1), (0, 2), (1, 3), (2, 3)]
    problem = label_vector_problem(features, labels, exact.decode, pairs=pairs, C=0.3, coupling_penalty=2.0)
    return problem, run(frank_wolfe, problem, tol=1e-4, max_iter=500)


TRAININGS = {
    "network": network,
    "sparse": lambda: network(is_sparse=True),
    "given parents": given_parents,
    "machine": machine,
    "structural": structural,
}


@pytest.mark.parametrize("kind", TRAININGS)
def test_trainings_are_accepted_with_their_gap(tmp_path, kind, capsys):
    problem, state = TRAININGS[kind]()
    name = certificates.write_training(problem, state, tmp_path / "a.jsonl")
    assert CHECK.main([str(tmp_path / "a.jsonl"), "--digest", name]) == 0
    said = capsys.readouterr().out
    assert "training on 40 instances proven to within" in said
    gap = float(said.split("within ")[1].split()[0])
    assert gap == pytest.approx(state.gap, rel=0.1, abs=1e-8)
    assert gap > 0


def beyond(values, random):
    values[tuple(random.integers(size) for size in values.shape)] = random.choice([-1e-9, 10.0])


FORGERIES = {
    "a dual off": changed("duals", off),
    "a dual out of its box": changed("duals", beyond),
    "a weight of features off": changed("feature_weights", off),
    "a weight of a clique off": changed("clique_weights", off),
    "the primal value off": shifted("primal"),
    "the dual value off": shifted("dual"),
    "a flipped label": changed(
        "labels", lambda values, random: values.__setitem__((random.integers(40), 0), 1 - values[0, 0])
    ),
}


def refused(path, seeds) -> int:
    count = 0
    for make in TRAININGS.values():
        problem, state = make()
        certificates.write_training(problem, state, path, mode="w")
        record = json.loads(path.read_text())
        for seed in seeds:
            random = np.random.default_rng(seed)
            for what, forge in FORGERIES.items():
                other = forge(record, random)
                if other == record:
                    continue
                path.write_text(json.dumps(other))
                assert CHECK.main([str(path)]) == 1, (what, seed)
                count += 1
    return count


def test_forged_trainings_are_refused(tmp_path):
    assert refused(tmp_path / "forged.jsonl", range(3)) >= 50


def test_duals_bound_the_optimum_whatever_the_weights(tmp_path, capsys):
    """Feasible duals that are far from the best prove no more than they do."""
    problem, _ = machine()
    start = proximal_newton.init(problem, np.full(problem.spins.shape, 0.01))
    certificates.write_training(problem, start, tmp_path / "a.jsonl")
    assert CHECK.main([str(tmp_path / "a.jsonl")]) == 0
    assert float(capsys.readouterr().out.split("within ")[1].split()[0]) > 0.5


def test_the_first_state_of_a_structural_svm_has_a_proof_that_says_little(tmp_path, capsys):
    problem, _ = structural()
    certificates.write_training(problem, frank_wolfe.init(problem), tmp_path / "a.jsonl")
    assert CHECK.main([str(tmp_path / "a.jsonl")]) == 0
    assert float(capsys.readouterr().out.split("within ")[1].split()[0]) > 0.5


def test_strange_trainings_are_refused(tmp_path):
    features, labels = data()
    with pytest.raises(TypeError, match=r"problem: expected LabelProblems.*ChainKernelProblem, got dict"):
        certificates.write_training({}, None, tmp_path / "a.jsonl")
    labels[0, 0] = np.nan
    missing = LabelProblems.from_labels(features, labels)
    with pytest.raises(ValueError, match="problem: expected known labels"):
        certificates.write_training(missing, dual_coordinate.init(missing), tmp_path / "a.jsonl")


EVERY = {
    "an enormous weight of a loss": (changed("upper", entry(1e200)), "enormous weights"),
    "a label of 2": (changed("labels", entry(2)), "labels: expected 0 or 1"),
    "rows that go back": (changed("starts", entry(-1)), "strange rows"),
    "rows that begin late": (changed("starts", lambda v, _: np.append([1], v[1:])), "strange rows"),
    "a feature that there is not": (changed("columns", entry(6)), "a feature that there is not"),
    "a feature below all": (changed("columns", entry(-1)), "a feature that there is not"),
    "a feature twice": (changed("columns", twice), "a feature comes twice"),
    "a feature without end": (changed("values", entry(np.inf)), "expected finite numbers"),
    "a penalty of 0": (changed("penalty", entry(0.0)), "a penalty that is not above 0"),
    "another penalty": (changed("penalty", lambda v, _: v + 0.01), "weights that the duals do not make"),
    "a label twice in a clique": (setting("cliques", [[0, 0]] * 4), "a strange clique"),
    "a clique of another label": (setting("cliques", [[0, 4]] * 4), "a strange clique"),
    "a clique of none": (setting("cliques", [[]] * 4), "a strange clique"),
    "a weight of a feature off": (changed("feature_weights", off), "weights that the duals do not make"),
    "larger weights of cliques": (changed("clique_weights", larger), "weights that the duals do not make"),
    "smaller weights of cliques": (changed("clique_weights", smaller), "weights that the duals do not make"),
    "larger weights of losses": (changed("upper", lambda v, _: v * 1.001), "the primal value is wrong"),
    "the primal value off": (shifted("primal"), "the primal value is wrong"),
    "the dual value off": (shifted("dual"), "the dual value is wrong"),
    "a dual below 0": (changed("duals", entry(-1e-9)), "the duals are not feasible"),
    "a dual above all": (changed("duals", entry(1.0)), "the duals are not feasible"),
}
HINGES = EVERY | {
    "no margin": (setting("margin", 0.0), "margin: expected one above 0"),
    "a margin without end": (setting("margin", np.inf), "margin: expected one above 0"),
    "another margin": (setting("margin", 0.71), "the primal value is wrong"),
    "an owner outside": (setting("owners", [[0], [0], [0], [0], [1], [0]]), "an owner outside its clique"),
    "owners fewer than cliques": (setting("owners", [[0]]), ""),
}
STRUCTURAL = EVERY | {
    "an instance that there is not": (changed("example", entry(40)), "an instance that there is not"),
    "an instance below all": (changed("example", entry(-1)), "an instance that there is not"),
    "a labelling of 2": (changed("labellings", entry(2)), "labellings: expected 0 or 1"),
    "another labelling": (changed("labellings", lambda v, _: 1 - v), ""),
    "a weight of a loss below 0": (changed("upper", entry(-1.0)), "the duals are not feasible"),
}


@pytest.mark.parametrize(("make", "forgeries"), [(machine, HINGES), (structural, STRUCTURAL)])
def test_each_check_of_trainings_refuses_what_it_is_for(tmp_path, make, forgeries, capsys):
    certificates.write_training(*make(), tmp_path / "a.jsonl")
    record = json.loads((tmp_path / "a.jsonl").read_text())
    for what, (forge, message) in forgeries.items():
        out = said(forge(record, np.random.default_rng(0)), tmp_path / "a.jsonl", capsys)
        assert out.startswith("rejected: "), what
        assert message in out, (what, out)


def test_duals_of_larger_losses_are_not_feasible(tmp_path, capsys):
    """All numbers fit each other, and the gap would be too small."""
    problem, state = structural()
    certificates.write_training(problem, frank_wolfe.scaled(problem, state, 1.001), tmp_path / "a.jsonl")
    record = json.loads((tmp_path / "a.jsonl").read_text())
    assert "the duals are not feasible" in said(record, tmp_path / "a.jsonl", capsys)


def test_more_labels_than_can_be_enumerated_are_refused(tmp_path, capsys):
    features, labels = data()
    many = np.tile(labels[:3], 5)[:, :19]
    problem = label_vector_problem(features[:3], many, exact.decode, pairs=[])
    certificates.write_training(problem, frank_wolfe.init(problem), tmp_path / "a.jsonl")
    record = json.loads((tmp_path / "a.jsonl").read_text())
    assert "expected at most 18 labels" in said(record, tmp_path / "a.jsonl", capsys)


def memory_of(record, path) -> int:
    """The most bytes that the checker has at a time, which refuses the certificate."""
    path.write_text(json.dumps(record))
    tracemalloc.start()
    try:
        assert CHECK.main([str(path)]) == 1
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def many_features(record):
    record["problem"]["features"] = 10**8


def many_cliques(record):
    record["problem"] |= {"cliques": [[0]] * 50_000, "owners": [[0]] * 50_000}
    record["problem"]["penalty"] = record["proof"]["clique_weights"] = field(np.ones(50_000))
    labels = np.zeros((2000, 1))
    record["problem"]["labels"] = field(labels, np.int8)
    record["problem"] |= {"starts": field(np.zeros(2001), np.int64), "features": 1}
    record["problem"] |= {"columns": field([], np.int64), "values": field([]), "upper": field(labels)}
    record["proof"] |= {"feature_weights": field([[0.0]]), "duals": field(labels)}


@pytest.mark.parametrize(
    ("make", "grown"), [(network, many_features), (structural, many_features), (network, many_cliques)]
)
def test_small_trainings_get_little_memory(tmp_path, make, grown):
    certificates.write_training(*make(), tmp_path / "a.jsonl")
    record = json.loads((tmp_path / "a.jsonl").read_text())
    grown(record)
    assert memory_of(record, tmp_path / "b.jsonl") < 2**28
