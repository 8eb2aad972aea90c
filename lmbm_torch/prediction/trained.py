"""Trained models with the interface of fitted classifiers of label vectors, and descriptions of decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from inspect import get_annotations, isclass, ismethod, isroutine, signature
from typing import Any

import numpy as np
import torch

from lmbm_torch.calibration.scales import Calibration
from lmbm_torch.checks import check_finite, check_positive
from lmbm_torch.constraints import Constraints
from lmbm_torch.data.features import Features, numbered
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.inference import decode_hinge
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.models import BoltzmannMachine, Model, SigmoidBeliefNetwork
from lmbm_torch.persistence.stored import Given, Stored
from lmbm_torch.protocol import Capabilities
from lmbm_torch.shapes import Float

Decoder = Callable[[Any], Decoding]
"""energy → decoding."""
ROOM = "lmbm_torch.inference"


# Number of features that an explanation replaces by their reference values, one after another.
NUM_EXPLAINED = 10


@dataclass(frozen=True)
class OwnDecoder:
    """A decoder outside this library, represented by an import path.

    Reading a file never imports the decoder. In a run directory, the configuration names the decoder; for a
    file of a model, the caller must pass the decoder again.
    """

    path: str

    def __call__(self, energy: Any) -> Decoding:
        """Raise ValueError, because the decoder is not available.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"decoder: expected {self.path}, with which the model was trained, got none, because files do "
            "not hold such decoders; pass decoder=, or load the run directory"
        )


def description(decoder: Decoder) -> dict[str, Any]:
    """Return the import path and the settings of a decoder as plain values.

    A method of :class:`~lmbm_torch.inference.messages.matching.MatchedInference` is described by its object.
    ``settings`` is None if a file cannot store the decoder: if it is outside of :mod:`lmbm_torch.inference`,
    has positional arguments, or a setting is no number, bool, text or None.
    """
    if ismethod(decoder) and isinstance(decoder.__self__, MatchedInference):
        return decoder.__self__.stored_parts()
    is_partial = isinstance(decoder, partial)
    routine, settings = (decoder.func, decoder.keywords) if is_partial else (decoder, {})
    path = path_of(decoder)
    is_plain = all(isinstance(value, bool | int | float | str | None) for value in settings.values())
    is_held = is_plain and not (is_partial and decoder.args) and _routine(path) is routine
    return {"routine": path, "settings": dict(settings) if is_held else None}


def decoder_of(described: dict[str, Any]) -> Decoder:
    """Return the decoder of a :func:`description`.

    Raises:
        KeyError, TypeError: the argument is no description, or the decoder does not have a setting.
        ValueError: the path is not that of a decoder of :mod:`lmbm_torch.inference`.
    """
    if "num_iters" in described:
        return MatchedInference.from_parts(Given(), **described).decode
    path, settings = described["routine"], described["settings"]
    if settings is None:
        return OwnDecoder(path)
    routine = _routine(path)
    if routine is None:
        raise ValueError(f"decoder: expected the path of a decoder in {ROOM}, got {path}")
    signature(routine).bind(None, **settings)
    return partial(routine, **settings)


def with_settings(decoder: Decoder, **settings: Any) -> Decoder:
    """Return a decoder with changed settings, such as ``top_k`` or ``node_limit``.

    Raises:
        ValueError: the decoder does not have a setting.
    """
    for name in settings:
        if name not in signature(decoder).parameters:
            raise ValueError(f"{name}: expected None, because {path_of(decoder)} has no such setting")
    return partial(decoder, **settings)


def path_of(decoder: Decoder) -> str:
    """Return the import path of a decoder's function or class."""
    if isinstance(decoder, OwnDecoder):
        return decoder.path
    routine = decoder.func if isinstance(decoder, partial) else decoder
    named: Any = routine if isroutine(routine) or isclass(routine) else type(routine)
    return f"{named.__module__}.{named.__qualname__}"


