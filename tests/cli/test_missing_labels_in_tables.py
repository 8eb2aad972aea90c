"""Tables that lack labels or a validation part: trained on, or refused before there is a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from lmbm_torch.cli import jobs
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.training.configured import left_out

MACHINE = ["training=gradient", "model=boltzmann", "inference=map"]
HIDDEN = ["training=latent", "model=conditional_rbm", "model.num_hidden=2"]
ROUTES = {
    "network": ["training=gradient"],
    "dual": ["training=dual", "training.calibrate=false"],
    "machine": [*MACHINE, "loss=log_likelihood"],
    "hidden units": HIDDEN,
}
REFUSING = {
    "hinge": "local_hinge",
    "structured_hinge": "structured_hinge",
    "relaxed_structured_hinge": "relaxed_structured_hinge",
    "relaxed_squared_error": "relaxed_squared_error",
    "pseudo_likelihood": "negative_pseudo_likelihood",
    "sparse_map": "sparse_map_loss",
}


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """Forty rows of three labels, of which an eighth are missing."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 3))
    labels = (x @ random.normal(size=(3, 3)) > 0).astype(int).astype(str)
    labels[random.random(labels.shape) < 0.125] = ""
    lines = ["a,b,c,tag_0,tag_1,tag_2"]
    lines += [
        ",".join([*(f"{each:.3f}" for each in row), *known]) for row, known in zip(x, labels, strict=True)
    ]
    file = tmp_path_factory.mktemp("lacking") / "lacking.csv"
    file.write_text("\n".join(lines))
    return file


def train(table: Path, run: Path, *overrides: str) -> dict[str, float]:
    data = ["data=table", f"data.train={table}", "data.labels=[tag_*]", "trainer.max_epochs=2"]
    quiet = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false", "logger=none"]
    return jobs.start(composed(*data, *quiet, f"paths.run={run}", *overrides))


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        return compose("train", overrides=list(overrides))


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_validates_on_complete_rows(tmp_path, table, route, capsys):
    metrics = train(table, tmp_path / "run", "data.validation_fraction=0.2", *ROUTES[route])
    assert 0 <= metrics["val/hamming_loss"] <= 1
    printed = capsys.readouterr().out
    assert "rows to validate and to test are drawn from the others" in printed
    assert "left out" not in printed


def test_without_a_validation_part_nothing_waits_for_its_metrics(tmp_path, table, capsys):
    metrics = train(table, tmp_path / "run", *HIDDEN)
    assert "test/hamming_loss" in metrics
    assert "val/hamming_loss" not in metrics
    assert (
        "no validation part: callbacks best and early_stopping, which watch val/hamming_loss, are left out"
        in capsys.readouterr().out
    )
    (tmp_path / "run" / "metrics.json").unlink()
    assert jobs.resume(str(tmp_path / "run")) == metrics
    assert "no validation part" in capsys.readouterr().out
    assert {"last.ckpt", "model.safetensors"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_only_what_nothing_logs_without_a_validation_part_is_left_out():
    served: Any = SimpleNamespace(validation_set=[])
    callbacks = composed("training=pcd", "model=restricted_boltzmann_machine", "model.num_hidden=2").callbacks
    assert callbacks.best.monitor.startswith("val/")
    assert left_out(callbacks, served) == {}
    callbacks = composed(*HIDDEN).callbacks
    assert left_out(callbacks, served) == dict.fromkeys(("best", "early_stopping"), "val/hamming_loss")
    served.validation_set.append("row")
    assert left_out(callbacks, served) == {}


@pytest.mark.parametrize("loss", REFUSING)
def test_losses_that_need_all_labels_are_refused_before_there_is_a_run(tmp_path, table, loss):
    words = (
        rf"loss: expected one that takes missing labels, since .* misses \d+, got {REFUSING[loss]} for Bolt"
    )
    with pytest.raises(ValueError, match=words + ".*loss=log_likelihood"):
        train(table, tmp_path / "runs" / "run", *MACHINE, f"loss={loss}")
    assert not (tmp_path / "runs").exists()


def test_machines_without_input_are_refused_missing_labels_before_there_is_a_run(tmp_path, table):
    with pytest.raises(ValueError, match=r"training labels: .*nan"):
        train(
            table,
            tmp_path / "run",
            "training=pcd",
            "model=restricted_boltzmann_machine",
            "model.num_hidden=2",
        )
    assert not (tmp_path / "run").exists()
