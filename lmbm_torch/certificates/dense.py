"""Proof trees with semidefinite bounds, for dense Boltzmann machines. This module is internal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from lmbm_torch.certificates import lines
from lmbm_torch.certificates.losses import Losses, PairScoreLosses
from lmbm_torch.certificates.trees import SEMIDEFINITE, Claim, by_bounds
from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.relaxations.semidefinite.proofs import Multipliers, OpenPart

__all__ = []

# Largest number of free labels at which branching takes less time than a semidefinite bound.
FEW_LABELS = 10


@dataclass
class BySemidefiniteBounds:
    """A choice of labels to branch on; if a semidefinite bound proves a node, the multipliers are kept."""

    claim: Claim
    constraints: Constraints | None
    multipliers: list[Multipliers] = field(default_factory=list)
    _open: dict[tuple[int, bytes], Callable[[], OpenPart]] = field(default_factory=dict)

    def __call__(self, losses: Losses, rows: np.ndarray, spins: np.ndarray) -> np.ndarray:
        assert isinstance(losses, PairScoreLosses)
        kinds, few = np.empty(len(rows), np.int64), (spins == 0).sum(1) <= FEW_LABELS
        kinds[few] = by_bounds(losses, rows[few], spins[few])
        for node in np.flatnonzero(~few):
            row, own = int(rows[node]), spins[node]
            part = self._open.pop((row, own.tobytes()), partial(self._whole, losses, row))()
            closing = part.closed()
            if closing is not None:
                self.multipliers.append(closing)
                kinds[node] = SEMIDEFINITE
                continue
            label = kinds[node] = part.least_decided()
            for spin in (-1, 1):
                child = own.copy()
                child[label] = spin
                # Compute a child's bound only when the child is reached: faster bounds may prove it first.
                self._open[row, child.tobytes()] = partial(part.half, label, spin)
        return kinds

    def _whole(self, losses: PairScoreLosses, row: int) -> OpenPart:
        known, answers = self.claim.known[row], self.claim.answers[row]
        tables = losses.unary[row], losses.pair[row % len(losses.pair)]
        return OpenPart.of(*tables, known, answers, self.constraints)

    def proof(self) -> list[dict[str, Any]]:
        """Return the multipliers of all semidefinite bounds as fields of a certificate."""
        return [
            {
                "diagonal": lines.field(each.diagonal),
                "members": lines.field(each.members, np.int16),
                "prices": lines.field(each.prices),
                "unit": each.unit,
                "rules": lines.field(each.rules, np.int64),
                "rule_prices": lines.field(each.rule_prices),
            }
            for each in self.multipliers
        ]
