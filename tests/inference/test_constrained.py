"""Decoding under rules against enumeration of the labellings that obey them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from problems.rules import random_rules

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import (
    BipartiteEnergy,
    ChainEnergy,
    CliqueEnergy,
    DirectedEnergy,
    PairwiseEnergy,
    RestrictedEnergy,
)
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.under_rules import constrained

BATCH = 3
NAMES = ("a", "b", "c", "d")


def weights(generator, *shape):
    return torch.from_numpy(generator.normal(size=shape) * 2)


def pairwise(generator, labels):
    coupling = weights(generator, labels, labels)
    return PairwiseEnergy(weights(generator, BATCH, labels), (coupling + coupling.mT).fill_diagonal_(0))


def directed(generator, labels):
    parents = weights(generator, labels, labels).tril(-1)
    return DirectedEnergy(weights(generator, BATCH, labels), parents, torch.arange(labels))


def cliques(generator, labels):
    members = tuple((label, (label + 1) % labels, (label + 2) % labels) for label in range(labels))
    members = tuple((label,) for label in range(labels)) + (members if labels > 2 else ())
    return CliqueEnergy(members, weights(generator, BATCH, len(members)), num_labels=labels)


def bipartite(generator, labels):
    return BipartiteEnergy(
        weights(generator, BATCH, labels), weights(generator, BATCH, 3), weights(generator, labels, 3)
    )


MAKES = (pairwise, directed, cliques, bipartite)


def scores_of(energy, labellings):
    """The objective of ``inference.decode`` for each labelling and example."""
    labels = torch.from_numpy(labellings)[:, None].expand(-1, energy.batch_size, -1)
    if isinstance(energy, BipartiteEnergy):
        return -energy.free_energy(labels)
    return energy.score(labels)


def problem(make, seed):
    """An energy, rules over its labels, and the labellings that obey them."""
    generator = np.random.default_rng(seed)
    while True:
        labels = int(generator.integers(2, 8))
        rules = random_rules(generator, labels)
        if rules is not None:
            everything = np.array(list(product([0, 1], repeat=labels)))
            return make(generator, labels), rules, everything[~rules.violated(everything).any(1)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("make", MAKES)
def test_the_best_allowed_labellings_are_found(make, seed):
    energy, rules, allowed = problem(make, seed)
    scores = scores_of(energy, allowed)
    count = 1 if make is bipartite else min(3, len(allowed))
    best = scores.topk(count, 0).values.mT
    found = inference.decode(energy, constraints=rules, top_k=count)
    torch.testing.assert_close(found.objective.reshape(BATCH, count), best)
    labels = found.labels.reshape(BATCH, count, -1)
    assert not rules.violated(labels.flatten(0, 1).numpy()).any()
    assert found.status.exact.all()
    assert found.status.converged.all()
    # As many differ as were asked for.
    assert all(len(np.unique(each, axis=0)) == count for each in labels.numpy())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", [pairwise, directed])
def test_the_least_hinge_loss_given_what_is_known(make, seed):
    energy, rules, allowed = problem(make, seed)
    known = torch.full((BATCH, energy.num_labels), torch.nan, dtype=energy.dtype)
    known[:, 0] = torch.from_numpy(allowed[0, :1])
    given = allowed[allowed[:, 0] == allowed[0, 0]]
    labels = torch.from_numpy(given)[:, None].expand(-1, BATCH, -1)
    losses = (1 - energy.local_margins(labels)).clamp(min=0).sum(-1)
    found = inference.decode_hinge(energy, constraints=rules, known=known)
    torch.testing.assert_close(found.objective, losses.min(0).values)
    assert (found.labels[:, 0] == known[:, 0]).all()
    assert found.status.exact.all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", MAKES)
def test_marginals_and_log_partitions_are_of_the_allowed_labellings(make, seed):
    energy, rules, allowed = problem(make, seed)
    scores = scores_of(energy, allowed)
    found = inference.marginals(energy, constraints=rules)
    expected = torch.einsum("sb,sl->bl", scores.softmax(0), torch.from_numpy(allowed).double())
    torch.testing.assert_close(found.labels, expected)
    torch.testing.assert_close(found.log_partition, scores.logsumexp(0))
    torch.testing.assert_close(inference.log_partition(energy, constraints=rules), scores.logsumexp(0))


def test_one_example_of_a_batch_is_as_alone():
    energy, rules, _ = problem(directed, 1)
    together = inference.decode(energy, constraints=rules)
    for row in range(BATCH):
        alone = inference.decode(energy.select(torch.tensor([row])), constraints=rules)
        assert torch.equal(alone.labels[0], together.labels[row])
        assert alone.status.num_iters[0] == together.status.num_iters[row]


def test_rules_that_are_obeyed_cost_one_decoding():
    energy, _, _ = problem(pairwise, 0)
    names = [f"label_{label}" for label in range(energy.num_labels)]
    best = inference.decode(energy)
    rules = Constraints.of([], names)
    assert torch.equal(inference.decode(energy, constraints=rules).labels, best.labels)
    found = constrained.decode(energy, rules, inference.decode)
    assert torch.equal(found.labels, best.labels)
    assert (found.nodes == 1).all()


def crossed():
    """Independent labels that all want to be 1, and rules that allow one of each pair."""
    energy = PairwiseEnergy(torch.ones(1, 12).double(), torch.zeros(12, 12).double())
    rules = [f"not label_{2 * pair} or not label_{2 * pair + 1}" for pair in range(6)]
    return energy, Constraints.of(rules, [f"label_{label}" for label in range(12)])


def test_a_limit_gives_an_allowed_labelling_and_an_honest_bound():
    energy, rules = crossed()
    limited = constrained.decode(energy, rules, inference.decode, part_limit=3)
    assert not limited.status.converged.any()
    assert not limited.status.exact.any()
    assert not rules.violated(limited.labels.numpy()).any()
    best = inference.decode(energy, constraints=rules)
    assert best.status.exact.all()
    # Either half is as good here, all the way down.
    torch.testing.assert_close(limited.objective, best.objective)
    assert (limited.objective <= best.objective).all()
    assert (limited.bound >= best.objective).all()
    torch.testing.assert_close(energy.score(limited.labels), limited.objective)
    with pytest.raises(ValueError, match="part_limit, got 2"):
        constrained.decode(energy, rules, inference.decode, part_limit=3, top_k=2)


def test_a_gap_of_the_routine_stays_one():
    def rough(energy, known=None):
        found = inference.decode(energy, known=known)
        status = replace(found.status, exact=torch.zeros_like(found.status.exact))
        return replace(found, bound=found.objective + 0.5, status=status)

    energy, rules = crossed()
    found = constrained.decode(energy, rules, rough, part_limit=40)
    best = inference.decode(energy, constraints=rules)
    assert not found.status.exact.any()
    assert (found.bound >= best.objective).all()
    assert not rules.violated(found.labels.numpy()).any()
    obeyed = constrained.decode(energy, Constraints.of([], rules.names), rough)
    assert not obeyed.status.exact.any()
    torch.testing.assert_close(obeyed.bound, obeyed.objective + 0.5)
    # No limit is met, and none would help.
    with pytest.raises(ValueError, match="proven best by the decoder's own bound, got 2"):
        constrained.decode(energy, rules, rough, top_k=2)


def test_fixed_labels_make_the_search_smaller():
    energy, rules = crossed()
    known = torch.full((1, 12), torch.nan).double()
    known[0, :8:2] = 0
    free, fixed = (inference.decode(energy, constraints=rules, known=each) for each in (None, known))
    assert fixed.status.num_iters < free.status.num_iters


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"known": torch.tensor([[1.0, 1, torch.nan, torch.nan]])}, r"known\[0\].*known labels: a -> not b"),
        ({"known": torch.tensor([[torch.nan, 0, 0, torch.nan]])}, r"known\[0\].*known labels: b or c"),
        ({"top_k": 9}, "top_k: expected at most 8, .* allowed, got 9"),
        ({"constraints": Constraints.of([], ("a",))}, "constraints: expected rules over 4 labels, got 1"),
    ],
)
def test_what_no_labelling_obeys_is_refused(arguments, message):
    rules = Constraints.of(["a -> not b", "b or c"], NAMES)
    energy = PairwiseEnergy(torch.ones(1, 4), torch.zeros(4, 4))
    with pytest.raises(ValueError, match=message):
        inference.decode(energy, **{"constraints": rules, **arguments})
    if "top_k" not in arguments:
        for routine in (inference.marginals, inference.log_partition):
            with pytest.raises(ValueError, match=message):
                routine(energy, **{"constraints": rules, **arguments})


@pytest.mark.parametrize("given", [["a -> b"], "a -> b"])
def test_rules_of_no_labels_are_refused_by_name(given):
    couplings = torch.zeros(4, 4)
    machine = PairwiseEnergy(torch.ones(1, 4), couplings)
    network = DirectedEnergy(torch.ones(1, 4), couplings, torch.arange(4))
    routines = (inference.decode, inference.decode_hinge, inference.marginals)
    for energy, routine in product((machine, network), routines):
        with pytest.raises(TypeError, match="constraints"):
            routine(energy, constraints=given)


def test_rules_need_labels_of_two_values():
    rules = Constraints.of([], NAMES)
    chain = ChainEnergy(torch.zeros(1, 4, 2), torch.zeros(2, 2))
    for routine in (inference.marginals, partial(inference.decode), inference.log_partition):
        with pytest.raises(
            (TypeError, ValueError), match=r"energy: expected a kind with labels in|known: expected None"
        ):
            routine(chain, constraints=rules)


def test_a_restricted_energy_is_an_energy():
    energy, rules, allowed = problem(pairwise, 2)
    matrix, bounds = torch.tensor(rules.matrix), torch.tensor(rules.bounds)
    restricted = RestrictedEnergy(energy, matrix, bounds)
    half = restricted.select(torch.tensor([1]))
    assert half.batch_size == 1
    torch.testing.assert_close(exact.log_partition(half), exact.log_partition(restricted)[1:2])
    more = restricted.add_unary(torch.ones(1, energy.num_labels).double())
    labels = torch.from_numpy(allowed[:1]).expand(BATCH, -1)
    torch.testing.assert_close(more.score(labels), restricted.score(labels) + labels.sum(-1))
    with pytest.raises(ValueError, match="rules: expected shape"):
        RestrictedEnergy(energy, matrix[:, :1], bounds)
