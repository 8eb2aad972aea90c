"""Models as files: weights and what the model is built of, without pickle, training data or Lightning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Literal

from torch import Tensor, nn

from lmbm_torch.energies import TiedCliques
from lmbm_torch.models import archives
from lmbm_torch.models.archives import Kind
from lmbm_torch.models.boltzmann import BoltzmannMachine
from lmbm_torch.models.chain import LinearChain, MaximumEntropyMarkov
from lmbm_torch.models.conditional_rbm import ConditionalRBM, RestrictedBoltzmannMachine
from lmbm_torch.models.emissions import Bernoulli, Gaussian, Multinomial
from lmbm_torch.models.hidden_markov import HiddenMarkov
from lmbm_torch.models.sigmoid_belief import SigmoidBeliefNetwork

HOLDS = "a model"


@dataclass(frozen=True)
class _Row:
    """A class of models.

    Args:
        type: the class.
        arguments: a model → what its constructor takes, but for the encoder.
        encoder: a model → its encoder; None for models that have none.
    """

    type: type[nn.Module]
    arguments: Callable[[Any], dict[str, Any]]
    encoder: Callable[[Any], nn.Module] | None = None


def save(model: nn.Module, path: str | PathLike, mode: Literal["x", "w"] = "x") -> None:
    """Write a model of this library to one file, such as ``model.safetensors``, for :func:`load`.

    Of an encoder the file holds the weights alone.

    Args:
        mode: as for ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        OSError: it cannot be written.
        TypeError: a model of another class.
    """
    archives.write(path, HOLDS, model, kinds(), mode)


def load(path: str | PathLike, encoder: nn.Module | None = None) -> nn.Module:
    """The model of a file, with its weights, on the CPU, in evaluation mode.

    Args:
        encoder: of the same architecture as in training, exactly when the model was saved with one; it is
            given the file's weights.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file that is truncated, corrupted, of another kind or of a newer version; an encoder
            that lacks or does not fit. The message names the file.
    """
    return archives.read(path, HOLDS, kinds(encoder))


def kinds(encoder: nn.Module | None = None) -> tuple[Kind, ...]:
    """The models of this library, and what they are built of, as files hold them.

    Args:
        encoder: of the model that is to be built, as for :func:`load`.
    """
    models = (
        Kind(row.type.__name__, row.type, partial(_parts, row), partial(_build, row, encoder))
        for row in _ROWS
    )
    cliques = Kind("TiedCliques", TiedCliques, archives.fields_of, TiedCliques)
    return (*models, cliques)


def _parts(row: _Row, model: nn.Module) -> dict[str, Any]:
    return {
        "arguments": row.arguments(model),
        "weights": dict(model.state_dict()),
        "frozen": [name for name, weight in model.named_parameters() if not weight.requires_grad],
        "has_encoder": row.encoder is not None and not isinstance(row.encoder(model), nn.Identity),
    }


def _build(
    row: _Row,
    encoder: nn.Module | None,
    *,
    arguments: dict[str, Any],
    weights: dict[str, Tensor],
    frozen: Sequence[str],
    has_encoder: bool,
) -> nn.Module:
    if has_encoder and encoder is None:
        raise ValueError("encoder: expected the one of the training, since a file holds its weights alone")
    if encoder is not None and not has_encoder:
        raise ValueError("encoder: expected none, since the model was trained without one")
    model = row.type(**arguments, **({"encoder": encoder} if has_encoder else {}))
    # Weights keep the type that they were saved in.
    model.load_state_dict(weights, assign=True)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return model.eval()


def _network(model: SigmoidBeliefNetwork) -> dict[str, Any]:
    return {**_sizes(model, "num_features", "num_labels", "degree"), "ordering": model.ordering.tolist()}


def _machine(model: BoltzmannMachine) -> dict[str, Any]:
    has_bias = model.bias is not None
    return {**_sizes(model, "num_features", "num_labels"), "cliques": model.cliques, "bias": has_bias}


def _chain(model: LinearChain) -> dict[str, Any]:
    conditional = model.transition_feature_weight is not None
    return {**_sizes(model, "num_features", "num_states"), "conditional_transitions": conditional}


def _sizes(model: Any, *names: str) -> dict[str, int]:
    return {name: getattr(model, name) for name in names}


def _own_encoder(model: Any) -> nn.Module:
    return model.encoder


_ROWS = (
    _Row(SigmoidBeliefNetwork, _network, _own_encoder),
    _Row(BoltzmannMachine, _machine, _own_encoder),
    _Row(
        ConditionalRBM,
        lambda model: _sizes(model, "num_features", "num_visible", "num_hidden"),
        _own_encoder,
    ),
    _Row(RestrictedBoltzmannMachine, lambda model: _sizes(model, "num_visible", "num_hidden")),
    _Row(LinearChain, _chain, _own_encoder),
    _Row(MaximumEntropyMarkov, lambda model: _chain(model.chain), lambda model: model.chain.encoder),
    _Row(HiddenMarkov, lambda model: {"emission": model.emission}),
    *(
        _Row(emission, lambda model: _sizes(model, "num_states", "num_features"))
        for emission in (Multinomial, Bernoulli, Gaussian)
    ),
)
