"""Fitted estimators of label matrices, in the place of trained models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.schema import Schema
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.inference.results import Decoding


@dataclass(frozen=True)
class FittedEstimator:
    """An estimator and what predicting with it takes.

    Args:
        kind: its name, for readers.
        label_names: one per label.
        num_inputs: width of the features.
        decode: features → what the estimator predicts, and what it is worth.
        energies: features → one energy, or those of an ensemble's members.
        has_probabilities: whether the energies are those of a distribution that was learned.
        decode_several: energy, ``top_k`` → so many labellings, the best by what the estimator optimises; None
            where those are not to be had.
        inference: what a model with hidden units was trained with.
        schema: the columns of the data frame that it was fitted to; None for one fitted to a matrix.
    """

    kind: str
    label_names: tuple[str, ...]
    num_inputs: int
    decode: Callable[[Features], Decoding]
    energies: Callable[[Features], list[Any]]
    has_probabilities: bool
    decode_several: Callable[..., Decoding] | None = None
    inference: MatchedInference | None = None
    schema: Schema | None = None
