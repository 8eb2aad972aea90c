"""The end of a sweep: whole names and values whatever the width, and refused jobs beside the others."""

from __future__ import annotations

import sys

import pytest
from rich.console import Console

from lmbm_torch.cli import sweeps, train
from lmbm_torch.training import configured

SMALL = [
    "data=table",
    "training=dual",
    "data.labels=[tag]",
    "trainer.max_epochs=2",
    "training.calibrate=false",
    "name=small",
]
QUIET = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false", "logger=none"]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_names_and_values_are_whole_at_every_width(width, capsys):
    jobs = [{"C": value, "model.num_hidden": value, "name": "x"} for value in ("16", "8")]
    found = [dict.fromkeys(sweeps.MEASURES, 0.00038714159), {sweeps.MEASURES[0]: 0.9}]
    tables = list(sweeps.tables(jobs, found, width))
    for table in tables:
        Console(width=width).print(table)
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= width
    assert (len(tables) == 1) == (width == 200)
    names = [name.split("/")[1] for name in sweeps.MEASURES]
    assert all(printed.count(name) >= names.count(name) for name in [*names, "num_hidden"])
    assert printed.count("0.0003871 ") == len(sweeps.MEASURES)
    assert " 0.9 " in printed
    assert "name" not in printed


@pytest.fixture
def sweep(tmp_path, monkeypatch, capsys):
    """What a sweep over a small table ends with, its folder, and what it prints."""
    monkeypatch.chdir(tmp_path)
    # The label follows both columns, so that none alone tells the label of every row.
    rows = [f"{row % 7},{row % 3},{int(row % 7 + row % 3 > 4)}" for row in range(30)]
    (tmp_path / "small.csv").write_text("\n".join(["a,b,tag", *rows]))

    def run(*overrides: str):
        arguments = ["lmbm train", "-m", "data.train=small.csv", *SMALL, *QUIET, *overrides]
        monkeypatch.setattr(sys, "argv", arguments)
        status = 0
        try:
            train.main()
        except SystemExit as end:
            status = end.code
        (folder,) = (tmp_path / "runs" / "small").iterdir()
        return status, folder, capsys.readouterr()

    return run


def test_a_refused_job_is_told_in_a_sentence_beside_the_others(sweep):
    status, folder, printed = sweep("C=-1,1")
    assert status == 1
    assert "lmbm train, job 0: C: expected a finite number above 0, got -1" in printed.err
    assert "Traceback" not in printed.err
    assert not (folder / "0").exists()
    assert (folder / "1" / "metrics.json").is_file()
    table = printed.out[printed.out.rindex("multirun_") :]
    assert "│ 1   │ 1  │" in table
    assert table.rstrip().endswith("failed: job 0")


def test_a_job_that_fails_leaves_its_traceback_and_the_others(sweep, monkeypatch):
    build = configured.build

    def failing(config):
        if config.C == 2:
            raise RuntimeError("out of luck")
        return build(config)

    monkeypatch.setattr("lmbm_torch.cli.jobs.build", failing)
    status, folder, printed = sweep("C=2,1")
    assert status == 1
    assert "Traceback" in printed.err
    assert "lmbm train, job 0: out of luck" in printed.err
    assert (folder / "1" / "metrics.json").is_file()


def test_a_sweep_whose_jobs_all_end_is_none_that_failed(sweep):
    status, _, printed = sweep("C=1,2")
    assert status == 0
    assert "failed" not in printed.out
