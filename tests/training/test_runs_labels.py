"""A run refuses what it could not measure before it spends time on training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import Trainer

from lmbm_torch.data import MultilabelData
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.training import runs
from lmbm_torch.training.dual import DualModule


def test_missing_test_labels_are_refused_before_training(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    data = MultilabelData(
        name="small",
        features=random.normal(size=(8, 3)),
        labels=random.integers(0, 2, (8, 2)).astype(np.float64),
        label_names=("a", "b"),
        feature_names=("x", "y", "z"),
        train=np.arange(6),
        test=np.arange(6, 8),
    )
    labels = data.labels.copy()
    labels[7, 1] = np.nan
    module = DualModule(SigmoidBeliefNetwork(3, 2).double(), C=1.0)
    served = MultilabelDataModule(replace(data, labels=labels))
    trainer = Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", max_epochs=1)
    with pytest.raises(ValueError, match=r"test labels: expected no missing labels.* 1 NaN"):
        runs.fit_and_measure(tmp_path, trainer, module, served)
    assert not any(tmp_path.iterdir())
