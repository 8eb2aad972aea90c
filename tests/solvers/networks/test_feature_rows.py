"""Rows in the layout that the solvers walk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier, StructuralSVMClassifier
from lmbm_torch.kernels.dual import network
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate, problems
from lmbm_torch.solvers.networks.problems import MANY_COLUMNS, LabelProblems, feature_rows


def counts(columns: int, share: float) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.poisson(2, (40, columns)) * (random.random((40, columns)) < share) * 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wide_arrays_of_zeros_become_csr_and_others_stay(dtype):
    words = counts(MANY_COLUMNS, 0.05).astype(dtype)
    rows = feature_rows(words)
    assert isinstance(rows, sparse.csr_array)
    assert rows.dtype == dtype
    assert np.array_equal(rows.toarray(), words)
    for others in (counts(MANY_COLUMNS - 1, 0.05), counts(MANY_COLUMNS, 0.3)):
        assert feature_rows(others) is others


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [3, MANY_COLUMNS])
def test_csr_that_is_nearly_full_becomes_an_array_and_other_csr_stays(columns, dtype, monkeypatch):
    # As it is everywhere but in tests.
    monkeypatch.setattr(problems, "MOSTLY_FULL", 2 / 3)
    full = (counts(columns, 0.9) + 1).astype(dtype)
    rows = feature_rows(sparse.csr_array(full))
    assert isinstance(rows, np.ndarray)
    assert rows.flags.c_contiguous
    assert rows.dtype == dtype
    assert np.array_equal(rows, full)
    assert isinstance(feature_rows(sparse.csr_array(counts(columns, 0.5))), sparse.csr_array)


def test_what_is_no_number_is_refused_among_zeros():
    words = counts(MANY_COLUMNS, 0.05)
    words[3, 5] = np.nan
    with pytest.raises(ValueError, match="features"):
        feature_rows(words)


@pytest.mark.parametrize(("share", "C"), [(0.05, "scale"), (1.0, 1.0)])
@pytest.mark.parametrize("classifier", [LMSBNClassifier, LMBMClassifier, StructuralSVMClassifier])
def test_classifiers_learn_the_same_of_either_form(classifier, share, C, monkeypatch):
    monkeypatch.setattr(problems, "MOSTLY_FULL", 2 / 3)
    words = counts(150, share)
    labels = (words[:, :4] + words[:, 4:8] > 0).astype(float)
    dense, rows = (
        classifier(C=C, random_state=0).fit(form(words), labels) for form in (np.asarray, sparse.csr_array)
    )
    assert np.array_equal(dense.coef_, rows.coef_)
    assert np.array_equal(dense.predict(words), rows.predict(words))


def sent(array: np.ndarray) -> np.ndarray:
    """The same values between two words, where they cannot be written."""
    room = np.empty(array.nbytes + 1, np.uint8)
    found = room[1:].view(array.dtype).reshape(array.shape)
    found[...] = array
    found.flags.writeable = False
    return found


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_rows_that_a_process_was_sent_need_no_code_of_their_own(form):
    random = np.random.default_rng(0)
    features, labels = form(random.normal(size=(40, 6))), (random.random((40, 3)) < 0.4).astype(float)
    if isinstance(features, np.ndarray):
        others: Any = sent(features)
    else:
        parts = features.data, features.indices, features.indptr
        others = sparse.csr_array(tuple(map(sent, parts)), shape=features.shape)
    solved = run(dual_coordinate, LabelProblems.from_labels(features, labels), tol=1e-6)
    compiled = len(network.solve_label.signatures)
    if isinstance(others, np.ndarray):
        assert feature_rows(others).flags.aligned
    again = run(dual_coordinate, LabelProblems.from_labels(others, labels), tol=1e-6)
    assert len(network.solve_label.signatures) == compiled
    assert np.array_equal(again.dual_coef, solved.dual_coef)
