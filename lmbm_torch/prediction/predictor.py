"""The predictor for raw rows: a trained model or a fitted estimator, with columns and scaling."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from os import PathLike
from typing import Any

import numpy as np

from lmbm_torch import persistence
from lmbm_torch.calibration.scales import Calibration
from lmbm_torch.constraints import Constraints, allowed_transitions
from lmbm_torch.data import MultilabelData
from lmbm_torch.data.features import Features
from lmbm_torch.data.scaling import Scaling
from lmbm_torch.data.sequences.conll import ColumnSchema
from lmbm_torch.data.sequences.records import SequenceData
from lmbm_torch.data.tables.columns import Column
from lmbm_torch.data.tables.encoding import Encoding
from lmbm_torch.data.tables.frames import is_frame, open_frame
from lmbm_torch.data.tables.labels import LabelForm
from lmbm_torch.data.tables.schema import Schema
from lmbm_torch.data.tensors import to_features, to_tensor
from lmbm_torch.inference import decode, decode_hinge
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.models import Model
from lmbm_torch.persistence.stored import Given, Stored
from lmbm_torch.prediction.trained import Decoder, TrainedModel, with_settings
from lmbm_torch.protocol import Capabilities, LabelClassifier
from lmbm_torch.shapes import Int


@dataclass(frozen=True)
class Predictor(Stored):
    """A classifier of label vectors or of sequences, with the columns and the scaling of its training data.

    Args:
        estimator: a fitted estimator of :mod:`lmbm_torch.estimators`, or a trained model; for label vectors
            it has the methods of :class:`~lmbm_torch.protocol.LabelClassifier`.
        schema: how columns of a table or a file of tokens become features; None for a matrix of features.
        scaling: the scaling of raw features; None for no scaling.
    """

    estimator: Any
    # The type is Schema, or ColumnSchema for sequences, or None for a matrix of features.
    schema: Any = None
    scaling: Scaling | None = None

    @classmethod
    def of(cls, estimator: Any) -> Predictor:
        """Return the predictor of a fitted estimator of label matrices.

        Raises:
            ValueError: the estimator is for classes or sequences.
        """
        if not isinstance(estimator, LabelClassifier) or estimator.label_names_ is None:
            raise ValueError(
                f"model: expected an estimator of label matrices, got {type(estimator).__name__} for "
                "classes or sequences; use lmbm_torch.load(path).predict(X) instead"
            )
        fitted: Any = estimator
        names = vars(fitted).get("feature_names_in_")
        if (encoder := vars(fitted).get("encoder_")) is not None:
            fitted = copy(fitted)
            del fitted.encoder_
            form = vars(fitted).get("label_form_", LabelForm())
            return cls(fitted, Schema(encoder.encoding_, fitted.label_names_, label_form=form))
        if names is None:
            return cls(fitted)
        # Imported here, because trained models do not need this module.
        from lmbm_torch.estimators.explain.explanations import without_names

        # Other columns of a table are ignored (unknown="zeros"): training had only the named ones.
        encoding = Encoding(tuple(map(Column, names.tolist())), unknown="zeros")
        return cls(without_names(fitted), Schema(encoding, fitted.label_names_))

    @classmethod
    def of_model(
        cls,
        model: Model,
        label_names: Sequence[str],
        margin: float = 1.0,
        scaling: Scaling | None = None,
        decoder: Decoder | None = None,
        inference: MatchedInference | None = None,
        schema: Schema | None = None,
        calibration: Calibration | None = None,
    ) -> Predictor:
        """Return the predictor of a trained model; for arguments see the class and :class:`TrainedModel`."""
        given: Any = decoder
        trained = TrainedModel(model, tuple(label_names), margin, given, inference, calibration)
        return cls(trained, schema, scaling)

    @classmethod
    def fit(
        cls, estimator: Any, data: MultilabelData, rows: Int[np.ndarray, " rows"], scaling: Scaling
    ) -> Predictor:
        """Fit an estimator to rows of a data set, and keep the schema and the scaling.

        If the estimator tries several values of C, the predictor keeps the classifier with the best C.

        Raises:
            ValueError: the estimator is for classes or sequences, cannot be saved, or refuses the data.
        """
        # Imported here, because only this method needs the module.
        from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
        from lmbm_torch.estimators.common.saving import StoredEstimator
        from lmbm_torch.estimators.wrappers.penalty_path import PenaltyPathClassifier

        is_path = isinstance(estimator, PenaltyPathClassifier)
        is_able = is_path or isinstance(estimator, DecodingClassifier)
        if not isinstance(estimator, StoredEstimator) or not is_able:
            raise ValueError(
                "estimator: expected a class of lmbm_torch.estimators for label matrices, got "
                f"{type(estimator).__name__}"
            )
        fitted: Any = estimator
        found = cls(fitted, data.schema, scaling)
        labels, options = data.labels[rows], {}
        if data.uncertain is not None:
            labels, options = np.where(data.uncertain[rows], -1, labels), {"uncertain": "self_trained"}
        fitted.fit(found.inputs(data.features_at(rows)), labels, **options)
        if is_path:
            fitted = fitted.estimator_
            found = replace(found, estimator=fitted)
        fitted.label_names_ = data.label_names
        return found

    @classmethod
    def fit_sequences(cls, estimator: Any, data: SequenceData, fold: int) -> Predictor:
        """Fit an estimator to one fold of sequences from a file.

        Raises:
            ValueError: the estimator is not for sequences or refuses the data, or the sequences are not from
                a file of columns.
        """
        from lmbm_torch.estimators.chains.base import SequenceClassifier

        if not isinstance(estimator, SequenceClassifier):
            raise ValueError(
                f"estimator: expected one of sequences such as estimator=crf, got {type(estimator).__name__}"
            )
        if data.schema is None:
            raise ValueError(f"data: expected sequences from a file of columns, got {data.name}")
        fitted: Any = estimator
        sequences = data.within(fold)
        constraints = fitted.get_params(deep=False).get("constraints")
        if constraints is not None:
            # The estimator's classes are the indices of the tags that occur in training.
            seen = np.unique(np.concatenate(sequences.labels)).tolist()
            allowed = allowed_transitions(data.label_names, constraints)
            fitted.set_params(constraints=allowed.pairs(seen))
        fitted.fit(*sequences)
        return cls(fitted, data.schema)

    @classmethod
    def load(cls, path: str | PathLike, trust: Sequence[str] = (), encoder: Any = None) -> Predictor:
        """Return the predictor of a run directory, a checkpoint, or a file of a predictor or an estimator.

        For arguments see :func:`lmbm_torch.load`.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: see :func:`lmbm_torch.load`; also if the file holds an estimator of classes, an
                estimator of sequences without columns, or a model without names of labels.
        """
        found = persistence.load(path, encoder=encoder, trust=trust)
        if isinstance(found, Predictor):
            return found
        if isinstance(found, Model):
            raise ValueError(
                f"path: {path}: expected a trained model or an estimator, got only a {type(found).__name__}"
            )
        return cls.of(found)

    def check_stored(self) -> None:
        """Raise an exception if the estimator cannot be saved; see :func:`lmbm_torch.save`."""
        self.estimator.check_stored()

    @classmethod
    def from_parts(cls, given: Given, *, estimator: Any, schema: Any, scaling: Any) -> Predictor:
        """Return a predictor made from stored parts.

        Raises:
            ValueError: a part has another class.
        """
        for name, value, kinds in (
            ("estimator", estimator, Stored),
            ("schema", schema, Schema | ColumnSchema | None),
            ("scaling", scaling, Scaling | None),
        ):
            if not isinstance(value, kinds):
                raise ValueError(f"{name}: expected a {name}, got {type(value).__name__}")
        return cls(estimator, schema, scaling)

    @property
    def capabilities(self) -> Capabilities:
        """Return which optional methods and settings the classifier supports."""
        return self.estimator.capabilities

    @property
    def is_sequential(self) -> bool:
        """Return whether the predictor tags the tokens of sequences."""
        return self.capabilities.of_sequences

    @property
    def kind(self) -> str:
        """Return the name of the class of the model or the estimator."""
        estimator = self.estimator
        return type(estimator.model if isinstance(estimator, TrainedModel) else estimator).__name__

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return the names of the labels, or of the tags of sequences."""
        if isinstance(self.schema, ColumnSchema):
            return self.schema.label_names
        return self.estimator.label_names_

    @property
    def label_form(self) -> LabelForm | None:
        """Return the form of the columns of labels in a table; None for other data."""
        return self.schema.label_form if isinstance(self.schema, Schema) else None

    @property
    def rules(self) -> Constraints | None:
        """Return the rules that all answers obey."""
        return self.estimator.rules

    @property
    def num_inputs(self) -> int | None:
        """Return the number of raw features; None if an encoder takes rows of any form."""
        return self.estimator.n_features_in_ if self.scaling is None else len(self.scaling.mean)

    @property
    def has_probabilities(self) -> bool:
        """Return whether the energies define learned probabilities."""
        return self.capabilities.has_probabilities

    @property
    def margin(self) -> float:
        """Return the margin γ of the decoder's hinge loss."""
        return self.capabilities.margin

    @property
    def inference(self) -> MatchedInference | None:
        """Return the inference with which a model with hidden units was trained."""
        return self.capabilities.inference

    def inputs(self, rows: Any) -> Features:
        """Convert raw features or a data frame to features of the classifier, scaled on the CPU.

        Raises:
            ValueError: the data frame lacks columns of the training table; see :class:`Schema`.
        """
        if is_frame(rows):
            if not isinstance(self.schema, Schema):
                raise ValueError(
                    "X: expected features without column names, as in training, got a data frame"
                )
            rows = self.schema.features(open_frame(rows))
        return rows if self.scaling is None else to_features(self.scaling.transform(to_tensor(rows)))

    def predict(self, X: Any) -> Int[np.ndarray, "rows labels"]:
        """Return the labels of raw features or of a data frame, (rows, labels) in {0, 1}.

        Raises:
            ValueError: see :meth:`inputs`.
        """
        return self.answer(X)[1].labels.cpu().numpy()

    def predict_names(self, X: Any) -> list[tuple[str, ...]]:
        """Return the names of the predicted labels of each row, see :meth:`predict`."""
        return [tuple(compress(self.label_names, row)) for row in self.predict(X)]

    def energies(self, rows: Features) -> list[Any]:
        """Return the energy for raw features, or the energies of an ensemble's members."""
        return self.estimator.energies(self.inputs(rows))

    def calibrated(self, energies: Sequence[Any]) -> list[Any]:
        """Convert energies of :meth:`energies` to energies with calibrated probabilities."""
        return self.estimator.calibrated(energies)

    def answer(self, rows: Features) -> tuple[list[Any], Decoding]:
        """Return the energies for raw features, and the decoding that gives the predicted labels."""
        X = self.inputs(rows)
        energies = self.estimator.energies(X)
        if self.capabilities.decoder is not None:
            return energies, self.deciding()(energies[0])
        return energies, self.estimator.predict_decoding(X)

    def deciding(self, **settings: Any) -> Decoder:
        """Return a function from an energy to the best labellings by the objective, under all rules.

        Args:
            settings: settings of the decoder, such as ``top_k``.

        Raises:
            ValueError: the decoder does not have a setting, or cannot return several labellings.
        """
        if self.rules is not None:
            settings["constraints"] = self.rules
        can = self.capabilities
        if can.decoder is not None:
            return with_settings(can.decoder, **settings)
        settings |= {name: value for name, value in can.limits.items() if name == "node_limit"}
        if can.objective in ("score", "exact_match"):
            return partial(decode, **settings)
        if can.objective == "hinge":
            return partial(decode_hinge, margin=can.margin, **settings)
        asked = next(iter(settings))
        raise ValueError(f"{asked}: expected no value for the metric that this {self.kind} optimises")

    def limited(self, node_limit: int | None) -> Predictor:
        """Return the predictor with another limit of search nodes.

        Raises:
            ValueError: the classifier has no limit of nodes.
        """
        return replace(self, estimator=self.estimator.with_node_limit(node_limit))

    def obeying(self, rules: Constraints | None) -> Predictor:
        """Return a copy of the predictor whose answers obey ``rules``; None removes all rules.

        Raises:
            ValueError: the classifier has no parameter ``constraints``.
        """
        return replace(self, estimator=self.estimator.with_rules(rules))

    def explanation(self, row: Features) -> Any:
        """Return the ``Explanation`` of a raw row (1, features); None if the classifier cannot explain."""
        estimator, X = self.estimator, self.inputs(row)
        if isinstance(self.schema, Schema):
            estimator = estimator.with_feature_names(self.schema.feature_names)
        return estimator.explain(X) if estimator.can_explain(X) else None
