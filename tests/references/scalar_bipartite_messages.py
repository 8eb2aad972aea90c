"""Message passing on restricted Boltzmann machines written out: tables of two entries, in Python floats."""

from __future__ import annotations

import math
from itertools import product

from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.common.results import BipartiteMessages


class ScalarBipartiteMessages:
    """Equations 8 to 11 of belief_propagation_in_crbms_2017, every message normalised to a sum of 1."""

    def __init__(self, visible: Tensor, hidden: Tensor, coupling: Tensor):
        self.visible, self.hidden, self.coupling = visible.tolist(), hidden.tolist(), coupling.tolist()
        self.units = range(len(self.visible)), range(len(self.hidden))
        pairs = list(product(*self.units))
        self.to_visible = dict.fromkeys(pairs, (0.5, 0.5))
        self.to_hidden = dict.fromkeys(pairs, (0.5, 0.5))

    @classmethod
    def of(cls, energy: BipartiteEnergy, messages: BipartiteMessages, row: int) -> ScalarBipartiteMessages:
        """With one instance's messages, given as log-odds."""
        scalar = cls(energy.visible[row], energy.hidden[row], energy.coupling)
        for i, j in scalar.to_visible:
            for name in ("to_visible", "to_hidden"):
                log_odds = float(getattr(messages, name)[row, i, j])
                getattr(scalar, name)[i, j] = (1 / (1 + math.exp(log_odds)), 1 / (1 + math.exp(-log_odds)))
        return scalar

    @staticmethod
    def normalised(table: tuple[float, float]) -> tuple[float, float]:
        return table[0] / sum(table), table[1] / sum(table)

    def answer_visible(self) -> None:
        """Send from every hidden unit to every visible one (Equation 8)."""
        sent = {}
        for i, j in self.to_visible:
            others = math.prod(self.to_hidden[k, j][1] for k in self.units[0] if k != i)
            nothing = math.prod(self.to_hidden[k, j][0] for k in self.units[0] if k != i)
            on = math.exp(self.hidden[j]) * others
            sent[i, j] = self.normalised((nothing + on, nothing + on * math.exp(self.coupling[i][j])))
        self.to_visible = sent

    def answer_hidden(self) -> None:
        """Send from every visible unit to every hidden one (Equation 10)."""
        sent = {}
        for i, j in self.to_hidden:
            others = math.prod(self.to_visible[i, k][1] for k in self.units[1] if k != j)
            nothing = math.prod(self.to_visible[i, k][0] for k in self.units[1] if k != j)
            on = math.exp(self.visible[i]) * others
            sent[i, j] = self.normalised((nothing + on, nothing + on * math.exp(self.coupling[i][j])))
        self.to_hidden = sent

    def visible_beliefs(self) -> list[float]:
        return [
            self.normalised(
                (
                    math.prod(self.to_visible[i, j][0] for j in self.units[1]),
                    math.exp(self.visible[i]) * math.prod(self.to_visible[i, j][1] for j in self.units[1]),
                )
            )[1]
            for i in self.units[0]
        ]

    def hidden_beliefs(self) -> list[float]:
        return [
            self.normalised(
                (
                    math.prod(self.to_hidden[i, j][0] for i in self.units[0]),
                    math.exp(self.hidden[j]) * math.prod(self.to_hidden[i, j][1] for i in self.units[0]),
                )
            )[1]
            for j in self.units[1]
        ]

    def pairwise(self) -> list[list[float]]:
        """Equation 18, from single beliefs divided by the messages that are in them."""
        beliefs = []
        for i in self.units[0]:
            beliefs.append([])
            for j in self.units[1]:
                v, h = self.visible_beliefs()[i], self.hidden_beliefs()[j]
                to_v, to_h = self.to_visible[i, j], self.to_hidden[i, j]
                table = {
                    (y, z): (v if y else 1 - v)
                    / to_v[y]
                    * (h if z else 1 - h)
                    / to_h[z]
                    * math.exp(self.coupling[i][j] * y * z)
                    for y, z in product((0, 1), repeat=2)
                }
                beliefs[-1].append(table[1, 1] / sum(table.values()))
        return beliefs

    def residual(self) -> float:
        """How much one more iteration changes the log-odds of a message to a visible unit."""
        before = dict(self.to_visible)
        self.answer_visible()
        return max(
            abs(math.log(new[1] / new[0]) - math.log(before[pair][1] / before[pair][0]))
            for pair, new in self.to_visible.items()
        )
