"""Benchmarks, some of which take hours, print each row once it is measured."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))
SCRIPTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(BENCH.glob("*.py"))}
MEASURING = [name for name, text in SCRIPTS.items() if "described(__file__" in text]
EACH_ROW = r"print\((row|rows\[-1\]), flush=True\)"
# Those that show rows in another way than ``told``, and the call that does.
PRINTING = (
    *("crbm_epochs", "crbm_gradients", "cutoffs", "dense_map", "dual_coordinate"),
    *("ensemble_orders", "kernel_classes", "kernel_networks", "log_partition_bounds", "rbm_tempering"),
    *("searches", "shared_dual_coordinate", "smo", "undirected_decoding"),
)
OWN = {
    **dict.fromkeys(PRINTING, EACH_ROW),
    "bce_network": r"print\(f\"{data.name}, split {seed}",
    "conditional_rbm": r"print\(f\"{name:16} epoch {number}",
    "label_growth": r"compute\(cells, .*Console\(\)\)",
    "many_labels": r"show\(rows\[-1:\]\)",
    "matrix_bp": r"print\(\"  \"\.join",
    "penalty_paths": r"show\(rows\[-1:\]\)",
    "rbm_likelihood": r"print\(f\"{name}, rate {rate}, {seconds:.0f} CPU s",
}


@pytest.mark.parametrize("name", MEASURING)
def test_rows_are_told_as_they_are_measured(name):
    assert re.search(OWN.get(name, r"\btold\("), SCRIPTS[name])


def test_what_shows_its_own_is_there():
    assert len(MEASURING) > 30
    assert set(OWN) <= set(MEASURING)


def test_a_row_is_told_in_one_line_and_kept(capsys):
    told = import_module("measuring").told
    row = {"set": "scene", "seconds": 0.123456789, "rows": 3, "peer": None}
    assert told(row) is row
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "set scene  seconds 0.123457  rows 3  peer None\n")
