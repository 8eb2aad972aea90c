"""Certificates whose leaves are closed by semidefinite bounds: of dense machines, and of forgers."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from forgeries import CHECK, pairwise, read

from lmbm_torch import certificates
from lmbm_torch.certificates import decodings, dense
from lmbm_torch.certificates.lines import field
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations.semidefinite import decoding as semidefinite

LABELS = 13


@pytest.fixture(autouse=True, scope="module")
def no_cheap_bounds():
    """Small problems are proven as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decodings, "FEW_NODES", 1)
        yield


@pytest.fixture(scope="module")
def genuine(tmp_path_factory):
    return written(tmp_path_factory.mktemp("genuine") / "proof.jsonl", machine("reals", 2))


def machine(kind: str, seed: int, batch: int = 1) -> PairwiseEnergy:
    generator = torch.Generator().manual_seed(seed)
    energy = pairwise(batch, LABELS, generator, shared=seed % 2 == 0)
    if kind == "integers":
        return PairwiseEnergy(energy.unary.round(), (3 * energy.pairwise).round())
    if kind == "no fields":
        return PairwiseEnergy(0 * energy.unary, energy.pairwise)
    return energy


def written(path, energy: PairwiseEnergy, decoding=None, **problem):
    certificates.write(decoding or exact.decode(energy, **problem), path, energy, mode="w", **problem)
    return json.loads(path.read_text())


def verdict(path, record) -> int:
    path.write_text(json.dumps(record) + "\n")
    return CHECK.main([str(path)])


@pytest.mark.parametrize("kind", ["reals", "integers", "no fields"])
@pytest.mark.parametrize("seed", range(2))
def test_dense_decodings_are_proven(tmp_path, kind, seed):
    energy, path = machine(kind, seed), tmp_path / "proof.jsonl"
    record = written(path, energy)
    leaves = record["proof"]["semidefinite"]
    assert len(leaves) == (read(record["proof"]["tree"]) == -4).sum() > 0
    assert CHECK.main([str(path)]) == 0


def test_several_answers_and_known_labels_are_proven(tmp_path):
    energy, path = machine("reals", 7), tmp_path / "proof.jsonl"
    written(path, energy, exact.decode(energy, top_k=3))
    assert CHECK.main([str(path)]) == 0
    known = torch.full((1, LABELS), torch.nan).double()
    known[0, [0, 3]] = torch.tensor([1.0, 0.0]).double()
    record = written(path, energy, known=known)
    assert record["proof"]["semidefinite"]
    assert CHECK.main([str(path)]) == 0


RULES = {
    "one of four": ["exactly_one(l0, l1, l2, l3)", "l4 -> not l5"],
    "few": ["at_most(3, l0, l1, l2, l3, l4, l5, l6)", "l7 -> l8", "at_least(2, l9, l10, l11)"],
}


def rules(kind: str) -> Constraints:
    return Constraints.of(RULES[kind], [f"l{label}" for label in range(LABELS)])


@pytest.fixture(scope="module")
def genuine_ruled(tmp_path_factory):
    return written_ruled(tmp_path_factory.mktemp("genuine") / "proof.jsonl", "one of four")


def written_ruled(path, kind: str):
    energy, constraints = machine("reals", 2), rules(kind)
    decoding = semidefinite.decode(energy, constraints=constraints)
    return written(path, energy, decoding, constraints=constraints)


