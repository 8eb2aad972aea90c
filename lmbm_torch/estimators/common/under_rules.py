"""Rules for classifiers, as objects or text, and decoding under rules by searches that take no rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from lmbm_torch.constraints import Constraints, Rule
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.estimators.common.targets import with_rows
from lmbm_torch.estimators.explain.contributions import Fields
from lmbm_torch.estimators.explain.explanations import Decode, Explanation, explanation
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.under_rules import constrained

Values = Callable[[np.ndarray], np.ndarray]
Rules = str | Rule | Constraints | Iterable[str | Rule]
"""Rules as text, such as ``"urban -> not beach"`` or ``"at_most_one(dawn, noon, dusk)"``, or as objects."""


def rules_over(names: Sequence[str] | None, *given: Rules | None) -> Constraints:
    """Combine rules in any form to a single object, for labels with the given names.

    Raises:
        ValueError: the rules name unknown labels, or contradict each other.
    """
    assert names is not None
    rules: list[str | Rule] = []
    for each in given:
        if isinstance(each, Constraints):
            rules += each.rules
        elif each is not None:
            rules += [each] if isinstance(each, str | Rule) else each
    return Constraints.of(rules, tuple(names))


def by_place(rules: Constraints) -> list[Rule]:
    """Convert rules to rules with label indices instead of names, for classifiers without label names."""
    return [
        Rule({int(at): float(row[at]) for at in row.nonzero()[0]}, float(bound), text)
        for row, bound, text in zip(rules.matrix, rules.bounds, rules.texts, strict=True)
    ]


def rules_of_fit(names: Sequence[str] | None, *given: Rules | None) -> Constraints | None:
    """Combine rules in any form, for the labels of ``fit``; return None if there are no rules.

    Args:
        names: names of the labels; None if ``fit`` was given classes.

    Raises:
        ValueError: rules name unknown labels or contradict each other, or ``fit`` was given classes.
    """
    found = [each for each in given if each is not None]
    if not found:
        return None
    if names is None:
        raise ValueError("constraints: expected None, because fit was given classes, not label matrices")
    return rules_over(names, *found)


def explained(classifier: Any, fields: Fields, X: Any, num_features: int) -> Explanation:
    """Explain a validated instance, with the rules that a prediction without rules would break.

    Args:
        classifier: an object with ``predict_decoding``, ``rules`` and ``binding_rules``.
        fields, X, num_features: see :func:`~lmbm_torch.estimators.explain.explanations.explanation`.
    """
    decode, rules = by_codes(classifier.predict_decoding, classifier.label_values), classifier.rules
    if rules is None:
        found = explanation(fields, decode, X, num_features)
    else:
        broken = tuple(dict.fromkeys(classifier.binding_rules(X)[0]))
        found = explanation(fields, where_allowed(decode, rules), X, num_features, broken)
    return found.in_values(classifier.classes_)


def by_codes(decode: Decode, values: Values) -> Decode:
    """Wrap a decoder that takes known labels in the values of ``fit``, to take labels in {0, 1, NaN}."""
    return lambda X, known: decode(X, None if known is None else values(known))


def where_allowed(decode: Decode, rules: Constraints) -> Decode:
    """Wrap a decoder, to return None if the known labels contradict the rules."""

    def decode_allowed(X: np.ndarray, known: np.ndarray | None) -> Any:
        is_possible = known is None or rules.leaves_any(known[0])
        return decode(X, known) if is_possible else None

    return decode_allowed


def decode_around(
    classifier: Any,
    X: Any,
    rules: Constraints,
    known: ArrayLike | None,
    top_k: int = 1,
    part_limit: int | None = LIMITS.parts,
    *,
    values: Values,
) -> Decoding:
    """Find the best label sets that obey rules, with a classifier whose ``decode`` takes no rules.

    The search fixes some labels and calls the classifier's ``decode(X, known=…)`` for the rest.

    Args:
        classifier: an object with ``decode(X, known=...)`` and ``capabilities``.
        X: instances in the form that the classifier takes.
        rules, top_k, part_limit: see :func:`lmbm_torch.inference.under_rules.constrained.decode`.
        known: known labels (instances, labels) in {0, 1, NaN}.
        values: function that converts labels in {0, 1, NaN} to the values that the classifier takes.

    Raises:
        ValueError: known labels contradict the rules; see
            :func:`lmbm_torch.inference.under_rules.constrained.decode`.
    """
    X = with_rows(X)
    instances = _Instances(X, num_instances(X), rules.num_labels)
    given = None if known is None else torch.from_numpy(np.asarray(known, np.float64))

    def alone(part: _Instances, known: Tensor | None) -> Decoding:
        # If no label is known, pass None, because decoding may then be faster.
        given = None if known is None or bool(known.isnan().all()) else known.numpy()
        held = None if given is None else values(given)
        return classifier.decode(part.X, known=held)

    search = constrained.decode_loss if classifier.capabilities.minimises else constrained.decode
    return search(instances, rules, alone, known=given, top_k=top_k, part_limit=part_limit)


@dataclass(frozen=True)
class _Instances:
    """Instances with the interface of an energy, because the search under rules expects an energy."""

    X: Any
    batch_size: int
    num_labels: int
    dtype: ClassVar = torch.float64
    device: ClassVar = torch.device("cpu")

    def select(self, rows: Tensor) -> _Instances:
        """Return the instances in these rows."""
        return _Instances(some_instances(self.X, rows.numpy()), len(rows), self.num_labels)
