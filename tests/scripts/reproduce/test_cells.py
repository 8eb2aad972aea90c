"""Tables are computed once, cell by cell, and show the paper's numbers beside ours."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pytest
from rich.console import Console
from scipy import sparse

from lmbm_torch.compare.tables import Result, write_tables
from lmbm_torch.data.dataset import MultilabelData, without_split
from lmbm_torch.data.features import numbered
from lmbm_torch.estimators.common.spreading import keep, num_bytes
from reproduce import cells

QUIET = Console(quiet=True)
SCRIPTS = str(Path(__file__).parents[3] / "scripts")
COLUMNS = {"A": "A ↑", "seconds": "time (s)"}


def table(calls):
    def run(*earlier):
        calls.append(earlier)
        return {"A": 0.5 + 0.25 * len(calls), "paper_A": 0.682, "_couplings": [[0.0]]}

    yield cells.Cell("toys", "first", run)
    yield cells.Cell("toys", "second, LP", run, after="first")


def test_a_cell_is_computed_once_and_given_what_it_comes_after(tmp_path):
    calls = []
    results = cells.compute(table(calls), tmp_path, QUIET)
    assert calls == [(), (results[0],)]
    assert cells.compute(table(calls), tmp_path, QUIET) == results
    assert len(calls) == 2
    (tmp_path / "cells" / "toys_second_lp.json").unlink()
    again = cells.compute(table(calls), tmp_path, QUIET)
    assert len(calls) == 3
    assert again[0] == results[0]


def test_after_the_time_limit_no_cell_is_begun_and_what_is_kept_is_shown(tmp_path):
    calls = []
    assert cells.compute(table(calls), tmp_path, QUIET, time_limit=0.0) == calls == []
    first = cells.compute([*table(calls)][:1], tmp_path, QUIET, time_limit=60.0)
    assert cells.compute(table(calls), tmp_path, QUIET, time_limit=0.0) == first
    assert calls == [()]


def test_a_resumable_cell_that_fails_leaves_the_others_alone(tmp_path):
    def run(name, *earlier, state):
        if name == "second":
            raise ArithmeticError("no end in sight")
        return {"name": name}

    names = {"first": None, "second": None, "third": "second", "fourth": "first"}
    some = [
        cells.Cell("toys", name, partial(run, name), after=after, resumable=True)
        for name, after in names.items()
    ]
    with pytest.raises(ArithmeticError) as failure:
        cells.compute(some, tmp_path, QUIET)
    assert failure.value.__notes__ == ["in the cell toys: second"]
    assert {file.stem for file in (tmp_path / "cells").iterdir()} == {"toys_first", "toys_fourth"}


def added(number, *earlier):
    return {"process": os.getpid(), "sum": number + sum(each["sum"] for each in earlier)}


@pytest.mark.slow
def test_cells_side_by_side_come_out_as_one_by_one(tmp_path):
    """What comes after another waits for it; what was kept is read."""
    chain = [
        cells.Cell(name, f"step {step}", partial(added, step), after=f"step {step - 1}" if step else None)
        for step in range(3)
        for name in ("toys", "games")
    ]
    alone = cells.compute(chain, tmp_path / "alone", QUIET)
    shared = cells.compute(chain, tmp_path / "shared", QUIET, processes=2)
    assert [each["sum"] for each in alone] == [each["sum"] for each in shared] == [0, 0, 1, 1, 3, 3]
    assert {each["process"] for each in alone} == {os.getpid()}
    assert os.getpid() not in {each["process"] for each in shared}
    assert cells.compute(chain, tmp_path / "shared", QUIET, processes=2) == shared


TICKING = """
import sys, time
sys.path.insert(0, sys.argv[2])
from functools import partial
from pathlib import Path

from reproduce.cells import Cell, compute
from rich.console import Console

def tick(place):
    for count in range(3000):
        (Path(sys.argv[1]) / place).write_text(str(count))
        time.sleep(0.1)
    return {}

if __name__ == "__main__":
    chain = [Cell("toys", place, partial(tick, place)) for place in ("first", "second")]
    compute(chain, Path(sys.argv[1]), Console(quiet=True), processes=2)
