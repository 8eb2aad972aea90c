"""Rules of classifiers, given as objects or as text, and decoding where their own search takes none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from torch import Tensor

from lmbm_torch.constraints import Constraints, Rule
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.estimators.explain.contributions import Fields
from lmbm_torch.estimators.explain.explanations import Decode, Explanation, explanation
from lmbm_torch.inference.limits import LIMITS
from lmbm_torch.inference.results import Decoding
from lmbm_torch.inference.under_rules import constrained
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


def rules_of_fit(names: Sequence[str] | None, *given: Rules | None) -> Constraints | None:
    """Return all the rules given, over the labels that ``fit`` was given; None where there are none.

    Args:
        names: of the labels; None where ``fit`` was given classes.

    Raises:
        ValueError: rules over other labels, over classes, or that contradict each other.
    """
    found = [each for each in given if each is not None]
    if not found:
        return None
    if names is None:
        raise ValueError("constraints: expected None, because fit was given classes, not label matrices")
    return rules_over(names, *found)


def explained(
    fields: Fields,
    decode: Decode,
    rules: Constraints | None,
    binding: Callable[[Any], list[list[str]]],
    X: Any,
    num_features: int,
) -> Explanation:
    """Return the explanation of a validated instance by the answers, with the rules that hold them.

    Args:
        fields, decode, X, num_features: see :func:`~lmbm_torch.estimators.explain.explanations.explanation`.
        rules: that answers obey; None for none.
        binding: instances → the rules that each one's answer would break without them.
    """
    if rules is None:
        return explanation(fields, decode, X, num_features)
    broken = tuple(dict.fromkeys(binding(X)[0]))
    return explanation(fields, where_allowed(decode, rules), X, num_features, broken)


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
    part_limit: int | None = LIMITS.parts,
) -> Decoding:
    """The classifier's best labellings that obey the rules, by its ``decode`` with labels held.

    Args:
        classifier: with ``decode(X, known=...)`` and ``capabilities``.
        X: instances, as the classifier takes them.
        rules, top_k, part_limit: see :func:`lmbm_torch.inference.under_rules.constrained.decode`.
        known: (instances, labels) of {0, 1, NaN}: outputs that are given already.

    Raises:
        ValueError: what is known contradicts the rules; see
            :func:`lmbm_torch.inference.under_rules.constrained.decode`.
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
