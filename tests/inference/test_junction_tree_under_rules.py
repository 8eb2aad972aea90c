"""Junction trees under rules against enumeration, and beyond its reach against counts."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
import torch
from problems.draws import deviation
from problems.rules import random_rules
from strategies.bipartite import all_states
from strategies.directed import random_directed_energy
from strategies.pairwise import random_clique_energy, random_pairwise_energy

from lmbm_torch.constraints import Constraints, Rule, at_least, at_most, exactly, hierarchy, implies
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.trees.rule_tables import rule_tables

# No coupling, what is usual, and so much that some labellings have no mass within rounding.
COUPLINGS = (0.0, 1.0, 40.0)


def names(count):
    return [f"label_{label}" for label in range(count)]


def wide_rules(generator, labels):
    """A rule of each kind over many labels, of which some are negated, where they allow a labelling."""
    chosen = generator.permutation(labels)[: generator.integers(4, labels + 1)].tolist()
    literals = [label if generator.random() < 0.7 else ~label for label in chosen]
    few, most = int(generator.integers(0, 3)), len(chosen) - int(generator.integers(0, 3))
    parents = {label: int(generator.integers(0, label)) for label in range(1, labels)}
    weights = generator.integers(-3, 4, len(chosen)).tolist()
    reals = generator.normal(size=6)
    kinds = [
        at_most(few, literals),
        at_least(few, literals),
        at_most(most, literals, when=[chosen[0]]),
        at_least(most, literals),
        exactly(1, literals),
        exactly(few, literals[1:], when=literals[:1]),
        hierarchy({**parents}),
        implies(literals[:3], literals[3:]),
        (Rule(dict(zip(chosen, weights, strict=True)), 1.0, "integers"),),
        (Rule(dict(zip(range(6), reals.tolist(), strict=True)), float(reals.max()), "reals"),),
    ]
    rules = [kinds[kind] for kind in generator.choice(len(kinds), 2, replace=False)]
    try:
        return Constraints.of([rule for several in rules for rule in several], names(labels))
    except ValueError:
        return None


def sparse_energy(seed, labels, coupling):
    """A Boltzmann machine by pairs, by cliques, or a network, as the seed says."""
    match seed % 3:
        case 0:
            return random_pairwise_energy(seed, labels, 2, density=0.3, coupling=coupling)
        case 1:
            return random_clique_energy(seed, labels, 2, num_cliques=labels, coupling=coupling)
        case _:
            energy = random_directed_energy(seed, labels, 2, coupling=coupling, num_cliques=2)
            few = torch.rand(labels, labels, generator=torch.Generator().manual_seed(seed)) < 0.3
            return replace(energy, parents=energy.parents * few)


def problem(seed, make=wide_rules):
    generator, rules = np.random.default_rng(seed), None
    while rules is None:
        labels = int(generator.integers(6, 10))
        rules = make(generator, labels)
    energy = sparse_energy(seed, labels, COUPLINGS[seed // 3 % 3])
    states = all_states(labels)
    allowed = states[~torch.from_numpy(rules.violated(states.numpy()).any(1))]
    return energy, rules, allowed


def assert_as_enumerated(energy, rules, allowed, known=None):
    scores = energy.score(allowed[:, None])
    if known is not None:
        agrees = (known.isnan() | (allowed[:, None] == known)).all(-1)
        scores = scores.masked_fill(~agrees, -torch.inf)
    given = {"known": known, "constraints": rules}
    found, best = elimination.marginals(energy, **given), elimination.decode(energy, **given)
    expected = torch.einsum("sb,sl->bl", scores.softmax(0), allowed.to(scores))
    torch.testing.assert_close(found.labels, expected)
    torch.testing.assert_close(found.log_partition, scores.logsumexp(0))
    torch.testing.assert_close(elimination.log_partition(energy, **given), scores.logsumexp(0))
    torch.testing.assert_close(best.objective, scores.amax(0))
    assert not rules.violated(best.labels.numpy()).any()
    assert known is None or torch.equal(best.labels[~known.isnan()], known[~known.isnan()].long())


@pytest.mark.parametrize("seed", range(36))
def test_results_are_those_of_the_allowed_labellings(seed):
    energy, rules, allowed = problem(seed)
    assert_as_enumerated(energy, rules, allowed)
    known = torch.full((2, energy.num_labels), torch.nan, dtype=energy.dtype)
    known[1, ::3] = allowed[-1, ::3].to(energy.dtype)
    assert_as_enumerated(energy, rules, allowed, known)


@pytest.mark.parametrize("seed", range(18))
def test_small_rules_of_every_kind(seed):
    assert_as_enumerated(*problem(seed, random_rules))


def test_gradients_are_those_of_the_allowed_labellings():
    _, rules, allowed = problem(0)
    labels = allowed.shape[1]
    coupled = random_pairwise_energy(5, labels, 2, density=0.4)
    unary, pairwise = (each.clone().requires_grad_() for each in (coupled.unary, coupled.pairwise))
    energy = replace(coupled, unary=unary, pairwise=pairwise)
    came = torch.autograd.grad(elimination.log_partition(energy, constraints=rules).sum(), (unary, pairwise))
    expected = torch.autograd.grad(energy.score(allowed[:, None]).logsumexp(0).sum(), (unary, pairwise))
    torch.testing.assert_close(came[0], expected[0])
    torch.testing.assert_close(came[1], expected[1] * (pairwise != 0))

    def value(unary):
        return elimination.log_partition(replace(coupled, unary=unary), constraints=rules)

    assert torch.autograd.gradcheck(value, unary)
    assert torch.autograd.gradgradcheck(value, unary)


@pytest.mark.parametrize(
    ("rule", "count"),
    [
        ("at_most_one({})", 41),
        ("exactly_one({})", 40),
        ("at_least(3, {})", 2**40 - sum(comb(40, few) for few in range(3))),
        ("at_most(20, {})", sum(comb(40, few) for few in range(21))),
        ("exactly(2, {})", comb(40, 2)),
    ],
)
def test_what_is_allowed_of_forty_labels_is_counted_without_their_table(rule, count):
    rules = Constraints.of(rule.format(", ".join(names(40))), names(40))
    free = PairwiseEnergy(torch.zeros(1, 40).double(), torch.zeros(40, 40).double())
    path = torch.diag_embed(torch.ones(39).double(), 1)
    coupled = replace(free, pairwise=path + path.mT)
    assert elimination.width(coupled, constraints=rules) <= 12
    torch.testing.assert_close(
        elimination.log_partition(free, constraints=rules).exp(), torch.tensor([float(count)]).double()
    )


def test_rules_whose_sums_all_differ_are_refused_by_name():
    weights = {label: 2.0**-label for label in range(40)}
    rules = Constraints.of(Rule({**weights}, 1.3, "a sum of powers"), names(40))
    energy = random_pairwise_energy(0, 40, density=0.05)
    with pytest.raises(
        ValueError, match=r"constraints: expected weights with few different sums .*, got .* a sum of powers"
    ):
        elimination.log_partition(energy, constraints=rules)


def tree_energy(parents, batch):
    """Labels coupled with their parents."""
    labels = len(parents) + 1
    dense = random_pairwise_energy(7, labels, batch)
    mask = torch.zeros(labels, labels).double()
    for child, parent in parents.items():
        mask[child, parent] = mask[parent, child] = 1
    return replace(dense, pairwise=dense.pairwise * mask)


def weights_by_count(energy, row, parents, most):
    """Σ exp(score) of the labellings of a hierarchy by how many labels are 1, up to so many of them."""
    unary, pairwise = energy.unary[row].numpy(), energy.pairwise.numpy()
    off = {}
    on = {}
    for label in reversed(range(energy.num_labels)):
        present, absent = np.zeros(most + 1), np.zeros(most + 1)
        present[1], absent[0] = np.exp(unary[label]), np.exp(-unary[label])
        for child in (child for child, parent in parents.items() if parent == label):
            coupling = np.exp(pairwise[label, child])
            either = coupling * on[child] + off[child] / coupling
            present = np.convolve(present, either)[: most + 1]
            # Below an absent label none is present.
            absent = absent * off[child][0] * coupling
        on[label], off[label] = present, absent
    return (on[0] + off[0]) * np.exp(float(energy.constant[row]))


@pytest.mark.parametrize("most", [3, 60])
def test_a_hierarchy_of_sixty_labels_equals_a_dynamic_programme(most):
    generator = np.random.default_rng(0)
    parents = {
        label: int(generator.integers(max(0, label // 3 - 2), max(1, label // 2))) for label in range(1, 60)
    }
    energy = tree_energy(parents, 2)
    rules = hierarchy({**parents})
    if most < 60:
        rules += at_most(most, list(range(60)))
    rules = Constraints.of(rules, names(60))
    assert elimination.width(energy, constraints=rules) <= (2 if most == 60 else 8)
    found = elimination.marginals(energy, constraints=rules)
    drawn = elimination.sample(energy, 2000, constraints=rules, generator=torch.Generator().manual_seed(0))
    assert not rules.violated(drawn.flatten(0, 1).numpy()).any()
    for row in range(2):
        mass = weights_by_count(energy, row, parents, most)
        torch.testing.assert_close(found.log_partition[row], torch.tensor(np.log(mass.sum())))
        expected_count = (mass * np.arange(most + 1)).sum() / mass.sum()
        torch.testing.assert_close(found.labels[row].sum(), torch.tensor(expected_count))
        # Three standard errors.
        share = drawn[:, row].double().mean(0)
        error = (found.labels[row] * (1 - found.labels[row]) / len(drawn)).sqrt()
        assert ((share - found.labels[row]).abs() <= 4 * error + 1e-3).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_draws_are_of_every_allowed_labelling_as_often_as_is_probable(seed):
    energy, rules, allowed = problem(3 + seed)
    generator = torch.Generator().manual_seed(0)
    drawn = elimination.sample(energy, 4000, constraints=rules, generator=generator)
    probabilities = energy.score(allowed[:, None]).softmax(0)
    for row in range(2):
        assert abs(deviation(drawn[:, row], allowed, probabilities[:, row])) < 3


ROUTINES = [
    elimination.log_partition,
    elimination.marginals,
    elimination.decode,
    lambda energy, **given: elimination.sample(energy, 1, **given),
]


@pytest.mark.parametrize("routine", ROUTINES)
def test_what_is_known_against_the_rules_is_refused_by_their_names(routine):
    rules = Constraints.of([f"at_most_one({', '.join(names(30))})", "label_0 or label_29"], names(30))
    energy = random_pairwise_energy(0, 30, 2, density=0.03, dtype=torch.float32)
    known = torch.full((2, 30), torch.nan)
    known[1, 3] = 1
    with pytest.raises(
        ValueError, match=r"known\[1\]: .*contradiction together with the known labels: at_most"
    ):
        routine(energy, constraints=rules, known=known)
    with pytest.raises(TypeError, match="constraints: expected the result of Constraints"):
        routine(energy, constraints="label_0 -> label_1")
    with pytest.raises(ValueError, match="constraints: expected rules over 30 labels, got 2"):
        routine(energy, constraints=Constraints.of([], names(2)))
    with pytest.raises(ValueError, match=r"treewidth of at most 1, got . under these constraints"):
        routine(energy, constraints=rules, max_bytes=4 * elimination.SPARSE_COPIES * 4)


@pytest.mark.parametrize("seed", range(3))
def test_single_precision_is_finite_and_near(seed):
    energy, rules, _ = problem(seed)
    found = elimination.marginals(energy.to(torch.float32), constraints=rules)
    expected = elimination.marginals(energy, constraints=rules)
    torch.testing.assert_close(found.labels, expected.labels.float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.log_partition, expected.log_partition.float(), rtol=1e-5, atol=1e-4)


def test_labels_that_meet_anyway_are_not_counted_unless_they_are_many():
    rules = Constraints.of(f"at_least(2, {', '.join(names(5))})", names(5))
    assert not rule_tables(rules, ((0, 1, 2, 3, 4),)).sizes
    assert rule_tables(rules, ()).sizes
    many = Constraints.of(f"at_least(2, {', '.join(names(12))})", names(12))
    assert rule_tables(many, (tuple(range(12)),)).sizes


def test_sums_that_no_further_label_tells_apart_are_one_value():
    most = rule_tables(Constraints.of(f"at_most_one({', '.join(names(12))})", names(12)), ())
    assert max(most.sizes) == 2
    both = rule_tables(Constraints.of(f"exactly_one({', '.join(names(12))})", names(12)), ())
    assert max(both.sizes) == 2
    least = rule_tables(Constraints.of(f"at_least(2, {', '.join(names(12))})", names(12)), ())
    assert max(least.sizes) == 3
