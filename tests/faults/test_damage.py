"""Damaged checkpoints and data are named, and training that goes astray leaves its last sound weights."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from problems.small import gradient_module, last_checkpoint, quiet_trainer, served, small_data

from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.losses import local_hinge
from lmbm_torch.training.callbacks.display import FiniteObjective
from lmbm_torch.training.runs import WholeCheckpoints


def fit(folder, max_epochs, *callbacks, module=None, **options):
    callbacks = (*callbacks, last_checkpoint(folder))
    trainer = quiet_trainer(folder, max_epochs, *callbacks, plugins=[WholeCheckpoints()])
    trainer.fit(module or gradient_module(), datamodule=served(small_data(), 20), **options)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_is_named_and_left_alone(tmp_path, damage):
    fit(tmp_path, 1)
    file = tmp_path / "last.ckpt"
    content = bytearray(file.read_bytes())
    third = len(content) // 3
    if damage == "flip":
        content[third : 2 * third] = bytes(byte ^ 1 for byte in content[third : 2 * third])
    file.write_bytes(content[: {"cut": third, "flip": len(content), "empty": 0}[damage]])
    left = file.read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint: .*last\.ckpt"):
        fit(tmp_path, 2, ckpt_path=file, weights_only=True)
    assert file.read_bytes() == left


def test_there_is_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"checkpoint: .*none\.ckpt"):
        WholeCheckpoints().load_checkpoint(tmp_path / "none.ckpt")


def test_options_of_a_storage_are_refused(tmp_path):
    with pytest.raises(TypeError, match="storage_options: expected None, got 3"):
        WholeCheckpoints().save_checkpoint({}, tmp_path / "last.ckpt", 3)


def hinge_until(calls, last, energy, labels):
    """The hinge, and from some call on not a number."""
    calls.append(1)
    return local_hinge(energy, labels) * (1 if len(calls) <= last else torch.nan)


def test_a_loss_that_is_not_a_number_ends_the_training_at_the_last_sound_weights(tmp_path):
    # Three batches an epoch: the first of the third epoch is the first to go wrong.
    module = gradient_module(loss=partial(hinge_until, [], 6))
    with pytest.raises(FloatingPointError, match="expected a finite number, got nan in epoch 2, step 6"):
        fit(tmp_path, 9, FiniteObjective(), module=module)
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert checkpoint["epoch"] == 1
    assert all(weight.isfinite().all() for weight in checkpoint["state_dict"].values())


@pytest.fixture
def train():
    """Begins and resumes runs."""
    return import_module("lmbm_torch.cli.jobs")


def composed(*overrides):
    quiet = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false"]
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        return compose("train", overrides=[*quiet, *overrides])


def test_a_step_that_is_too_large_is_found_by_every_run(train, tmp_path):
    overrides = ["training=gradient", "training.optimizer.lr=1e30", f"paths.run={tmp_path / 'run'}"]
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        train.start(composed(*overrides))
    assert not (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize("length", [0, 100, 0.5])
def test_a_damaged_data_file_is_named_before_there_is_a_run(train, tmp_path, length):
    file = tmp_path / "mine.npz"
    np.savez(file, x=np.ones((4, 2)), y=np.ones((4, 2)))
    content = file.read_bytes()
    file.write_bytes(content[: int(length * len(content)) if length < 1 else length])
    with pytest.raises(Exception, match=r"path: .*mine\.npz"):
        train.start(
            composed("training=dual", "data=npz", f"data.data.path={file}", f"paths.run={tmp_path / 'run'}")
        )
    assert not (tmp_path / "run").exists()
