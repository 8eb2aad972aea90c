"""Decoding's times and shares, on a small set."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from rich.console import Console
from strategies.directed import random_directed_energy

from lmbm_torch.data import MultilabelData
from lmbm_torch.inference.search import branch_and_bound
from reproduce import decoding_times
from reproduce.cells import compute


@pytest.fixture
def data() -> MultilabelData:
    random = np.random.default_rng(0)
    features = random.normal(size=(120, 6)).astype(np.float32)
    scores = features @ random.normal(size=(6, 6)) + np.linspace(-3, 1, 6)
    names = tuple("abcdef")
    labels = (scores > 0).astype(np.float64)
    return MultilabelData("toys", features, labels, names, names, np.arange(60), np.arange(60, 120))


@pytest.mark.slow
def test_the_share_that_is_solved_grows_with_the_cutoff_and_is_above_its_bound(data, tmp_path, monkeypatch):
    monkeypatch.setattr(decoding_times, "NUM_LABELS", (3, 6))
    monkeypatch.setattr(decoding_times, "NUM_INSTANCES", (10, 60))
    monkeypatch.setattr(decoding_times, "TIMED", 3)
    results = compute(decoding_times.decoding_cells(data), tmp_path, Console(quiet=True))
    assert len(results) == 6 + 4 + 3
    for result in results:
        if "relaxed_ms" in result:
            assert result["relaxed_ms"] > 0
        elif "_curve" in result:
            _, solved, promised = np.array(result["_curve"]).T
            assert (np.diff(solved) >= 0).all()
            assert (solved >= promised).all()
            assert solved[-1] == result["proven"] == 1
        else:
            assert 0 < result["median_ms"] <= result["p95_ms"]
            assert result["exact_ms"] > 0
            assert result["promised"] <= result["within"] <= 1
    decoding_times.draw_decoding(results, tmp_path)
    assert (tmp_path / "decoding.png").stat().st_size > 0
    rows = list(csv.DictReader((tmp_path / "decoding.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 3 * len(decoding_times.CUTOFFS)
    times = list(csv.DictReader((tmp_path / "decoding_times.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["routine"] for row in times].count("relaxed") == 4
    assert len(times) == 10


@pytest.mark.parametrize("seed", range(3))
def test_the_programme_is_that_of_exact_decoding_and_its_relaxation_is_below(seed):
    energy = random_directed_energy(seed, 7, batch_size=3)
    best = branch_and_bound.decode_hinge(energy).objective
    for unary, least in zip(energy.unary.numpy(), best.tolist(), strict=True):
        values = [
            decoding_times.solve(decoding_times.network_program(unary, energy.parents.numpy(), relaxed=each))[
                0
            ]
            for each in (False, True)
        ]
        assert values[0] == pytest.approx(least, abs=1e-6)
        assert values[1] <= least + 1e-6
