"""Models as files: weights and constructor arguments, without pickle, training data or Lightning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from lmbm_torch.energies import TiedCliques
from lmbm_torch.files import Mode
from lmbm_torch.models import archives
from lmbm_torch.models.archives import LIBRARY, Kind
from lmbm_torch.models.base import StoredModule

HOLDS = "a model"
Encoder = nn.Module | Callable[[], nn.Module | None] | None
"""An encoder, or a function that makes the encoder if the file's model has one."""
# Arguments in older files.
RENAMED = {"num_visible": "num_labels"}


def save(model: nn.Module, path: str | PathLike, mode: Mode = "x") -> None:
    """Write a model to one file, such as ``model.safetensors``, for :func:`load`.

    The file holds only the weights of an encoder.

    Args:
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        OSError: the file cannot be written.
        TypeError: the model is no :class:`~lmbm_torch.models.base.StoredModule`, or has an argument that
            files cannot hold; the message says which.

    Examples:
        >>> import tempfile
        >>> from lmbm_torch.models import BoltzmannMachine, load, save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(BoltzmannMachine(num_features=4, num_labels=3), f"{folder}/model.safetensors")
        ...     print(load(f"{folder}/model.safetensors").num_labels)
        3
    """
    archives.write(path, HOLDS, model, kinds(), mode)


def load(path: str | PathLike, encoder: Encoder = None) -> nn.Module:
    """Return the model of a file, with its weights, on the CPU, in evaluation mode.

    Args:
        encoder: an encoder of the same architecture as in training, if and only if the model was saved with
            an encoder; the encoder gets the weights of the file.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is truncated, corrupted, of another kind or of a newer version; a model class is
            not imported; an encoder is missing or does not fit. The message names the file.

    Examples:
        >>> from lmbm_torch.models import load
        >>> load("model.safetensors")  # doctest: +SKIP
        BoltzmannMachine()
    """
    return archives.read(path, HOLDS, kinds(encoder))


def kinds(encoder: Encoder = None) -> tuple[Kind, ...]:
    """Return all imported model classes with their parts, as files hold models.

    Args:
        encoder: of the model to build, as in :func:`load`.
    """
    models = (
        Kind(each.stored_name(), each, _parts, partial(_build, each, encoder))
        for each in StoredModule.stored_classes()
    )
    return (*models, Kind("TiedCliques", TiedCliques, archives.fields_of, TiedCliques))


def _parts(model: StoredModule) -> dict[str, Any]:
    return {
        "arguments": model.arguments(),
        "weights": dict(model.state_dict()),
        "frozen": [name for name, weight in model.named_parameters() if not weight.requires_grad],
        "has_encoder": model.has_encoder,
    }


def _build(
    kind: type[StoredModule],
    encoder: Encoder,
    *,
    arguments: dict[str, Any],
    weights: dict[str, Tensor],
    frozen: Sequence[str],
    has_encoder: bool,
) -> nn.Module:
    if not isinstance(encoder, nn.Module | None):
        encoder = encoder() if has_encoder else None
    if has_encoder and encoder is None:
        raise ValueError("encoder: expected the encoder of the training, since a file only holds the weights")
    if encoder is not None and not has_encoder:
        raise ValueError("encoder: expected None, since the model was trained without an encoder")
    arguments = {RENAMED.get(name, name): value for name, value in arguments.items()}
    _check_shapes(kind, arguments, weights)
    with torch.device("cpu"):
        model = kind(**arguments, **({"encoder": encoder} if has_encoder else {}))
    # Weights keep the dtype of the file.
    model.load_state_dict(weights, assign=True)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return model.eval()


def _check_shapes(kind: type[StoredModule], arguments: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Raise ValueError for weights of other shapes than the arguments give, before memory is allocated."""
    # The device "meta" allocates nothing; a class of another author may fail there.
    if not kind.__module__.startswith(LIBRARY):
        return
    with torch.device("meta"):
        expected = kind(**arguments).state_dict()
    for name, value in expected.items():
        if name not in weights or weights[name].shape != value.shape:
            found = tuple(weights[name].shape) if name in weights else "none"
            raise ValueError(f"{name}: expected shape {tuple(value.shape)} by the arguments, got {found}")
