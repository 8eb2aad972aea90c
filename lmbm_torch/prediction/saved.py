"""Trained models with all that predicting takes, in the checkpoints of a training and in files of their own.

Besides what Lightning needs to go on training, a checkpoint carries a record of plain values under
:data:`RECORD`; the weights are those of Lightning's state, scaling and schema those of the state of the data.
Reading it needs neither Lightning nor the training data, and executes nothing: torch's restricted unpickler
builds tensors and plain containers alone. A file of :func:`save_model` holds the same :class:`SavedModel`
without the training's state; both describe the model in the words of :mod:`lmbm_torch.models.archives`.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmbm_torch.calibration.scales import Calibration
from lmbm_torch.checks import check_finite, check_positive
from lmbm_torch.constraints import Constraints
from lmbm_torch.data.features import Features
from lmbm_torch.data.formats.limits import check_archive
from lmbm_torch.data.scaling import Scaling
from lmbm_torch.data.tables.schema import Schema
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.files import Mode, reading
from lmbm_torch.inference import decode_hinge
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.results import Decoding
from lmbm_torch.models import Model, archives, saving
from lmbm_torch.prediction.decoders import Decoder, decoder_of, description, with_settings
from lmbm_torch.shapes import Float

RECORD = "lmbm_torch"
VERSION = 5
HOLDS = "a trained model"
# The name of such a file in a run directory.
MODEL = "model.safetensors"
# The prefixes of the model's weights in Lightning's state and in the record.
MODEL_PREFIX, WEIGHTS_PREFIX = "model.", "model.weights."
# The parts that the state of the data holds.
OF_DATA = ("scaling", "schema")
# How each part that may be None becomes plain values, and these the part again.
_OPTIONAL: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "calibration": (Calibration.state, lambda state: Calibration(**state)),
    "inference": (MatchedInference.record, MatchedInference.from_record),
    "scaling": (Scaling.state, lambda state: Scaling(**state)),
    "schema": (Schema.state, Schema.from_state),
}
# The errors that a damaged file leads to, and those of torch's restricted unpickler.
_DAMAGED_FILE = (*archives.DAMAGE, EOFError, OSError, struct.error, zipfile.BadZipFile, zlib.error)
_DAMAGED_PICKLE = (AssertionError, AttributeError, EOFError, IndexError, OverflowError, struct.error)


@dataclass(frozen=True)
class SavedModel:
    """A trained model and all that predicting with it takes.

    Args:
        model: with its weights, on the CPU, in evaluation mode.
        label_names: one per label.
        margin: γ of the hinge that it was trained with.
        scaling: of raw features, before they reach the model; None for none.
        decoder: energy → decoding, by which the model predicts; by default ``inference``'s, or else exact
            hinge decoding with ``margin``.
        inference: the inference that a model with hidden units was trained with.
        schema: how a table's columns become features; None for a model of features that came as a matrix.
        calibration: of probabilities; None to take the energies' own.
        rules: that answers obey, which no file holds: :meth:`obeying` gives them.
    """

    model: Model
    label_names: tuple[str, ...]
    margin: float = 1.0
    scaling: Scaling | None = None
    decoder: Decoder = None  # pyright: ignore[reportAssignmentType]  # filled in below
    inference: MatchedInference | None = None
    schema: Schema | None = None
    calibration: Calibration | None = None
    rules: Constraints | None = None
    # Every model's energy is that of a distribution.
    has_probabilities: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.decoder is None:
            hinge = partial(decode_hinge, margin=self.margin)
            decoder = hinge if self.inference is None else self.inference.decode
            object.__setattr__(self, "decoder", decoder)

    @property
    def num_inputs(self) -> int | None:
        """Width of the raw features; None where an encoder takes them as they are."""
        if self.scaling is not None:
            return len(self.scaling.mean)
        return None if self.model.has_encoder else self.model.num_features

    @property
    def kind(self) -> str:
        """The name of its class, for readers."""
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

    def answer(self, rows: Features) -> tuple[list[Any], Decoding]:
        """The energy for raw features, alone in a list, and its decoding."""
        energies = self.energies(rows)
        return energies, self.deciding()(energies[0])

    def calibrated(self, energies: Sequence[Any]) -> list[Any]:
        """The energies whose probabilities are reported, from those of :meth:`energies`."""
        if self.calibration is None:
            return list(energies)
        return [member for energy in energies for member in self.calibration.apply_all(energy)]

    def limited(self, node_limit: int | None) -> SavedModel:
        """The same with another limit of nodes.

        Raises:
            ValueError: a decoder without such a limit.
        """
        return replace(self, decoder=with_settings(self.decoder, node_limit=node_limit))

    def deciding(self, **settings: Any) -> Decoder:
        """energy → labellings by the decoder's own measure, which obey :attr:`rules`: several (``top_k``).

        Raises:
            ValueError: a decoder without such a setting.
        """
        if self.rules is not None:
            settings["constraints"] = self.rules
        return with_settings(self.decoder, **settings)

    def obeying(self, rules: Constraints | None) -> SavedModel:
        """The same with answers that obey these rules alone; None for without any.

        Raises:
            ValueError: a decoder that takes none.
        """
        found = replace(self, rules=rules)
        found.deciding()
        return found


def record(saved: SavedModel, data: str | None = None) -> dict[str, Any]:
    """The record of a checkpoint, for :func:`load_model`, without the weights and the state of the data.

    Args:
        data: the key of the state of the data in the checkpoint, which holds scaling and schema.

    Raises:
        TypeError: a model with an argument that files do not hold; the message says which.
    """
    parts = {name: part for name, part in _parts(saved).items() if name not in OF_DATA}
    packed, _ = archives.pack(saved.model, "model", saving.kinds())
    return {**parts, "model": packed, "data": data, "version": VERSION}


def save_model(saved: SavedModel, path: str | PathLike, mode: Mode = "x") -> None:
    """Write a trained model to one file, such as ``model.safetensors``, for :func:`load_model`.

    Of an encoder the file holds the weights alone, of a decoder that is not this library's the import path.

    Args:
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        OSError: it cannot be written.
    """
    archives.write(path, HOLDS, _parts(saved), saving.kinds(), mode)


def load_model(path: str | PathLike, encoder: saving.Encoder = None) -> SavedModel:
    """The model of a checkpoint, or of a file of :func:`save_model`, rebuilt.

    Args:
        encoder: of the same architecture as in training, exactly when the model was trained with one; it is
            given the checkpoint's weights. A function is called for it where the model was.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file that is truncated or corrupted, that is no checkpoint of this library, or that asks
            for more than tensors and plain values; a model class that is not imported; an encoder that is
            missing or does not fit. The message names the file.
    """
    if archives.peek(path) is not None:
        content = archives.read(path, HOLDS, saving.kinds(encoder))
        with reading(path, KeyError, TypeError):
            return _saved_model(**content)
    with reading(path, *_DAMAGED_FILE) as file:
        checkpoint = _read(file)
        if not isinstance(checkpoint, dict) or RECORD not in checkpoint:
            raise ValueError("expected a checkpoint of lmbm_torch, got another file")
        content = dict(checkpoint[RECORD])
        if (version := content.pop("version")) != VERSION:
            raise ValueError(
                f"expected a checkpoint of version {VERSION}, got version {version}: only the lmbm_torch "
                "that wrote it reads it"
            )
        state = checkpoint.get(content.pop("data"), {})
        content["model"] = _rebuild(content["model"], checkpoint["state_dict"], encoder)
        return _saved_model(**content, **{name: state.get(name) for name in OF_DATA})


def _parts(saved: SavedModel) -> dict[str, Any]:
    """The fields, in values that files hold."""
    optional = [(name, getattr(saved, name), write) for name, (write, _) in _OPTIONAL.items()]
    return {
        "model": saved.model,
        "label_names": list(saved.label_names),
        "margin": saved.margin,
        "decoder": description(saved.decoder),
        **{name: None if part is None else write(part) for name, part, write in optional},
    }


def _saved_model(
    model: Model, label_names: Sequence[str], margin: float, decoder: dict[str, Any], **optional: Any
) -> SavedModel:
    if not isinstance(model, Model):
        raise ValueError(f"model: expected one that energies are made by, got {type(model).__name__}")
    for name, value in model.state_dict().items():
        check_finite(name, value)
    check_positive("margin", margin)
    if len(label_names) != model.num_labels:
        raise ValueError(f"label_names: expected {model.num_labels} names, got {len(label_names)}")
    for name, (_, build) in _OPTIONAL.items():
        optional[name] = None if optional[name] is None else build(optional[name])
    return SavedModel(model, tuple(label_names), margin, decoder=decoder_of(decoder), **optional)


def check_whole(file: Path) -> None:
    """Refuse a checkpoint that is truncated or corrupted.

    Raises:
        ValueError: it is, or it is no zip file, as all checkpoints are.
        BadZipFile: it is damaged otherwise.
    """
    if not zipfile.is_zipfile(file):
        raise ValueError("expected a checkpoint, got a file that is truncated or of another kind")
    with zipfile.ZipFile(file) as archive:
        check_archive(file, archive)
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} is corrupted")


def _read(file: Path) -> Any:
    # Checksums first, so that no damaged header is ever interpreted.
    check_whole(file)
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


def _rebuild(packed: Any, state: dict[str, Tensor], encoder: saving.Encoder) -> Model:
    weights = {
        WEIGHTS_PREFIX + name.removeprefix(MODEL_PREFIX): value
        for name, value in state.items()
        if name.startswith(MODEL_PREFIX)
    }
    return archives.unpack(packed, weights, saving.kinds(encoder))
