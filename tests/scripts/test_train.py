"""Runs from the command line: composed, completed, never overwritten, and taken up again after a kill."""

from __future__ import annotations

import csv
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from omegaconf import OmegaConf
from sweeps import slow
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmbm_torch.cli.configuration import CONFIGURATION

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "train.py"
# Beside that for images of one's own, see tests/cli/test_texts_and_images.py.
EXPERIMENTS = sorted(
    path.stem for path in Path(CONFIGURATION, "experiment").glob("*.yaml") if path.stem != "image_table_conv"
)
# Experiments on data that scikit-learn brings along.
BUNDLED = ("seven_segment", "noisy_digits", "digits")
QUIET = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false"]


def marks_of(experiment):
    """Data that is at hand is read at once; the noisy and occluded images take seconds to make."""
    if experiment.startswith(BUNDLED):
        return ()
    return (pytest.mark.data, pytest.mark.slow) if "mle_bp" in experiment else (pytest.mark.data,)


@pytest.fixture
def train():
    """Begins and resumes runs."""
    return import_module("lmbm_torch.cli.jobs")


def composed(*overrides):
    """By the dual solver, unless something else is said."""
    if not any(each.startswith(("training=", "experiment=")) for each in overrides):
        overrides = ("training=dual", *overrides)
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        return compose("train", overrides=[*QUIET, *overrides])


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Call the script with these arguments, in this process; its runs go to a temporary folder."""
    handlers = logging.getLogger().handlers[:]

    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    yield call
    # Hydra logs to the standard output that pytest has put in place for this test alone.
    logging.getLogger().handlers[:] = handlers


def weights_in(directory):
    return torch.load(directory / "last.ckpt", weights_only=True)["state_dict"]


def assert_same_results(first, second):
    assert json.loads((first / "metrics.json").read_text()) == json.loads(
        (second / "metrics.json").read_text()
    )
    ours, others = weights_in(first), weights_in(second)
    assert ours.keys() == others.keys()
    assert all(torch.equal(value, others[name]) for name, value in ours.items())


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=marks_of(name)) for name in EXPERIMENTS],
)
@pytest.mark.parametrize("overrides", [(), slow(("training=gradient", "loss=log"))])
def test_every_experiment_can_be_built(request, train, tmp_path, experiment, overrides):
    config = composed(f"experiment={experiment}", f"paths.run={tmp_path / 'run'}", *overrides)
    if "${paths.data}" in OmegaConf.to_yaml(config.data):
        config.paths.data = str(request.getfixturevalue("data_folder"))
    assert config.name == experiment
    trainer, module, data = train.build(config)
    assert module.label_names == data.label_names
    assert trainer.max_epochs == config.trainer.max_epochs
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ordering", ["index", "random", "f_score"])
@pytest.mark.parametrize("inference", ["hinge", "map", "beam_search"])
def test_orderings_and_decoders_are_interchangeable(train, ordering, inference):
    config = composed(f"ordering={ordering}", f"inference={inference}", "model.degree=1")
    _, module, data = train.build(config)
    assert sorted(module.model.ordering.tolist()) == list(range(data.num_labels))
    rows = torch.from_numpy(data.test_set.features[:3])
    assert module.decoder(module(rows)).labels.shape == (3, data.num_labels)


@pytest.mark.parametrize("inference", ["hinge", "map", "lp_relaxation"])
@pytest.mark.parametrize("cliques", ["pairwise", "[[0,1],[2,3]]"])
def test_boltzmann_machines_have_decoders_of_their_own(train, inference, cliques):
    config = composed("model=boltzmann", f"inference={inference}", f"model.cliques={cliques}")
    _, module, data = train.build(config)
    rows = torch.from_numpy(data.test_set.features[:3])
    assert module.decoder(module(rows)).labels.shape == (3, data.num_labels)


def test_machines_have_the_penalty_of_the_estimator_in_the_dual():
    assert composed("model=boltzmann").coupling_penalty == "scale"
    assert composed("model=boltzmann", "training=gradient").coupling_penalty == 1
    assert composed("model=boltzmann", "coupling_penalty=3").training.coupling_penalty == 3
    assert composed().coupling_penalty == 1


@pytest.mark.parametrize(
    "override", ["nonsense=1", "training.nonsense=1", "data.nonsense=1", "trainer.nonsense=1"]
)
def test_unknown_keys_are_named(override):
    with pytest.raises(ConfigCompositionException) as refusal:
        composed(override)
    assert "Key 'nonsense' is not in struct" in f"{refusal.value} {refusal.value.__cause__}"


def test_the_dual_route_knows_no_other_loss():
    with pytest.raises(ConfigCompositionException, match="Could not override 'loss'"):
        composed("loss=log")


def test_a_data_set_without_a_folder_is_named(train, monkeypatch):
    monkeypatch.delenv("LMBM_DATA", raising=False)
    with pytest.raises(Exception, match="LMBM_DATA"):
        train.build(composed("data=scene"))


@pytest.mark.parametrize("override", ["logger=none", "~logger"])
def test_a_run_without_dashboards(train, override):
    trainer, *_ = train.build(composed("experiment=seven_segment_lmsbn", override, "paths.run=run"))
    assert trainer.loggers == []


def test_mlflow_is_told_the_experiment_and_the_run(train, monkeypatch):
    class Told(CSVLogger):
        def __init__(self, experiment_name: str, run_name: str) -> None:
            super().__init__("never written")
            self.told = experiment_name, run_name

    # Lightning's own needs mlflow, a service's client.
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    monkeypatch.setattr("lightning.pytorch.loggers.MLFlowLogger", Told)
    trainer, *_ = train.build(composed("experiment=seven_segment_lmsbn", "logger=mlflow", "paths.run=run"))
    beside, told = sorted(trainer.loggers, key=lambda each: isinstance(each, Told))
    assert isinstance(told, Told)
    assert told.told == ("seven_segment_lmsbn", "run")
    assert isinstance(beside, TensorBoardLogger)
    # MLflow 3 writes to no folder else.
    assert os.environ["MLFLOW_ALLOW_FILE_STORE"] == "true"


def test_without_mlflow_its_extra_is_named(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(Exception, match=r'pip install "lmbm-torch\[tracking\]"'):
        train.build(composed("experiment=seven_segment_lmsbn", "logger=mlflow", "paths.run=run"))


def test_seven_segments_are_learned_and_the_run_is_kept(train, tmp_path, capsys):
    directory = tmp_path / "run"
    metrics = train.start(composed("experiment=seven_segment_lmsbn", "logger=csv", f"paths.run={directory}"))
    assert metrics["test/exact_match"] >= 0.92
    assert metrics["test/proven_optimal"] == 1.0
    assert metrics["fit/gap"] <= 1e-3
    assert "test/exact_match" in capsys.readouterr().out
    assert {path.name for path in directory.iterdir()} == {
        *("config.yaml", "metrics.json", "model.safetensors", "last.ckpt", "best.ckpt", "tensorboard", "csv")
    }
    *_, last = csv.DictReader((directory / "csv" / "metrics.csv").read_text().splitlines())
    assert float(last["test/exact_match"]) == pytest.approx(metrics["test/exact_match"])
    assert json.loads((directory / "metrics.json").read_text()) == pytest.approx(metrics)
    config = OmegaConf.load(directory / "config.yaml")
    assert "${" not in (directory / "config.yaml").read_text()
    assert config.callbacks.early_stopping.stopping_threshold == config.training.tol == 1e-3
    log = EventAccumulator(str(directory / "tensorboard"))
    log.Reload()
    assert set(log.Tags()["images"]) == {"fit/dependencies", "test/nodes_per_instance"}
    assert log.Tags()["histograms"] == ["test/nodes"]

    kept = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"paths\.run: expected a new or empty directory"):
        train.start(composed("experiment=seven_segment_lmsbn", f"paths.run={directory}"))
    with pytest.raises(ValueError, match="is complete"):
        train.resume(str(directory))
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == kept


@pytest.mark.parametrize(
    ("overrides", "exact_match"),
    [
        slow(("training=dual",), 0.87),
        slow(("trainer.max_epochs=15",), 0.87),
        slow(("trainer.max_epochs=15", "loss=log_likelihood", "inference=map", "coupling_penalty=1"), 0.9),
        slow(("trainer.max_epochs=15", "loss=pseudo_likelihood", "inference=map"), 0.8),
        slow(("trainer.max_epochs=15", "loss=structured_hinge", "inference=map", "coupling_penalty=1"), 0.8),
    ],
    ids=["dual", "gradient", "log_likelihood", "pseudo_likelihood", "structured_hinge"],
)
def test_boltzmann_machines_learn_seven_segments(train, tmp_path, overrides, exact_match):
    directory = tmp_path / "run"
    metrics = train.start(composed("experiment=seven_segment_lmbm", f"paths.run={directory}", *overrides))
    assert metrics["test/exact_match"] >= exact_match
    assert metrics["test/proven_optimal"] == 1.0
    assert {"fit/objective", "fit/mean_hinge", "fit/threshold", "fit/error_bound"} <= set(metrics)
    assert ("fit/gap" in metrics) == ("training=dual" in overrides)
    assert json.loads((directory / "metrics.json").read_text()) == pytest.approx(metrics)


@pytest.mark.parametrize(("epochs", "is_told"), [(1, True), (1000, False)])
def test_a_gap_that_was_missed_is_told(train, tmp_path, capsys, epochs, is_told):
    train.start(
        composed(
            "experiment=seven_segment_lmsbn", f"paths.run={tmp_path}/run", f"trainer.max_epochs={epochs}"
        )
    )
    assert ("not converged: the relative duality gap" in capsys.readouterr().out) == is_told


def test_an_encoder_is_trained_end_to_end(train, tmp_path):
    metrics = train.start(
        composed("experiment=seven_segment_mlp", f"paths.run={tmp_path / 'run'}", "trainer.max_epochs=8")
    )
    log = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    log.Reload()
    losses = [event.value for event in log.Scalars("train/loss")]
    assert len(losses) == 8
    assert losses[-1] < 0.2 * losses[0]
    assert metrics["test/exact_match"] >= 0.85


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_weights(train, tmp_path):
    overrides = ["experiment=seven_segment_lmsbn", "training=gradient", "trainer.max_epochs=8"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    arguments = [sys.executable, str(SCRIPT), *QUIET, *overrides, f"paths.run={killed}"]
    # As many threads as in this process, since sums depend on how they are split.
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    run = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        while not (killed / "last.ckpt").exists():
            assert run.poll() is None, run.communicate()[1].decode()
            time.sleep(0.01)
    finally:
        run.send_signal(signal.SIGKILL)
        run.communicate()
    assert not (killed / "metrics.json").exists()
    assert torch.load(killed / "last.ckpt", weights_only=True)["epoch"] < 7

    train.start(composed(*overrides, f"paths.run={whole}"))
    train.resume(str(killed))
    assert_same_results(whole, killed)


@pytest.mark.slow
def test_a_terminated_run_says_so_and_is_resumed(train, tmp_path):
    directory = tmp_path / "run"
    overrides = ["experiment=seven_segment_lmsbn", "training=gradient", "trainer.max_epochs=500"]
    arguments = [sys.executable, str(SCRIPT), *QUIET, *overrides, f"paths.run={directory}"]
    run = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (directory / "last.ckpt").exists():
        assert run.poll() is None, run.communicate()[1]
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=30)[1]
    assert run.returncode == 128 + signal.SIGTERM
    assert "ended by SIGTERM: resume=" in said
    assert not (directory / "metrics.json").exists()
    assert not list(directory.rglob("*.unfinished"))
    (directory / "config.yaml").write_text(
        (directory / "config.yaml").read_text().replace("max_epochs: 500", "max_epochs: 20")
    )
    epoch = torch.load(directory / "last.ckpt", weights_only=True)["epoch"]
    train.resume(str(directory))
    assert torch.load(directory / "last.ckpt", weights_only=True)["epoch"] >= epoch
    assert (directory / "metrics.json").exists()


def test_a_run_directory_may_be_a_symbolic_link(train, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk", target_is_directory=True)
    train.start(composed(f"paths.run={tmp_path / 'run'}", "C=0.01"))
    assert (tmp_path / "run").is_symlink()
    assert (tmp_path / "disk" / "metrics.json").exists()
    with pytest.raises(ValueError, match=r"paths\.run: expected a new or empty directory"):
        train.start(composed(f"paths.run={tmp_path / 'run'}"))
    (tmp_path / "nowhere").symlink_to(tmp_path / "none", target_is_directory=True)
    with pytest.raises(ValueError, match=r"paths\.run: expected a new or empty directory"):
        train.start(composed(f"paths.run={tmp_path / 'nowhere'}"))


def test_a_run_killed_before_its_first_checkpoint_begins_anew(train, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train.start(composed(f"paths.run={whole}", "C=0.01"))
    killed.mkdir()
    (killed / "config.yaml").write_bytes((whole / "config.yaml").read_bytes())
    train.resume(str(killed))
    assert_same_results(whole, killed)


def test_one_job_for_each_combination(command, tmp_path):
    command("-m", "experiment=seven_segment_lmsbn", "C=0.01,0.1", "data.batch_size=512", *QUIET)
    (sweep,) = (tmp_path / "runs" / "seven_segment_lmsbn").iterdir()
    jobs = [sweep / "0", sweep / "1"]
    assert [OmegaConf.load(job / "config.yaml").C for job in jobs] == [0.01, 0.1]
    first, second = [json.loads((job / "metrics.json").read_text()) for job in jobs]
    assert first["fit/objective"] < second["fit/objective"]
    assert {path.name for path in sweep.iterdir()} == {"0", "1", "multirun.yaml"}


def test_a_run_has_a_directory_of_its_own(command, tmp_path):
    command("training=dual", "C=0.01", *QUIET)
    (directory,) = (tmp_path / "runs" / "unnamed").iterdir()
    assert (directory / "metrics.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_resuming_takes_everything_from_the_run(command, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command("resume=somewhere", "C=3")
    assert "resume: expected no other argument except trust=" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
