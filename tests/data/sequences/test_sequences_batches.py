"""Batches of sequences hold what the set holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from lmbm_torch.data.batches import SequenceDataset, in_order, shuffled
from lmbm_torch.data.sequences.records import digit_numbers
from lmbm_torch.energies import PADDING

DATA = digit_numbers(21, num_folds=3)


@pytest.mark.parametrize("csr", [False, True])
def test_an_epoch_holds_every_sequence_of_the_folds_once(csr):
    data = replace(DATA, features=sparse.csr_array(DATA.features)) if csr else DATA
    dataset = SequenceDataset(data, [0, 2])
    expected = DATA.select(np.isin(DATA.fold, [0, 2]))
    seen = []
    for batch in shuffled(dataset, 4, seed=0):
        assert (batch.features.layout == torch.sparse_csr) == csr
        rows = batch.features.to_dense().split(batch.lengths.tolist())
        for number, length, own, labels in zip(batch.index, batch.lengths, rows, batch.labels, strict=True):
            np.testing.assert_array_equal(own, expected.features[number])
            np.testing.assert_array_equal(labels[:length], expected.labels[number])
            assert (labels[length:] == PADDING).all()
            seen.append(int(number))
    assert sorted(seen) == list(range(14)) != seen
    assert torch.cat([batch.index for batch in in_order(dataset, 4)]).tolist() == list(range(14))


def test_refuses_folds_that_are_empty():
    with pytest.raises(ValueError, match=r"folds: expected some of the 3, got \[3\]"):
        SequenceDataset(DATA, [3])
