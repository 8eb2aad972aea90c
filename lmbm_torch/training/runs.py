"""Run directories: the files of a run, never overwritten, and how an interrupted run goes on.

A run directory holds ``config.yaml``, the checkpoints ``last.ckpt`` (of the last finished epoch) and
``best.ckpt``, the TensorBoard log, ``rules.txt`` where answers obey rules, and when the run is complete
``model.safetensors`` and ``metrics.json``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

from lmbm_torch.constraints import Constraints, read
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.extras import naming_extras
from lmbm_torch.files import CHECKPOINT, CONFIG, METRICS, MODEL, RULES, UNFINISHED, write_metrics, write_text
from lmbm_torch.persistence import save
from lmbm_torch.prediction.decoders import with_settings
from lmbm_torch.training.structured import StructuredModule

with naming_extras():
    from lightning.pytorch import Trainer


def keep_rules(directory: Path, path: str, label_names: Sequence[str]) -> Constraints:
    """The rules of a file, of which a copy goes into a run's directory.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: lines that are no rules, rules over other labels, or that contradict each other.
    """
    rules = Constraints.of(read(path), label_names)
    write_text(directory / RULES, Path(path).read_text(encoding="utf-8"), "x")
    return rules


@contextmanager
def obeying(directory: Path, module: StructuredModule) -> Iterator[None]:
    """A module whose answers obey the rules of its run's directory, where there are some.

    Raises:
        ValueError: a decoder that takes none.
    """
    decoder = module.decoder
    if (directory / RULES).is_file():
        rules = Constraints.of(read(directory / RULES), module.label_names)
        module.decoder = with_settings(decoder, constraints=rules)
    try:
        yield
    finally:
        # The file of the model does not hold them.
        module.decoder = decoder


@contextmanager
def claimed(path: str | PathLike, config: str) -> Iterator[Path]:
    """The directory of a new run, claimed by its ``config.yaml`` before anything else is made.

    Of several processes that claim one directory exactly one gets it. If what is done inside fails, the claim
    is given up and the directories that were made for it are removed.

    Args:
        config: the content of ``config.yaml``.

    Raises:
        ValueError: the directory exists and is not empty, is a file, or was claimed by another run meanwhile.
    """
    directory = Path(path)
    refusal = (
        f"paths.run: expected a new or empty directory, got {directory}, which is never overwritten; "
        f"resume={directory} goes on with an interrupted run"
    )
    made = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ValueError(refusal) from error
    # All that a run leaves if it is killed before it begins.
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
        # Not if something is in them.
        with suppress(OSError):
            for each in made:
                each.rmdir()
        raise


def interrupted_directory(path: str | PathLike) -> Path:
    """A run directory to go on with.

    Raises:
        ValueError: it is none, or its run is complete.
    """
    directory = Path(path)
    if not (directory / CONFIG).is_file():
        raise ValueError(f"resume: expected a run directory, found no {CONFIG} in {directory}")
    if (directory / METRICS).exists():
        raise ValueError(f"resume: expected an interrupted run, but the one in {directory} is complete")
    return directory


def check_measurable(data: MultilabelDataModule) -> None:
    """Raise ValueError if labels are missing from a part that is measured on."""
    for part, instances in (("validation", data.validation_set), ("test", data.test_set)):
        missing = int(instances.labels.isnan().sum()) if len(instances) else 0
        if missing:
            raise ValueError(
                f"{part} labels: expected none missing, since metrics need them, got {missing} NaN"
            )


def fit_and_measure(
    directory: Path, trainer: Trainer, module: StructuredModule, data: MultilabelDataModule
) -> dict[str, float]:
    """Fit, from the directory's last checkpoint where there is one, save the model, and measure it.

    Returns:
        The content of ``metrics.json``: ``fit/…``, and for the parts that the data have ``val/…`` and
        ``test/…``, by answers that obey the rules of the directory.

    Raises:
        ValueError: see :func:`check_measurable`.
    """
    check_measurable(data)
    checkpoint = directory / CHECKPOINT
    with warnings.catch_warnings():
        # Raised inside Lightning on recent torch.
        warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
        # The directory holds this run's own files.
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
