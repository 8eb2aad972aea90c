"""Estimators are made of parts, and what stands around a method is written there."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from profiles import entered, files
from sklearn.linear_model import LogisticRegression

from lmbm_torch import estimators
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.estimators.common import calls, settings
from lmbm_torch.estimators.common.base import TrainedEstimator

ANSWERS = ("predict", "predict_proba", "marginals", "log_prob", "decode", "decision_function")
PUBLIC = [each for name in estimators.__all__ if isinstance(each := getattr(estimators, name), type)]
# What one warm fit of 300 rows, 12 columns and 6 labels enters; fewer are better.
MOST_FILES, MOST_FUNCTIONS = 25, 138
OF_FIT, OF_ANSWERS = {"fitting"}, {"answering"}


def own_classes(estimator: type) -> list[type]:
    """The classes of the library that an estimator is made of."""
    return [each for each in estimator.__mro__ if each.__module__.startswith("lmbm_torch.")]


def around(method: Any) -> set[str]:
    """The wrappers of :mod:`lmbm_torch.estimators.common.calls` around a method."""
    found = set()
    while method is not None:
        if getattr(method, "__code__", None) and method.__code__.co_filename == calls.__file__:
            found.add(method.__code__.co_name)
        method = getattr(method, "__wrapped__", None)
    return found


def methods(estimator: type, *names: str) -> Iterator[Any]:
    """Every definition of these methods in the classes of an estimator that can be called."""
    for each in own_classes(estimator):
        for name in names:
            method = vars(each).get(name)
            if isinstance(method, FunctionType) and not getattr(method, "__isabstractmethod__", False):
                yield pytest.param(method, id=f"{each.__name__}.{name}")


@pytest.mark.parametrize("estimator", PUBLIC)
def test_every_fit_is_watched_and_learns_all_or_nothing(estimator):
    assert around(estimator.fit) == OF_FIT


@pytest.mark.parametrize("estimator", [each for each in PUBLIC if issubclass(each, TrainedEstimator)])
def test_every_answer_is_watched_and_checks_columns_of_labels(estimator):
    found = {each.id: around(each.values[0]) for each in methods(estimator, *ANSWERS)}
    assert found
    assert {name: wrappers for name, wrappers in found.items() if not wrappers >= OF_ANSWERS} == {}


@pytest.mark.parametrize("estimator", PUBLIC)
def test_few_classes_stand_above_an_estimator(estimator):
    assert len(own_classes(estimator)) <= 6


@pytest.mark.parametrize("estimator", [each for each in PUBLIC if hasattr(each, "_accepted")])
def test_every_default_of_a_parameter_is_allowed(estimator, monkeypatch):
    """Defaults are not checked when an estimator is fitted."""
    needed = [each for each in signature(estimator).parameters.values() if each.default is each.empty]
    model = estimator(*[LogisticRegression() for _ in needed])
    monkeypatch.setattr(settings, "_defaults", lambda kind: {})
    settings.check_parameters(model)


def test_values_that_equal_a_default_are_checked_all_the_same():
    with pytest.raises(ValueError, match="The 'verbose' parameter of LMSBNClassifier must be"):
        settings.check_parameters(LMSBNClassifier(verbose=0.0))


def test_a_fit_of_a_network_enters_few_files_and_functions():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 12))
    Y = (X @ generator.normal(size=(12, 6)) > 0).astype(float)
    # The first fit imports and compiles.
    LMSBNClassifier(random_state=0).fit(X, Y)
    found = entered(lambda: LMSBNClassifier(random_state=0).fit(X, Y))
    assert len(files(found)) <= MOST_FILES
    assert len(found) <= MOST_FUNCTIONS
