"""A model and a decoder of the user's own go through every script, and runs predict as they were measured."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from problems.own_model import OWN_MODEL
from sweeps import slow

from lmbm_torch import load
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.prediction import answers
from lmbm_torch.prediction.predictor import Predictor

OWN = (
    OWN_MODEL
    + """

from lmbm_torch.inference.enumeration import exact


def opposite(energy, flip=True):
    found = exact.decode(energy)
    return found.__class__(**{**vars(found), "labels": 1 - found.labels if flip else found.labels})
"""
)


@pytest.fixture
def scripts():
    """Import a command's module by its name."""
    return lambda name: import_module(f"lmbm_torch.cli.{name}")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module of a user's model and decoder, to be found where it is imported."""
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)


def train(scripts, folder: Path, *overrides: str) -> tuple[Path, Path, dict[str, float]]:
    """A data file, the directory of a run on it, and what its test measured."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(160, 4))
    fields = features @ generator.normal(size=(4, 5)) + generator.normal(size=(160, 5))
    labels = (fields + np.roll(fields, 1, axis=1) > 0.5).astype(np.uint8)
    file, run = folder / "small.npz", folder / "run"
    np.savez(file, x_train=features[:80], y_train=labels[:80], x_test=features[80:], y_test=labels[80:])
    data = ["data=npz", f"data.data.path={file}", f"paths.run={run}"]
    quiet = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false"]
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        scripts("jobs").start(compose("train", overrides=["training=dual", *data, *quiet, *overrides]))
    metrics = json.loads((run / "metrics.json").read_text())
    return file, run, {name[5:]: value for name, value in metrics.items() if name.startswith("test/")}


def evaluated(scripts, folder: Path, *arguments: object) -> dict[str, float]:
    output = folder / "evaluated.json"
    scripts("evaluate").main([*map(str, arguments), "--force", "--output", str(output)])
    return json.loads(output.read_text())


@pytest.mark.parametrize(
    ("model", "inference"),
    [
        slow("sigmoid_belief", "map"),
        ("sigmoid_belief", "beam_search"),
        slow("boltzmann", "map"),
        ("boltzmann", "lp_relaxation"),
    ],
)
def test_a_run_is_evaluated_by_its_own_inference(scripts, tmp_path, model, inference):
    fast = ["training=gradient", "trainer.max_epochs=20"]
    file, run, measured = train(scripts, tmp_path, f"model={model}", f"inference={inference}", *fast)
    for source in (run, run / "last.ckpt", run / "model.safetensors"):
        assert evaluated(scripts, tmp_path, source, file) == pytest.approx(measured, rel=1e-5)
    hinge = evaluated(scripts, tmp_path, run, file, "--least-hinge")
    likely = evaluated(scripts, tmp_path, run, file, "--most-probable")
    assert hinge != pytest.approx(likely, rel=1e-5)
    if inference == "map":
        assert likely == pytest.approx(measured, rel=1e-5)
        assert hinge != pytest.approx(measured, rel=1e-5)


def test_a_model_of_ones_own_goes_through_every_script(scripts, own, tmp_path):
    chosen = ["model._target_=own_parts.Attraction", "~model.degree", "+model.scale=0.5"]
    fast = ["training=gradient", "trainer.max_epochs=3", "coupling_penalty=10"]
    file, run, measured = train(scripts, tmp_path, *chosen, *fast)
    (run / "metrics.json").unlink()
    with pytest.raises(ValueError, match=r"model\._target_: expected .* --trust own_parts\.Attraction"):
        scripts("jobs").resume(str(run))
    scripts("jobs").resume(str(run), ["own_parts.Attraction"])
    # As in another process.
    del sys.modules["own_parts"]
    trusting = ["--trust", "own_parts.Attraction"]
    assert evaluated(scripts, tmp_path, run, file, *trusting) == pytest.approx(measured, rel=1e-5)
    scripts("predict").main([str(run), str(file), "--output", str(tmp_path / "predictions.csv"), *trusting])
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 81
    scripts("report").main([str(run), str(file), "--output", str(tmp_path / "report.md"), *trusting])
    saved = Predictor.load(run, trust=["own_parts.Attraction"])
    assert isinstance(saved, Predictor)
    assert saved.kind == "Attraction"
    assert saved.estimator.model.scale == 0.5
    assert load(run / "last.ckpt").kind == "Attraction"


def test_a_decoder_of_ones_own_is_that_of_the_configuration(scripts, own, tmp_path):
    chosen = ["inference._target_=own_parts.opposite", "~inference.margin", "~inference.node_limit"]
    fast = ["training=gradient", "trainer.max_epochs=3"]
    file, run, measured = train(scripts, tmp_path, *chosen, *fast)
    assert measured["exact_match"] < 0.2
    del sys.modules["own_parts"]
    bare = load(run / "model.safetensors")
    assert "own_parts" not in sys.modules
    features = np.zeros((2, 4))
    with pytest.raises(ValueError, match=r"decoder: expected own_parts\.opposite, with which"):
        next(answers.decode(bare, features))
    with pytest.raises(ValueError, match=r"inference\._target_: expected .* --trust own_parts\.opposite"):
        Predictor.load(run)
    assert "own_parts" not in sys.modules
    trusting = ["--trust", "own_parts.opposite"]
    assert evaluated(scripts, tmp_path, run, file, *trusting) == pytest.approx(measured, rel=1e-5)
