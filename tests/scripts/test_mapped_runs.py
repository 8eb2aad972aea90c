"""A data set on the disk is trained on and predicted for from the command line like any other."""

from __future__ import annotations

import csv
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.data import SevenSegment, write_mapped
from lmbm_torch.data.features import numbered
from lmbm_torch.prediction.answers import evaluate
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.reading import read, rows_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripts():
    return {name: import_module(f"lmbm_torch.cli.{name}") for name in ("jobs", "predict")}


def test_a_run_on_the_disk_is_the_run_in_memory(scripts, tmp_path):
    data = SevenSegment()
    parts = [[(data.features[rows], data.labels[rows])] for rows in (data.train, data.test)]
    write_mapped(tmp_path / "data", *parts, label_names=data.label_names)
    metrics = []
    for source in ([], ["data=mapped", f"data.data.path={tmp_path / 'data'}"]):
        folder = tmp_path / f"run{len(metrics)}"
        with initialize_config_dir(CONFIGURATION, version_base="1.3"):
            overrides = ["training=gradient", "trainer.max_epochs=2", f"paths.run={folder}", *source]
            quiet = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false"]
            metrics.append(scripts["jobs"].start(compose("train", overrides=[*quiet, *overrides])))
    assert metrics[1] == pytest.approx(metrics[0])

    saved = Predictor.load(tmp_path / "run1")
    stored = read(tmp_path / "data", saved)
    assert evaluate(saved, stored, rows_of(stored))["exact_match"] == pytest.approx(
        metrics[0]["test/exact_match"]
    )
    output = tmp_path / "predictions.csv"
    scripts["predict"].main([str(tmp_path / "run1"), str(tmp_path / "data"), "--output", str(output)])
    rows = list(csv.DictReader(output.read_text(encoding="utf-8").splitlines()))
    predicted = np.array([[int(float(row[name])) for name in data.label_names] for row in rows])
    assert (predicted == data.test_labels).all(1).mean() == pytest.approx(metrics[0]["test/exact_match"])


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_benchmark_measures_the_same_task_twice(monkeypatch, tmp_path, kind):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "bench"))
    streaming = import_module("streaming")
    monkeypatch.setattr(streaming, "NUM_FEATURES", {"dense": 20, "sparse": 1000})
    names = numbered("label", streaming.NUM_LABELS)
    write_mapped(tmp_path / "data", streaming.chunks(kind, 300, 1), label_names=names)
    mapped, in_memory = (streaming.measure(tmp_path / "data", each) for each in ("mapped", "in memory"))
    assert mapped["hamming_accuracy"] == in_memory["hamming_accuracy"] > 0.5
    assert min(mapped["train_memory_mib"], mapped["predict_memory_mib"]) >= 0
