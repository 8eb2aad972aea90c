"""The trainer, the training module and the data of a run, built from the configuration; and its processes."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.extras import naming_extras
from lmbm_torch.fitting import recipe
from lmbm_torch.training.structured import StructuredModule

with naming_extras():
    from hydra.utils import get_object, instantiate
    from lightning.pytorch import Trainer, seed_everything
    from omegaconf import DictConfig

RANKS = ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")
"""Environment variables with the number of a process; all are 0 or unset in the first process of a run."""


def is_follower(trainer: Mapping[str, Any]) -> bool:
    """Return whether this process is not the first process of the run, before a trainer exists.

    Args:
        trainer: the trainer's arguments by name. With one device and one node, process numbers are ignored.
    """
    is_alone = trainer.get("devices", 1) == 1 and trainer.get("num_nodes", 1) == 1
    return not is_alone and any(os.environ.get(name, "0") != "0" for name in RANKS)


def starts_others(trainer: Trainer) -> bool:
    """Return whether this process will start the run's other processes, with the same command line."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    return trainer.world_size > 1 and environment is not None and not environment.creates_processes_externally


def build(config: DictConfig) -> tuple[Trainer, StructuredModule, MultilabelDataModule]:
    """Build the trainer, the training module and the data module from a configuration.

    Raises:
        ValueError: the training cannot run on the number of processes, or a class refuses its arguments.
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
    unserved = left_out(config.callbacks, data)
    callbacks = {name: node for name, node in (config.callbacks or {}).items() if name not in unserved}
    trainer = instantiate(config.trainer, callbacks=_made(callbacks), logger=_made(config.get("logger")))
    module.check_processes(trainer.world_size)
    return trainer, module, data


def left_out(callbacks: DictConfig | None, data: MultilabelDataModule) -> dict[str, str]:
    """Return the callbacks left out by :func:`build`, by name, with the metric monitored by each callback.

    Without a validation part, metrics ``val/…`` do not exist, except metrics in a callback's ``logged``.
    """
    if len(data.validation_set):
        return {}
    nodes = {str(name): node for name, node in (callbacks or {}).items() if node is not None}
    logged = {name for node in nodes.values() for name in getattr(get_object(node["_target_"]), "logged", ())}
    watched = {name: str(node.get("monitor", "")) for name, node in nodes.items()}
    return {name: each for name, each in watched.items() if each.startswith("val/") and each not in logged}


def _made(parts: Mapping[Any, Any] | None) -> list[Any]:
    return [instantiate(part) for part in (parts or {}).values() if part is not None]


def _model(make: Callable[..., nn.Module], config: DictConfig, data: MultilabelDataModule) -> nn.Module:
    """Make the model; pass the numbers of features and labels, and the ordering, if the model takes them."""
    asked = inspect.signature(make).parameters
    width = config.model.get("num_features")
    given: dict[str, Any] = {
        "num_features": data.num_features if width is None else width,
        "num_labels": data.num_labels,
    }
    if "ordering" in asked:
        given["ordering"] = _ordering(instantiate(config.ordering), data, config.C)
    return make(**{name: value for name, value in given.items() if name in asked})


def _ordering(choose: Callable[..., np.ndarray], data: MultilabelDataModule, C: float | str) -> list[int]:
    """Compute the label ordering by ``choose``, with the arguments that the function takes."""

    def units() -> recipe.Units:
        return recipe.units(C, data.train_set.features)

    known: dict[str, Callable[[], Any]] = {
        "num_labels": lambda: data.num_labels,
        "inputs": lambda: units().scaled(data.train_set.features),
        "labels": lambda: data.train_set.labels.numpy(),
        "C": lambda: units().C,
    }
    asked = inspect.signature(choose).parameters
    return choose(**{name: value() for name, value in known.items() if name in asked}).tolist()
