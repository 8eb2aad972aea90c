"""Intervals of a report's metrics: of the library's own, and as wide as these vary from sample to sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lmbm_torch.metrics import multilabel_metrics
from lmbm_torch.reports import pages as module
from lmbm_torch.reports.pages import METRICS, _Sums, intervals, metrics_of


def drawn(rows: int, labels: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions and truth, of a label that neither ever has, and with rows where both are empty."""
    generator = torch.Generator().manual_seed(seed)
    truth = (torch.rand(rows, labels, generator=generator) < 0.3).long()
    given = torch.where(torch.rand(rows, labels, generator=generator) < 0.2, 1 - truth, truth)
    truth[:, -1] = given[:, -1] = 0
    return given, truth


@pytest.mark.parametrize("most", [10_000, 7])
def test_they_are_those_of_the_librarys_metrics(monkeypatch, most):
    monkeypatch.setattr(module, "MAX_GROUPS", most)
    given, truth = drawn(100)
    sums = _Sums.of(given, truth, np.random.default_rng(0))
    totals = tuple(each.sum(0, keepdims=True) for each in (sums.of_rows, sums.both, sums.either))
    expected = multilabel_metrics(5)(given, truth)
    for name, value in metrics_of(totals).items():
        assert value == pytest.approx(float(expected[name]), rel=1e-5)
    assert set(metrics_of(totals)) == set(METRICS)


def test_a_sample_of_rows_has_the_metrics_of_these_rows():
    given, truth = drawn(30)
    sums = _Sums.of(given, truth, np.random.default_rng(0))
    values = metrics_of(sums.drawn(np.random.default_rng(1)))
    chosen = np.random.default_rng(1).integers(30, size=(module.NUM_RESAMPLES, 30))
    for sample in (0, 1, 999):
        rows = torch.from_numpy(chosen[sample])
        expected = multilabel_metrics(5)(given[rows], truth[rows])
        for name in METRICS:
            assert values[name][sample] == pytest.approx(float(expected[name]), rel=1e-5)


def test_of_a_share_they_are_as_wide_as_its_standard_error_says():
    given, truth = drawn(2000)
    low, high = intervals(given, truth)["exact_match"]
    share = float((given == truth).all(1).double().mean())
    error = np.sqrt(share * (1 - share) / 2000)
    assert low < share < high
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_groups_of_rows_vary_as_rows_do(monkeypatch):
    given, truth = drawn(3000)
    by_rows = intervals(given, truth)
    monkeypatch.setattr(module, "MAX_GROUPS", 400)
    for name, (low, high) in intervals(given, truth).items():
        assert high - low == pytest.approx(by_rows[name][1] - by_rows[name][0], rel=0.2)
        assert abs(low + high - sum(by_rows[name])) / 2 < 0.2 * (high - low)


def test_they_are_the_same_in_every_call_and_without_width_where_all_rows_are_alike():
    given, truth = drawn(50)
    assert intervals(given, truth) == intervals(given, truth)
    ones = torch.ones(9, 2, dtype=torch.int64)
    assert intervals(ones, ones)["macro_f1"] == (1.0, 1.0)
    assert intervals(ones, 1 - ones)["hamming_loss"] == (1.0, 1.0)


def test_nine_in_ten_hold_what_they_are_of():
    probability = 0.5
    held = 0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        truth = torch.ones(100, 1, dtype=torch.int64)
        given = (torch.rand(100, 1, generator=generator) < probability).long()
        low, high = intervals(given, truth)["exact_match"]
        held += low <= probability <= high
    assert held >= 52
