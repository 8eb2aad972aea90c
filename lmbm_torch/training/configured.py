"""The parts of a run, as its configuration describes them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.extras import naming_extras
from lmbm_torch.training.structured import StructuredModule

with naming_extras():
    from hydra.utils import instantiate
    from lightning.pytorch import Trainer, seed_everything
    from omegaconf import DictConfig


def build(config: DictConfig) -> tuple[Trainer, StructuredModule, MultilabelDataModule]:
    """Everything that a run needs, as the configuration describes it.

    Raises:
        ValueError: more processes than the training can be shared by, and what the parts refuse.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    seed_everything(config.seed, verbose=False)
    data = instantiate(config.data)
    if not isinstance(data, MultilabelDataModule):
        raise ValueError(
            f"data: expected label vectors to train on by epochs, got {data!r}; estimator=crf, m3n, hmm or "
            "memm learns sequences"
        )
    module = instantiate(config.training)(
        model=_model(instantiate(config.model), config, data),
        decoder=instantiate(config.get("inference")),
        label_names=data.label_names,
    )
    trainer = instantiate(
        config.trainer, callbacks=_made(config.callbacks), logger=_made(config.get("logger"))
    )
    module.check_processes(trainer.world_size)
    return trainer, module, data


def _made(parts: DictConfig | None) -> list[Any]:
    """Every part that is not turned off."""
    return [instantiate(part) for part in (parts or {}).values() if part is not None]


def _model(make: Callable[..., nn.Module], config: DictConfig, data: MultilabelDataModule) -> nn.Module:
    """The model for these data, given the sizes and the ordering of the labels that it asks for by name."""
    asked = inspect.signature(make).parameters
    width = config.model.get("num_features")
    given: dict[str, Any] = {
        "num_features": data.num_features if width is None else width,
        "num_labels": data.num_labels,
    }
    if "ordering" in asked:
        given["ordering"] = _ordering(instantiate(config.ordering), data)
    return make(**{name: value for name, value in given.items() if name in asked})


def _ordering(choose: Callable[..., np.ndarray], data: MultilabelDataModule) -> list[int]:
    """The ordering, from what its rule asks for by name: some look at the training set, some at its size."""
    known: dict[str, Callable[[], Any]] = {
        "num_labels": lambda: data.num_labels,
        "inputs": lambda: data.train_set.features,
        "labels": lambda: data.train_set.labels.numpy(),
    }
    asked = inspect.signature(choose).parameters
    return choose(**{name: value() for name, value in known.items() if name in asked}).tolist()
