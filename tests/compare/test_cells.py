"""Tables are computed once, cell by cell, and show the paper's numbers beside ours."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from functools import partial

import pytest
from rich.console import Console

from lmbm_torch.compare import cells

QUIET = Console(quiet=True)
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
from functools import partial
from pathlib import Path

from lmbm_torch.compare.cells import Cell, compute
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
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)]) as table:
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
    text = cells.write_tables(results, COLUMNS, tmp_path)
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
