"""Rules of classifiers, given as objects or as text, and decoding where their own search takes none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from torch import Tensor

from lmbm_torch.constraints import Constraints, Rule
from lmbm_torch.estimators.explanations import Decode, Explanation, explanation
from lmbm_torch.estimators.rows import num_instances, some_instances
from lmbm_torch.inference import constrained
from lmbm_torch.inference.results import Decoding
from lmbm_torch.solvers.networks.problems import canonical

Rules = str | Rule | Constraints | Iterable[str | Rule]
"""Rules as text, such as ``"urban -> not beach"`` or ``"at_most_one(dawn, noon, dusk)"``, or as objects."""


def rules_over(names: Sequence[str] | None, *given: Rules | None) -> Constraints:
    """All the rules given, over the labels of these names.

    Raises:
        ValueError: rules over other labels, or that contradict each other.
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
    """The same rules over labels by their index, for a classifier that knows no names."""
    return [
        Rule({int(at): float(row[at]) for at in row.nonzero()[0]}, float(bound), text)
        for row, bound, text in zip(rules.matrix, rules.bounds, rules.texts, strict=True)
    ]


class RulesMixin:
    """A classifier of label matrices whose constructor may take ``constraints``, which all answers obey."""

    constraints: Rules | None = None
    label_names_: Any

    def binding_rules(self, X: Any) -> list[list[str]]:
        """The rules of the constructor, as text, that each instance's answer would break without them."""
        free: Any = self._without_rules()
        labels = free.predict_decoding(X).labels.cpu().numpy()
        rules = self._rules()
        return [[] for _ in labels] if rules is None else rules.broken(labels)

    @property
    def _given_rules(self) -> tuple[Rules | None, ...]:
        return (self.constraints,)

    def _rules(self, more: Rules | None = None) -> Constraints | None:
        """The rules over the labels of ``fit``, and ``more``; None where there are none.

        Raises:
            ValueError: rules over other labels, over classes, or that contradict each other.
        """
        given = [each for each in (*self._given_rules, more) if each is not None]
        if not given:
            return None
        if self.label_names_ is None:
            raise ValueError("constraints: expected None, because fit was given classes, not label matrices")
        return rules_over(self.label_names_, *given)

    @property
    def rules(self) -> Constraints | None:
        """The rules over the labels of ``fit`` that all answers obey; None where there are none."""
        return self._rules()

    def with_rules(self, rules: Constraints | None) -> Self:
        """The same classifier, whose answers obey these rules alone; None for no rules.

        Raises:
            ValueError: rules for a classifier that takes none.
        """
        if "constraints" in self.get_params(deep=False):
            return self._with_rules(rules)
        if rules is None:
            return self
        raise ValueError(f"constraints: expected none for a {type(self).__name__}, got {len(rules.rules)}")

    def _nameless_rules(self) -> list[Rule] | None:
        """The rules for one more fit, to labels that come without their names."""
        rules = self._rules()
        return None if rules is None else by_place(rules)

    def _with_rules(self, rules: Constraints | None) -> Self:
        """The same classifier, whose answers obey these rules, over the labels of ``fit``, and no others."""
        other = copy(self)
        other.constraints = rules
        return other

    def _without_rules(self) -> Self:
        """The same classifier, for answers that need obey none."""
        return self._with_rules(None)

    def _explanation(self, fields: Any, X: Any, num_features: int) -> Explanation:
        """The explanation of a validated instance by the answers, with the rules that hold them."""
        decode, rules = cast(Any, self).predict_decoding, self._rules()
        if rules is None:
            return explanation(fields, decode, X, num_features)
        binding = tuple(dict.fromkeys(self.binding_rules(X)[0]))
        return explanation(fields, where_allowed(decode, rules), X, num_features, binding)


def where_allowed(decode: Decode, rules: Constraints) -> Decode:
    """The same decoding, but None where what is known of an instance contradicts the rules."""

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
    part_limit: int | None = constrained.PART_LIMIT,
) -> Decoding:
    """The classifier's best labellings that obey the rules, by its ``decode`` with labels held.

    Args:
        classifier: with ``decode(X, known=...)`` and ``capabilities``.
        X: instances, as the classifier takes them.
        rules, top_k, part_limit: see :func:`lmbm_torch.inference.constrained.decode`.
        known: (instances, labels) of {0, 1, NaN}: outputs that are given already.

    Raises:
        ValueError: what is known contradicts the rules; see :func:`lmbm_torch.inference.constrained.decode`.
    """
    # Rows are taken of it, which not every sparse format gives.
    X = canonical(X) if sparse.issparse(X) else X
    instances = _Instances(X, num_instances(X), rules.num_labels)
    given = None if known is None else torch.from_numpy(np.asarray(known, np.float64))

    def alone(part: _Instances, known: Tensor | None) -> Decoding:
        # Instances of which nothing is known may be decoded faster.
        given = None if known is None or bool(known.isnan().all()) else known.numpy()
        return classifier.decode(part.X, known=given)

    search = constrained.decode_loss if classifier.capabilities.minimises else constrained.decode
    return search(instances, rules, alone, known=given, top_k=top_k, part_limit=part_limit)


@dataclass(frozen=True)
class _Instances:
    """Instances in the place of an energy, for a classifier in the place of a routine."""

    X: Any
    batch_size: int
    num_labels: int
    dtype: ClassVar = torch.float64
    device: ClassVar = torch.device("cpu")

    def select(self, rows: Tensor) -> _Instances:
        """Some of the instances."""
        return _Instances(some_instances(self.X, rows.numpy()), len(rows), self.num_labels)
