"""Records of labelled sequences and what fills them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from lmbm_torch.data.named import load_conll2000, load_ocr_letters
from lmbm_torch.data.sequences.records import SequenceData, digit_numbers, digit_transitions
from lmbm_torch.data.sequences.windows import TAG_TEMPLATES, WORD_TEMPLATES, Windows


def small(**changes):
    fields = {
        "name": "small",
        "features": np.arange(10.0).reshape(5, 2),
        "labels": np.array([0, 1, 1, 0, 2]),
        "start": np.array([0, 2, 5]),
        "label_names": ("a", "b", "c"),
        "feature_names": ("x", "y"),
        "fold": np.array([0, 1]),
    }
    return SequenceData(**{**fields, **changes})


def test_sequences_come_in_the_order_asked_for():
    data = small()
    chosen = data.select(np.array([1, 0]))
    assert [each.tolist() for each in chosen.labels] == [[1, 0, 2], [0, 1]]
    np.testing.assert_array_equal(chosen.features[1], [[0, 1], [2, 3]])
    assert [each.tolist() for each in data.within(0).labels] == [[0, 1]]
    assert [each.tolist() for each in data.outside(0).labels] == [[1, 0, 2]]
    assert repr(data) == "<small: 2 sequences of 5 positions in all, 2 features, 3 labels, 2 folds>"


def test_sparse_features_stay_sparse():
    chosen = replace(small(), features=csr_array(np.eye(5, 2))).within(1)
    assert isinstance(chosen.features[0], csr_array)
    np.testing.assert_array_equal(chosen.features[0].toarray(), np.eye(5, 2)[2:])


@pytest.mark.parametrize(
    "changes",
    [
        {"features": np.ones((5, 2), int)},
        {"labels": np.array([0, 1, 1, 0, 3])},
        {"labels": np.zeros(4, int)},
        {"start": np.array([0, 0, 5])},
        {"start": np.array([0, 2, 4])},
        {"feature_names": ("x",)},
        {"fold": np.array([0])},
        {"fold": np.array([0, -1])},
    ],
)
def test_refusals_name_the_field(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        small(**changes)


def test_numbers_follow_their_grammar_and_share_no_image_between_folds():
    data = digit_numbers(400, num_folds=3, seed=1)
    assert (data.num_sequences, data.num_folds) == (400, 3)
    assert set(np.diff(data.start)) == {4, 5, 6, 7, 8}
    steps = np.setdiff1d(np.arange(len(data.labels) - 1), data.start[1:-1] - 1)
    seen = np.zeros((10, 10))
    np.add.at(seen, (data.labels[steps], data.labels[steps + 1]), 1)
    np.testing.assert_allclose(seen / seen.sum(1, keepdims=True), digit_transitions(), atol=0.12)
    np.testing.assert_allclose(digit_transitions().sum(1), 1)
    images = [
        {tuple(row) for each in data.within(fold).features for row in each} for fold in range(data.num_folds)
    ]
    assert not images[0] & images[1]
    assert not images[1] & images[2]
    np.testing.assert_array_equal(digit_numbers(9, seed=5).features, digit_numbers(9, seed=5).features)
    with pytest.raises(ValueError, match="num_sequences"):
        digit_numbers(1)
    with pytest.raises(ValueError, match="num_folds"):
        digit_numbers(num_folds=0)


def test_windows_look_at_neighbours_and_know_the_training_part_alone():
    words, tags = np.array([0, 1, 2, 0, 3]), np.array([0, 1, 0, 0, 1])
    start = np.array([0, 3, 5])
    windows = Windows.of(
        ("word", "tag"), ("abcd", "NV"), (WORD_TEMPLATES, TAG_TEMPLATES), (words[:3], tags[:3]), start[:2]
    )
    features, names = windows.features((words, tags), start), windows.names
    assert len(set(names)) == len(names) == features.shape[1]
    assert features.has_canonical_format

    def of(row):
        return {names[column] for column in features[[row]].indices}

    assert of(0) >= {"word[0]=a", "word[1]=b", "word[-1,0]=<none>|a", "tag[0,1,2]=N|V|N", "tag[-2]=<none>"}
    assert len(of(0)) == 19
    # The last word is new, and so is every window that shows it.
    assert "word[-1]=a" not in of(3)
    assert not {name for name in of(4) if name.startswith("word[0]")}
    assert "word[-1]=a" in of(4)
    assert features.shape[0] == 5


@pytest.mark.data
def test_words_and_sentences_are_as_published(data_folder):
    letters = load_ocr_letters(data_folder)
    assert np.bincount(letters.fold).tolist() == [626, 704, 684, 698, 693, 651, 739, 717, 690, 675]
    assert letters.features.shape == (52152, 128)
    chunks = load_conll2000(data_folder)
    assert np.bincount(chunks.fold).tolist() == [8936, 2012]
    assert sum(map(len, chunks.within(1).labels)) == 47377
    assert {"B-NP", "I-VP", "O"} <= set(chunks.label_names)
