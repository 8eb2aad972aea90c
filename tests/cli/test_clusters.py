"""Commands on the cluster that they are given."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from lmbm_torch.cli import compare
from lmbm_torch.compare import trials
from lmbm_torch.estimators.common.spreading import spread, workers

distributed = pytest.importorskip("distributed")


def test_without_an_address_all_stays_here():
    with compare.on_cluster(None):
        assert workers() == 1


def test_an_address_without_a_scheduler_is_refused(monkeypatch):
    monkeypatch.setattr(compare, "PATIENCE", 0.2)
    with (
        pytest.raises(ValueError, match=r"cluster: expected the address .* got tcp://127.0.0.1:9: "),
        compare.on_cluster("tcp://127.0.0.1:9"),
    ):
        pytest.fail("begun without a cluster")


@pytest.mark.slow
def test_commands_have_the_cluster_do_their_work(tmp_path):
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        address = cluster.scheduler_address
        with compare.on_cluster(address):
            assert os.getpid() not in set(spread(_process, None, range(4)))
        there = _compared(tmp_path / "there", f"cluster={address}")
    assert there == _compared(tmp_path / "here")


def _process(common: None, task: int) -> int:
    return os.getpid()


def _compared(folder: Path, *arguments: str) -> list[dict[str, str]]:
    """The rows of a small comparison but for its times."""
    command = [sys.executable, "-m", "lmbm_torch.cli.compare", "splits=2", "budget=1", "folds=2"]
    command += ["methods=[independent SVMs,LMSBN]", f"output={folder}", *arguments]
    subprocess.run(command, check=True, capture_output=True, cwd=folder.parent)
    with (folder / "table.csv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    return [{key: row[key] for key in row if key not in trials.SECONDS} for row in rows]
