"""Bars of long fits: what they show is measured, and they change nothing."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import rich.progress
from sklearn.base import clone

from lmbm_torch.estimators import (
    ChainCRF,
    ChainSVM,
    ConditionalRBMClassifier,
    KernelLogisticRegression,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNClassifierCV,
    LMSBNEnsembleClassifier,
    MultiClassSVM,
    StructuralSVMClassifier,
)
from lmbm_torch.estimators.common import calls as module
from lmbm_torch.estimators.common.calls import answer_call, progress

ESTIMATORS = (
    LMSBNClassifier(random_state=0),
    LMSBNClassifier(kernel="rbf", random_state=0),
    LMSBNClassifier(solver="exponentiated_gradient", random_state=0),
    LMBMClassifier(random_state=0),
    LMBMClassifier(solver="proximal_newton", random_state=0),
    StructuralSVMClassifier(random_state=0),
    KernelLogisticRegression(random_state=0),
    MultiClassSVM(random_state=0),
    MultiClassSVM(kernel="rbf", random_state=0),
    ChainSVM(random_state=0),
    ChainSVM(kernel="rbf", random_state=0),
    ChainCRF(),
)


def fitted(estimator, **changes):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(80, 4))
    Y = (X @ generator.normal(size=(4, 3)) + generator.normal(size=(80, 3)) > 0).astype(int)
    if isinstance(estimator, KernelLogisticRegression | MultiClassSVM):
        Y = Y[:, 0] + Y[:, 1]
    elif isinstance(estimator, ChainCRF | ChainSVM):
        X, Y = X.reshape(16, 5, 4), Y[:, 0].reshape(16, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (
            clone(estimator).set_params(**changes).fit([*X] if X.ndim == 3 else X, [*Y] if X.ndim == 3 else Y)
        )


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_a_bar_ends_with_the_gap_that_was_reached_and_changes_nothing(estimator, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    silent = fitted(estimator)
    assert capsys.readouterr() == ("", "")
    told = fitted(estimator, verbose=1)
    shown, _ = capsys.readouterr()
    # The bar is drawn once, at the end, where there is no terminal.
    (*_, last) = re.findall(rf"{type(estimator).__name__} .* gap (\S+) of (\S+), (\d+) iterations", shown)
    gap = told.relative_gradient_ if isinstance(estimator, ChainCRF) else told.duality_gap_
    assert float(last[0]) == pytest.approx(np.max(gap), rel=0.06)
    assert float(last[1]) == pytest.approx(told.tol, rel=0.06)
    assert int(last[2]) == np.max(told.n_iter_)
    assert told.n_iter_ == silent.n_iter_
    np.testing.assert_array_equal(told.duality_gap_, silent.duality_gap_)


def test_the_bar_grows_with_the_digits_of_the_gap(capsys, monkeypatch):
    shown = []
    update = rich.progress.Progress.update
    monkeypatch.setattr(
        rich.progress.Progress, "update", lambda bar, *a, **k: (shown.append(bar), update(bar, *a, **k))
    )
    with progress("fit", 1, 1e-4) as show:
        shares = []
        for gap in (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 0.0):
            show(SimpleNamespace(gap=gap, num_iters=1))
            shares.append(shown[-1].tasks[0].completed)
    np.testing.assert_allclose(shares, [0, 0.25, 0.5, 0.75, 1, 1])


@pytest.mark.parametrize("objective", ["mle", "cd"])
def test_a_bar_of_a_restricted_machine_ends_with_its_last_loss_and_changes_nothing(
    objective, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    estimator = ConditionalRBMClassifier(objective=objective, max_iter=5, random_state=0)
    silent = fitted(estimator)
    assert capsys.readouterr() == ("", "")
    told = fitted(estimator, verbose=1)
    shown, _ = capsys.readouterr()
    (*_, last) = re.findall(r"ConditionalRBMClassifier .* loss (\S+), (\d+) of at most 5 iterations", shown)
    assert float(last[0]) == pytest.approx(told.loss_curve_[-1], rel=1e-3)
    assert int(last[1]) == told.n_iter_
    np.testing.assert_array_equal(told.loss_curve_, silent.loss_curve_)


def test_an_ensemble_has_one_bar_for_all_its_members(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    # Two bars at once would be refused by rich or drawn over each other.
    base = LMSBNClassifier(verbose=1, tol=0.1)
    silent = fitted(LMSBNEnsembleClassifier(LMSBNClassifier(tol=0.1), num_members=3, random_state=0))
    assert capsys.readouterr() == ("", "")
    told = fitted(LMSBNEnsembleClassifier(base, num_members=3, random_state=0), verbose=1)
    shown, _ = capsys.readouterr()
    (*_, last) = re.findall(r"(\w+) .* 3 of 3 members, gap (\S+)", shown)
    assert last[0] == "LMSBNEnsembleClassifier"
    assert "LMSBNClassifier " not in shown
    gaps = [member.duality_gap_ for member in told.members_]
    assert float(last[1]) == pytest.approx(max(gaps), rel=0.06)
    assert gaps == [member.duality_gap_ for member in silent.members_]


def test_a_path_has_one_bar_for_all_its_fits(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    base = LMSBNClassifier(tol=0.1, ordering="index", random_state=0)
    path = LMSBNClassifierCV(base.set_params(verbose=1), Cs=[0.1, 1.0], cv=2, random_state=0)
    told = fitted(path, verbose=1)
    folds, own = capsys.readouterr()[0].split("4 of 4 fits")
    assert "LMSBNClassifierCV" in folds
    assert "LMSBNClassifier " not in folds
    # The choice's own bar comes after that of the folds.
    assert re.search(r"LMSBNClassifier .* gap", own)
    base.set_params(verbose=0)
    np.testing.assert_array_equal(fitted(path, base=base).scores_, told.scores_)
    assert capsys.readouterr() == ("", "")


class Slow(LMSBNEnsembleClassifier):
    @answer_call
    def decode(self, X, known=None, top_k=1):
        time.sleep(0.1)
        return super().decode(X, known, top_k)


def test_calls_that_take_long_say_so_once(caplog, monkeypatch):
    caplog.set_level(logging.WARNING, "lmbm_torch")
    base = LMSBNClassifier(tol=0.1, ordering="index", random_state=0)
    slow = fitted(Slow(base, num_members=2, random_state=0))
    monkeypatch.setattr(module, "PATIENCE", 0.02)
    X = np.ones((16, 4))
    slow.predict(X[:15])
    assert not caplog.messages
    slow.predict(X)
    assert caplog.messages == ["Slow.predict of 16 instances: still at work after 0.02 s"]
    monkeypatch.setattr(module, "PATIENCE", 10.0)
    slow.predict(X)
    assert len(caplog.messages) == 1
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)
    # A method that a subclass writes anew and watches says so, too, and so does one that fails.
    with pytest.raises(ValueError, match="known"):
        slow.decode(X, known=np.ones(3))
    monkeypatch.setattr(module, "PATIENCE", 0.02)
    slow.decode(X)
    assert caplog.messages[1:] == ["Slow.decode of 16 instances: still at work after 0.02 s"]


@pytest.mark.parametrize("verbose", [-1, 0.5, "yes"])
def test_other_values_are_refused(verbose):
    with pytest.raises(ValueError, match="The 'verbose' parameter of LMSBNClassifier must be"):
        fitted(LMSBNClassifier(verbose=verbose))


def test_silence_needs_no_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    fitted(LMSBNClassifier())
    with pytest.raises(ImportError, match=r'pip install "lmbm-torch\[train\]"'):
        fitted(LMSBNClassifier(verbose=1))
