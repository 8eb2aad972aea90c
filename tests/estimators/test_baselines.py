"""The baselines solve the network's own objective, label by label or labelling by labelling."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.svm import SVC
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM, classifier_chain, independent_svm

X, Y = random_inputs(0, 80, 4, 3)


def test_independent_svm_is_a_network_without_parents():
    peer = independent_svm(C=0.5).fit(X, Y)
    ours = LMSBNClassifier(0.5, degree=1, ordering="index", tol=1e-8).fit(X, Y)
    coefficients = np.vstack([svm.coef_ for svm in peer.estimators_])
    np.testing.assert_allclose(ours.coef_, coefficients, atol=0.02)
    np.testing.assert_array_equal(ours.predict(X), peer.predict(X))


def test_classifier_chain_sees_the_labels_before():
    chain = classifier_chain(C=0.5, order=[2, 0, 1]).fit(X, Y)
    assert [svm.coef_.shape[1] for svm in chain.estimators_] == [4, 5, 6]
    assert chain.predict(X).shape == Y.shape


def test_powerset_predicts_labellings_that_occur():
    powerset = LabelPowersetSVM(C=0.5).fit(X, Y)
    labellings = {tuple(row) for row in Y.astype(int).tolist()}
    assert {tuple(row) for row in powerset.labellings_.tolist()} == labellings
    assert {tuple(row) for row in powerset.predict(X).tolist()} <= labellings
    names = np.array(["".join(map(str, row)) for row in Y.astype(int)])
    by_hand = SVC(kernel="linear", C=0.5).fit(X, names).predict(X)
    np.testing.assert_array_equal(["".join(map(str, row)) for row in powerset.predict(X)], by_hand)
    np.testing.assert_array_equal(
        LabelPowersetSVM(C=0.5).fit(sparse.csr_array(X), Y).predict(sparse.csr_array(X)), powerset.predict(X)
    )


def test_powerset_of_one_labelling_predicts_it():
    powerset = LabelPowersetSVM().fit(X, np.tile([1, 0], (80, 1)))
    assert (powerset.predict(-X) == [1, 0]).all()


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_powerset_leaves_out_what_weighs_nothing(form):
    weight = np.where((Y[0] == Y).all(1), 1.0, 0.0)
    powerset = LabelPowersetSVM().fit(form(X), Y, weight)
    assert (powerset.predict(form(X)) == Y[0]).all()
    weight[::2] = 1
    powerset.fit(form(X), Y, weight)
    kept = LabelPowersetSVM(gamma=powerset.gamma).fit(form(X[weight > 0]), Y[weight > 0])
    np.testing.assert_array_equal(powerset.predict(form(X)), kept.predict(form(X)))


def test_powerset_refuses_missing_labels():
    labels = Y.copy()
    labels[0, 0] = np.nan
    with pytest.raises(ValueError, match="y: expected 0 or 1, got 1 other"):
        LabelPowersetSVM().fit(X, labels)


def test_powerset_of_a_sparse_feature_whose_variance_is_rounded_below_zero():
    constant = sparse.csr_array(np.full((7, 3), 0.3))
    powerset = LabelPowersetSVM().fit(constant, Y[:7])
    assert len(powerset.predict(constant)) == 7
