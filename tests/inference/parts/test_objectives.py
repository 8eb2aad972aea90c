"""What flips are said to gain, against flipping, and where improvement ends."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import random_known
from strategies.pairwise import clique_energies, labels_of, pairwise_energies, random_pairwise_energy

from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import objectives
from lmbm_torch.inference.relaxations.objectives import Hinge, Score, Task

RULES = (Score(), Hinge(0.7))


@given(
    st.one_of(pairwise_energies(), clique_energies(max_order=5)),
    st.integers(0, 2**32 - 1),
    st.sampled_from(RULES),
)
def test_a_flip_gains_what_it_takes_off_the_loss(energy, seed, rule):
    labels = labels_of(seed, energy)
    gains = rule.flip_gains(energy, labels)
    for label in range(energy.num_labels):
        flipped = labels.clone()
        flipped[:, label] = 1 - flipped[:, label]
        torch.testing.assert_close(gains[:, label], rule.loss(energy, labels) - rule.loss(energy, flipped))


@given(pairwise_energies(), st.integers(0, 2**32 - 1), st.sampled_from(RULES), st.booleans())
def test_improvement_ends_where_no_free_flip_gains(energy, seed, rule, partly):
    known = random_known(seed, energy) if partly else None
    task, labels = Task.of(energy, rule, known), labels_of(seed, energy)
    start = labels if known is None else torch.where(known.isnan(), labels, known.nan_to_num().long())
    improved = task.improve(labels)
    assert (improved[task.known == task.known] == task.known[task.known == task.known]).all()
    assert (rule.loss(energy, improved) <= rule.loss(energy, start)).all()
    assert improved.equal(task.improve(improved))
    left = rule.flip_gains(energy, improved)[task.known.isnan()]
    assert (left <= 1e-9 * (1 + energy.unary.abs().max() + energy.pairwise.abs().max())).all()


@pytest.mark.parametrize("rule", RULES)
def test_examples_improve_alone_as_together(rule, monkeypatch):
    energy = random_pairwise_energy(1, 6, 5, per_example=True)
    labels = labels_of(0, energy)
    together = Task.of(energy, rule, None).improve(labels)
    monkeypatch.setattr(objectives, "FLIP_BYTES", 8 * 80)
    assert Task.of(energy, rule, None).improve(labels).equal(together)


def test_ties_end_too():
    # Every flip gains exactly nothing, or what the last one cost.
    energy = random_pairwise_energy(0, 6, coupling=0.0)
    task = Task.of(type(energy)(0 * energy.unary, 0 * energy.pairwise), Hinge(1.0), None)
    assert task.improve(torch.ones(3, 6, dtype=torch.int64)).equal(torch.ones(3, 6, dtype=torch.int64))


@pytest.mark.parametrize("rule", RULES)
def test_of_two_labellings_the_better_one_is_taken(rule):
    energy = random_pairwise_energy(0, 5, 3)
    task, drawn = Task.of(energy, rule, None), labels_of(0, energy)
    decode = exact.decode if rule is RULES[0] else lambda energy: exact.decode_hinge(energy, 0.7)
    best = decode(energy).labels
    assert task.better(drawn, best).equal(best)
    assert task.better(best, drawn).equal(best)
