"""A seeded estimator gives the same answer twice: refitted, cloned, in a spawned process, by more threads."""

from __future__ import annotations

import copy
import multiprocessing
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from lmbm_torch import estimators
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier, ThresholdTunedClassifier
from lmbm_torch.estimators.common.settings import seeds_for

ROWS, FEATURES = 90, 5
FAMILIES = ("network",)
PUBLIC = [name for name in estimators.__all__ if isinstance(getattr(estimators, name), type)]
CLASSES = {"KernelLogisticRegression", "MultiClassSVM"}
CHAINS = {"ChainCRF", "ChainSVM", "HiddenMarkovClassifier", "MaximumEntropyMarkovClassifier"}
# What is fitted, where a constructor demands it: without a seed where the class has one to hand on.
WITHIN: dict[str, Any] = {
    "ConformalClassifier": LMSBNClassifier(),
    "ConstrainedClassifier": LMBMClassifier(random_state=0),
    "HierarchicalClassifier": ExtraTreesClassifier(10, random_state=0),
    "IndependentLabelsClassifier": LogisticRegression(),
    "JointClassifier": LogisticRegression(),
    "JointConformalClassifier": LMSBNClassifier(),
    "ProbabilisticClassifierChain": ExtraTreesClassifier(10),
    "RiskControlledClassifier": LMSBNClassifier(),
}


class Count:
    """A clock that every look moves on by a second: it is the same whoever works besides."""

    def __init__(self) -> None:
        self.ticks = 0

    def __call__(self) -> float:
        self.ticks += 1
        return float(self.ticks)

    def __deepcopy__(self, memo: Any) -> Count:
        return Count()


def unfitted(name: str) -> Any:
    """The estimator at its defaults, with a seed where it takes one."""
    kind = getattr(estimators, name)
    model = kind(WITHIN[name]) if name in WITHIN else kind()
    if "random_state" in model.get_params(deep=False):
        model.set_params(random_state=0)
    if name == "AutoLabelClassifier":
        # Workers look at clocks of their own: only a budget that nothing exceeds is the same for any number.
        model.set_params(clock=Count(), time_budget=1e6, families=FAMILIES, cv=2, mixture=False)
    return model


def table(name: str) -> tuple[Any, Any]:
    """Rows and what is to be learned of them, as the estimator takes it."""
    random = np.random.default_rng(0)
    X = random.normal(size=(ROWS, FEATURES))
    scores = X @ random.normal(size=(FEATURES, 4)) + random.normal(size=(ROWS, 4))
    Y = (scores + 0.5 * scores[:, :1] > 0).astype(int)
    if name in CLASSES:
        return X, scores.argmax(1)
    if name == "JointHead":
        return 1 / (1 + np.exp(-scores)), Y
    if name in CHAINS or name == "GraphClassifier":
        starts = range(0, ROWS, 6)
        rows = [X[start : start + 6] for start in starts]
        if name == "GraphClassifier":
            rows = [(nodes, np.array([[0, 1], [1, 2], [2, 3], [3, 0], [4, 5]])) for nodes in rows]
        return rows, [scores[start : start + 6].argmax(1) for start in starts]
    if name == "GridClassifier":
        return X[: 6 * (ROWS // 6)].reshape(-1, 2, 3, X.shape[1]), scores[: 6 * (ROWS // 6)].argmax(
            1
        ).reshape(-1, 2, 3)
    return X, Y


def answers(model: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, or where there are none scores or labels, and the labels."""
    ways = ("predict_proba", "decision_function", "predict")
    found = getattr(model, next(way for way in ways if hasattr(model, way)))(X)
    labels = model.predict(X)
    return tuple(
        np.concatenate(each) if isinstance(each, list) else np.asarray(each) for each in (found, labels)
    )


def learned_answers(model: Any, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Those of an estimator, learned and asked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return answers(model.fit(X, y), X)


def fitted_answers(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Those of a new estimator."""
    return learned_answers(unfitted(name), *table(name))


@pytest.fixture(scope="module")
def worker() -> Iterator[ProcessPoolExecutor]:
    """Another process, spawned: all that it works on is pickled."""
    with (
        pytest.MonkeyPatch.context() as patch,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        patch.setenv("PYTHONHASHSEED", "7")
        yield pool


@pytest.fixture(scope="module")
def elsewhere(worker: ProcessPoolExecutor) -> dict[str, Future]:
    """The answers of all estimators in another process, which works on them meanwhile."""
    return {name: worker.submit(learned_answers, unfitted(name), *table(name)) for name in PUBLIC}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PUBLIC)
def test_a_seeded_estimator_answers_alike(name, elsewhere, worker):
    X, y = table(name)
    model = unfitted(name)
    first = answers(model.fit(X, y), X)
    # Pickled while the model is fitted again.
    pickled = worker.submit(answers, copy.deepcopy(model), X)
    if name == "AutoLabelClassifier":
        model.set_params(clock=Count())
    again = answers(model.fit(X, y), X)
    of_clone = answers(clone(unfitted(name)).fit(X, y), X)
    for other in (again, of_clone, elsewhere[name].result(), pickled.result()):
        for ours, theirs in zip(first, other, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PUBLIC)
def test_threads_and_workers_change_no_label(name):
    found = []
    threads = torch.get_num_threads()
    try:
        for number in (1, 4):
            torch.set_num_threads(number)
            with threadpool_limits(number), joblib.parallel_config("threading", n_jobs=number):
                found.append(fitted_answers(name))
    finally:
        torch.set_num_threads(threads)
    (alone, labels), (together, same) = found
    np.testing.assert_allclose(together, alone, atol=1e-10, rtol=0)
    np.testing.assert_array_equal(labels, same)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_default_device_changes_no_answer(name, elsewhere):
    with torch.device("meta"):
        found = fitted_answers(name)
    for ours, theirs in zip(found, elsewhere[name].result(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_seeds_are_for_what_has_none():
    pipeline = make_pipeline(StandardScaler(), LMSBNClassifier())
    assert seeds_for(pipeline, None) == {}
    (found,) = seeds_for(pipeline, 0).items()
    assert found == next(iter(seeds_for(clone(pipeline), np.random.RandomState(0)).items()))
    assert found[0] == "lmsbnclassifier__random_state"
    assert seeds_for(pipeline.set_params(lmsbnclassifier__random_state=1), 0) == {}


@pytest.mark.filterwarnings("ignore")
def test_thresholds_of_a_seeded_network_draw_by_its_seed():
    """Where probabilities are samples' shares, a classifier without a seed has its network's."""
    X, Y = table("ThresholdTunedClassifier")
    settings: dict[str, Any] = {"cv": 2, "max_cycles": 1, "num_steps": 2}
    model = ThresholdTunedClassifier(LMSBNClassifier(random_state=3), **settings).fit(X, Y)
    assert model._seed() == model.network_._seed()
    assert model.set_params(random_state=4)._seed() != model.network_._seed()