@pytest.mark.parametrize("kind", RULES)
def test_answers_under_rules_are_proven(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(dense, "FEW_LABELS", 5)
    record = written_ruled(tmp_path / "proof.jsonl", kind)
    assert any(leaf["rule_prices"]["shape"][0] for leaf in record["proof"]["semidefinite"])
    assert CHECK.main([str(tmp_path / "proof.jsonl")]) == 0


def test_small_trees_need_no_semidefinite_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(decodings, "FEW_NODES", 10_000)
    assert "semidefinite" not in written(tmp_path / "proof.jsonl", machine("reals", 0))["proof"]


def test_answers_that_are_beaten_are_not_proven(tmp_path):
    energy = machine("reals", 1)
    decoding = exact.decode(energy)
    second = exact.decode(energy, top_k=2).labels[:, 1]
    lie = type(decoding)(second, decoding.objective, decoding.bound, decoding.status)
    with pytest.raises(ValueError, match="expected the best labellings"):
        certificates.write(lie, tmp_path / "lie.jsonl", energy)


def leaf_changed(name: str, change):
    """One array of the first leaf with multipliers for inequalities changed in place."""

    def forge(record):
        leaf = next(each for each in record["proof"]["semidefinite"] if each["prices"]["shape"][0] > 1)
        values = read(leaf[name])
        leaf[name] = field(change(values), values.dtype.type)

    return forge


def off(place, amount):
    def change(values):
        values[place] += amount
        return values

    return change


def said(name: str, value):
    def forge(record):
        record["proof"]["semidefinite"][0][name] = value

    return forge


def no_leaves(record):
    record["proof"]["semidefinite"] = []


def another_leaf(record):
    leaves = record["proof"]["semidefinite"]
    leaves[0]["diagonal"] = field(0 * read(leaves[0]["diagonal"]))


def of_hinges(record):
    record["problem"] |= {"objective": "hinge", "margin": 1.0}


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (leaf_changed("prices", off(0, -9.0)), "a negative multiplier"),
        (leaf_changed("prices", lambda values: values[1:]), "expected finite numbers"),
        (leaf_changed("members", off((0, 0), 99)), "an inequality of strange spins"),
        (leaf_changed("members", lambda values: 0 * values), "an inequality that does not hold of spins"),
        (leaf_changed("members", lambda values: values[:, [0, 1, 1, 3, 4]]), "an inequality that does not"),
        (leaf_changed("members", lambda values: np.where(values > 3, 0, values)), ""),
        (leaf_changed("diagonal", off(0, np.nan)), "expected finite numbers"),
        (leaf_changed("diagonal", off(2, 3.0)), "a semidefinite leaf is not closed"),
        (leaf_changed("diagonal", off(2, -3.0)), "a semidefinite leaf is not closed"),
        (another_leaf, "a semidefinite leaf is not closed"),
        (said("unit", 64.0), "a strange unit"),
        (said("unit", -1.0), "a strange unit"),
        (no_leaves, "expected multipliers for each semidefinite leaf"),
        (of_hinges, "a value is wrong"),
    ],
)
def test_forged_multipliers_are_refused(tmp_path, capsys, genuine, forge, message):
    other = copy.deepcopy(genuine)
    forge(other)
    capsys.readouterr()
    assert verdict(tmp_path / "proof.jsonl", other) == 1
    assert message in capsys.readouterr().out
    assert verdict(tmp_path / "proof.jsonl", genuine) == 0


def product_changed(name: str, change):
    """One array of the first leaf with multipliers for rules changed."""

    def forge(record):
        leaf = next(each for each in record["proof"]["semidefinite"] if each["rules"]["shape"][0])
        values = read(leaf[name])
        leaf[name] = field(change(values), values.dtype.type)

    return forge


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (product_changed("rule_prices", off(0, -99.0)), "a negative multiplier"),
        (product_changed("rule_prices", lambda values: values[1:]), "expected finite numbers"),
        (product_changed("rule_prices", lambda values: 0 * values), "a semidefinite leaf is not closed"),
        (product_changed("rules", off((0, 0), 99)), "a product of strange rules"),
        (product_changed("rules", off((0, 0), -99)), "a product of strange rules"),
        (product_changed("rules", off((0, 1), 99)), "a product of strange rules"),
        (product_changed("rules", lambda values: values * [1, -1]), "a semidefinite leaf is not closed"),
    ],
)
def test_forged_multipliers_of_rules_are_refused(tmp_path, capsys, genuine_ruled, forge, message):
    test_forged_multipliers_are_refused(tmp_path, capsys, genuine_ruled, forge, message)


