"""Train a model: python scripts/train.py experiment=seven_segment_lmsbn

On a table of your own: python scripts/train.py data=table data.train=mine.csv 'data.labels=[sunny,windy]'

Every key of conf/ can be overridden (C=0.3 training=gradient), -m runs one job for each combination of values
(-m C=0.1,1), and resume=<run directory> goes on with a run that was interrupted. A run that SIGTERM reaches
ends after its batch, with exit status 143 and the checkpoint of its last epoch.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import numpy as np
from console import print_metrics
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from torch import nn

from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.training import runs
from lmbm_torch.training.structured import StructuredModule


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(config: DictConfig) -> None:
    """Run what the command line composes, or go on with what it names."""
    hydra_config = HydraConfig.get()
    if config.resume is not None:
        if len(hydra_config.overrides.task) > 1:
            raise ValueError(
                f"resume: expected no other override, since the run's own {runs.CONFIG} is used, "
                f"got {list(hydra_config.overrides.task)}"
            )
        resume(config.resume)
    else:
        if hydra_config.mode == RunMode.MULTIRUN:
            config.paths.run = hydra_config.runtime.output_dir
        start(config)


def start(config: DictConfig) -> dict[str, float]:
    """Train in the new directory ``paths.run``; print, store and return the metrics.

    Raises:
        ValueError: a key of the wrong type; or the directory exists and is not empty, or another run claims
            it at the same time.
    """
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    runs.check_types(resolved)
    with runs.claimed(config.paths.run, OmegaConf.to_yaml(config, resolve=True)) as directory:
        parts = build(config)
    return _complete(directory, *parts)


def resume(path: str) -> dict[str, float]:
    """Go on with the run of a directory from its last checkpoint; print, store and return the metrics.

    Raises:
        ValueError: it is no run directory, or its run is complete.
    """
    directory = runs.interrupted_directory(path)
    saved = OmegaConf.to_container(OmegaConf.load(directory / runs.CONFIG))
    assert isinstance(saved, dict)
    # The directory may have been moved, or named relative to another one.
    config = DictConfig(_replaced(saved, saved["paths"]["run"], str(directory)))
    return _complete(directory, *build(config))


def build(config: DictConfig) -> tuple[Trainer, StructuredModule, MultilabelDataModule]:
    """Everything that a run needs, as the configuration describes it."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    seed_everything(config.seed, verbose=False)
    data = instantiate(config.data)
    module = instantiate(config.training)(
        model=_model(instantiate(config.model), config, data),
        decoder=instantiate(config.get("inference")),
        label_names=data.label_names,
    )
    callbacks = [instantiate(callback) for callback in config.callbacks.values() if callback is not None]
    trainer = instantiate(config.trainer, callbacks=callbacks, logger=instantiate(config.logger))
    return trainer, module, data


def _model(make: Callable[..., nn.Module], config: DictConfig, data: MultilabelDataModule) -> nn.Module:
    """The model for these data, given the sizes and the ordering of the labels that it asks for by name."""
    asked = inspect.signature(make).parameters
    given: dict[str, Any] = {
        "num_features": config.model.get("num_features") or data.num_features,
        "num_labels": data.num_labels,
        "num_visible": data.num_labels,
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


def _replaced(node: Any, old: str, new: str) -> Any:
    """The same tree with another value wherever the old one stands."""
    if isinstance(node, dict):
        return {key: _replaced(value, old, new) for key, value in node.items()}
    if isinstance(node, list):
        return [_replaced(value, old, new) for value in node]
    return new if node == old else node


def _complete(
    directory: Path, trainer: Trainer, module: StructuredModule, data: MultilabelDataModule
) -> dict[str, float]:
    try:
        metrics = runs.fit_and_measure(directory, trainer, module, data)
    except SIGTERMException:
        # Lightning lets the batch end, and would leave as if all were done.
        Console(stderr=True).print(
            f"ended by SIGTERM: resume={directory} goes on from the last checkpoint", soft_wrap=True
        )
        sys.exit(128 + signal.SIGTERM)
    print_metrics(str(directory), metrics)
    _print_missed_gap(trainer, metrics)
    return metrics


def _print_missed_gap(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Say so where a dual solver ran out of epochs: all else looks like a finished run."""
    stopping, gap = trainer.early_stopping_callback, metrics.get("fit/gap")
    if stopping is None or stopping.stopping_threshold is None or gap is None:
        return
    if gap > stopping.stopping_threshold:
        Console().print(
            f"not converged: the relative duality gap is {gap:.2g} after {trainer.max_epochs} epochs, above "
            f"{stopping.stopping_threshold:g}; scale the features (data.scaling), lower C, or raise "
            "trainer.max_epochs"
        )


if __name__ == "__main__":
    # Jobs of a sweep in processes elsewhere, such as a cluster's, must find these scripts, too.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    main()
