"""The protocol of classifiers: what tables, reports and commands may expect from each classifier.

An *energy* is a model's output for instances: a score of each labelling. A *calibrated* energy defines the
distribution of predicted probabilities. To *decode* means to find the best labels for an energy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

__all__ = ["Capabilities", "LabelClassifier"]


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The properties of a classifier, fitted or not.

    Args:
        objective: the objective of ``predict``: ``"hinge"`` (least loss), ``"score"`` (the largest score of
            the energy), the expected value of ``"exact_match"``, ``"hamming"``, ``"f1"`` or ``"jaccard"``, or
            ``"own"`` if ``predict`` uses more than the energy.
        minimises: whether ``decode`` minimises the objective, as a loss.
        predicts_by_decode: whether ``predict`` returns the labels of ``decode``.
        searches_under_rules: whether the search of ``decode`` handles rules; if not, rules are obeyed by
            repeated searches with some labels fixed.
        has_probabilities: whether the calibrated energies belong to a learned distribution.
        restricts_probabilities: whether the distribution can be restricted to allowed labellings.
        margin: the margin γ in the hinge loss of ``decode``.
        limits: the parameters, by name, that may end a search before the labels are proven optimal.
        inference: for a model with hidden units, the ``MatchedInference`` used in training.
        decoder: the function from energies to decodings with certificates; None if several functions predict.
        of_sequences: whether the classifier tags the positions of sequences.
    """

    objective: str = "hinge"
    minimises: bool = True
    predicts_by_decode: bool = True
    searches_under_rules: bool = False
    has_probabilities: bool = False
    restricts_probabilities: bool = False
    margin: float = 1.0
    limits: Mapping[str, Any] = field(default_factory=dict)
    inference: Any = None
    decoder: Callable[..., Any] | None = None
    of_sequences: bool = False


@runtime_checkable
class LabelClassifier(Protocol):
    """A fitted classifier of label vectors: an estimator, or a trained model with the decoder.

    Features X are (instances, features), dense or CSR.

    Attributes:
        label_names_: one name for each label; None for a classifier of classes.
        n_features_in_: the number of columns of X; None if an encoder takes any inputs.
    """

    label_names_: tuple[str, ...] | None

    @property
    def capabilities(self) -> Capabilities:
        """Return the properties of the classifier."""
        ...

    @property
    def rules(self) -> Any:
        """Return the ``Constraints`` that all predictions obey; None without rules."""
        ...

    @property
    def trained(self) -> Any:
        """Return the trained classifier: the classifier within a wrapper, or the classifier itself."""
        ...

    def energies(self, X: Any) -> list[Any]:
        """Return the energies for X, one for each member of an ensemble; a single model gives one energy."""
        ...

    def calibrated(self, energies: Sequence[Any]) -> list[Any]:
        """Convert :meth:`energies` to calibrated energies, whose equal mixture gives the probabilities."""
        ...

    def predict_decoding(self, X: Any) -> Any:
        """Return the ``Decoding`` of the predicted labels."""
        ...

    def with_rules(self, rules: Any) -> Any:
        """Return the classifier with ``rules`` for all predictions; None removes all rules.

        Raises:
            ValueError: the classifier has no parameter for rules.
        """
        ...

    def with_node_limit(self, node_limit: int | None) -> Any:
        """Return the classifier with another limit on the number of search nodes; None for no limit.

        Raises:
            ValueError: the classifier has no limit on search nodes.
        """
        ...

    def with_feature_names(self, names: Sequence[str]) -> Any:
        """Return the classifier with the names that explanations give to features."""
        ...

    def can_explain(self, X: Any) -> bool:
        """Return whether :meth:`explain` can explain the predictions for X."""
        ...

    def explain(self, X: Any) -> Any:
        """Return the ``Explanation`` of one instance (1, features)."""
        ...

    def field_weights(self) -> Any:
        """Return the weights (labels, features) of each label's field; None unless the fields are linear."""
        ...
