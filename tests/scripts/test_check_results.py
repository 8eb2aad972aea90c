"""A row of every table in results/ is what today's code computes."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import check_results
from tables import RESULTS


def test_every_table_has_a_sample_and_every_sample_its_row():
    assert {sample.table for sample in check_results.SAMPLES} == {file.stem for file in RESULTS.glob("*.md")}
    for sample in check_results.SAMPLES:
        kept = sample.kept(RESULTS)
        assert sample.tolerances
        assert all(check_results.number(kept[name]) >= 0 for name in sample.tolerances)


@pytest.mark.data
def test_a_row_that_moved_is_found(data_folder, tmp_path, capsys):
    assert data_folder
    file = tmp_path / "linear_networks.csv"
    file.write_bytes((RESULTS / file.name).read_bytes())
    command = ["linear_networks", "--results", str(tmp_path)]
    assert check_results.main(command) == 0
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        row["hamming_loss"] = str(float(row["hamming_loss"]) - 0.0021)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert check_results.main(command) == 1
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
