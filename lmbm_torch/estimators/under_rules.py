"""Decoding of classifiers under rules, given as objects or as text, where their own search takes none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples
from torch import Tensor

from lmbm_torch.constraints import Constraints, Rule
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
        classifier: with ``decode(X, known=...)`` and ``minimises``.
        X: instances, as the classifier takes them.
        rules, top_k, part_limit: see :func:`lmbm_torch.inference.constrained.decode`.
        known: (instances, labels) of {0, 1, NaN}: outputs that are given already.

    Raises:
        ValueError: what is known contradicts the rules; see :func:`lmbm_torch.inference.constrained.decode`.
    """
    # Rows are taken of it, which not every sparse format gives.
    X = canonical(X) if sparse.issparse(X) else X
    instances = _Instances(X, _num_samples(X), rules.num_labels)
    given = None if known is None else torch.from_numpy(np.asarray(known, np.float64))

    def alone(part: _Instances, known: Tensor | None) -> Decoding:
        # Instances of which nothing is known may be decoded faster.
        given = None if known is None or bool(known.isnan().all()) else known.numpy()
        return classifier.decode(part.X, known=given)

    search = constrained.decode_loss if classifier.minimises else constrained.decode
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
        return _Instances(_safe_indexing(self.X, rows.numpy()), len(rows), self.num_labels)
