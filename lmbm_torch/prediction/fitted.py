"""Fitted estimators of label matrices, in the place of trained models."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.columns import Column
from lmbm_torch.data.tables.schema import Schema
from lmbm_torch.inference import decode, decode_hinge
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.inference.results import Decoding
from lmbm_torch.prediction.decoders import Decoder


@dataclass(frozen=True)
class FittedEstimator:
    """An estimator with the interface of :class:`~lmbm_torch.prediction.saved.SavedModel`.

    Args:
        estimator: of label matrices, from :mod:`lmbm_torch.estimators`.
        schema: the columns of the data frame that it was fitted to; None for one fitted to a matrix.
    """

    estimator: Any
    schema: Schema | None = None

    @classmethod
    def of(cls, estimator: Any) -> FittedEstimator:
        """Wrap a fitted estimator.

        Raises:
            ValueError: an estimator of classes or of sequences.
        """
        labels = getattr(estimator, "label_names_", None)
        if labels is None or not hasattr(estimator, "predict_decoding"):
            raise ValueError(
                f"model: expected one of label matrices, got {type(estimator).__name__} of classes or "
                "sequences; lmbm_torch.estimators.load(path).predict(X) takes any"
            )
        names = getattr(estimator, "feature_names_in_", None)
        if names is None:
            return cls(estimator)
        # Here, as of models alone it is not needed.
        from lmbm_torch.estimators.explanations import without_names

        # A table's columns are matched by name when it is read, and come without.
        return cls(without_names(estimator), Schema(tuple(map(Column, names.tolist())), labels))

    @property
    def kind(self) -> str:
        """The name of its class, for readers."""
        return type(self.estimator).__name__

    @property
    def label_names(self) -> tuple[str, ...]:
        """One per label."""
        return self.estimator.label_names_

    @property
    def num_inputs(self) -> int:
        """Width of the features."""
        return self.estimator.n_features_in_

    @property
    def has_probabilities(self) -> bool:
        """Whether the energies are those of a distribution that was learned."""
        return hasattr(self.estimator, "predict_proba")

    @property
    def margin(self) -> float:
        """γ of the hinge that it decodes by."""
        network = _network(self.estimator)
        return getattr(network, "hinge_margin", network.get_params(deep=False).get("margin", 1.0))

    @property
    def inference(self) -> MatchedInference | None:
        """The inference that a model with hidden units was trained with."""
        return getattr(self.estimator, "inference_", None)

    def energies(self, rows: Features) -> list[Any]:
        """The energy for features, or those of an ensemble's members."""
        if hasattr(self.estimator, "energies"):
            return self.estimator.energies(rows)
        return [self.estimator.energy(rows)]

    def answer(self, rows: Features) -> tuple[list[Any], Decoding]:
        """The energies, and what the estimator predicts."""
        return self.energies(rows), self.estimator.predict_decoding(rows)

    def explanation(self, row: Features) -> Any:
        """Why one row (1, features) has its labels, see ``explain``; None of what cannot be taken apart."""
        can = getattr(self.estimator, "can_explain", None)
        return self.estimator.explain(row) if can is not None and can(row) else None

    def calibrated(self, energies: Sequence[Any]) -> list[Any]:
        """The energies whose probabilities are reported, from those of :meth:`energies`."""
        if hasattr(self.estimator, "calibrated_all"):
            return self.estimator.calibrated_all(energies)
        return list(energies)

    def limited(self, node_limit: int | None) -> FittedEstimator:
        """The same with another limit of nodes.

        Raises:
            ValueError: an estimator without such a limit.
        """
        estimator = copy(self.estimator)
        if hasattr(estimator, "network_"):
            estimator.network_ = copy(estimator.network_)
        if "node_limit" not in _network(estimator).get_params(deep=False):
            raise ValueError(f"node_limit: expected none for {self.kind}, which has no such limit")
        _network(estimator).set_params(node_limit=node_limit)
        return replace(self, estimator=estimator)

    def deciding(self, **settings: Any) -> Decoder:
        """energy → the best labellings by what the estimator optimises: ``top_k``, or under ``constraints``.

        Raises:
            ValueError: for that there is no such routine.
        """
        from lmbm_torch.estimators import LMBMClassifier, StructuralSVMClassifier

        own = _network(self.estimator).get_params(deep=False)
        settings |= {name: value for name, value in own.items() if name == "node_limit"}
        optimised = getattr(self.estimator, "decoder", "hinge")
        if isinstance(self.estimator, StructuralSVMClassifier) or optimised == "exact_match":
            return partial(decode, **settings)
        if isinstance(self.estimator, LMBMClassifier) or optimised == "hinge":
            return partial(decode_hinge, margin=self.margin, **settings)
        asked = next(iter(settings))
        raise ValueError(f"{asked}: expected none for the measure that this {self.kind} optimises")


def _network(estimator: Any) -> Any:
    """The estimator that searches: the one that an estimator holds, or itself."""
    return getattr(estimator, "network_", estimator)
