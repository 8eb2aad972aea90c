"""Finished tables are copied into results/ by one command; others are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import keep
from keep import RESULTS

from lmbm_torch.compare.tables import FINISHED, recipe_used, table, write_csv, write_text
from lmbm_torch.fitting import recipe

SCRIPTS = Path(__file__).parents[2] / "scripts"
ROWS = [{"data": "toys", "A": 0.5}, {"data": "toys, too", "note": "two\nlines", "_array": [1]}]


def finished(folder, name="toys_2026", rows=ROWS):
    with table(folder, name):
        write_csv(folder / "table.csv", rows)
        write_text(folder / "table.md", "| A |")
        (folder / "couplings.png").write_bytes(b"figure")
        write_text(folder / "cells" / "toys.json", "{}")
        write_text(folder / "settings.json", "{}")
    return folder


def test_a_finished_table_and_its_figures_are_kept(tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.md").write_text("mine")
    keep.main([str(finished(folder)), "--results", str(tmp_path / "results")])
    kept = {file.name: file.read_bytes() for file in (tmp_path / "results").iterdir()}
    assert kept == {
        "toys_2026.csv": b'data,A,note\ntoys,0.5,\n"toys, too",,"two\nlines"\n',
        "toys_2026.md": b"| A |",
        "toys_2026_couplings.png": b"figure",
        "recipes.json": kept["recipes.json"],
    }
    assert str(tmp_path / "results" / "toys_2026.md") in capsys.readouterr().out
    keep.main([str(finished(folder, "bench/toys")), "--results", str(tmp_path / "results")])
    assert (tmp_path / "results" / "bench" / "toys.csv").is_file()


def test_the_recipe_of_a_kept_table_is_recorded(tmp_path, monkeypatch):
    results = tmp_path / "results"
    keep.keep(finished(tmp_path / "run"), results)
    recorded = keep.recipes_of(results)["toys_2026"]
    assert recorded == recipe_used()
    assert recorded["C"] == recipe.C
    assert recorded["SEARCHED_C"] == [*recipe.SEARCHED_C]
    monkeypatch.delitem(sys.modules, "lmbm_torch.fitting.recipe")
    keep.keep(finished(tmp_path / "run"), results)
    assert keep.recipes_of(results) == {}


def test_what_is_not_a_finished_table_is_refused(tmp_path, capsys):
    def refused(folder):
        before = sorted(tmp_path.glob("results/*"))
        with pytest.raises(SystemExit):
            keep.main([str(folder), "--results", str(tmp_path / "results")])
        assert sorted(tmp_path.glob("results/*")) == before
        return capsys.readouterr().err

    folder = finished(tmp_path / "run")
    with pytest.raises(TypeError):
        finished(folder, rows=[None])
    assert f"without {FINISHED}" in refused(folder)
    assert f"without {FINISHED}" in refused(tmp_path)
    (finished(folder) / "couplings.png").unlink()
    assert "found no couplings.png" in refused(folder)
    keep.main([str(finished(folder)), "--results", str(tmp_path / "results")])
    assert "at least the 2 rows" in refused(finished(folder, rows=ROWS[:1]))


def test_a_benchmark_writes_where_it_is_told(tmp_path):
    command = [sys.executable, str(SCRIPTS / "bench" / "chain_dp.py"), "--output", str(tmp_path / "own")]
    sizes = ["--repeats", "1", "--chains", "2", "--length", "3", "--states", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, *sizes], check=True, capture_output=True, env=environment, cwd=tmp_path)
    keep.main([str(tmp_path / "own"), "--results", str(tmp_path / "results")])
    header = (tmp_path / "results" / "bench" / "chain_dp.csv").read_text().splitlines()[0]
    assert header == (RESULTS / "bench" / "chain_dp.csv").read_text().splitlines()[0]
