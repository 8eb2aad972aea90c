"""Searches that have the rules inside, against enumeration and against searches with rules around them."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from problems.rules import random_rules

from lmbm_torch.constraints import Constraints, hierarchy
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference.search import branch_and_bound, undirected_branch_and_bound
from lmbm_torch.inference.under_rules import allowed, constrained

BATCH = 3
DIRECTED, UNDIRECTED = branch_and_bound, undirected_branch_and_bound


def network(generator, labels):
    order = torch.from_numpy(generator.permutation(labels))
    parents = torch.zeros(labels, labels).double()
    parents[order[:, None], order] = torch.from_numpy(generator.normal(size=(labels, labels)) * 2).tril(-1)
    return DirectedEnergy(torch.from_numpy(generator.normal(size=(BATCH, labels)) * 2), parents, order)


def machine(generator, labels):
    half = torch.from_numpy(generator.normal(size=(labels, labels)) * 2)
    unary, constant = (torch.from_numpy(generator.normal(size=size) * 2) for size in ((BATCH, labels), BATCH))
    return PairwiseEnergy(unary, (half + half.mT).fill_diagonal_(0), constant)


def problem(make, seed, most_labels=9):
    """An energy, rules, some known labels that are allowed, and the losses of all allowed labellings."""
    generator = np.random.default_rng(seed)
    while True:
        labels = int(generator.integers(2, most_labels + 1))
        rules = random_rules(generator, labels)
        if rules is not None:
            break
    everything = np.array(list(product([0, 1], repeat=labels)))
    obeying = everything[~rules.violated(everything).any(1)]
    energy, chosen = make(generator, labels), obeying[generator.integers(len(obeying), size=BATCH)]
    known = torch.from_numpy(np.where(generator.random((BATCH, labels)) < 0.3 * (seed % 2), chosen, np.nan))
    samples = torch.from_numpy(obeying)[:, None].expand(-1, BATCH, -1)
    differs = ((samples != known) & ~known.isnan()).any(-1)
    losses = (-energy.score(samples), (1 - energy.local_margins(samples)).clamp(min=0).sum(-1))
    return energy, rules, known, [each.masked_fill(differs, torch.inf) for each in losses]


BOTH = pytest.mark.parametrize(("make", "module"), [(network, DIRECTED), (machine, UNDIRECTED)])


@BOTH
@pytest.mark.parametrize("seed", range(40))
def test_the_best_allowed_labellings(make, module, seed):
    assert_best(module, *problem(make, seed))


@pytest.mark.slow
@BOTH
def test_ten_thousand_problems(make, module):
    for seed in range(1000, 6000):
        assert_best(module, *problem(make, seed, most_labels=12))


def assert_best(module, energy, rules, known, losses):
    """Both objectives' answers are allowed, agree with what is known, and are those of enumeration."""
    for loss, routine, sign in zip(losses, (module.decode, module.decode_hinge), (-1, 1), strict=True):
        count = min(3, int(loss.isfinite().sum(0).min())) if module is DIRECTED else 1
        several = {"top_k": count} if module is DIRECTED else {}
        found = routine(energy, constraints=rules, known=known, **several)
        best = loss.topk(count, 0, largest=False).values.mT
        torch.testing.assert_close(sign * found.objective.reshape(BATCH, count), best)
        labels = found.labels.reshape(BATCH, count, -1)
        assert not rules.violated(labels.flatten(0, 1).numpy()).any()
        assert ((labels == known[:, None]) | known[:, None].isnan()).all()
        assert found.status.exact.all()
        assert found.status.converged.all()


@pytest.mark.parametrize("make", [network, machine])
def test_a_limit_leaves_an_allowed_labelling_and_a_bound(make):
    energy, rules, known, losses = problem(make, 3)
    search = partial(allowed.best_scores, constraints=rules, known=known, top_k=1)
    for node_limit in (1, 2, 4, 8):
        found = search(energy, node_limit=node_limit)
        assert not rules.violated(found.labels.numpy()).any()
        assert (-found.bound <= losses[0].min(0).values + 1e-9).all()
        torch.testing.assert_close(found.objective, energy.score(found.labels))
        assert (found.objective <= found.bound).all()
    with pytest.raises(ValueError, match="found within node_limit, got 2"):
        allowed.best_scores(energy, constraints=rules, known=known, node_limit=1, top_k=2)


def independent_forest():
    """Labels without parents that want to be what a hierarchy of ten trees forbids, in many places."""
    parents = {4 * tree + child: 4 * tree + child // 2 for tree in range(10) for child in (1, 2, 3)}
    rules = Constraints.of(hierarchy(parents), [f"label_{label}" for label in range(40)])
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(BATCH, 40, generator=generator).double()
    return DirectedEnergy(unary, torch.zeros(40, 40).double(), torch.arange(40)), rules


def test_rules_broken_in_many_places_are_bounded_together():
    energy, rules = independent_forest()
    free = branch_and_bound.decode_hinge(energy)
    assert (rules.violated(free.labels.numpy()).sum(1) > 5).all()
    inside = branch_and_bound.decode_hinge(energy, constraints=rules)
    around = constrained.decode_loss(energy, rules, branch_and_bound.decode_hinge, part_limit=20_000)
    assert around.status.exact.all()
    torch.testing.assert_close(inside.objective, around.objective)
    # Trees are independent, which the sum of their repairs sees at once.
    assert (inside.nodes < 100).all()
    assert (around.nodes > 2 * inside.nodes).all()


def test_labels_that_rules_fix_make_the_search_smaller():
    names = [f"label_{label}" for label in range(14)]
    nodes = [
        int(DIRECTED.decode(network(np.random.default_rng(1), 14), constraints=rules).nodes.sum())
        for rules in (
            Constraints.of([f"not {name}" for name in names[:count]], names) for count in (0, 5, 10)
        )
    ]
    assert nodes[0] > nodes[1] > nodes[2]


def test_what_is_known_against_the_rules_is_named():
    energy, rules = independent_forest()
    known = torch.full((BATCH, 40), torch.nan).double()
    known[2, 3], known[2, 0] = 1, 0
    with pytest.raises(ValueError, match=r"known\[2\]: .*known labels: 1 -> 0; 3 -> 1"):
        DIRECTED.decode(energy, constraints=rules, known=known)