@pytest.mark.parametrize("kind", RULES)
def test_products_of_rules_are_not_below_zero_where_these_are_obeyed(kind):
    """The checker's weights, by themselves: of each product, and never by more than their stated error."""
    problem, constraints = CHECK.decodings.semidefinite, rules(kind)
    given = {"matrix": field(constraints.matrix), "bounds": field(constraints.bounds)}
    labels = np.random.default_rng(0).integers(0, 2, (4000, LABELS)).astype(np.float64)
    spins, obeys = 2 * labels - 1, ~constraints.violated(labels).any(1)
    for rule in range(len(constraints.matrix)):
        left = constraints.bounds[rule] - labels @ constraints.matrix[rule]
        for literal in range(-LABELS, LABELS + 1):
            leaf = {
                "rules": field(np.array([[rule, literal]]), np.int64),
                "rule_prices": field(np.full(1, 2.0)),
            }
            unary, pair, constant, error = problem.slacks(leaf, given, LABELS)
            own = constant + spins @ unary + np.einsum("ri,ij,rj->r", spins, pair, spins) / 2
            factor = 1.0 if literal == 0 else (1 + np.sign(literal) * spins[:, abs(literal) - 1]) / 2
            np.testing.assert_allclose(own, 2 * left * factor, atol=error)
            assert own[obeys].min() >= -error > -1e-9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_wrong", [False, True], ids=["eigenvalues", "wrong eigenvalues"])
def test_bounds_hold_for_any_multipliers(monkeypatch, seed, is_wrong):
    """However wrong the multipliers, only the labelling that is named may have less loss than they prove."""
    others = CHECK.decodings.semidefinite.others
    random = np.random.default_rng(seed)
    energy = machine("reals", seed, batch=1)
    problem = CHECK.decodings.Problem(written_problem(energy), field(np.zeros((1, LABELS, LABELS))))
    known = np.zeros(LABELS, np.int8)
    known[:4] = random.choice([-1, 1], 4)
    size = LABELS - 3
    members = np.zeros((6, 5), np.int16)
    for row in members:
        count = random.choice([3, 5])
        row[:count] = (1 + random.permutation(size)[:count]) * random.choice([-1, 1], count)
    leaf = {
        "diagonal": field(random.normal(size=size) * 3),
        "members": field(members, np.int16),
        "prices": field(random.random(6)),
    }
    if is_wrong:
        wrong = np.sort(random.normal(size=size)) / 100, np.linalg.qr(random.normal(size=(size, size))).Q
        monkeypatch.setattr(np.linalg, "eigh", lambda matrix: wrong)
    least, leading = others(problem, 0, known, leaf)
    free = 2 * ((np.arange(2 ** (size - 1))[:, None] >> np.arange(size - 1)) & 1) - 1
    spins = np.concatenate([np.tile(known[:4], (len(free), 1)), free], 1).astype(np.int8)
    own = problem.losses(np.zeros(len(spins), int), spins).mean(0)
    assert (leading[:4] == known[:4]).all()
    assert own[(spins != leading).any(1)].min() >= least


def all_alike():
    """The checker's view of labels that want to be equal, one of them known; multipliers are 0."""
    energy = PairwiseEnergy(torch.zeros(1, LABELS).double(), 1 - torch.eye(LABELS).double())
    problem = CHECK.decodings.Problem(written_problem(energy), field(np.zeros((1, LABELS, LABELS))))
    leaf = {
        "diagonal": field(np.zeros(LABELS)),
        "members": field(np.zeros((0, 5)), np.int16),
        "prices": field(np.zeros(0)),
        "unit": 0.5,
    }
    return problem, np.eye(LABELS, dtype=np.int8)[0], leaf


def test_the_bound_of_all_but_one_is_what_the_next_best_has():
    problem, known, leaf = all_alike()
    least, leading = CHECK.decodings.semidefinite.others(problem, 0, known, leaf)
    next_best = np.ones((1, LABELS), np.int8)
    assert (leading == next_best).all()
    next_best[0, -1] = -1
    assert least == pytest.approx(problem.losses(np.zeros(1, int), next_best)[0, 0], abs=1e-8)


