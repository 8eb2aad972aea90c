"""The protocol between classifiers of label vectors and what stands around them.

Three words name three things: an *energy* is what a model says of instances; a *calibrated* energy is the one
whose distribution gives the probabilities; to *decode* is to find the best labels of an energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmbm_torch.inference.messages.matching import MatchedInference

__all__ = ["Capabilities"]


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The properties of a classifier of label vectors, fitted or not.

    Args:
        objective: what ``predict`` optimises: ``"hinge"`` (least loss), ``"score"`` (the largest score of the
            energy), the expectation of ``"exact_match"``, ``"hamming"``, ``"f1"`` or ``"jaccard"``, or
            ``"own"`` for a rule that no function of the energy alone says.
        minimises: whether the objective of ``decode`` is a loss, of which less is better.
        predicts_by_decode: whether ``predict`` has the labels of ``decode``, and not those of another rule.
        searches_under_rules: whether the search behind ``decode`` has rules inside; else the search is
            repeated with labels held.
        has_probabilities: whether the calibrated energies are those of a distribution that was learned.
        restricts_probabilities: whether the distribution can be restricted to labellings that rules allow.
        margin: γ of the hinge that ``decode`` minimises.
        limits: the settings that end a search before its proof, by the names of their parameters.
        inference: the inference that a model with hidden units was trained with.
    """

    objective: str = "hinge"
    minimises: bool = True
    predicts_by_decode: bool = True
    searches_under_rules: bool = False
    has_probabilities: bool = False
    restricts_probabilities: bool = False
    margin: float = 1.0
    limits: Mapping[str, Any] = field(default_factory=dict)
    inference: MatchedInference | None = None
