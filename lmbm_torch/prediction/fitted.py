"""Fitted estimators of label matrices, in the place of trained models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lmbm_torch.constraints import Constraints
from lmbm_torch.data import MultilabelData
from lmbm_torch.data.features import Features
from lmbm_torch.data.mapped.arrays import features_at
from lmbm_torch.data.scaling import Scaling
from lmbm_torch.data.tables.columns import Column
from lmbm_torch.data.tables.schema import Schema
from lmbm_torch.data.tensors import to_features, to_tensor
from lmbm_torch.inference import decode, decode_hinge
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.results import Decoding
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.prediction.decoders import Decoder
from lmbm_torch.shapes import Int


@dataclass(frozen=True)
class FittedEstimator(Stored):
    """An estimator with the interface of :class:`~lmbm_torch.prediction.saved.SavedModel`.

    Args:
        estimator: of label matrices, from :mod:`lmbm_torch.estimators`.
        schema: the columns of the table that it was fitted to; None for one fitted to a matrix.
        scaling: of features, before they reach the estimator; None for none.
    """

    estimator: Any
    schema: Schema | None = None
    scaling: Scaling | None = None

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
                "sequences; lmbm_torch.load(path).predict(X) takes any"
            )
        names = getattr(estimator, "feature_names_in_", None)
        if names is None:
            return cls(estimator)
        # Here, as of models alone it is not needed.
        from lmbm_torch.estimators.explain.explanations import without_names

        # A table's columns are matched by name when it is read, and come without.
        return cls(without_names(estimator), Schema(tuple(map(Column, names.tolist())), labels))

    def check_stored(self) -> None:
        """Raise an exception if no file holds the estimator; see :func:`lmbm_torch.save`."""
        self.estimator.check_stored()

    @classmethod
    def fit(
        cls, estimator: Any, data: MultilabelData, rows: Int[np.ndarray, " rows"], scaling: Scaling
    ) -> FittedEstimator:
        """Fit an estimator to rows of a data set, and keep how its columns are read and scaled.

        What is kept of one that chooses C along a path is the classifier with that C.

        Raises:
            ValueError: an estimator of classes or of sequences, or one that no file holds; what it refuses.
        """
        # Training and prediction never need them otherwise.
        from lmbm_torch.estimators.common.saving import StoredEstimator
        from lmbm_torch.estimators.wrappers.penalty_path import PenaltyPathClassifier

        is_path = isinstance(estimator, PenaltyPathClassifier)
        if not isinstance(estimator, StoredEstimator) or not (
            is_path or hasattr(estimator, "predict_decoding")
        ):
            raise ValueError(
                "estimator: expected one of label matrices from lmbm_torch.estimators, got "
                f"{type(estimator).__name__}"
            )
        fitted: Any = estimator
        found = cls(fitted, data.schema, scaling)
        fitted.fit(found.inputs(features_at(data, rows)), data.labels[rows])
        if is_path:
            fitted = fitted.estimator_
            found = replace(found, estimator=fitted)
        fitted.label_names_ = data.label_names
        return found

    @property
    def kind(self) -> str:
        """The name of its class, for readers."""
        return type(self.estimator).__name__

    @property
    def label_names(self) -> tuple[str, ...]:
        """One per label."""
        return self.estimator.label_names_

    @property
    def rules(self) -> Constraints | None:
        """Those of its constructor, which its answers obey."""
        return self.estimator.rules

    def obeying(self, rules: Constraints | None) -> FittedEstimator:
        """The same with answers that obey these rules alone; None for without any.

        Raises:
            ValueError: an estimator that takes none.
        """
        return replace(self, estimator=self.estimator.with_rules(rules))

    @property
    def num_inputs(self) -> int:
        """Width of the features."""
        return self.estimator.n_features_in_

    @property
    def has_probabilities(self) -> bool:
        """Whether the energies are those of a distribution that was learned."""
        return self.estimator.capabilities.has_probabilities

    @property
    def margin(self) -> float:
        """γ of the hinge that it decodes by."""
        return self.estimator.capabilities.margin

    @property
    def inference(self) -> MatchedInference | None:
        """The inference that a model with hidden units was trained with."""
        return self.estimator.capabilities.inference

    def energies(self, rows: Features) -> list[Any]:
        """The energy for features, or those of an ensemble's members."""
        return self.estimator.energies(self.inputs(rows))

    def answer(self, rows: Features) -> tuple[list[Any], Decoding]:
        """The energies, and what the estimator predicts."""
        return self.energies(rows), self.estimator.predict_decoding(self.inputs(rows))

    def explanation(self, row: Features) -> Any:
        """Why one row (1, features) has its labels, see ``explain``; None of what cannot be taken apart."""
        estimator, row = self.estimator, self.inputs(row)
        if self.schema is not None:
            estimator = estimator.with_feature_names(self.schema.feature_names)
        return estimator.explain(row) if estimator.can_explain(row) else None

    def calibrated(self, energies: Sequence[Any]) -> list[Any]:
        """The energies whose probabilities are reported, from those of :meth:`energies`."""
        return self.estimator.calibrated(energies)

    def limited(self, node_limit: int | None) -> FittedEstimator:
        """The same with another limit of nodes.

        Raises:
            ValueError: an estimator without such a limit.
        """
        return replace(self, estimator=self.estimator.with_node_limit(node_limit))

    def deciding(self, **settings: Any) -> Decoder:
        """energy → the best labellings by what the estimator optimises, which obey :attr:`rules`: ``top_k``.

        Raises:
            ValueError: for that there is no such routine.
        """
        if self.rules is not None:
            settings["constraints"] = self.rules
        can = self.estimator.capabilities
        settings |= {name: value for name, value in can.limits.items() if name == "node_limit"}
        if can.objective in ("score", "exact_match"):
            return partial(decode, **settings)
        if can.objective == "hinge":
            return partial(decode_hinge, margin=self.margin, **settings)
        asked = next(iter(settings))
        raise ValueError(f"{asked}: expected none for the measure that this {self.kind} optimises")

    def inputs(self, rows: Features) -> Features:
        """The estimator's features, of raw ones."""
        return rows if self.scaling is None else to_features(self.scaling.transform(to_tensor(rows)))
