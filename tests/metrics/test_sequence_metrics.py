from __future__ import annotations

import pytest
import torch

from lmbm_torch.metrics.sequences import ChunkF1, SequenceAccuracy, chunk_f1, chunks, sequence_accuracy

NAMES = ("O", "B-NP", "I-NP", "B-VP", "I-VP")
TARGET = torch.tensor([[1, 2, 0, 3], [2, 2, 4, -1], [0, -1, -1, -1]])


def test_chunks_begin_and_end_as_in_the_shared_task():
    assert list(chunks(["B-NP", "I-NP", "O", "B-VP"])) == [(0, 1, "NP"), (3, 3, "VP")]
    assert list(chunks(["I-NP", "I-NP", "I-VP", "B-VP"])) == [(0, 1, "NP"), (2, 2, "VP"), (3, 3, "VP")]
    assert list(chunks(["O", "O"])) == []


def test_chunks_count_where_type_and_both_ends_are_right():
    assert chunk_f1(TARGET, TARGET, NAMES) == 1
    preds = TARGET.clone()
    preds[0, 3] = 1  # another type: one of four found, one of four missed
    preds[1, 3] = 1  # padding
    assert chunk_f1(preds, TARGET, NAMES) == pytest.approx(2 * 3 / (4 + 4))
    preds[0, 1] = 0  # another end
    assert chunk_f1(preds, TARGET, NAMES) == pytest.approx(2 * 2 / (4 + 4))
    assert chunk_f1(torch.zeros(1, 2).long(), torch.zeros(1, 2).long(), NAMES) == 0


def test_sequences_count_where_all_is_right():
    preds = TARGET.clone()
    preds[1, 3] = 1
    assert sequence_accuracy(preds, TARGET) == 1
    preds[1, 0] = 1
    assert sequence_accuracy(preds, TARGET) == pytest.approx(2 / 3)


@pytest.mark.parametrize("make", [SequenceAccuracy, lambda: ChunkF1(NAMES)])
def test_parts_accumulate_to_the_whole(make):
    preds = TARGET.roll(1, 1).clamp(min=0)
    preds[0] = TARGET[0]
    whole, parts = make(), make()
    whole.update(preds, TARGET)
    for row in range(3):
        parts.update(preds[row : row + 1], TARGET[row : row + 1])
    assert 0 < float(whole.compute()) < 1
    assert float(parts.compute()) == float(whole.compute())


def test_refusals():
    with pytest.raises(ValueError, match="label_names"):
        ChunkF1(("O", "NP"))
    for update in (SequenceAccuracy().update, ChunkF1(NAMES).update):
        with pytest.raises(ValueError, match="target: expected shape"):
            update(TARGET[:2], TARGET)
        with pytest.raises(ValueError, match="target: expected a label in every"):
            update(TARGET, TARGET.clone().fill_(-1))
    with pytest.raises(ValueError, match="preds: expected classes 0 to 4"):
        ChunkF1(NAMES).update(TARGET + 4, TARGET)
