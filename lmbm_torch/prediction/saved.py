"""Trained models with what predicting takes: in the checkpoints of a training, and in files of their own.

Besides what Lightning needs to go on training, a checkpoint carries a record of plain values and tensors
under :data:`RECORD`, and the state of the data. Reading it needs neither Lightning nor the training data, and
executes nothing: torch's restricted unpickler builds tensors and plain containers alone. A file of
:func:`save_model` holds the same, without the training's state; both say what a model is built of in the
words of :mod:`lmbm_torch.models.archives`.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_finite, check_positive
from lmbm_torch.data.features import Features
from lmbm_torch.data.formats.files import reading
from lmbm_torch.data.scaling import Scaling
from lmbm_torch.data.tables.schema import Schema
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.models import archives, saving
from lmbm_torch.shapes import Float
from lmbm_torch.training.families import StructuredModel

RECORD = "lmbm_torch"
VERSION = 3
# Under what Lightning keeps the model's weights, and under what the record looks for them.
MODEL_PREFIX, WEIGHTS_PREFIX = "model.", "model.weights."
# Under what Lightning keeps the state of the data, by the name of their class.
DATA = "MultilabelDataModule"
HOLDS = "a trained model"
# What comes up where a file is not as it should be, and what else in torch's restricted unpickler.
_DAMAGED_FILE = (
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_DAMAGED_PICKLE = (AssertionError, AttributeError, EOFError, IndexError, OverflowError, struct.error)
# What such a file is called in a run's directory.
MODEL = "model.safetensors"


@dataclass(frozen=True)
class SavedModel:
    """A trained model and what predicting with it takes.

    Args:
        model: with its weights, on the CPU, in evaluation mode.
        label_names: one per label.
        margin: γ of the hinge that it was trained with, and decodes by.
        scaling: what the features went through before they reached the model; None for none.
        inference: what a model with hidden units was trained with, and predicts by.
        schema: how a table's columns become features; None for a model of features that came as a matrix.
    """

    model: StructuredModel
    label_names: tuple[str, ...]
    margin: float
    scaling: Scaling | None
    inference: MatchedInference | None = None
    schema: Schema | None = None
    # Every model's energy is that of a distribution.
    has_probabilities: ClassVar[bool] = True

    @property
    def num_inputs(self) -> int | None:
        """Width of the raw features; None where an encoder takes them as they are."""
        if self.scaling is not None:
            return len(self.scaling.mean)
        # A model without input has neither an encoder nor a width.
        has_own_width = isinstance(getattr(self.model, "encoder", None), nn.Identity)
        return getattr(self.model, "num_features", None) if has_own_width else None

    @property
    def kind(self) -> str:
        """Its name, for readers."""
        return type(self.model).__name__

    @torch.no_grad()
    def energies(self, rows: Features) -> list[Any]:
        """The energy for raw features, alone in a list, as ensembles have several."""
        return [self.energy(to_tensor(rows))]

    def energy(self, rows: Float[Tensor, "batch features"]) -> Any:
        """The energy for raw features, dense or CSR, on the CPU as they are scaled there."""
        scaled = rows if self.scaling is None else self.scaling.transform(rows)
        weights = next(self.model.parameters())
        return self.model(scaled.to(weights.device, weights.dtype))


def record(
    model: StructuredModel, label_names: Sequence[str], margin: float, scaling: Scaling | None
) -> dict[str, Any]:
    """What :func:`load_model` needs beside the weights, in plain types and tensors.

    Raises:
        TypeError: a model of another library.
    """
    packed, _ = archives.pack(model, "model", saving.kinds())
    return {
        "version": VERSION,
        "model": packed,
        "label_names": list(label_names),
        "margin": margin,
        "scaling": None if scaling is None else scaling.state(),
    }


def save_model(saved: SavedModel, path: str | PathLike, mode: Literal["x", "w"] = "x") -> None:
    """Write a trained model to one file, such as ``model.safetensors``, for :func:`load_model`.

    Of an encoder the file holds the weights alone.

    Args:
        mode: as for ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        OSError: it cannot be written.
    """
    content = {
        "model": saved.model,
        "label_names": saved.label_names,
        "margin": saved.margin,
        "scaling": None if saved.scaling is None else saved.scaling.state(),
        "inference": None if saved.inference is None else saved.inference.record(),
        "schema": None if saved.schema is None else saved.schema.state(),
    }
    archives.write(path, HOLDS, content, saving.kinds(), mode)


def load_model(path: str | PathLike, encoder: nn.Module | None = None) -> SavedModel:
    """The model of a checkpoint, or of a file of :func:`save_model`, rebuilt.

    Args:
        encoder: of the same architecture as in training, exactly when the model was trained with one; it is
            given the checkpoint's weights.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file that is truncated or corrupted, that is no checkpoint of this library, or that asks
            for more than tensors and plain values; an encoder that lacks or does not fit. The message names
            the file.
    """
    if archives.peek(path) is not None:
        content = archives.read(path, HOLDS, saving.kinds(encoder))
        with reading(path, KeyError, TypeError):
            return _saved_model(**content)
    with reading(path, *_DAMAGED_FILE) as file:
        checkpoint = _read(file)
        if not isinstance(checkpoint, dict) or RECORD not in checkpoint:
            raise ValueError("expected a checkpoint of lmbm_torch, got another file")
        saved = checkpoint[RECORD]
        if saved["version"] != VERSION:
            raise ValueError(
                f"expected a checkpoint of version {VERSION}, got version {saved['version']}: only the "
                "lmbm_torch that wrote it reads it"
            )
        return _saved_model(
            model=_rebuild(saved["model"], checkpoint["state_dict"], encoder),
            label_names=saved["label_names"],
            margin=saved["margin"],
            scaling=saved["scaling"],
            inference=saved.get("inference"),
            schema=checkpoint.get(DATA, {}).get("schema"),
        )


def _read(file: Path) -> Any:
    if not zipfile.is_zipfile(file):
        raise ValueError("expected a checkpoint, got a file that is truncated or of another kind")
    with zipfile.ZipFile(file) as archive:
        # Checksums first, so that no damaged header is ever interpreted.
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} is corrupted")
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's own message advises to load without the restriction.
        raise ValueError(
            "expected a checkpoint of tensors and plain values alone, got one that asks for other objects; "
            "none of it was executed"
        ) from error
    except _DAMAGED_PICKLE as error:
        raise ValueError(
            f"expected a checkpoint, got one with a damaged pickle: {type(error).__name__}"
        ) from error


def _rebuild(packed: Any, state: dict[str, Tensor], encoder: nn.Module | None) -> StructuredModel:
    weights = {
        WEIGHTS_PREFIX + name.removeprefix(MODEL_PREFIX): value
        for name, value in state.items()
        if name.startswith(MODEL_PREFIX)
    }
    return archives.unpack(packed, weights, saving.kinds(encoder))


def _saved_model(
    model: StructuredModel,
    label_names: Sequence[str],
    margin: float,
    scaling: dict[str, Any] | None,
    inference: dict[str, Any] | None,
    schema: dict[str, Any] | None,
) -> SavedModel:
    for name, value in model.state_dict().items():
        check_finite(name, value)
    check_positive("margin", margin)
    if len(label_names) != model.num_labels:
        raise ValueError(f"label_names: expected {model.num_labels} names, got {len(label_names)}")
    return SavedModel(
        model,
        tuple(label_names),
        margin,
        None if scaling is None else Scaling(**scaling),
        None if inference is None else MatchedInference.from_record(inference),
        None if schema is None else Schema.from_state(schema),
    )
