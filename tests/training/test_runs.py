"""A run directory is used once, or taken up again where it was left."""

from __future__ import annotations

import json
import math

import pytest
from problems.small import (
    dual_module,
    gradient_module,
    last_checkpoint,
    quiet_trainer,
    served,
    small_data,
    stop_at,
)

from lmbm_torch.files import UNFINISHED, write_metrics
from lmbm_torch.training import runs


@pytest.mark.parametrize("name", ["", "new", "two/deep"])
def test_a_new_or_empty_directory_is_claimed_by_its_configuration(tmp_path, name):
    with runs.claimed(tmp_path / name, "C: 1") as directory:
        assert directory == tmp_path / name
        assert (directory / runs.CONFIG).read_text() == "C: 1"
        with pytest.raises(ValueError, match=r"paths\.run: expected a new or empty directory"):
            runs.claimed(tmp_path / name, "C: 2").__enter__()
    assert (directory / runs.CONFIG).read_text() == "C: 1"


@pytest.mark.parametrize("made", [True, False])
def test_a_run_that_cannot_be_built_leaves_no_directory(tmp_path, made):
    directory = tmp_path / "new" if made else tmp_path
    with pytest.raises(KeyboardInterrupt), runs.claimed(directory, "C: 1"):
        raise KeyboardInterrupt
    assert directory.exists() != made
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_before_it_began_leaves_nothing_in_the_way(tmp_path):
    (tmp_path / f"{runs.CONFIG}.0{UNFINISHED}").write_text("C: 1")
    with runs.claimed(tmp_path, "C: 1"):
        assert [path.name for path in tmp_path.iterdir()] == [runs.CONFIG]


def test_a_directory_in_use_is_refused(tmp_path):
    (tmp_path / "notes").write_text("mine")
    for path in (tmp_path, tmp_path / "notes"):
        with pytest.raises(ValueError, match=r"paths\.run: expected a new or empty directory"):
            runs.claimed(path, "C: 1").__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_only_interrupted_runs_are_resumed(tmp_path):
    with pytest.raises(ValueError, match=r"resume: .* found no config\.yaml"):
        runs.interrupted_directory(tmp_path)
    (tmp_path / runs.CONFIG).write_text("{}")
    assert runs.interrupted_directory(tmp_path) == tmp_path
    (tmp_path / runs.METRICS).write_text("{}")
    with pytest.raises(ValueError, match="is complete"):
        runs.interrupted_directory(tmp_path)


def test_what_is_measured_is_written(tmp_path):
    data = served(small_data(), validation_fraction=0.25)
    trainer = quiet_trainer(tmp_path, 500, stop_at(1e-4))
    metrics = runs.fit_and_measure(tmp_path, trainer, dual_module(), data)
    assert json.loads((tmp_path / runs.METRICS).read_text()) == pytest.approx(metrics)
    report = {"fit/objective", "fit/gap", "fit/mean_hinge", "fit/threshold", "fit/error_bound"}
    decoded = {"exact_match", "hamming_loss", "sample_f1", "proven_optimal", "mean_nodes"}
    assert {*metrics} >= report | {f"{part}/{name}" for part in ("val", "test") for name in decoded}


def test_a_complete_fit_is_measured_without_training_again(tmp_path):
    fitted = gradient_module()
    quiet_trainer(tmp_path, 3, last_checkpoint(tmp_path)).fit(fitted, datamodule=served(small_data()))
    trainer = quiet_trainer(tmp_path, 3, last_checkpoint(tmp_path))
    metrics = runs.fit_and_measure(tmp_path, trainer, gradient_module(), served(small_data()))
    assert trainer.global_step == 3
    assert fitted.fit_report == {name: metrics[name] for name in fitted.fit_report}


def test_what_is_undefined_is_null(tmp_path):
    write_metrics(tmp_path / "metrics.json", {"defined": 0.5, "undefined": math.nan})
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"defined": 0.5, "undefined": None}
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]
