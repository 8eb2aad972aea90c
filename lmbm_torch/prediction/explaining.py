"""Why a trained model answers as it does, where its fields are linear in its features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lmbm_torch.data.features import Features, numbered
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.inference.results import Decoding
from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork
from lmbm_torch.prediction.saved import SavedModel

__all__ = ["why"]


@dataclass(frozen=True)
class _Linear:
    """A model of scaled features, under the names that estimators give their weights."""

    saved: SavedModel
    names_of_features_: tuple[str, ...]
    # What scaled features are compared with: the mean, where columns were standardised.
    feature_means_: float = 0.0
    binarizer_: None = None

    @property
    def label_names_(self) -> tuple[str, ...]:
        return self.saved.label_names

    @property
    def coef_(self) -> np.ndarray:
        return self._weights().feature_weight.detach().double().cpu().numpy()

    @property
    def intercept_(self) -> np.ndarray:
        bias = self._weights().bias
        return np.zeros(len(self.coef_)) if bias is None else bias.detach().double().cpu().numpy()

    def _weights(self) -> Any:
        return self.saved.model

    @torch.no_grad()
    def energy(self, X: np.ndarray) -> Any:
        """For scaled features."""
        weights = next(self.saved.model.parameters())
        return self.saved.model(torch.from_numpy(X).to(weights.device, weights.dtype))

    def decode(self, X: np.ndarray, known: np.ndarray | None) -> Decoding:
        energy = self.energy(X)
        if known is None:
            return self.saved.decoder(energy)
        return self.saved.deciding(known=torch.from_numpy(known).to(energy.device))(energy)


def why(saved: SavedModel, row: Features) -> Any:
    """An ``Explanation`` of one row (1, features), by its features as they are scaled.

    None of a model that is no network or machine of pairs of labels, that has an encoder, or whose decoder
    takes no known labels.
    """
    model = saved.model
    if not isinstance(model, SigmoidBeliefNetwork | BoltzmannMachine) or model.has_encoder:
        return None
    # Of answers alone neither is needed.
    from lmbm_torch.estimators.explain.contributions import are_taken_apart, fields_of
    from lmbm_torch.estimators.explain.explanations import explanation

    scaled = to_tensor(row) if saved.scaling is None else saved.scaling.transform(to_tensor(row))
    X = (scaled if scaled.layout == torch.strided else scaled.to_dense()).double().numpy()
    names = numbered("feature", X.shape[1]) if saved.schema is None else saved.schema.feature_names
    linear = _Linear(saved, tuple(names))
    try:
        saved.deciding(known=None)
    except ValueError:
        return None
    if not are_taken_apart(linear, X):
        return None
    return explanation(fields_of(linear, None), linear.decode, X, num_features=10)
