"""The base class of all models: how models are stored in files, and which methods training calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.persistence.stored import LIBRARY, Given, Stored
from lmbm_torch.shapes import Bool, Float


class StoredModule(Stored, nn.Module, ABC):
    """A module that :func:`lmbm_torch.save` can write: its class, its arguments and the weights.

    Examples:
        >>> from lmbm_torch.models.hidden_markov import Gaussian
        >>> Gaussian(num_states=3, num_features=4).arguments()
        {'num_states': 3, 'num_features': 4}
    """

    HEAD: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters that :meth:`take` takes over, in the order of the flat weights."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments by name, except for the encoder.

        Values may be plain values, lists, tuples, dictionaries with text keys, tensors, arrays,
        :class:`~lmbm_torch.energies.TiedCliques` or other stored modules.
        """

    @property
    def has_encoder(self) -> bool:
        """Return whether the module has an encoder; the user must give the encoder again when loading."""
        return not isinstance(getattr(self, "encoder", None), nn.Identity | None)

    def stored_parts(self) -> dict[str, Any]:
        """Return arguments, weights (an encoder's included), and the names of frozen weights, for a file."""
        return {
            "arguments": self.arguments(),
            "weights": dict(self.state_dict()),
            "frozen": [name for name, weight in self.named_parameters() if not weight.requires_grad],
            "has_encoder": self.has_encoder,
        }

    @classmethod
    def from_parts(
        cls,
        given: Given,
        *,
        arguments: dict[str, Any],
        weights: dict[str, Tensor],
        frozen: Sequence[str],
        has_encoder: bool,
    ) -> StoredModule:
        """Build a module from the result of :meth:`stored_parts`, in evaluation mode.

        Raises:
            ValueError: an encoder is missing or superfluous, or the weights' shapes do not fit the arguments.
        """
        encoder = given.encoder
        if not isinstance(encoder, nn.Module | None):
            encoder = encoder() if has_encoder else None
        if has_encoder and encoder is None:
            raise ValueError(
                "encoder: expected the encoder of the training, since the file holds only its weights"
            )
        if encoder is not None and not has_encoder:
            raise ValueError("encoder: expected None, since the model was trained without an encoder")
        cls._check_shapes(arguments, weights)
        with torch.device("cpu"):
            model = cls(**arguments, **({"encoder": encoder} if has_encoder else {}))
        # Use ``assign`` to keep the data type in which the weights were saved.
        model.load_state_dict(weights, assign=True)
        for name in frozen:
            model.get_parameter(name).requires_grad_(False)
        return model.eval()

    @classmethod
    def _check_shapes(cls, arguments: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Raise ValueError if the weights' shapes do not fit the arguments, before memory is allocated."""
        # Check only this library's modules: other modules may allocate memory even on the device "meta".
        if not cls.__module__.startswith(LIBRARY):
            return
        with torch.device("meta"):
            expected = cls(**arguments).state_dict()
        for name, value in expected.items():
            if name not in weights or weights[name].shape != value.shape:
                found = tuple(weights[name].shape) if name in weights else "no tensor"
                raise ValueError(f"{name}: expected shape {tuple(value.shape)} by the arguments, got {found}")

    @torch.no_grad()
    def take(self, *weights: Tensor | None) -> None:
        """Copy weights into the parameters named in :attr:`HEAD`, in order, and keep the module's dtype.

        Either all weights are copied or, if a weight is refused, none.

        Raises:
            ValueError: a weight has another shape than its parameter, or NaN or infinity; a weight is given
                for a parameter that is None, or None for a parameter that is a tensor.
        """
        pairs = []
        for name, value in zip(self.HEAD, weights, strict=True):
            own = getattr(self, name)
            if (value is None) != (own is None):
                raise ValueError(f"{name}: expected {'None' if own is None else 'a tensor'}, got {value}")
            if value is not None:
                check_shape(name, value, *own.shape)
                check_finite(name, value)
                pairs.append((own, value))
        for own, value in pairs:
            own.copy_(value)

    def flat(self) -> Float[Tensor, " weights"]:
        """Return the parameters of :attr:`HEAD` as one flat vector."""
        parts = [getattr(self, name) for name in self.HEAD]
        return torch.cat([part.flatten() for part in parts if part is not None])


class Model(StoredModule):
    """The base class of models over label vectors: x → features = encoder(x) → energy.

    A subclass defines :meth:`energy`, :meth:`weights`, :meth:`couples` and :meth:`arguments`, in any module;
    the model can then be trained, saved, loaded and evaluated.

    Args:
        num_features: the number of features that the encoder returns; None for a model without input.
        num_labels: the number of labels.
        encoder: maps inputs to features, ``(batch, features)``; the identity by default.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import BoltzmannMachine, Model
        >>> model = BoltzmannMachine(num_features=4, num_labels=3)
        >>> isinstance(model, Model), model(torch.zeros(2, 4)).num_labels
        (True, 3)
    """

    OF_FEATURES: ClassVar[dict[str, str]] = {"feature_weight": "bias"}
    """Names of the parameters that multiply the features, each with the name of its bias."""

    def __init__(self, num_features: int | None, num_labels: int, encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.num_features = num_features
        self.num_labels = num_labels
        self.encoder = nn.Identity() if encoder is None else encoder

    @abstractmethod
    def energy(self, features: Tensor) -> Any:
        """Return the energy for the features that the encoder returns."""

    @abstractmethod
    def weights(self) -> Float[Tensor, " weights"]:
        """Return the regularised weights of the head as one flat vector."""

    @abstractmethod
    def couples(self) -> Bool[Tensor, " weights"]:
        """Return a mask of :meth:`weights`: True for couplings of two labels, or of label and hidden unit."""

    @torch.no_grad()
    def undo_scaling(self, scale: float | np.ndarray | Tensor, shift: float | np.ndarray | Tensor) -> None:
        """Change the weights so that the energy for features f is the former energy for (f − shift) / scale.

        Args:
            scale, shift: (features,), or one number for all features.
        """
        for weight, bias in self.OF_FEATURES.items():
            of_features = getattr(self, weight)
            like: Any = {"dtype": of_features.dtype, "device": of_features.device}
            of_features.div_(torch.as_tensor(scale, **like))
            shifts = torch.as_tensor(shift, **like)
            if shifts.any():
                getattr(self, bias).sub_((of_features * shifts).sum(-1))

    def forward(self, x: Tensor) -> Any:
        """Return the energy of a batch ``x`` of encoder inputs, by default dense or CSR features."""
        return self.energy(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Return encoder(x), ``(batch, features)``; raise ValueError unless there are ``num_features``."""
        features = self.encoder(x)
        if self.num_features is not None:
            check_shape("x", features, None, self.num_features)
        return features
