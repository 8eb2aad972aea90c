"""Every estimator comes back from its file, predicts the same, and says what it cannot take along."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array, issparse
from sklearn.exceptions import NotFittedError
from sklearn.svm import SVC

from lmbm_torch import load, save
from lmbm_torch.estimators import (
    AutoLabelClassifier,
    ChainCRF,
    ChainSVM,
    ConditionalRBMClassifier,
    HiddenMarkovClassifier,
    KernelLogisticRegression,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    MaximumEntropyMarkovClassifier,
    MultiClassSVM,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)

generator = np.random.default_rng(0)
X = generator.normal(size=(40, 3))
Y = (X @ generator.normal(size=(3, 3)) + generator.normal(size=(40, 3)) > 0).astype(int)
CLASSES = np.array(["low", "mid", "high"])[Y.sum(1) % 3]
FRAMES = pd.DataFrame(X, columns=["a", "b", "c"]), pd.DataFrame(Y, columns=["sun", "sea", "sand"])
SEQUENCES = (
    [X[first : first + 4] for first in range(0, 40, 4)],
    [CLASSES[first : first + 4] for first in range(0, 40, 4)],
)

LABELS = {
    "network": LMSBNClassifier(random_state=0),
    "kernel network": LMSBNClassifier(kernel="rbf", random_state=0),
    "machine": LMBMClassifier(cliques=[(0, 1), (1, 2)]),
    "structural": StructuralSVMClassifier(random_state=0),
    "hidden": ConditionalRBMClassifier(num_hidden=2, max_iter=2, random_state=0),
    "ensemble": LMSBNEnsembleClassifier(LMSBNClassifier(degree=3), num_members=2, random_state=0),
    "thresholds": ThresholdTunedClassifier(LMSBNClassifier(random_state=0), cv=2, max_cycles=1),
}
CLASS = {
    "kernel logistic": KernelLogisticRegression(random_state=0),
    "multi-class": MultiClassSVM(random_state=0),
    "multi-class kernel": MultiClassSVM(kernel="poly", random_state=0),
    "classes by a network": LMSBNClassifier(random_state=0),
}
CHAINS = {
    "crf": ChainCRF(),
    "chain": ChainSVM(random_state=0),
    "kernel chain": ChainSVM(kernel="rbf", random_state=0),
    "hidden markov": HiddenMarkovClassifier(),
    "maximum entropy": MaximumEntropyMarkovClassifier(),
}
CASES = [
    *((f"{name}, arrays", each, X, Y) for name, each in LABELS.items()),
    *((f"{name}, frames", each, *FRAMES) for name, each in LABELS.items()),
    *((f"{name}, CSR", LABELS[name], csr_array(X), Y) for name in ("network", "kernel network")),
    *((name, each, X, CLASSES) for name, each in CLASS.items()),
    *((name, each, *SEQUENCES) for name, each in CHAINS.items()),
]


def same(first, second) -> bool:
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if issparse(first):
        return same(first.toarray(), second.toarray())
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    if isinstance(first, float | int | str | None):
        return type(first) is type(second) and first == second
    return type(first) is type(second)


@pytest.mark.parametrize(
    ("estimator", "features", "targets"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_an_estimator_comes_back(tmp_path, estimator, features, targets):
    estimator.fit(features, targets)
    save(estimator, tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors")
    assert repr(found) == repr(estimator)
    assert list(vars(found)) == list(vars(estimator))
    for name, value in vars(estimator).items():
        assert same(value, getattr(found, name)), name
    for routine in ("predict", "predict_proba"):
        if hasattr(estimator, routine):
            assert same(getattr(estimator, routine)(features), getattr(found, routine)(features))


def test_names_of_a_frame_are_kept(tmp_path):
    features, targets = FRAMES
    network = LMSBNClassifier(random_state=0).fit(features, targets)
    network.save(tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors")
    assert found.label_names_ == ("sun", "sea", "sand")
    assert found.feature_names_in_.tolist() == ["a", "b", "c"]
    named = [
        {name for name, on in zip(targets.columns, row, strict=True) if on} for row in found.predict(features)
    ]
    assert list(map(set, found.predict_names(features))) == named
    with pytest.raises(ValueError, match="feature names should match"):
        found.predict(features[["b", "a", "c"]])


def test_frames_with_missing_labels_are_taken():
    features, targets = FRAMES
    holes = targets.astype("Int64")
    holes.iloc[::7, 0] = pd.NA
    whole = targets.to_numpy(np.float64).copy()
    whole[::7, 0] = np.nan
    of_frame, of_array = (LMSBNClassifier(random_state=0).fit(features, labels) for labels in (holes, whole))
    assert np.array_equal(of_frame.coef_, of_array.coef_)
    assert of_array.label_names_ == ("label_0", "label_1", "label_2")
    assert of_frame.score(features, targets) == of_array.score(features, targets.to_numpy())


def test_classes_have_no_label_names():
    for targets in (CLASSES, pd.DataFrame({"kind": CLASSES}), Y[:, 0]):
        network = LMSBNClassifier(random_state=0).fit(X, targets)
        assert network.label_names_ is None
        with pytest.raises(
            ValueError, match="label_names_: expected names of labels, but fit was given classes"
        ):
            network.predict_names(X)
    assert set(LMSBNClassifier().fit(X, pd.DataFrame({"kind": CLASSES})).predict(X)) <= {"low", "mid", "high"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": lambda first, second: first @ second.T}, r"settings\.kernel: .* got function"),
        ({"random_state": np.random.RandomState(0)}, r"settings\.random_state: .* got RandomState"),
    ],
)
def test_what_would_need_pickle_is_refused(tmp_path, settings, message):
    network = LMSBNClassifier(**settings).fit(X, Y)
    with pytest.raises(TypeError, match=message):
        save(network, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_other_estimators_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"content: expected a model, .* of lmbm_torch, got SVC of"):
        save(SVC().fit(X, Y[:, 0]), tmp_path / "model.safetensors")
    with pytest.raises(TypeError, match=r"got AutoLabelClassifier with such classifiers"):
        AutoLabelClassifier().save(tmp_path / "model.safetensors")
    with pytest.raises(NotFittedError):
        save(LMSBNClassifier(), tmp_path / "model.safetensors")


class OwnMachine(LMBMClassifier):
    """A class that its user derived, whose files name it by its import path."""


def test_a_class_of_one_s_own_comes_back(tmp_path):
    machine = OwnMachine().fit(X, Y)
    machine.save(tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors")
    assert type(found) is OwnMachine
    assert np.array_equal(found.predict(X), machine.predict(X))


def test_loading_needs_neither_lightning_nor_pandas_and_imports_nothing_slow(tmp_path):
    network = LMSBNClassifier(random_state=0).fit(X, Y)
    network.save(tmp_path / "model.safetensors")
    code = (
        "import sys; sys.modules.update(lightning=None, pandas=None);"
        "from lmbm_torch import load;"
        "print(load(sys.argv[1]).intercept_.tolist());"
        "slow = {'torchmetrics', 'matplotlib', 'numba', 'sklearn.ensemble'};"
        "print(slow & set(sys.modules))"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "model.safetensors")]
    run = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [str(network.intercept_.tolist()), "set()"]


@pytest.mark.cuda
@pytest.mark.parametrize("name", LABELS)
def test_an_estimator_saved_on_cuda_loads_on_the_cpu(tmp_path, name):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    estimator = LABELS[name]
    nested = [key for key in estimator.get_params() if key.rpartition("__")[2] == "device"]
    estimator = estimator.set_params(**dict.fromkeys(nested, "cuda")).fit(X, Y)
    save(estimator, tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors")
    assert {value for key, value in found.get_params().items() if key in nested} <= {"cpu"}
    assert np.array_equal(found.predict(X), estimator.predict(X))
    again = load(tmp_path / "model.safetensors", device="cuda")
    assert np.array_equal(again.predict(X), estimator.predict(X))
