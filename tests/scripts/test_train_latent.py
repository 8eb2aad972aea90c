"""Conditional RBMs from the command line: every learner, and what its run leaves behind."""

from __future__ import annotations

import warnings
from importlib import import_module

import pytest
import torch
from hydra import compose, initialize_config_dir
from sweeps import slow, thorough

from lmbm_torch import load
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.losses.latent import METHODS
from lmbm_torch.prediction import answers

SMALL = (
    "callbacks.progress_bar=null",
    "trainer.enable_progress_bar=false",
    "experiment=noisy_digits_mle_bp",
    "trainer.max_epochs=1",
    "model.num_hidden=4",
    "data.batch_size=500",
)


@pytest.fixture
def train():
    """Begins and resumes runs."""
    return import_module("lmbm_torch.cli.jobs")


def composed(folder, *overrides):
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        return compose("train", overrides=[*SMALL, f"paths.run={folder}", *overrides])


@pytest.mark.parametrize(
    "overrides",
    [
        *thorough(([f"training.method={method}"] for method in METHODS), 2),
        slow(["training.method=cd", "training.num_steps=2"]),
        ["training.method=mssvm", "loss=marginal_structured_hinge", "loss.slope=0.5"],
    ],
    ids=lambda overrides: " ".join(overrides),
)
def test_every_method_trains_and_predicts_by_its_own_inference(train, tmp_path, overrides):
    metrics = train.start(composed(tmp_path / "run", *overrides))
    assert 0 < metrics["test/changed_pixel_error"] < 1
    saved = load(tmp_path / "run" / "last.ckpt")
    _, module, data = train.build(composed(tmp_path / "again", *overrides))
    assert saved.inference is not None
    assert saved.inference.stored_parts() == module.inference.stored_parts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoding = next(answers.decode(saved, data.data.features[data.data.test]))
    wrong = decoding.labels != data.test_set.labels
    assert wrong.double().mean().item() == pytest.approx(metrics["test/hamming_loss"])


def test_logistic_regression_leaves_the_hidden_unit_alone(train, tmp_path):
    without = [override for override in SMALL if not override.startswith("model")]
    overrides = ["model=logistic_regression", "training.method=mle_mf", f"paths.run={tmp_path / 'run'}"]
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = compose("train", overrides=[*without, *overrides, "~model.num_hidden"])
    train.start(config)
    model = load(tmp_path / "run" / "last.ckpt").estimator.model
    assert not model.get_parameter("coupling").any()
    assert model.get_parameter("visible_weight").any()


def test_another_inference_in_the_test_warns(train, tmp_path):
    with pytest.warns(UserWarning, match="matched inference"):
        train.build(composed(tmp_path / "run", "inference=mean_field"))


def test_conditional_machines_from_scratch_differ_by_their_seed(train, tmp_path):
    first, second, same = (
        train.build(composed(tmp_path / "run", f"seed={seed}"))[1].model.coupling for seed in (0, 1, 0)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, second)