def _routine(path: str) -> Decoder | None:
    """Return the public decoder of :mod:`lmbm_torch.inference` with an import path; None for other paths."""
    module, _, name = path.rpartition(".")
    if not module.startswith(f"{ROOM}.") or name.startswith("_"):
        return None
    try:
        found = vars(import_module(module)).get(name)
    except ImportError:
        return None
    returns_decoding = isroutine(found) and get_annotations(found).get("return") in ("Decoding", Decoding)
    return found if returns_decoding else None


@dataclass(frozen=True)
class TrainedModel(Stored):
    """A trained model and its decoder, with the methods of a classifier of label vectors.

    Args:
        model: the model with its weights, in evaluation mode.
        label_names_: names of the labels.
        margin: the margin γ of the hinge loss in training.
        decoder: function from an energy to a decoding; by default that of ``inference``, or else exact hinge
            decoding with ``margin``.
        inference: the inference with which a model with hidden units was trained.
        calibration: the calibration of probabilities; None for the probabilities that the energies define.
        rules: rules that all answers obey; files do not hold rules.
        names_of_features_: names of features for explanations; by default feature_0, feature_1, …
    """

    model: Model
    label_names_: tuple[str, ...]
    margin: float = 1.0
    decoder: Decoder = None  # pyright: ignore[reportAssignmentType]  # filled in below
    inference: MatchedInference | None = None
    calibration: Calibration | None = None
    rules: Constraints | None = None
    names_of_features_: tuple[str, ...] | None = None

    # Explanations read these attributes: the mean of scaled features is 0, and labels have no classes.
    feature_means_ = 0.0
    binarizer_ = None

    def __post_init__(self) -> None:
        if self.decoder is None:
            hinge = partial(decode_hinge, margin=self.margin)
            decoder = hinge if self.inference is None else self.inference.decode
            object.__setattr__(self, "decoder", decoder)

    def stored_parts(self) -> dict[str, Any]:
        """Return all fields except for rules and names of features, with a description of the decoder."""
        parts = super().stored_parts()
        del parts["rules"], parts["names_of_features_"]
        return {**parts, "decoder": description(self.decoder)}

    @classmethod
    def from_parts(cls, given: Given, *, decoder: dict[str, Any], **parts: Any) -> TrainedModel:
        """Return the trained model of :meth:`stored_parts`.

        Raises:
            TypeError: a part has another type than the field.
            ValueError: parts are inconsistent; the message names the field.
        """
        model, names = parts["model"], parts["label_names_"]
        if not isinstance(model, Model):
            raise ValueError(
                f"model: expected a subclass of lmbm_torch.models.Model, got {type(model).__name__}"
            )
        for name, value in model.state_dict().items():
            check_finite(name, value)
        check_positive("margin", parts["margin"])
        if len(names) != model.num_labels:
            raise ValueError(f"label_names: expected {model.num_labels} names, got {len(names)}")
        for name, kind in (("calibration", Calibration), ("inference", MatchedInference)):
            if not isinstance(parts[name], kind | None):
                found = type(parts[name]).__name__
                raise ValueError(f"{name}: expected a {kind.__name__} or None, got {found}")
        found = decoder_of(decoder)
        if isinstance(found, OwnDecoder) and given.decoder is not None:
            found = given.decoder() or found
        return cls(decoder=found, **parts)

    @property
    def capabilities(self) -> Capabilities:
        """Return which optional methods and settings are supported; all models have probabilities."""
        return Capabilities(
            has_probabilities=True, margin=self.margin, inference=self.inference, decoder=self.decoder
        )

    @property
    def n_features_in_(self) -> int | None:
        """Return the number of features; None if an encoder takes rows of any form."""
        return None if self.model.has_encoder else self.model.num_features

    @property
    def trained(self) -> TrainedModel:
        """Return the trained model itself."""
        return self

    @torch.no_grad()
    def energies(self, X: Features) -> list[Any]:
        """Return a list with the energy for scaled features, dense or CSR."""
        weights = next(self.model.parameters())
        return [self.model(to_tensor(X).to(weights.device, weights.dtype))]

    def calibrated(self, energies: Sequence[Any]) -> list[Any]:
        """Convert energies of :meth:`energies` to energies with calibrated probabilities."""
        if self.calibration is None:
            return list(energies)
        return [member for energy in energies for member in self.calibration.apply_all(energy)]

    def decoding(self, **settings: Any) -> Decoder:
        """Return the decoder with changed settings, under :attr:`rules`.

        Raises:
            ValueError: the decoder does not have a setting.
        """
        if self.rules is not None:
            settings["constraints"] = self.rules
        return with_settings(self.decoder, **settings)

    def predict_decoding(self, X: Features) -> Decoding:
        """Return the decoding for scaled features."""
        return self.decoding()(self.energies(X)[0])

    def with_rules(self, rules: Constraints | None) -> TrainedModel:
        """Return a copy of the trained model whose answers obey ``rules``; None removes all rules.

        Raises:
            ValueError: the decoder takes no rules.
        """
        found = replace(self, rules=rules)
        found.decoding()
        return found

    def with_node_limit(self, node_limit: int | None) -> TrainedModel:
        """Return a copy of the trained model with another limit of search nodes; None for no limit.

        Raises:
            ValueError: the decoder has no limit of nodes.
        """
        return replace(self, decoder=with_settings(self.decoder, node_limit=node_limit))

    def with_feature_names(self, names: Sequence[str]) -> TrainedModel:
        """Return a copy of the trained model with names of features for explanations."""
        return replace(self, names_of_features_=tuple(names))

    @property
    def has_linear_fields(self) -> bool:
        """Return whether the fields of labels are weighted sums of features."""
        return isinstance(self.model, SigmoidBeliefNetwork | BoltzmannMachine) and not self.model.has_encoder

    def field_weights(self) -> Float[np.ndarray, "labels features"] | None:
        """Return the weights of scaled features in each label's field; None if fields are not linear."""
        return self.coef_ if self.has_linear_fields else None

    def can_explain(self, X: Features) -> bool:
        """Return whether :meth:`explain` works: for linear fields and decoders that take known labels."""
        if not self.has_linear_fields:
            return False
        try:
            self.decoding(known=None)
        except ValueError:
            return False
        # Imported here, because predictions do not need explanations.
        from lmbm_torch.estimators.explain.contributions import are_taken_apart

        return are_taken_apart(self, _dense(X))

    def explain(self, X: Features) -> Any:
        """Return the ``Explanation`` of one row (1, features) by its scaled features."""
        from lmbm_torch.estimators.explain.contributions import fields_of
        from lmbm_torch.estimators.explain.explanations import explanation

        rows = _dense(X)
        named = self
        if self.names_of_features_ is None:
            named = self.with_feature_names(numbered("feature", rows.shape[1]))
        return explanation(fields_of(named, None), named.decode, rows, num_features=NUM_EXPLAINED)

    @property
    def coef_(self) -> np.ndarray:
        """Return the weights of features (labels, features), for explanations."""
        return _array(self._weights().feature_weight)

    @property
    def intercept_(self) -> np.ndarray:
        """Return the biases (labels,), for explanations."""
        bias = self._weights().bias
        return np.zeros(len(self.coef_)) if bias is None else _array(bias)

    def energy(self, X: Features) -> Any:
        """Return the energy for scaled features."""
        return self.energies(X)[0]

    def decode(self, X: Features, known: np.ndarray | None) -> Decoding:
        """Return the decoding for scaled features, given known labels, for explanations."""
        energy = self.energy(X)
        if known is None:
            return self.decoder(energy)
        return self.decoding(known=torch.from_numpy(known).to(energy.device))(energy)

    def _weights(self) -> Any:
        return self.model


def _dense(X: Any) -> np.ndarray:
    rows = to_tensor(X)
    return (rows if rows.layout == torch.strided else rows.to_dense()).double().numpy()


def _array(parameter: Any) -> np.ndarray:
    return parameter.detach().double().cpu().numpy()
