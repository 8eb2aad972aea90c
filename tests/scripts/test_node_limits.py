"""--node-limit reaches every search that a script starts, and what it ended is counted."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from strategies.label_problems import random_inputs

from lmbm_torch import save
from lmbm_torch.estimators import (
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.prediction.predictor import Predictor

X, Y = random_inputs(0, 40, 4, 5)
NETWORK = LMSBNClassifier(2.0, ordering="index", random_state=0)


@pytest.fixture
def predict():
    """The command."""
    return import_module("lmbm_torch.cli.predict").main


def arguments(folder: Path, estimator) -> list[str]:
    """A file of the estimator, or where it is None of a network's module alone, and a file of rows."""
    path = folder / "model.safetensors"
    if estimator is None:
        save(Predictor.of_model(NETWORK.fit(X, Y).model_.double(), tuple("abcde"), 1.0, None), path)
    else:
        estimator.fit(X, Y).save(path)
    np.savez(folder / "rows.npz", x=X, y=Y)
    return [str(path), str(folder / "rows.npz")]


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (None, []),
        (None, ["--most-probable"]),
        (None, ["--top-k", "2"]),
        (None, ["--top-k", "2", "--most-probable"]),
        (NETWORK, []),
        (NETWORK, ["--top-k", "2"]),
        (LMSBNClassifier(2.0, ordering="index", decoder="exact_match", random_state=0), []),
        (LMSBNEnsembleClassifier(NETWORK, num_members=2, random_state=0), []),
        (ThresholdTunedClassifier(NETWORK, cv=2, num_steps=2, max_cycles=1), []),
    ],
)
def test_searches_end_where_they_are_told_to(predict, tmp_path, estimator, options, capsys):
    given = [*arguments(tmp_path, estimator), *options, "--node-limit"]
    proven = {}
    for limit in ("1", "none"):
        predict([*given, limit, "--output", str(tmp_path / f"{limit}.csv")])
        proven[limit] = pd.read_csv(tmp_path / f"{limit}.csv")["exact"].mean()
        said = " ".join(capsys.readouterr().out.split())
        assert ("searches were ended before their proof" in said) == (limit == "1")
    assert proven["1"] < proven["none"] == 1


@pytest.mark.parametrize(
    ("estimator", "limit", "message"),
    [
        (LMBMClassifier(), "5", "node_limit: expected none for LMBMClassifier"),
        (NETWORK, "0", "expected a whole number from 1, or the word none, got '0'"),
    ],
)
def test_limits_that_make_no_sense_are_refused(predict, tmp_path, estimator, limit, message, capsys):
    with pytest.raises(SystemExit):
        predict([*arguments(tmp_path, estimator), "--node-limit", limit])
    assert message in " ".join(capsys.readouterr().err.split())
