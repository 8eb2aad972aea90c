"""A search for a classifier that is stopped, or finds no room, learns nothing and leaves no file."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import AutoLabelClassifier
from lmbm_torch.estimators.automatic import classifier, search

X, Y = random_inputs(0, 60, 4, 3)


def searching() -> AutoLabelClassifier:
    return AutoLabelClassifier(time_budget=1.0, families=["network"], cv=2, random_state=0)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty working directory that is the place of temporary files, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("module", [search, classifier], ids=["trial", "last fit"])
def test_a_search_that_is_stopped_learns_nothing(folder, monkeypatch, error, module):
    monkeypatch.setattr(module, "_fitted", failing(error))
    model = searching()
    with pytest.raises(error if isinstance(error, type) else OSError):
        model.fit(X, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert list(folder.iterdir()) == []


def test_a_search_whose_workers_have_no_space_says_so_and_learns_nothing(folder, monkeypatch):
    sent = "lmbm_torch.estimators.common.spreading._SentOnce.__reduce_ex__"
    monkeypatch.setattr(sent, failing(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    model = searching()
    message = r"No space left on device for joblib's workers; JOBLIB_TEMP_FOLDER"
    with joblib.parallel_config("loky", n_jobs=2), pytest.raises(OSError, match=message) as refused:
        model.fit(X, Y)
    assert refused.value.errno == errno.ENOSPC
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert list(folder.iterdir()) == []


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_refit_that_is_stopped_keeps_what_was_learned(monkeypatch):
    model = searching().fit(X, Y)
    before, members = model.predict(X), model.members_
    monkeypatch.setattr(classifier, "_fitted", failing(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:30], Y[:30])
    assert model.members_ is members
    np.testing.assert_array_equal(model.predict(X), before)
