"""A training that is killed goes on to the weights of one that nobody disturbed, whenever it was hit."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir

from lmbm_torch.cli import jobs
from lmbm_torch.cli.configuration import CONFIGURATION

QUIET = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false"]
ROUTES = {
    "dual": ["experiment=seven_segment_lmsbn", "training.tol=1e-6"],
    "gradient": ["experiment=seven_segment_mlp", "trainer.max_epochs=15"],
    "persistent": ["experiment=noisy_digits_mle_bp", "training.method=pcd", "trainer.max_epochs=3"],
}


def go_on(route: str, directory: Path) -> None:
    """Start a run, or resume the one that is there."""
    torch.set_num_threads(1)
    if (directory / "config.yaml").exists():
        jobs.resume(str(directory))
        return
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = compose("train", overrides=[*QUIET, *ROUTES[route], f"paths.run={directory}"])
    jobs.start(config)


def killed_after(seconds: float, route: str, directory: Path) -> bool:
    """Whether the run was still going on when SIGKILL hit it."""
    context = multiprocessing.get_context("forkserver")
    # What has imported everything already forks at once.
    context.set_forkserver_preload([__name__])
    process = context.Process(target=go_on, args=(route, directory))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode != 0


def result(directory: Path) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    checkpoint = torch.load(directory / "last.ckpt", weights_only=True)
    return json.loads((directory / "metrics.json").read_text(encoding="utf-8")), checkpoint["state_dict"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What each route ends with, and how long it takes."""
    known = {}

    def run(route):
        if route not in known:
            directory = tmp_path_factory.mktemp("undisturbed") / route
            started = time.perf_counter()
            assert not killed_after(600, route, directory)
            known[route] = (time.perf_counter() - started, *result(directory))
        return known[route]

    return run


def assert_goes_on(undisturbed, route, directory, kills, generator):
    seconds, metrics, weights = undisturbed(route)
    hit = sum(killed_after(generator.uniform(0, seconds), route, directory) for _ in range(kills))
    if not (directory / "metrics.json").exists():
        assert not killed_after(600, route, directory)
    found, resumed = result(directory)
    assert found == metrics
    assert resumed.keys() == weights.keys()
    assert all(torch.equal(resumed[name], weights[name]) for name in weights)
    return hit


@pytest.mark.slow
def test_two_kills(undisturbed, tmp_path):
    assert_goes_on(undisturbed, "gradient", tmp_path / "run", 2, random.Random(0))


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_ten_runs_are_killed_once_each(undisturbed, tmp_path, route):
    generator = random.Random(1)
    hit = [assert_goes_on(undisturbed, route, tmp_path / str(run), 1, generator) for run in range(10)]
    assert sum(hit) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_one_run_is_killed_ten_times(undisturbed, tmp_path, route):
    assert assert_goes_on(undisturbed, route, tmp_path / "run", 10, random.Random(2)) >= 2