@pytest.mark.parametrize("most", [LABELS - 1, LABELS])
def test_what_a_bound_leaves_is_no_answer_where_it_breaks_a_rule(tmp_path, most):
    """All labels want to be on; where the rule forbids it, those with one off are the best."""
    problem, known, leaf = all_alike()
    energy = PairwiseEnergy(torch.zeros(1, LABELS).double(), 1 - torch.eye(LABELS).double())
    names = [f"l{label}" for label in range(LABELS)]
    constraints = Constraints.of(f"at_most({most}, {', '.join(names)})", names)
    labels = torch.from_numpy((1 - np.eye(LABELS))[1:])
    given = torch.full((1, LABELS), torch.nan).double()
    given[0, 0] = 1.0
    none = {"rules": field(np.zeros((0, 2)), np.int64), "rule_prices": field(np.zeros(0))}
    proof = {
        "labels": field(labels[None], np.int8),
        "values": field(energy.score(labels[None])),
        "tree": field(np.full(1, -4), np.int16),
        "bounds": field(-problem.losses(np.zeros(1, int), known[None])[0]),
        "messages": field(np.zeros((1, LABELS, LABELS))),
        "semidefinite": [leaf | none],
    }
    about = decodings._problem(energy, None, given, constraints, torch.arange(1))
    record = {"format": "lmbm certificate 1", "claim": "decoding", "problem": about, "proof": proof}
    assert verdict(tmp_path / "proof.jsonl", record) == (most == LABELS)


def test_bounds_hold_for_eigenvalues_in_another_order(monkeypatch):
    problem, known, leaf = all_alike()
    # An eigenvector (1, −1, 0, …) comes last, with an eigenvalue between its own and the largest.
    apart = np.zeros(LABELS)
    apart[:2] = np.sqrt(0.5), -np.sqrt(0.5)
    basis = np.linalg.qr(np.column_stack([np.ones(LABELS), apart, np.eye(LABELS)[:, 2:]])).Q
    order = [*range(2, LABELS), 0, 1]
    values = np.full(LABELS, -0.5)
    values[0], values[1] = (LABELS - 1) / 2, (LABELS - 2) / 4
    monkeypatch.setattr(np.linalg, "eigh", lambda matrix: (values[order], basis[:, order]))
    least, leading = CHECK.decodings.semidefinite.others(problem, 0, known, leaf)
    all_on = np.ones((1, LABELS), np.int8)
    assert (leading != all_on).any()
    assert least <= problem.losses(np.zeros(1, int), all_on)[0, 0]


def test_bounds_may_miss_less_than_a_step_of_scores():
    problem, known, leaf = all_alike()
    module = CHECK.decodings.semidefinite
    least, _ = module.others(problem, 0, known, leaf)
    for above, is_closed in ((0.9, True), (1.1, False)):
        arguments = problem, np.zeros(1, int), known[None], [leaf], np.array([least + above]), None
        if is_closed:
            module.leading(*arguments)
        else:
            with pytest.raises(ValueError, match="a semidefinite leaf is not closed"):
                module.leading(*arguments)


def written_problem(energy: PairwiseEnergy):
    return decodings._problem(energy, None, None, None, torch.arange(energy.batch_size))


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", ["g05_60.0", "g05_80.0", "g05_100.4"])
def test_largest_cuts_are_proven(tmp_path, data_folder, monkeypatch, name):
    monkeypatch.setattr(decodings, "FEW_NODES", 2_000)
    edges = np.loadtxt(data_folder / "maxcut" / f"{name}.rud", skiprows=1)
    size = int(edges[:, :2].max())
    weights = torch.zeros(size, size, dtype=torch.float64)
    first, second = torch.from_numpy(edges[:, :2].astype(np.int64).T - 1)
    weights[first, second] = weights[second, first] = torch.from_numpy(edges[:, 2])
    energy = PairwiseEnergy(torch.zeros(1, size).double(), -weights / 2)
    record = written(tmp_path / "proof.jsonl", energy, semidefinite.decode(energy))
    assert record["proof"]["semidefinite"]
    assert CHECK.main([str(tmp_path / "proof.jsonl")]) == 0
