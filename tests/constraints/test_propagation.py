"""What follows from known labels is true of every allowed labelling, and of all of them where it says so."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from problems.rules import random_rules

from lmbm_torch.constraints import Constraints, hierarchy


@pytest.mark.parametrize("seed", range(30))
def test_what_follows_is_true_of_all_allowed_labellings(seed):
    generator = np.random.default_rng(seed)
    num_labels = int(generator.integers(2, 7))
    rules = random_rules(generator, num_labels)
    if rules is None:
        return
    everything = np.array(list(product([0.0, 1.0], repeat=num_labels)))
    allowed = everything[~rules.violated(everything).any(1)]
    known = np.where(
        generator.random((20, num_labels)) < 0.4, generator.integers(0, 2, (20, num_labels)), np.nan
    )
    filled, consistent = rules.propagate(known)
    for given, found, is_consistent in zip(known, filled, consistent, strict=True):
        agreeing = allowed[((allowed == given) | np.isnan(given)).all(1)]
        if not is_consistent:
            assert not len(agreeing)
            continue
        assert ((found == given) | np.isnan(given)).all()
        assert ((agreeing == found) | np.isnan(found)).all()
        nearest = rules.nearest(everything[3], given)
        if not len(agreeing):
            assert nearest is None
            with pytest.raises(ValueError, match="together with the known labels"):
                rules.check(given)
        else:
            assert (agreeing == nearest).all(1).any()
            assert (nearest != everything[3]).sum() == (agreeing != everything[3]).sum(1).min()
        if not np.isnan(found).any():
            assert not rules.violated(found[None]).any()


def test_everything_below_an_absent_label_is_absent_and_all_above_a_present_one_present():
    rules = Constraints.of(hierarchy({1: 0, 2: 1, 3: 1, 5: 4}), tuple("abcdef"))
    nan = np.nan
    filled, consistent = rules.propagate(np.array([[nan, 0, nan, nan, nan, nan], [nan, nan, 1, nan, nan, 1]]))
    assert consistent.all()
    np.testing.assert_array_equal(filled, [[nan, 0, 0, 0, nan, nan], [1, 1, 1, nan, 1, 1]])


def test_rules_that_hold_anyway_and_no_rules_at_all():
    for none in ("a or not a", []):
        rules = Constraints.of(none, ("a", "b"))
        known = np.array([[1.0, np.nan]])
        filled, consistent = rules.propagate(known)
        np.testing.assert_array_equal(filled, known)
        assert consistent.all()
        assert rules.broken(np.array([[1, 0]])) == [[]]


def test_a_sum_that_meets_its_bound_up_to_rounding_leaves_labels_free():
    rules = Constraints.of("0.1 a + 0.2 b <= 0.3", ("a", "b"))
    assert 0.3 - 0.1 < 0.2
    filled, consistent = rules.propagate(np.array([[1.0, np.nan], [1.0, 1.0]]))
    assert np.isnan(filled[0, 1])
    assert consistent.all()


def test_no_instances_break_no_rule():
    rules = Constraints.of("a -> b", ("a", "b"))
    assert rules.violated(np.zeros((0, 2))).shape == (0, 1)
    assert rules.broken(np.zeros((0, 2))) == []
    filled, consistent = rules.propagate(np.zeros((0, 2)))
    assert filled.shape == (0, 2)
    assert consistent.shape == (0,)
    with pytest.raises(ValueError, match=r"labels: expected shape \(instances, 2\), got \(0, 3\)"):
        rules.violated(np.zeros((0, 3)))


def test_parts_of_a_large_batch_are_as_alone(monkeypatch):
    rules = Constraints.of(["a -> b", "b -> c", "at_most(2, a, c, d)"], tuple("abcd"))
    known = np.where(np.random.default_rng(0).random((50, 4)) < 0.5, 1.0, np.nan)
    expected = rules.propagate(known)
    monkeypatch.setattr("lmbm_torch.constraints.linear.CHUNK", 30)
    for found, whole in zip(rules.propagate(known), expected, strict=True):
        np.testing.assert_array_equal(found, whole)
