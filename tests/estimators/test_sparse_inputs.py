"""Every way to store the same sparse matrix trains to the same model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import sparse
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import BernoulliNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer
from sklearn.tree import DecisionTreeClassifier

from lmbm_torch.estimators import (
    AutoLabelClassifier,
    ChainCRF,
    ChainSVM,
    ConditionalRBMClassifier,
    ConformalClassifier,
    ConstrainedClassifier,
    HierarchicalClassifier,
    KernelLogisticRegression,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNClassifierCV,
    LMSBNEnsembleClassifier,
    MultiClassSVM,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM

LABELS = {
    "network": LMSBNClassifier(random_state=0),
    "kernel network": LMSBNClassifier(kernel="rbf", random_state=0),
    "polynomial network": LMSBNClassifier(kernel="poly", random_state=0),
    "thresholds": ThresholdTunedClassifier(LMSBNClassifier(random_state=0), cv=2),
    "ensemble": LMSBNEnsembleClassifier(num_members=2, random_state=0),
    "powerset": LabelPowersetSVM(),
    "structural": StructuralSVMClassifier(random_state=0),
    "machine": LMBMClassifier(random_state=0),
    "hidden": ConditionalRBMClassifier(max_iter=2, random_state=0),
    "label chain": ProbabilisticClassifierChain(BernoulliNB()),
    "label chain of pipelines": ProbabilisticClassifierChain(make_pipeline(Binarizer(), BernoulliNB())),
    "sets": ConformalClassifier(LMSBNClassifier(random_state=0), coverage=0.5, random_state=0),
    "sets of others": ConformalClassifier(
        MultiOutputClassifier(DecisionTreeClassifier(max_depth=3, random_state=0)),
        coverage=0.5,
        random_state=0,
    ),
    "hierarchy": HierarchicalClassifier(DecisionTreeClassifier(max_depth=3, random_state=0), {1: 0}),
    "few parents": LMSBNClassifier(max_parents=1, random_state=0),
    "path": LMSBNClassifierCV(LMSBNClassifier(random_state=0), Cs=2, cv=2, random_state=0),
    "automatic": AutoLabelClassifier(
        families=["label powerset"], cv=2, time_budget=1000, mixture=False, random_state=0
    ),
    "rules": ConstrainedClassifier(LMSBNClassifier(random_state=0), ["label_0 or label_1"]),
}
CLASSES = {
    "logistic": KernelLogisticRegression(random_state=0),
    "classes": MultiClassSVM(random_state=0),
    "kernel classes": MultiClassSVM(kernel="rbf", random_state=0),
}
CHAINS = {
    "crf": ChainCRF(),
    "chain": ChainSVM(random_state=0),
    "kernel chain": ChainSVM(kernel="rbf", random_state=0),
}


def duplicated(X: sparse.csr_array) -> sparse.csr_array:
    """Each entry as two halves that stand apart."""
    indices, data, start = [], [], [0]
    for first, last in zip(X.indptr[:-1], X.indptr[1:], strict=True):
        indices += [*X.indices[first:last], *X.indices[first:last]]
        data += [*(0.5 * X.data[first:last]), *(0.5 * X.data[first:last])]
        start.append(len(data))
    return sparse.csr_array((np.array(data), indices, start), shape=X.shape)


def unsorted(X: sparse.csr_array) -> sparse.csr_array:
    indices, data = X.indices.copy(), X.data.copy()
    for first, last in zip(X.indptr[:-1], X.indptr[1:], strict=True):
        indices[first:last], data[first:last] = indices[first:last][::-1], data[first:last][::-1]
    return sparse.csr_array((data, indices, X.indptr), shape=X.shape)


def long_indices(X: sparse.csr_array) -> sparse.csr_array:
    copy = X.copy()
    copy.indices, copy.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return copy


def explicit_zeros(X: sparse.csr_array) -> sparse.csr_array:
    rows, columns = np.nonzero(np.ones(X.shape))
    return sparse.csr_array((X.toarray().ravel(), (rows, columns)), shape=X.shape)


def everything(X: sparse.csr_array) -> sparse.csr_array:
    return long_indices(unsorted(duplicated(explicit_zeros(X))))


FORMS = {
    "everything": everything,
    "duplicates": duplicated,
    "unsorted": unsorted,
    "int64": long_indices,
    "zeros": explicit_zeros,
    "csc": sparse.csc_array,
    "coo": sparse.coo_array,
    "matrix": sparse.csr_matrix,
}


# The first holds all that the others hold, but for the classes.
every_form = pytest.mark.parametrize(
    "form",
    [name if name in ("everything", "coo") else pytest.param(name, marks=pytest.mark.slow) for name in FORMS],
)


def inputs() -> tuple[sparse.csr_array, np.ndarray]:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(30, 5)) * (generator.random((30, 5)) < 0.6)
    Y = (X @ generator.normal(size=(5, 3)) + 0.5 * generator.normal(size=(30, 3)) > 0).astype(int)
    return sparse.csr_array(X), Y


def scores(model, X):
    """What a model says of instances, as finely as it says it."""
    for name in ("predict_proba", "decision_function", "predict"):
        if hasattr(model, name):
            found = getattr(model, name)(X)
            return np.concatenate(found) if isinstance(found, list) else found
    raise AssertionError


def assert_equal_models(estimator, X, targets, form, wrap=lambda X: X):
    model = estimator.fit(wrap(X), targets)
    expected = scores(model, wrap(X))
    stored = form(X)
    before = [array.copy() for array in (stored.data, getattr(stored, "indices", stored.data))]
    np.testing.assert_allclose(scores(model, wrap(stored)), expected, atol=1e-9)
    again = estimator.fit(wrap(stored), targets)
    np.testing.assert_allclose(scores(again, wrap(X)), expected, atol=1e-3)
    for array, kept in zip((stored.data, getattr(stored, "indices", stored.data)), before, strict=True):
        np.testing.assert_array_equal(array, kept)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_form
@pytest.mark.parametrize("name", LABELS)
def test_classifiers_of_labels(name, form):
    X, Y = inputs()
    if name == "hierarchy":
        Y[:, 1] &= Y[:, 0]
    assert_equal_models(LABELS[name], X, Y, FORMS[form])


@every_form
@pytest.mark.parametrize("name", CLASSES)
def test_classifiers_of_classes(name, form):
    X, Y = inputs()
    assert_equal_models(CLASSES[name], X, Y.sum(1), FORMS[form])


@every_form
@pytest.mark.parametrize("name", CHAINS)
def test_chains(name, form):
    X, Y = inputs()
    ends = [0, 10, 14, 30]
    targets = [Y[first:last, 0] for first, last in itertools.pairwise(ends)]

    def cut(X):
        return [sparse.csr_array(X)[first:last] for first, last in itertools.pairwise(ends)]

    assert_equal_models(CHAINS[name], X, targets, FORMS[form], cut)


def test_an_entry_whose_parts_overflow_is_refused():
    X, Y = inputs()
    twice = duplicated(X)
    twice.data[:] = 1e308
    with pytest.raises(ValueError, match="features: sums of entries of one place: expected finite values"):
        LMSBNClassifier().fit(twice, Y)


def test_sparse_kernel_values_and_rows_of_a_server_are_refused():
    X, Y = inputs()
    with pytest.raises(ValueError, match="X: expected a dense matrix of kernel values"):
        LMSBNClassifier(kernel="precomputed").fit(X @ X.T, Y)
    predictor = LMSBNClassifier(random_state=0).fit(X, Y).compile_predictor()
    with pytest.raises(ValueError, match="X: expected dense rows, got a sparse matrix"):
        predictor.decode(X)


def test_known_labels_may_be_sparse():
    X, Y = inputs()
    known = np.where(np.arange(3) == 1, 1 - Y, np.nan)
    model = LMSBNClassifier(random_state=0).fit(X, Y)
    expected = model.predict(X, known=known)
    assert (expected[:, 1] != Y[:, 1]).all()
    np.testing.assert_array_equal(model.predict(X, known=sparse.csr_array(known)), expected)
