"""Tree-reweighted and plain message passing written out: tables of two entries, in Python floats."""

from __future__ import annotations

import math
from itertools import product

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import Marginals

SPINS = (-1, 1)


class ScalarMessages:
    """The logarithms of one example's messages (Wainwright, Jaakkola and Willsky 2005).

    M_ts(x) = Σ_y exp(J_st x y / ρ_st + a_t y) Π_{v≠s} M_vt(y)^ρ_vt / M_st(y)^(1 − ρ_st), or the
    maximum instead of the sum; all ρ are 1 for belief propagation.
    """

    def __init__(self, unary: list, pairwise: list, appearance: dict | None, take_max: bool):
        self.unary, self.pairwise, self.take_max = unary, pairwise, take_max
        labels = range(len(unary))
        self.pairs = [(t, s) for t, s in product(labels, labels) if pairwise[t][s] != 0]
        self.appearance = dict.fromkeys(self.pairs, 1.0) if appearance is None else appearance
        self.messages = dict.fromkeys(self.pairs, (0.0, 0.0))

    @classmethod
    def of(
        cls, energy: PairwiseEnergy, row: int, appearance: dict | None = None, take_max: bool = False
    ) -> ScalarMessages:
        pairwise = energy.pairwise if energy.pairwise.ndim == 2 else energy.pairwise[row]
        return cls(energy.unary[row].tolist(), pairwise.tolist(), appearance, take_max)

    def total(self, values: list[float]) -> float:
        """log Σ exp, or the maximum."""
        most = max(values)
        return most if self.take_max else most + math.log(sum(math.exp(value - most) for value in values))

    def belief(self, t: int) -> list[float]:
        """log b_t, up to a constant."""
        return [
            spin * self.unary[t]
            + sum(self.appearance[p] * self.messages[p][x] for p in self.pairs if p[1] == t)
            for x, spin in enumerate(SPINS)
        ]

    def answer(self, t: int, s: int) -> tuple[float, float]:
        """The message from t to s that the others ask for, normalised to a mean of 0."""
        field = [value - self.messages[s, t][x] for x, value in enumerate(self.belief(t))]
        scaled = self.pairwise[t][s] / self.appearance[t, s]
        table = [
            self.total([scaled * there * here + field[x] for x, there in enumerate(SPINS)]) for here in SPINS
        ]
        return table[0] - sum(table) / 2, table[1] - sum(table) / 2

    def iterate(self, damping: float) -> None:
        answers = {pair: self.answer(*pair) for pair in self.pairs}
        self.messages = {
            pair: tuple(
                (1 - damping) * new + damping * old
                for new, old in zip(answers[pair], self.messages[pair], strict=True)
            )
            for pair in self.pairs
        }

    def set_from(self, result: Marginals, row: int) -> ScalarMessages:
        """With the messages of a result."""
        assert result.messages is not None
        table = result.messages.neighbours.tolist()
        values = result.messages.to_labels[row].tolist()
        found = {
            (t, s): value for s, line in enumerate(table) for t, value in zip(line, values[s], strict=True)
        }
        self.messages = {pair: (-found[pair], found[pair]) for pair in self.pairs}
        return self

    def missed_by(self) -> float:
        """How far the messages are from being a fixed point."""
        return max((abs(self.answer(*pair)[1] - self.messages[pair][1]) for pair in self.pairs), default=0.0)

    def assert_has(self, result: Marginals, row: int) -> None:
        """The same messages and beliefs as a result."""
        theirs = ScalarMessages(self.unary, self.pairwise, self.appearance, self.take_max).set_from(
            result, row
        )
        for pair in self.pairs:
            assert math.isclose(theirs.messages[pair][1], self.messages[pair][1], rel_tol=1e-9, abs_tol=1e-9)
        for label, came in enumerate(result.labels[row].tolist()):
            no, yes = self.belief(label)
            expected = 1 / (1 + math.exp(min(no - yes, 700)))
            assert math.isclose(came, expected, rel_tol=1e-6, abs_tol=1e-9)
