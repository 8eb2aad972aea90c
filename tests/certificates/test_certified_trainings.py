"""Duals bound how far a training is from its optimum, and whoever changes a number is found out."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from forgeries import CHECKER, changed, checker, off, read, replaced
from scipy import sparse

from lmbm_torch import certificates
from lmbm_torch.inference import exact
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.machines import proximal_newton
from lmbm_torch.solvers.machines.problem import SharedProblem
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems
from lmbm_torch.solvers.structural import frank_wolfe
from lmbm_torch.solvers.structural.label_vectors import label_vector_problem

sys.path.insert(0, str(CHECKER.parent))
CHECK = checker()


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


def shifted(name: str):
    def forge(record, random):
        record = json.loads(json.dumps(record))
        record["proof"][name] += random.choice([-1e-6, 1e-6])
        return record

    return forge


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


def test_strange_trainings_are_refused(tmp_path):
    features, labels = data()
    with pytest.raises(
        TypeError, match="problem: expected LabelProblems, a SharedProblem or a StructuralProblem, got dict"
    ):
        certificates.write_training({}, None, tmp_path / "a.jsonl")
    labels[0, 0] = np.nan
    missing = LabelProblems.from_labels(features, labels)
    with pytest.raises(ValueError, match="problem: expected one without missing labels"):
        certificates.write_training(missing, dual_coordinate.init(missing), tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("name", "values"),
    [("penalty", -1.0), ("values", np.inf), ("columns", 99), ("starts", 7), ("labels", 2), ("upper", -1.0)],
)
def test_strange_arrays_of_trainings_are_refused(tmp_path, name, values):
    problem, state = machine()
    certificates.write_training(problem, state, tmp_path / "a.jsonl")
    record = json.loads((tmp_path / "a.jsonl").read_text())
    array = read(record["problem"][name])
    array[0] = values
    (tmp_path / "a.jsonl").write_text(json.dumps(replaced(record, name, array)))
    assert CHECK.main([str(tmp_path / "a.jsonl")]) == 1
