from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lmbm_torch.data import SevenSegment
from lmbm_torch.data.splits import random_split, stratified_split

SPLITTERS = (random_split, stratified_split)


@given(st.integers(2, 60), st.integers(1, 4), st.floats(0.05, 0.95), st.floats(0.0, 0.5), st.integers(0, 9))
def test_parts_are_a_seeded_partition(count, num_labels, fraction, missing, seed):
    """Whatever the labels: sets that occur once, every set rare, missing entries."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, (count, num_labels)).astype(float)
    labels[generator.random(labels.shape) < missing] = np.nan
    assume(np.ceil(fraction * count) < count)
    for splitter in SPLITTERS:
        kept, held = splitter(labels, fraction, seed)
        assert len(held) == np.ceil(fraction * count)
        np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(count))
        assert (np.diff(kept) > 0).all()
        assert (np.diff(held) > 0).all()
        for part, again in zip((kept, held), splitter(labels, fraction, seed), strict=True):
            np.testing.assert_array_equal(part, again)


def test_seeds_differ():
    labels = np.tile(np.eye(2), (20, 1))
    for splitter in SPLITTERS:
        assert not np.array_equal(splitter(labels, 0.5, 0)[1], splitter(labels, 0.5, 1)[1])


def test_frequent_sets_are_in_both_parts_in_proportion():
    data = SevenSegment()
    _, held = stratified_split(data.labels, 0.2, 0)
    counts = np.bincount(data.digits[held], minlength=10)
    assert np.abs(counts - 0.2 * np.bincount(data.digits)).max() <= 1


def test_rare_sets_are_pooled():
    """One hundred instances of one set, twenty sets of one: both parts get their share of either kind."""
    rare = np.array([[int(bit) for bit in f"{code:05b}"] for code in range(1, 21)])
    labels = np.concatenate([np.zeros((100, 5)), rare])
    _, held = stratified_split(labels, 0.25, 0)
    assert np.sum(held >= 100) == 5


@pytest.mark.parametrize("splitter", SPLITTERS)
@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_strange_fractions_are_refused(splitter, fraction):
    with pytest.raises(ValueError, match="fraction: expected a number between 0 and 1"):
        splitter(np.zeros((4, 2)), fraction, 0)


@pytest.mark.parametrize("splitter", SPLITTERS)
def test_one_instance_cannot_be_split(splitter):
    with pytest.raises(ValueError, match=r"train set will be empty|least populated"):
        splitter(np.zeros((1, 2)), 0.5, 0)
