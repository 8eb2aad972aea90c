"""What a checkpoint holds so that its model can be rebuilt for prediction, and how it is read.

Besides what Lightning needs to go on training, a checkpoint carries a record of plain values and tensors
under :data:`RECORD`. Reading it needs neither Lightning nor the training data, and executes nothing: torch's
restricted unpickler builds tensors and plain containers alone.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_finite, check_positive
from lmbm_torch.data.formats.files import reading
from lmbm_torch.data.scaling import Scaling
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.shapes import Float
from lmbm_torch.training.families import FAMILIES, StructuredModel, name_of

RECORD = "lmbm_torch"
VERSION = 2
MODEL_PREFIX = "model."


@dataclass(frozen=True)
class SavedModel:
    """A trained model and what predicting with it takes.

    Args:
        model: with its weights, on the CPU, in evaluation mode.
        label_names: one per label.
        margin: γ of the hinge that it was trained with, and decodes by.
        scaling: what the features went through before they reached the model; None for none.
        inference: what a model with hidden units was trained with, and predicts by.
    """

    model: StructuredModel
    label_names: tuple[str, ...]
    margin: float
    scaling: Scaling | None
    inference: MatchedInference | None = None

    @property
    def num_inputs(self) -> int | None:
        """Width of the raw features; None where an encoder takes them as they are."""
        if self.scaling is not None:
            return len(self.scaling.mean)
        has_own_width = isinstance(_encoder(self.model), nn.Identity)
        return getattr(self.model, "num_features", None) if has_own_width else None

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
        TypeError: a model of no family that checkpoints know.
    """
    return {
        "version": VERSION,
        "family": name_of(model),
        "model": FAMILIES[name_of(model)].architecture(model),
        "has_encoder": not isinstance(_encoder(model), nn.Identity),
        "label_names": list(label_names),
        "margin": margin,
        "scaling": None if scaling is None else scaling.state(),
    }


def load_model(path: str | PathLike, encoder: nn.Module | None = None) -> SavedModel:
    """The model of a checkpoint, rebuilt.

    Args:
        encoder: of the same architecture as in training, exactly when the model was trained with one; it is
            given the checkpoint's weights.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file that is truncated or corrupted, that is no checkpoint of this library, or that asks
            for more than tensors and plain values; an encoder that lacks or does not fit. The message names
            the file.
    """
    with reading(path, KeyError, TypeError, RuntimeError, zipfile.BadZipFile) as file:
        checkpoint = _read(file)
        if not isinstance(checkpoint, dict) or RECORD not in checkpoint:
            raise ValueError("expected a checkpoint of lmbm_torch, got another file")
        saved = checkpoint[RECORD]
        if saved["version"] != VERSION:
            raise ValueError(f"expected a checkpoint of version {VERSION}, got version {saved['version']}")
        _check_encoder(encoder, saved["has_encoder"])
        return _rebuild(saved, checkpoint["state_dict"], encoder)


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


def _check_encoder(encoder: nn.Module | None, has_encoder: bool) -> None:
    if has_encoder and encoder is None:
        raise ValueError(
            "encoder: expected the one of the training, since a checkpoint holds its weights alone"
        )
    if encoder is not None and not has_encoder:
        raise ValueError("encoder: expected none, since the model was trained without one")


def _rebuild(saved: dict[str, Any], state: dict[str, Any], encoder: nn.Module | None) -> SavedModel:
    prefix = MODEL_PREFIX
    weights = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    for name, value in weights.items():
        check_finite(name, value)
    check_positive("margin", saved["margin"])
    build = FAMILIES[saved["family"]].build
    model = build(**saved["model"], encoder=encoder)
    model.to(next(weights[name].dtype for name, _ in model.named_parameters() if name in weights))
    model.load_state_dict(weights)
    label_names = tuple(saved["label_names"])
    if len(label_names) != model.num_labels:
        raise ValueError(f"label_names: expected {model.num_labels} names, got {len(label_names)}")
    scaling = None if saved["scaling"] is None else Scaling(**saved["scaling"])
    inference = MatchedInference.from_record(saved["inference"]) if "inference" in saved else None
    return SavedModel(model.eval(), label_names, saved["margin"], scaling, inference)


def _encoder(model: StructuredModel) -> nn.Module:
    """The identity for a model without input."""
    return getattr(model, "encoder", nn.Identity())
