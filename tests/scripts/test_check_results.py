"""A row of every table in results/ is what today's code computes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import check_results
from keep import RESULTS


def test_every_table_has_a_sample_and_every_sample_its_row():
    assert {sample.table for sample in check_results.SAMPLES} == {file.stem for file in RESULTS.glob("*.md")}
    for sample in check_results.SAMPLES:
        kept = sample.kept(RESULTS)
        assert sample.tolerances
        assert all(check_results.number(kept[name]) >= 0 for name in sample.tolerances)


def test_a_value_that_moved_is_found(monkeypatch, capsys):
    """By a little more than its tolerance, up or down, or to no number at all."""
    (sample,) = [sample for sample in check_results.SAMPLES if sample.table == "linear_networks"]
    kept = {name: check_results.number(sample.kept(RESULTS)[name]) for name in sample.tolerances}

    def moved_by(change):
        found = {name: kept[name] + change * tolerance for name, tolerance in sample.tolerances.items()}
        monkeypatch.setattr(check_results.Sample, "recompute", lambda *_: found)
        return check_results.main(["linear_networks"])

    assert moved_by(0.99) == moved_by(-0.99) == 0
    assert "MOVED" not in capsys.readouterr().out
    assert moved_by(1.01) == moved_by(-1.01) == moved_by(float("nan")) == len(kept)
    assert "MOVED" in capsys.readouterr().out


def test_another_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        check_results.main(["toys"])
    assert "toys" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.data
def test_no_row_moved(data_folder):
    assert data_folder
    assert check_results.main([]) == 0
