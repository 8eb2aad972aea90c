"""Reports and confusions of chunks beside seqeval's kept numbers, and cross-validated tags."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, KFold

from lmbm_torch.estimators import ChainCRF, cross_val_predict_sequences
from lmbm_torch.metrics import chunk_confusion, chunk_report
from lmbm_torch.metrics.sequences import chunks

# Of classification_report(true, predicted, output_dict=True), seqeval 1.2.2.
REPORTS = json.loads((Path(__file__).parent / "data" / "seqeval_reports.json").read_text())


def drawn(seed):
    """The tags of which seqeval was asked; two seeds of BIO, two of BIOES."""
    own = random.Random(seed)
    tags = ["O"] + [f"{p}-{t}" for p in ("BI" if seed < 2 else "BIES") for t in ("LOC", "PER", "X-Y")]
    true = [[own.choice(tags) for _ in range(own.randint(1, 9))] for _ in range(12)]
    return true, [[t if own.random() < 0.7 else own.choice(tags) for t in row] for row in true]


@pytest.mark.parametrize("seed", range(4))
def test_a_report_has_the_numbers_of_seqeval(seed):
    found = chunk_report(*drawn(seed))
    assert [*found] == [*REPORTS[seed]]
    for name, row in REPORTS[seed].items():
        assert found[name] == pytest.approx(row, rel=1e-15), name


@pytest.mark.parametrize("seed", range(4))
def test_a_confusion_has_the_margins_of_the_report(seed):
    true, predicted = drawn(seed)
    types, counts = chunk_confusion(true, predicted)
    report = chunk_report(true, predicted)
    assert types[-1] == "O"
    assert counts[-1, -1] == 0
    for place, kind in enumerate(types[:-1]):
        assert counts[place].sum() == report[kind]["support"]
        given = counts[:, place].sum()
        assert counts[place, place] == pytest.approx(given * report[kind]["precision"])


def test_chunks_of_all_schemes():
    tags = ["B-a", "E-a", "I-a", "S-b", "I-b", "I-c", "O", "E-a"]
    expected = [(0, 1, "a"), (2, 2, "a"), (3, 3, "b"), (4, 4, "b"), (5, 5, "c"), (7, 7, "a")]
    assert list(chunks(tags)) == expected


@pytest.mark.parametrize(
    ("true", "predicted", "message"),
    [
        ([["O"]], [["O"]], "true: expected at least one chunk"),
        ([["B-a"]], [["B-a", "O"]], "predicted: expected 1 tags in sequence 0, got 2"),
        ([["B-a"]], [], "predicted: expected 1 sequences, got 0"),
        ([["B-a"]], [["U-a"]], "predicted: expected O, or B, I, E or S, .* got 'U-a'"),
    ],
)
def test_bad_tags_are_refused(true, predicted, message):
    with pytest.raises(ValueError, match=message):
        chunk_report(true, predicted)


def sequences(count=20):
    random = np.random.default_rng(0)
    X = [random.normal(size=(length, 2)) for length in random.integers(1, 6, count)]
    return X, [np.where(rows[:, 0] > 0, "yes", "no") for rows in X]


def test_predictions_are_those_of_the_other_parts():
    X, y = sequences()
    weights = np.arange(1.0, 21.0)
    found = cross_val_predict_sequences(ChainCRF(), X, y, cv=4, sample_weight=weights)
    for train, test in KFold(4).split(np.zeros(20)):
        model = ChainCRF().fit([X[i] for i in train], [y[i] for i in train], weights[train])
        expected = model.predict([X[i] for i in test])
        assert [found[i].tolist() for i in test] == [tags.tolist() for tags in expected]


def test_groups_stay_together():
    X, y = sequences()
    groups = np.arange(20) // 5
    found = cross_val_predict_sequences(ChainCRF(), X, y, groups=groups, cv=2)
    again = cross_val_predict_sequences(ChainCRF(), X, y, groups=groups, cv=GroupKFold(2))
    assert [each.tolist() for each in found] == [each.tolist() for each in again]
    train, test = next(GroupKFold(2).split(np.zeros(20), groups=groups))
    model = ChainCRF().fit([X[i] for i in train], [y[i] for i in train])
    assert [found[i].tolist() for i in test] == [t.tolist() for t in model.predict([X[i] for i in test])]


def test_probabilities_have_a_column_for_every_class():
    X, y = sequences(6)
    y[0] = np.array(["other"] * len(y[0]))
    found = cross_val_predict_sequences(ChainCRF(), X, y, cv=6, method="predict_proba")
    assert [each.shape for each in found] == [(len(rows), 3) for rows in X]
    assert found[0][:, 1].tolist() == [0.0] * len(X[0])
    np.testing.assert_allclose(np.concatenate(found).sum(1), 1)


def test_marginals_of_tokens_are_those_of_the_other_parts():
    X, y = [["a", "b"], ["b"], ["a"], ["b", "a"]], [["A", "B"], ["B"], ["A"], ["B", "A"]]
    found = cross_val_predict_sequences(ChainCRF(), X, y, cv=2, method="predict_marginals")
    assert found[:2] == ChainCRF().fit(X[2:], y[2:]).predict_marginals(X[:2])


def test_splitters_that_test_a_sequence_never_or_twice_are_refused():
    X, y = sequences(6)
    for splits, message in (
        ([([0, 1], [2])], "got none with 0"),
        ([([0, 1, 2], [3, 4]), ([0, 1], [4, 5])], "got sequence 4 in two"),
    ):
        with pytest.raises(ValueError, match=f"cv: expected each sequence in one test part, {message}"):
            cross_val_predict_sequences(ChainCRF(tol=0.5), X, y, cv=splits)
    with pytest.raises(ValueError, match="groups: expected 6, one for each sequence, got 2"):
        cross_val_predict_sequences(ChainCRF(), X, y, groups=[0, 1])
