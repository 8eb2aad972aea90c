"""The table of gene functions, on genes that are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from reproduce import hierarchies
from reproduce.cells import Cell
from reproduce.dropout_network import DropoutNetwork

PARENTS = np.array([-1, 0, 1, -1])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(hierarchies, "QUANTILES", 20)
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {"label_parent": PARENTS}
    for part, count in (("train", 60), ("valid", 40), ("test", 50)):
        features = random.normal(size=(count, 5))
        labels = features[:, :4] + 0.3 * random.normal(size=(count, 4)) > -0.3
        labels[:, 1] &= labels[:, 0]
        labels[:, 2] &= labels[:, 1]
        features[random.random(features.shape) < 0.1] = np.nan
        arrays |= {f"x_{part}": features, f"y_{part}": labels}
    (tmp_path / "eisen_funcat").mkdir()
    np.savez(tmp_path / "eisen_funcat" / "eisen_funcat.npz", **arrays)
    return str(tmp_path)


def test_rows_are_methods_beside_the_published_one(folder, monkeypatch):
    monkeypatch.setattr(hierarchies, "TREES", 5)
    small = replace(hierarchies.METHODS["neurons"], settings=({"hidden": (16,), "epochs": 40},), members=2)
    monkeypatch.setitem(hierarchies.METHODS, "neurons", small)
    (cell,) = hierarchies.cells(["eisen"], [*hierarchies.METHODS], folder)
    assert isinstance(cell, Cell)
    rows = hierarchies.summary([{"data": "eisen", "method": cell.method, **cell.run()}])
    assert [row["method"] for row in rows] == [
        "C-HMCNN, as published",
        *hierarchies.METHODS,
        *hierarchies.MIXTURES,
    ]
    assert rows[0]["auprc"] == 0.306
    for row in rows[1:]:
        assert row["violations"] == 0
        assert row["auprc"] > 0.6
        assert 0 < row["labels"] < 4


def test_settings_are_chosen_on_the_validation_part_and_both_parts_are_learned(folder):
    data = hierarchies.read("eisen_funcat", folder)
    fitted = []

    class Noting(DropoutNetwork):
        def fit(self, X, y):
            fitted.append((len(X), self.epochs, self.random_state))
            return super().fit(X, y)

    settings = ({"epochs": 1}, {"epochs": 25})

    def made(seed, **setting):
        return Noting((8,), random_state=seed, **setting)

    method = hierarchies.Method(made, hierarchies.smooth, settings, 2)
    held_out, tested = hierarchies.answers(method, data)
    areas = []
    for setting in settings:
        found = hierarchies.probabilities(method, setting, data, [data.train], data.valid[0], 1)
        areas.append(average_precision_score(data.valid[1].ravel(), found.ravel()))
    assert areas[1] > areas[0]
    assert hierarchies.area(data.valid[1], held_out) == pytest.approx(areas[1])
    assert fitted[:4] == [(60, 1, 0), (60, 25, 0), (100, 25, 0), (100, 25, 1)]
    assert tested.shape == (50, 4)


def test_a_violation_is_counted(folder):
    data = hierarchies.read("eisen_funcat", folder)
    tested = np.full((50, 4), 0.4)
    tested[0, 2], tested[1, 1] = 0.45, 0.9
    found = hierarchies.measures(data, np.full((40, 4), 0.5), tested)
    # The second one is broken by the answer, too, which is counted once.
    assert found["violations"] == 2


def test_a_network_begins_anew_and_leaves_random_numbers_alone():
    random = np.random.default_rng(0)
    X = random.normal(size=(80, 3))
    y = (X[:, :2] > 0).astype(int)
    network = DropoutNetwork((8,), epochs=40, batch_size=16, learning_rate=1e-2)
    first = network.fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(network.fit(X, y).predict_proba(X), first)
    assert ((first > 0.5) == y).mean() > 0.9
