"""Sums over what rules allow: either way is taken where it should be, and both give the same."""

from __future__ import annotations

from functools import wraps

import pytest
import torch
from problems.draws import deviation
from strategies.bipartite import all_states, random_bipartite_energy
from strategies.directed import random_directed_energy
from strategies.pairwise import random_pairwise_energy

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints, Rule
from lmbm_torch.energies import ChainEnergy, CliqueEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.under_rules import constrained

TREE, ENUMERATION = "exact, by a junction tree", "exact, by enumeration"


def some_rules(labels, *more):
    names = [f"label_{label}" for label in range(labels)]
    literals = ", ".join(names[:6])
    return Constraints.of([f"at_least(2, {literals})", "label_1 -> not label_2", *more], names)


# Powers of two, whose sums all differ, the small ones first.
POWERS = Rule({label: 2.0 ** (label - 15) for label in range(16)}, 1.3, "powers")


@pytest.mark.parametrize(
    ("labels", "density", "more", "method"),
    [
        (12, 0.05, (), ENUMERATION),
        (13, 0.05, (), TREE),
        (13, 1.0, (), ENUMERATION),
        (16, 0.02, (POWERS,), ENUMERATION),
        (30, 0.02, (), TREE),
    ],
)
def test_a_tree_is_taken_where_it_is_narrow_and_pays(labels, density, more, method):
    energy, rules = random_pairwise_energy(0, labels, 2, density=density), some_rules(labels, *more)
    found = inference.marginals(energy, constraints=rules)
    assert found.method == method
    assert found.status.exact.all()
    torch.testing.assert_close(inference.log_partition(energy, constraints=rules), found.log_partition)
    generator = torch.Generator().manual_seed(0)
    drawn = inference.sample(energy, 2000, constraints=rules, generator=generator)
    assert not rules.violated(drawn.flatten(0, 1).numpy()).any()
    torch.testing.assert_close(drawn.double().mean(0), found.labels, rtol=0, atol=0.05)
    if labels == 13:
        enumerated = exact.marginals(constrained.restricted(energy, rules))
        torch.testing.assert_close(found.labels, enumerated.labels)
        torch.testing.assert_close(found.log_partition, enumerated.log_partition)


def test_what_is_known_makes_labels_few():
    energy, rules = random_pairwise_energy(0, 26, 2), some_rules(26)
    known = torch.full((2, 26), torch.nan).double()
    known[:, 10:] = 0
    found = inference.marginals(energy, constraints=rules, known=known)
    assert found.method == ENUMERATION
    assert (found.labels[:, 10:] == 0).all()


def test_a_network_is_normalised_over_what_is_allowed():
    energy, rules = random_directed_energy(0, 8, 2), some_rules(8)
    states = all_states(8)
    allowed = ~rules.violated(states.numpy()).any(1)
    found = inference.log_partition(energy, constraints=rules)
    expected = energy.log_prob(states[:, None])[torch.from_numpy(allowed)].exp().sum(0)
    torch.testing.assert_close(found.exp(), expected)


def test_hidden_units_are_summed_out():
    energy, rules, states = random_bipartite_energy(0, 6, 3, 2), some_rules(6), all_states(6)
    allowed = torch.from_numpy(~rules.violated(states.numpy()).any(1))
    scores = -energy.free_energy(states[:, None]).masked_fill(~allowed[:, None], torch.inf)
    generator = torch.Generator().manual_seed(0)
    drawn = inference.sample(energy, 4000, constraints=rules, generator=generator)
    found = inference.marginals(energy, constraints=rules)
    for row in range(2):
        probabilities = scores[:, row].softmax(0)
        assert abs(deviation(drawn[:, row], states, probabilities)) < 3
        torch.testing.assert_close(found.labels[row], probabilities @ states.double())


def test_what_no_way_reaches_is_refused():
    rules = some_rules(40)
    with pytest.raises(ValueError, match=r"energy: expected a treewidth of at most \d+, got at least 39"):
        inference.marginals(random_pairwise_energy(0, 40), constraints=rules)
    with pytest.raises(ValueError, match="energy: expected at most 22 free labels"):
        inference.sample(random_bipartite_energy(0, 40, 30), 1, constraints=rules)
    chain = ChainEnergy(torch.zeros(1, 40, 2), torch.zeros(2, 2))
    with pytest.raises(TypeError, match="energy: expected a kind with labels in"):
        inference.sample(chain, 1, constraints=rules)


@pytest.mark.parametrize(("labels", "density"), [(8, 1.0), (30, 0.02)])
def test_draws_given_what_contradicts_the_rules_are_refused_by_name(labels, density):
    energy, known = random_pairwise_energy(0, labels, 2, density=density), torch.full((2, labels), torch.nan)
    known[1, :5] = 0
    with pytest.raises(ValueError, match=r"known\[1\]: .*known labels: at_least\(2, label_0"):
        inference.sample(energy, 3, constraints=some_rules(labels), known=known)


def test_the_best_labelling_of_a_sparse_machine_is_found_by_a_tree(monkeypatch):
    pairs = random_pairwise_energy(0, 30, 2, density=0.02)
    cliques = (*((label,) for label in range(30)), (0, 1), (4, 5, 6))
    weight = torch.randn(2, len(cliques), generator=torch.Generator().manual_seed(0)).double()
    rules, taken = some_rules(30), []
    decode = elimination.decode

    @wraps(decode)
    def noted(energy, **given):
        taken.append(given.get("constraints"))
        return decode(energy, **given)

    monkeypatch.setattr(elimination, "decode", noted)
    for energy in (pairs, CliqueEnergy(cliques, weight)):
        best = inference.decode(energy, constraints=rules)
        assert taken == [rules]
        around = constrained.decode(energy, rules, inference.decode)
        taken.clear()
        torch.testing.assert_close(best.objective, around.objective)
        assert not rules.violated(best.labels.numpy()).any()
