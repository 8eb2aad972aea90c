"""Two processes that the command line asks for have one run, whose result is that of one process."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from sweeps import slow
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmbm_torch.cli import jobs
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.training.configured import is_follower

ROOT = Path(__file__).parents[2]
QUIET = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false"]
TWO = ["trainer=ddp", "trainer.accelerator=cpu"]
ROUTES = {
    "network": ["training=gradient"],
    "machine": ["training=gradient", "model=boltzmann", "loss=log_likelihood", "inference=map"],
    "hidden units": ["training=latent", "model=conditional_rbm", "model.num_hidden=3"],
}


def data_file(folder: Path, train_rows: int = 60) -> Path:
    """Two processes share 60 rows to train without a rest, once a fifth is held out, 57 with one."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(train_rows + 15, 4)).astype(np.float32)
    y = (x @ generator.normal(size=(4, 3)) > 0).astype(np.uint8)
    file = folder / "data.npz"
    parts = {"train": slice(train_rows), "test": slice(train_rows, train_rows + 15)}
    named = {f"x_{part}": x[rows] for part, rows in parts.items()}
    np.savez(file, **named, **{f"y_{part}": y[rows] for part, rows in parts.items()})
    return file


def overrides(folder: Path, route: str, batch_size: int) -> list[str]:
    data = ["data=npz", f"data.data.path={folder / 'data.npz'}", f"data.batch_size={batch_size}"]
    data.append("data.validation_fraction=0.2")
    return [*data, *ROUTES[route], "trainer.max_epochs=2", "name=small", *QUIET]


def train(*arguments: str) -> None:
    torch.set_num_threads(1)
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = compose("train", overrides=list(arguments))
    jobs.start(config)


def as_by_torchrun(rank: int, port: int, folder: Path, *arguments: str) -> None:
    """One of two processes, with the variables that torchrun sets."""
    os.chdir(folder)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }
    train(*arguments)


def together(folder: Path, *arguments: str) -> list[int]:
    """How each of two processes ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    # What has imported everything already forks at once.
    context.set_forkserver_preload([__name__])
    both = [
        context.Process(target=as_by_torchrun, args=(rank, port, folder, *arguments)) for rank in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(600)
        process.kill()
    return [process.exitcode or 0 for process in both]


def result(directory: Path) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    weights = torch.load(directory / "last.ckpt", weights_only=True)["state_dict"]
    return json.loads((directory / "metrics.json").read_text()), weights


def assert_same(one: Path, two: Path) -> None:
    (ours, weights), (others, other_weights) = result(one), result(two)
    assert ours == pytest.approx(others, rel=1e-4, abs=1e-6)
    assert weights.keys() == other_weights.keys()
    for name, value in weights.items():
        torch.testing.assert_close(value, other_weights[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("route", "train_rows"), [slow("network", 60), slow("machine", 57), slow("hidden units", 57)]
)
def test_two_processes_have_one_run_and_the_result_of_one(tmp_path, route, train_rows):
    data_file(tmp_path, train_rows)
    assert together(tmp_path, *TWO, *overrides(tmp_path, route, 8)) == [0, 0]
    (directory,) = (tmp_path / "runs" / "small").iterdir()
    train(*overrides(tmp_path, route, 16), f"paths.run={tmp_path / 'alone'}")
    assert_same(tmp_path / "alone", directory)
    files = {path.name for path in directory.iterdir()}
    assert files == {path.name for path in (tmp_path / "alone").iterdir()}
    assert_same_dashboards(tmp_path / "alone", directory)


def assert_same_dashboards(one: Path, two: Path) -> None:
    """Each process's numbers are in it once."""
    ours, others = (EventAccumulator(str(each / "tensorboard")).Reload() for each in (one, two))
    assert len(others.Scalars("test/exact_match")) == 1
    for name in ("train/objective", "val/hamming_loss", "test/exact_match"):
        # A dashboard of several files is read in the order of their names, which may be of one second.
        scalars = [sorted(log.Scalars(name), key=lambda scalar: scalar.step) for log in (ours, others)]
        logged = [[scalar.value for scalar in each] for each in scalars]
        assert logged[0] == pytest.approx(logged[1], rel=1e-4)


@pytest.mark.parametrize(
    ("start", "train_rows"),
    # Of 45 rows the last batch of one process has one fewer, of 49 none.
    [slow("script", 57), ("torchrun", 62), slow("command", 60)],
)
def test_whoever_starts_the_processes(tmp_path, start, train_rows):
    data_file(tmp_path, train_rows)
    train_script = str(ROOT / "scripts" / "train.py")
    begin = {
        "script": [sys.executable, train_script],
        "command": [sys.executable, "-c", "from lmbm_torch.cli.entry import main; main()", "train"],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", train_script],
    }[start]
    run = subprocess.run(
        [*begin, *TWO, *overrides(tmp_path, "network", 8)],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("test/exact_match") == 1
    (directory,) = (tmp_path / "runs" / "small").iterdir()
    train(*overrides(tmp_path, "network", 16), f"paths.run={tmp_path / 'alone'}")
    assert_same(tmp_path / "alone", directory)
    assert_same_dashboards(tmp_path / "alone", directory)


def test_what_cannot_be_shared_is_refused_before_there_is_a_run(tmp_path):
    data_file(tmp_path)
    data = ["data=npz", f"data.data.path={tmp_path / 'data.npz'}"]
    with pytest.raises(ValueError, match="the dual solver does not run on several, got 2"):
        train(*TWO, *data, "training=dual", *QUIET, f"paths.run={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("trainer", "variables", "follows"),
    [
        ({"devices": 2, "num_nodes": 1}, {}, False),
        ({"devices": 2, "num_nodes": 1}, {"RANK": "0", "LOCAL_RANK": "0"}, False),
        ({"devices": 2, "num_nodes": 1}, {"LOCAL_RANK": "1"}, True),
        ({"devices": 1, "num_nodes": 2}, {"NODE_RANK": "1"}, True),
        ({"devices": 2, "num_nodes": 2}, {"SLURM_PROCID": "3"}, True),
        # Several runs of one process each, started side by side.
        ({"devices": 1, "num_nodes": 1}, {"SLURM_PROCID": "3"}, False),
        ({"devices": "auto"}, {"RANK": "1"}, True),
    ],
)
def test_the_first_process_is_known_before_there_is_a_trainer(monkeypatch, trainer, variables, follows):
    for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_follower(trainer) == follows