"""


def test_no_process_outlives_a_table_that_is_killed(tmp_path):
    script, places = tmp_path / "ticking.py", [tmp_path / "first", tmp_path / "second"]
    script.write_text(TICKING, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script), str(tmp_path), SCRIPTS]) as table:
        try:
            until(lambda: all(place.exists() for place in places))
        finally:
            table.kill()
    until(lambda: stands_still(places))


def until(holds):
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("not after two minutes")


def stands_still(places):
    before = [place.read_text() for place in places]
    time.sleep(2)
    return [place.read_text() for place in places] == before


def test_the_paper_stands_beside_ours_and_arrays_stay_out(tmp_path):
    results = cells.compute(table([]), tmp_path, QUIET)
    text = write_tables(results, COLUMNS, tmp_path)
    assert "| first | 0.750 (0.682) |" in text
    # Neither result has it.
    assert "time (s)" not in text
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == text
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["paper_A"] for row in rows] == ["0.682", "0.682"]
    assert "_couplings" not in rows[0]
    assert "_couplings" in json.loads((tmp_path / "cells" / "toys_first.json").read_text(encoding="utf-8"))


def test_a_cell_that_fails_leaves_nothing_behind(tmp_path):
    def fail():
        raise RuntimeError("no such method")

    with pytest.raises(RuntimeError, match="no such method"):
        cells.compute([cells.Cell("toys", "broken", fail)], tmp_path, QUIET)
    assert not (tmp_path / "cells").exists()


def _cell(number: int, *earlier: Result) -> Result:
    return {"process": os.getpid(), "sum": number + sum(each["sum"] for each in earlier)}


def _resumed(*, state: Path) -> Result:
    return {"process": os.getpid(), "sum": 7}


def _total(data: MultilabelData, split: int) -> Result:
    return {"total": float(data.features.sum()) + float(data.labels.sum()), "rows": len(data.train) + split}


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_cells_that_share_a_set_have_it_sent_once(monkeypatch, tmp_path, form):
    sizes = []
    monkeypatch.setattr(cells, "keep", lambda value: sizes.append(num_bytes(value)) or keep(value))
    X, Y = np.ones((1000, 20)), np.ones((1000, 3))
    data = without_split("tiny", form(X), Y, numbered("label", 3), numbered("feature", 20))
    splits = [data.with_split(np.arange(10 + each), np.arange(900, 1000)) for each in range(4)]
    several = [
        cells.Cell("tiny", f"split {each}", partial(_total, part, each)) for each, part in enumerate(splits)
    ]
    packets, shared = cells._packed(several)
    assert sum(map(len, packets)) < 10_000
    stored = num_bytes(splits[0].features) + num_bytes(splits[0].labels)
    assert sizes[0] <= 1.1 * stored
    assert cells._unpacked(packets[1], shared.value.value).run() == several[1].run()
    with joblib.parallel_config(backend="threading", n_jobs=2):
        found = cells.compute(several, tmp_path, QUIET)
    assert [(row["total"], row["rows"]) for row in found] == [(23_000.0, 10 + 2 * each) for each in range(4)]


@pytest.mark.slow
def test_cells_of_tables_are_computed_by_workers_and_kept_here(tmp_path):
    distributed = pytest.importorskip("distributed")
    chain = [
        cells.Cell(name, f"step {step}", partial(_cell, step), after=f"step {step - 1}" if step else None)
        for name in ("toys", "games")
        for step in range(3)
    ]
    chain.append(cells.Cell("toys", "long", _resumed, resumable=True))
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        found = cells.compute(chain, tmp_path, QUIET)
        assert cells.compute(chain, tmp_path, QUIET) == found
        assert cells.compute(chain, tmp_path / "late", QUIET, time_limit=0.0) == []
    assert [row["sum"] for row in found] == [0, 1, 3, 0, 1, 3, 7]
    assert os.getpid() not in {row["process"] for row in found[:-1]}
    assert found[-1]["process"] == os.getpid()
    assert len([*(tmp_path / "cells").iterdir()]) == 7


def test_every_cell_is_counted_in_a_log(tmp_path):
    console = Console(width=60, record=True, file=io.StringIO())
    todo = [cells.Cell("toys", name, lambda *_: {}) for name in ("first", "second")]
    cells.compute(todo, tmp_path, console)
    lines = console.export_text().splitlines()
    assert [line.partition(" (")[0] for line in lines if " (" in line] == [
        "1 of 2 cells: toys: first",
        "2 of 2 cells: toys: second",
    ]
