"""Trained models with all that predicting takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmbm_torch.calibration.scales import Calibration
from lmbm_torch.checks import check_finite, check_positive
from lmbm_torch.constraints import Constraints
from lmbm_torch.data.features import Features
from lmbm_torch.data.scaling import Scaling
from lmbm_torch.data.tables.schema import Schema
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.inference import decode_hinge
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.results import Decoding
from lmbm_torch.models import Model
from lmbm_torch.persistence.stored import Given, Stored
from lmbm_torch.prediction.decoders import Decoder, OwnDecoder, decoder_of, description, with_settings
from lmbm_torch.shapes import Float


@dataclass(frozen=True)
class SavedModel(Stored):
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

    def stored_parts(self) -> dict[str, Any]:
        """Return the fields but the rules, with a description of the decoder."""
        parts = super().stored_parts()
        del parts["rules"]
        return {**parts, "decoder": description(self.decoder)}

    @classmethod
    def from_parts(cls, given: Given, *, decoder: dict[str, Any], **parts: Any) -> SavedModel:
        """Return the trained model of :meth:`stored_parts`.

        Raises:
            TypeError: parts of other types than the fields.
            ValueError: parts that do not fit; the message names the field.
        """
        model, names = parts["model"], parts["label_names"]
        if not isinstance(model, Model):
            raise ValueError(f"model: expected one that energies are made by, got {type(model).__name__}")
        for name, value in model.state_dict().items():
            check_finite(name, value)
        check_positive("margin", parts["margin"])
        if len(names) != model.num_labels:
            raise ValueError(f"label_names: expected {model.num_labels} names, got {len(names)}")
        for name, kind in _OPTIONAL.items():
            if not isinstance(parts[name], kind | None):
                raise ValueError(f"{name}: expected a {kind.__name__}, got {type(parts[name]).__name__}")
        found = decoder_of(decoder)
        if isinstance(found, OwnDecoder) and given.decoder is not None:
            found = given.decoder()
        return cls(decoder=found, **parts)


# Parts that may be None, and their classes.
_OPTIONAL = {
    "calibration": Calibration,
    "inference": MatchedInference,
    "scaling": Scaling,
    "schema": Schema,
}
