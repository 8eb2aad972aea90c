"""Notebooks run from top to bottom, and are committed as `make notebooks` leaves them."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import pytest
from sweeps import thorough

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LARGEST = 400_000


def code_of(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def runnable(path):
    """Yield the code of each cell."""
    for number, cell in enumerate(code_of(path)):
        # What tells Jupyter where to draw is no Python.
        source = cell.source.removeprefix("%matplotlib inline")
        yield compile(source, f"{path.name}, code cell {number}", "exec")


NEED_DATA = [path for path in NOTEBOOKS if "LMBM_DATA" in path.read_text(encoding="utf-8")]


def test_they_are_numbered_from_one():
    numbers = range(1, len(NOTEBOOKS) + 1)
    assert [path.name[:3] for path in NOTEBOOKS] == [f"{number:02}_" for number in numbers]
    assert len(NOTEBOOKS) >= 6


@pytest.mark.parametrize("path", thorough(NOTEBOOKS, 1), ids=lambda path: path.stem)
def test_a_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("LMBM_SHORT", "1")
    if path not in NEED_DATA:
        monkeypatch.delenv("LMBM_DATA", raising=False)
    elif "LMBM_DATA" not in os.environ:
        pytest.skip("LMBM_DATA names no folder of data sets")
    mpl.use("agg")
    variables: dict[str, object] = {}
    for code in runnable(path):
        exec(code, variables)
    plt.close("all")


@pytest.mark.parametrize("path", NEED_DATA, ids=lambda path: path.stem)
def test_a_notebook_without_its_data_names_the_missing_file(path, monkeypatch, tmp_path):
    monkeypatch.setenv("LMBM_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"LMBM_DATA: expected a folder with .*, found no .*"):
        exec(next(runnable(path)), {})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs(path):
    cells = code_of(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert all(output.output_type != "error" for output in outputs)
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 2
    assert path.stat().st_size <= LARGEST
