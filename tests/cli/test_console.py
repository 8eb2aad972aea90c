"""What commands print: whole names and paths, one sentence for a mistake, a summary after a sweep."""

from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from rich.console import Console

from lmbm_torch.cli import configuration, sweeps
from lmbm_torch.cli.showing import Certificates, print_metrics
from lmbm_torch.compare.tables import print_tables
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.prediction import tables
from lmbm_torch.prediction.answers import Prediction

ROW = {"data": "scene", "method": "independent logistic regressions, RBF", "A": "0.123 ± 0.456*", "B": 0.25}


def told(monkeypatch, mode):
    """Hydra runs one job, or a sweep that nothing sums up."""
    monkeypatch.setattr(HydraConfig, "get", lambda: SimpleNamespace(mode=mode, callbacks={}))


def test_a_long_run_directory_stands_on_one_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    directory = "runs/[bold]a_name_that_is_wider_than_the_console/2026-11-22_13-59-59"
    print_metrics(directory, {"test/exact_match": 0.5})
    assert directory in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [72, 200])
def test_names_of_methods_are_whole(width):
    console = Console(width=width, record=True, quiet=False, file=io.StringIO())
    print_tables([ROW], {"A": "exact match", "B": "Hamming loss", "C": "none has it"}, console)
    text = console.export_text()
    assert ROW["method"] in text
    assert "none has it" not in text
    assert all(part in text for part in ("0.123", "0.456*", "0.250"))


def test_no_number_is_broken_where_there_is_no_room_for_all():
    console = Console(width=60, record=True, file=io.StringIO())
    row = ROW | {str(place): place + 0.125 for place in range(9)}
    print_tables([row], {name: f"metric {name}" for name in row if len(name) == 1}, console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 60
    numbers = [line for line in lines if ROW["method"] in line]
    assert "".join(numbers).count(ROW["method"]) == len(numbers) > 1
    assert re.findall(r"\d\.125", "".join(numbers)) == [f"{place}.125" for place in range(9)]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("C: expected a finite number above 0, got -1"),
        FileNotFoundError(2, "none there", "mine.csv"),
    ],
)
def test_what_is_refused_is_a_sentence(monkeypatch, capsys, error):
    told(monkeypatch, RunMode.RUN)
    with pytest.raises(SystemExit) as end, configuration.in_a_sentence("train"):
        raise error
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith(f"lmbm train: {error}\n")


def test_tracebacks_are_there_on_request_and_in_sweeps(monkeypatch):
    told(monkeypatch, RunMode.MULTIRUN)
    with pytest.raises(ValueError, match="job"), configuration.in_a_sentence("train"):
        raise ValueError("job")
    told(monkeypatch, RunMode.RUN)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ValueError, match="where"), configuration.in_a_sentence("train"):
        raise ValueError("where")
    with pytest.raises(RuntimeError, match="bug"), configuration.in_a_sentence("train"):
        raise RuntimeError("bug")


def test_a_sweep_ends_with_what_differs_beside_the_metrics(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    for number, found in enumerate((0.25, 0.5)):
        (tmp_path / str(number)).mkdir()
        metrics = {"test/exact_match": found, "fit/objective": 7.0, "test/recall": 0.1}
        (tmp_path / str(number) / "metrics.json").write_text(json.dumps(metrics))
    config = OmegaConf.create(
        {"hydra": {"sweep": {"dir": str(tmp_path)}, "overrides": {"task": ["data=scene", "C=0.1,1,10"]}}}
    )
    with pytest.raises(SystemExit):
        sweeps.Summary().on_multirun_end(config)
    said = capsys.readouterr().out
    assert said.splitlines()[0] == str(tmp_path)
    rows = [re.findall(r"[\w./–]+", line) for line in said.splitlines() if line.startswith("│")]
    assert rows == [["0", "0.1", "0.25", "7"], ["1", "1", "0.5", "7"], ["2", "10", "–", "–"]]
    assert "data" not in said.replace(str(tmp_path), "")
    assert said.splitlines()[-1] == "failed: job 2"


def several(log_prob):
    """One row with three labellings and their log-probabilities, by hinge loss; two are proven."""
    status = Status(torch.tensor([False]), torch.tensor([False]), torch.tensor([3]), torch.zeros(1))
    objective, bound = torch.tensor([[0.25, 1.0, 5.5]]), torch.tensor([5.25])
    decoding = Decoding(torch.zeros(1, 3, 2, dtype=torch.int64), objective, bound, status)
    return Prediction(decoding, None, torch.tensor([log_prob]))


@pytest.mark.parametrize(("log_prob", "is_said"), [((-1.0, -2.0, -3.0), False), ((-2.0, -1.0, -3.0), True)])
def test_probabilities_that_rank_differently_are_explained(capsys, log_prob, is_said):
    certificates = Certificates()
    list(certificates.counting([several(log_prob)]))
    certificates.print()
    said = " ".join(capsys.readouterr().out.split())
    assert ("in 1 row a labelling is more probable than a labelling above it" in said) == is_said


def test_of_several_labellings_each_has_its_own_certificate():
    class Named:
        label_names = ("sun", "sea")
        has_probabilities = False
        label_form = None

    rows = list(tables.table_rows(Named(), [several((-1.0, -2.0, -3.0))]))
    assert tables.columns(Named(), 3)[-3:] == ["objective", "bound_of_unlisted", "exact"]
    assert tables.columns(Named())[-3:] == ["objective", "bound", "exact"]
    # The third's loss is above the bound: one that is not listed may be better.
    assert [row[-3:] for row in rows] == [[0.25, 5.25, 1], [1.0, 5.25, 1], [5.5, 5.25, 0]]
