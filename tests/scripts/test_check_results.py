"""A row of every table in results/ is what today's code computes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import check_results
from keep import RECIPES, RESULTS, recipes_of

from lmbm_torch.compare.tables import recipe_used


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


def test_tables_of_another_recipe_are_named(monkeypatch, tmp_path, capsys):
    today = recipe_used()
    made = {
        "toys": today,
        "old toys": today | {"C": 1.0},
        "more toys": today | {"GONE": 1},
        "oldest toys": None,
    }
    (tmp_path / RECIPES).write_text(json.dumps(made), encoding="utf-8")
    assert check_results.main(["--recipes", "--results", str(tmp_path)]) == 2
    said = capsys.readouterr().out
    assert "old toys was made by another training recipe: C was 1.0, is scale" in said
    assert "oldest toys was made by another training recipe: an unrecorded recipe" in said
    assert check_results.stale(tmp_path / "nowhere") == {}


def test_recipes_are_recorded_of_tables_that_are_kept():
    recorded = recipes_of(RESULTS)
    assert {name for name in recorded if not (RESULTS / f"{name}.csv").exists()} == set()
    assert {"compare_scene", "compare_seven_segment", "any_table"} <= recorded.keys()


def test_another_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        check_results.main(["toys"])
    assert "toys" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.data
def test_no_row_moved(data_folder):
    assert data_folder
    assert check_results.main([]) == 0
