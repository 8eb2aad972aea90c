"""The parts of a run, built from its configuration, and the processes of a run."""

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
    """Return whether this process is not the first of the run; works before a trainer exists.

    Args:
        trainer: the trainer's arguments by name. In a run of a single process, process numbers are ignored.
    """
    is_alone = trainer.get("devices", 1) == 1 and trainer.get("num_nodes", 1) == 1
    return not is_alone and any(os.environ.get(name, "0") != "0" for name in RANKS)


def starts_others(trainer: Trainer) -> bool:
    """Return whether this process will start further processes with the command line."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    return trainer.world_size > 1 and environment is not None and not environment.creates_processes_externally


def build(config: DictConfig) -> tuple[Trainer, StructuredModule, MultilabelDataModule]:
    """Build trainer, training module and data module of a configuration.

    Raises:
        ValueError: the training cannot be shared by so many processes, or a part refuses its arguments.
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
    """Return the callbacks that :func:`build` leaves out, by name, with the ``val/…`` that each watches.

    Without a validation part these values do not exist, unless a callback declares in ``logged`` that it logs
    them.
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
    """Make the model; pass sizes of the data and the label ordering if the model has such arguments."""
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
    """Return the label ordering by a rule; pass sizes or the training set if the rule has such arguments."""

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
