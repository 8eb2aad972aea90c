"""Runs of ``lmbm train`` by epochs: started in a new directory, or resumed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from lmbm_torch.cli.showing import print_data, print_line, print_metrics
from lmbm_torch.cli.typed import Training, check_types
from lmbm_torch.data import MultilabelData
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.persistence.trusted import SavedConfiguration, import_trusted
from lmbm_torch.training import runs
from lmbm_torch.training.configured import build, is_follower, left_out, starts_others
from lmbm_torch.training.structured import StructuredModule


def start(config: DictConfig) -> dict[str, float]:
    """Train a model; print, store (in the new directory ``paths.run``) and return the metrics.

    Raises:
        ValueError: a value in the configuration has a wrong type; or the directory is not empty, or another
            run uses it at the same time.
    """
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    check_types(resolved, Training)
    if is_follower(config.trainer):
        # Other processes do not prepare the directory of the run, because the first process has done so.
        return _complete(Path(config.paths.run), *build(config))
    with runs.claimed(config.paths.run, OmegaConf.to_yaml(config, resolve=True)) as directory:
        parts = build(config)
        runs.check_measurable(parts[2])
        if isinstance(parts[2].data, MultilabelData):
            parts[2].data.check_certain()
            # Check the labels, except for data on disk, which would be read as a whole.
            parts[1].check_labels(parts[2].train_set)
        _check_sweep(parts[0])
        classes = runs.classes_of(parts[2].data)
        if config.rules is not None or classes:
            runs.keep_rules(directory, config.rules, parts[2].label_names, classes)
            # Apply the rules once, so that a decoder that takes no rules is refused before the training.
            with runs.obeying(directory, parts[1]):
                pass
    if isinstance(parts[2].data, MultilabelData):
        print_data(parts[2].data, parts[2], config.data.get("test"))
    _print_left_out(config, parts[2])
    return _complete(directory, *parts)


def resume(path: str, trust: Sequence[str] = ()) -> dict[str, float]:
    """Resume the run in a directory from the last checkpoint; print, store and return the metrics.

    Args:
        trust: see :class:`~lmbm_torch.persistence.trusted.SavedConfiguration`.

    Raises:
        ValueError: there is no run directory, the run is complete, or the configuration has untrusted names.
    """
    directory = runs.interrupted_directory(path)
    configured = SavedConfiguration.read(directory, trust)
    if configured.get("estimator") is not None:
        raise ValueError(
            f"resume: expected a run that trains by epochs, got the run of an estimator in {directory}, "
            "which has no checkpoint; start a new run instead"
        )
    # Replace the old path of the run everywhere, because the directory may have been moved.
    old = configured.get("paths", "run")
    if not isinstance(old, str):
        raise ValueError(f"resume: expected paths.run in {directory / runs.CONFIG}, got {old!r}")
    configured.check()
    import_trusted(trust)
    check_types(configured.values, Training)
    config = DictConfig(_replaced(configured.values, old, str(directory)))
    parts = build(config)
    if not is_follower(config.trainer):
        _print_left_out(config, parts[2])
    return _complete(directory, *parts)


def _replaced(node: Any, old: str, new: str) -> Any:
    """Return the same tree with every ``old`` replaced by ``new``."""
    if isinstance(node, dict):
        return {key: _replaced(value, old, new) for key, value in node.items()}
    if isinstance(node, list):
        return [_replaced(value, old, new) for value in node]
    return new if node == old else node


def _print_left_out(config: DictConfig, data: MultilabelDataModule) -> None:
    if unserved := left_out(config.callbacks, data):
        watched = " and ".join(dict.fromkeys(unserved.values()))
        print_line(
            f"no validation part: callbacks {' and '.join(unserved)}, which watch {watched}, are left out, "
            "and the last epoch's weights are kept; data.validation_fraction=0.2 would hold rows out for them"
        )


def _check_sweep(trainer: Trainer) -> None:
    """Raise ValueError if a job of a sweep would start further processes, which would repeat the sweep."""
    if starts_others(trainer) and HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        raise ValueError(
            "trainer: expected a single process for each job of a sweep on this computer, got "
            f"{trainer.world_size}; use hydra/launcher=slurm, or train the jobs one after another without -m"
        )


def _complete(
    directory: Path, trainer: Trainer, module: StructuredModule, data: MultilabelDataModule
) -> dict[str, float]:
    try:
        metrics = runs.fit_and_measure(directory, trainer, module, data)
    except SIGTERMException:
        # After the batch, Lightning would exit with status 0: exit with 143, as after SIGTERM.
        Console(stderr=True).print(
            f"ended by SIGTERM; resume={directory} continues from the last checkpoint", soft_wrap=True
        )
        sys.exit(128 + signal.SIGTERM)
    if not trainer.is_global_zero:
        return metrics
    print_metrics(str(directory), metrics)
    _print_missed_gap(trainer, metrics)
    return metrics


def _print_missed_gap(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Print a notice if a dual solver has not converged after the last epoch."""
    stopping, gap = trainer.early_stopping_callback, metrics.get("fit/gap")
    if stopping is None or stopping.stopping_threshold is None or gap is None:
        return
    if gap > stopping.stopping_threshold:
        Console().print(
            f"not converged: the relative duality gap is {gap:.2g} after {trainer.max_epochs} epochs, above "
            f"{stopping.stopping_threshold:g}; lower C, or raise "
            "trainer.max_epochs"
        )
