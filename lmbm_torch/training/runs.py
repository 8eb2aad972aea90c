"""Run directories: the files of a run, which other runs never overwrite, and resuming interrupted runs.

A run directory holds ``config.yaml``, the checkpoints ``last.ckpt`` (of the last finished epoch) and
``best.ckpt``, the TensorBoard log, ``rules.txt`` if predictions obey rules, and after the end of the run
``model.safetensors`` and ``metrics.json``.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from lmbm_torch.constraints import Constraints, read
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.extras import naming_extras
from lmbm_torch.files import (
    CHECKPOINT,
    CONFIG,
    METRICS,
    MODEL,
    RULES,
    UNFINISHED,
    reading,
    replacing,
    write_metrics,
    write_text,
)
from lmbm_torch.incoming import lines
from lmbm_torch.persistence import save
from lmbm_torch.persistence.files import check_whole
from lmbm_torch.prediction.trained import with_settings
from lmbm_torch.training.structured import StructuredModule

with naming_extras():
    from lightning.fabric.plugins import TorchCheckpointIO
    from lightning.pytorch import Trainer


def keep_rules(
    directory: Path, path: str | None, label_names: Sequence[str], classes: Sequence[Sequence[str]] = ()
) -> Constraints:
    """Read rules, add rules for classes, and write both to ``rules.txt`` in the directory of the run.

    Args:
        path: the file with rules; None if there are only rules for classes.
        classes: groups of labels, of which exactly one is present.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: a line is no rule, a rule names unknown labels, or the rules contradict each other.
    """
    given = () if path is None else read(path)
    quoted = ([f"'{name}'" if '"' in name else f'"{name}"' for name in names] for names in classes)
    exclusive = [f"exactly_one({', '.join(names)})" for names in quoted]
    rules = Constraints.of([*given, *exclusive], label_names)
    written = ""
    if path is not None:
        with lines(Path(path)) as found:
            written = "".join(found)
    if exclusive and written and not written.endswith("\n"):
        written += "\n"
    write_text(directory / RULES, written + "".join(f"{rule}\n" for rule in exclusive), "x")
    return rules


def classes_of(data: Any) -> tuple[tuple[str, ...], ...]:
    """Return for each column of classes in a data set the labels made of the column (:class:`LabelForm`)."""
    schema = getattr(data, "schema", None)
    return () if schema is None else schema.label_form.classes


@contextmanager
def obeying(directory: Path, module: StructuredModule) -> Iterator[None]:
    """Make the module's decoder obey the rules in the directory of a run, if any, while the context is open.

    Raises:
        ValueError: the decoder does not support rules.
    """
    decoder = module.decoder
    if (directory / RULES).is_file():
        rules = Constraints.of(read(directory / RULES), module.label_names)
        module.decoder = with_settings(decoder, constraints=rules)
    try:
        yield
    finally:
        # Restore the decoder without rules, because the model's file must not hold rules.
        module.decoder = decoder


@contextmanager
def claimed(path: str | PathLike, config: str) -> Iterator[Path]:
    """Create the directory of a new run, and reserve the directory by writing ``config.yaml`` first.

    If several processes reserve a directory, exactly one succeeds. If the body of the context fails,
    ``config.yaml`` and new directories are removed.

    Args:
        config: the content of ``config.yaml``.

    Raises:
        ValueError: the path is a file or a directory that is not empty, or another run was faster.
    """
    directory = Path(path)
    refusal = (
        f"paths.run: expected a new or empty directory, got {directory}, which will not be overwritten; "
        f"resume={directory} continues an interrupted run"
    )
    made = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ValueError(refusal) from error
    # Ignore unfinished files, which a run leaves that was killed at its start.
    if any(not each.name.endswith(UNFINISHED) for each in directory.iterdir()):
        raise ValueError(refusal)
    try:
        write_text(directory / CONFIG, config, "x")
    except FileExistsError as error:
        raise ValueError(refusal) from error
    try:
        yield directory
    except BaseException:
        for name in (CONFIG, RULES):
            (directory / name).unlink(missing_ok=True)
        # Remove new directories; directories that contain other files are kept.
        with suppress(OSError):
            for each in made:
                each.rmdir()
        raise


def interrupted_directory(path: str | PathLike) -> Path:
    """Check that a path is the directory of an interrupted run, and return the directory.

    Raises:
        ValueError: the path is no run directory, or the run is complete.
    """
    directory = Path(path)
    if not (directory / CONFIG).is_file():
        raise ValueError(f"resume: expected a run directory, found no {CONFIG} in {directory}")
    if (directory / METRICS).exists():
        raise ValueError(f"resume: expected an interrupted run, but the run in {directory} is complete")
    return directory


def check_measurable(data: MultilabelDataModule) -> None:
    """Raise ValueError if labels are missing in the validation or test part."""
    for part, instances in (("validation", data.validation_set), ("test", data.test_set)):
        missing = int(instances.labels.isnan().sum()) if len(instances) else 0
        if missing:
            raise ValueError(
                f"{part} labels: expected no missing labels, since metrics need all, got {missing} NaN"
            )


def fit_and_measure(
    directory: Path, trainer: Trainer, module: StructuredModule, data: MultilabelDataModule
) -> dict[str, float]:
    """Train (from the last checkpoint in the directory, if any), save the model, and compute metrics.

    Returns:
        The content of ``metrics.json``: ``fit/…``, and for existing parts ``val/…`` and ``test/…``, where
        predictions obey the rules in the directory.

    Raises:
        ValueError: see :func:`check_measurable`.
    """
    check_measurable(data)
    checkpoint = directory / CHECKPOINT
    with warnings.catch_warnings():
        # Ignore a warning of Lightning's own code with recent versions of torch.
        warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
        # Ignore the warning that the directory is not empty: the files belong to this run.
        warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
        trainer.fit(
            module, datamodule=data, ckpt_path=checkpoint if checkpoint.is_file() else None, weights_only=True
        )
        metrics = dict(module.fit_report)
        with obeying(directory, module):
            if len(data.validation_set):
                metrics |= trainer.validate(module, datamodule=data, verbose=False)[0]
            if len(data.test_set):
                metrics |= trainer.test(module, datamodule=data, verbose=False)[0]
    if trainer.is_global_zero:
        save(module.trained(), directory / MODEL, "w")
        write_metrics(directory / METRICS, metrics)
    return metrics


class WholeCheckpoints(TorchCheckpointIO):
    """Lightning's input and output of checkpoints, with complete files even if the process is killed.

    Lightning writes to the system's temporary folder and moves the file. Between file systems a move is a
    copy, which is incomplete if the process is killed. Here :func:`replacing` writes the file.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | PathLike, storage_options: Any = None
    ) -> None:
        """Write a checkpoint by :func:`replacing`.

        Raises:
            OSError: see :func:`replacing`.
            TypeError: ``storage_options`` is not None.
        """
        if storage_options is not None:
            raise TypeError(f"storage_options: expected None, got {storage_options!r}")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            torch.save(checkpoint, stream)

    def load_checkpoint(self, path: str | PathLike, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Check that a checkpoint's file is complete, and read the checkpoint.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is truncated or corrupted; the message names the file.
        """
        with reading(path, zipfile.BadZipFile, argument="checkpoint") as file:
            check_whole(file)
            return super().load_checkpoint(file, *args, **kwargs)
