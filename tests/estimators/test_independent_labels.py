"""One classifier for each label: MultiOutputClassifier of scikit-learn with proofs and files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from lmbm_torch import load, save
from lmbm_torch.estimators import IndependentLabelsClassifier, KernelLogisticRegression

generator = np.random.default_rng(0)
X = generator.normal(size=(60, 3))
Y = (X @ generator.normal(size=(3, 4)) + generator.normal(size=(60, 4)) > 0).astype(int)
KERNEL = KernelLogisticRegression(gamma=0.5, random_state=0)  # pyright: ignore[reportArgumentType]


OF_VALUES = {"check_classifier_multioutput": "classes_ holds the two values of each label"}


@parametrize_with_checks(
    [IndependentLabelsClassifier(LogisticRegression())], expected_failed_checks=lambda _: OF_VALUES
)
def test_scikit_learn_s_check(estimator, check):
    check(estimator)


def test_it_is_one_classifier_for_each_label():
    found = IndependentLabelsClassifier(KERNEL).fit(X, Y)
    theirs = MultiOutputClassifier(KERNEL).fit(X, Y)
    expected = np.stack([each[:, 1] for each in theirs.predict_proba(X)], 1)
    np.testing.assert_allclose(found.predict_proba(X), expected, rtol=1e-10)
    np.testing.assert_array_equal(found.predict(X), theirs.predict(X))
    taken = np.where(Y, expected, 1 - expected)
    np.testing.assert_allclose(found.log_prob(X, Y), np.log(taken).sum(1), rtol=1e-10)
    decoding = found.decode(X, top_k=2)
    assert decoding.status.exact.all()
    best = np.log(np.maximum(expected, 1 - expected)).sum(1)
    np.testing.assert_allclose(decoding.objective[:, 0], best, rtol=1e-10)
    second = found.log_prob(X, decoding.labels[:, 1].numpy())
    np.testing.assert_allclose(decoding.objective[:, 1], second, rtol=1e-10)


def test_missing_labels_are_left_out_and_constant_ones_have_no_classifier():
    partial = Y.astype(float)
    partial[:20, 1], partial[:, 2], partial[5:, 3] = np.nan, 1, np.nan
    partial[:5, 3] = 0
    found = IndependentLabelsClassifier(KERNEL).fit(csr_array(X), partial)
    alone = KERNEL.fit(X[20:], Y[20:, 1]).predict_proba(X)[:, 1]
    probability = found.predict_proba(csr_array(X))
    np.testing.assert_allclose(probability[:, 1], alone, rtol=1e-8)
    np.testing.assert_allclose(probability[:, 2], 61 / 62)
    np.testing.assert_allclose(probability[:, 3], 1 / 7)


def test_weights_are_the_classifiers():
    weight = generator.integers(1, 3, len(Y)).astype(float)
    repeated = np.repeat(np.arange(len(Y)), weight.astype(int))
    exact: Any = clone(KERNEL)
    exact.set_params(tol=1e-10)
    weighted = IndependentLabelsClassifier(exact).fit(X, Y, weight)
    by_copies = IndependentLabelsClassifier(exact).fit(X[repeated], Y[repeated])
    np.testing.assert_allclose(weighted.predict_proba(X), by_copies.predict_proba(X), atol=1e-5)


def test_known_labels_and_rules_are_kept():
    found = IndependentLabelsClassifier(KERNEL).fit(X, Y)
    known = np.full(Y.shape, np.nan)
    known[:, 0] = 1 - found.predict(X)[:, 0]
    np.testing.assert_array_equal(found.predict(X, known=known)[:, 0], known[:, 0])
    ruled = found.decode(X, constraints=["label_0 -> label_1"]).labels
    assert not ((ruled[:, 0] == 1) & (ruled[:, 1] == 0)).any()


def test_classes_and_files(tmp_path):
    classes = np.array(["low", "mid", "high"])[Y[:, :2].sum(1)]
    found = IndependentLabelsClassifier(KERNEL).fit(X, classes)
    assert found.score(X, classes) > 0.7
    labels = IndependentLabelsClassifier(KERNEL).fit(X, Y)
    save(labels, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), labels.predict_proba(X))  # pyright: ignore


def test_what_has_no_probabilities_is_refused():
    with pytest.raises(ValueError, match="estimator"):
        IndependentLabelsClassifier("svm").fit(X, Y)  # pyright: ignore[reportArgumentType]
