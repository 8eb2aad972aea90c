"""A model of rows with names, and a table to label by it."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

from annotate.completions import Completer
from annotate.session import Rows, Session
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.prediction.predictor import Predictor

LABELS = ["sun", "sea", "ski", "<b>bold</b>"]


@pytest.fixture(scope="session")
def estimator():
    """A network of four labels, the second of which likes the first."""
    generator = np.random.default_rng(0)
    X = pd.DataFrame(generator.normal(size=(80, 3)), columns=["age", "height", "rain"])
    sun = X["age"] + 0.5 * generator.normal(size=80) > 0
    sea = sun ^ (generator.random(80) < 0.05)
    ski = ~sea & (X["rain"] > -1)
    bold = X["height"] > 0
    Y = pd.DataFrame(dict(zip(LABELS, (sun, sea, ski, bold), strict=True))).astype(int)
    return LMSBNClassifier(C=10.0, random_state=0).fit(X, Y)


@pytest.fixture(scope="session")
def saved(estimator):
    return Predictor.of(estimator)


@pytest.fixture
def table(tmp_path):
    """Five rows, with a column that the model does not know, a name to escape and a label that is given."""
    file = tmp_path / "new.csv"
    generator = np.random.default_rng(1)
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["name", "age", "height", "rain", "sun"])
        for row in range(5):
            values = [f"{value:.3f}" for value in generator.normal(size=3)]
            writer.writerow([f"00{row} <script>,", *values, "yes" if row == 3 else ""])
    return file


@pytest.fixture
def session(saved, table, tmp_path):
    rows = Rows.read(table, saved)
    return Session(Completer(saved), saved.label_names, rows, tmp_path / "labelled.csv", rows.labels)
