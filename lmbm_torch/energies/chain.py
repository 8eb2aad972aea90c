"""Sequences whose labels each have one of several states and depend on their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmbm_torch.checks import check_log_potentials, check_magnitude, check_not_mapped, check_permutation
from lmbm_torch.energies.base import StateEnergy, check_precision, kept
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.shapes import Bool, Float, Int, Scores, Shaped
from lmbm_torch.verdicts import refuse_unless

# What stands in place of a label beyond a chain's end: no class, so that nothing can count it as one.
PADDING = -1


@dataclass(frozen=True)
class ChainEnergy(StateEnergy):
    """A batch of chains of different lengths, all of whose labels are class indices 0 … states − 1.

        score(y) = Σ_{t < length} unary_t(y_t) + Σ_{t < length − 1} transition_t(y_t, y_{t+1})

    and p(y) ∝ exp(score(y)) (max_margin_markov_networks_survey_2003, section 4.2). What stands beyond a
    chain's end, in log-potentials or labels, is padding that is never looked at and may be NaN; labels that
    inference returns are ``PADDING`` (−1) there. A log-potential of −∞ forbids a state or a transition.

    Args:
        unary: log-potentials of the states at each position, given the input.
        transition: row r, column s: from state r to state s at the next position; the same everywhere, or one
            matrix for each example and step.
        lengths: positions of each chain, 1 up to ``unary``'s; all of them if not given.

    Raises:
        ValueError: a tensor of the wrong shape, dtype or device; lengths out of range.
    """

    PER_EXAMPLE: ClassVar = {"unary": 3, "transition": 4, "lengths": 1}

    unary: Float[Tensor, "batch length states"]
    transition: Float[Tensor, "states states"] | Float[Tensor, "batch steps states states"]
    lengths: Int[Tensor, " batch"] = None  # pyright: ignore[reportAssignmentType]  # all, from __post_init__

    def __post_init__(self) -> None:
        self._check_potentials(num_tables=self.unary.shape[1] - 1)
        batch, length = self.unary.shape[:2]
        if self.lengths is None:
            full = torch.full((batch,), length, dtype=torch.int64, device=self.unary.device)
            object.__setattr__(self, "lengths", full)
        self._check_index("lengths", self.lengths, batch)
        lengths = self.lengths

        def refuse() -> None:
            got = f"{int(lengths.min())} to {int(lengths.max())}"
            raise ValueError(f"lengths: expected 1 to {length}, got {got}")

        refuse_unless(
            f"lengths: expected 1 to {length}",
            (lengths,),
            lambda: ((lengths >= 1) & (lengths <= length)).all(),
            refuse,
        )

    @property
    def max_length(self) -> int:
        """Positions that there is room for, padding included."""
        return self.num_labels

    @kept
    def inside(self) -> Bool[Tensor, "batch length"]:
        """True up to each chain's end, false for padding."""
        return torch.arange(self.max_length, device=self.device) < self.lengths[:, None]

    def check_values(self) -> None:
        """Raise ValueError as :meth:`BaseEnergy.check_values`; −∞ is allowed, and anything in padding."""
        check_precision(self.dtype)
        check_not_mapped("unary", self.unary)
        check_not_mapped("transition", self.transition)
        # Padding is never looked at.
        unary = self.unary.masked_fill(~self.inside[..., None], 0)
        transition = self.transition
        if not self.is_shared:
            transition = transition.masked_fill(~self.inside[:, 1:, None, None], 0)
        for name, values in (("unary", unary), ("transition", transition)):
            check_log_potentials(name, values)
            check_magnitude(name, values)

    def score(self, labels: Shaped[Tensor, "*samples #batch length"]) -> Scores:
        """Σ_t unary_t(y_t) + Σ_t transition_t(y_t, y_{t+1}); −∞ where that is forbidden.

        Raises:
            ValueError: a label inside a chain that is no state.
        """
        strange = self.inside & ((labels < 0) | (labels >= self.num_states))
        self._check_states(strange, " up to each chain's end")
        # An index that is refused later must not reach a device's kernel, which would not survive it.
        states = labels.long().where(self.inside, 0).clamp(0, self.num_states - 1)
        unary = self._unary_scores(states)
        before, after = states[..., :-1], states[..., 1:]
        if self.is_shared:
            steps = self.transition[before, after]
        else:
            tables = self.transition.flatten(-2).expand(*before.shape, -1)
            steps = tables.gather(-1, (before * self.num_states + after)[..., None]).squeeze(-1)
        # Not a product with the mask: padding may be NaN.
        return unary.where(self.inside, 0).sum(-1) + steps.where(self.inside[:, 1:], 0).sum(-1)

    def locally_normalised(self) -> ChainEnergy:
        """The maximum-entropy Markov model of the same potentials: its score is a log-probability.

            log P(y_0) + Σ_t log P(y_{t+1} | y_t)

        where each is a softmax over the state alone that it is for, of its unary and of the transition to it
        (McCallum, Freitag and Pereira, ICML 2000). What comes later says nothing about what came before: the
        label bias that globally normalised chains do not have.

        Raises:
            ValueError: a state that none is allowed to follow, or a first position without an allowed one.
        """
        # Padding may be NaN, whose softmax would have NaN for a gradient even where nothing flows.
        unary = self.unary.masked_fill(~self.inside[..., None], 0)
        transition = self.transition
        if not self.is_shared:
            transition = transition.masked_fill(~self.inside[:, 1:, None, None], 0)
        first = unary[:, :1].log_softmax(-1)
        steps = (transition + unary[:, 1:, None]).log_softmax(-1)

        def has_no_nan() -> Tensor:
            total = first.sum() + steps.sum()
            return total == total

        def refuse() -> None:
            raise ValueError("energy: expected a state that is allowed to follow each other one, got none")

        # Of potentials that are all −∞ the softmax is NaN.
        what = "energy: expected a state that is allowed to follow each other one"
        refuse_unless(what, (unary, transition), has_no_nan, refuse)
        return ChainEnergy(torch.cat([first, torch.zeros_like(unary[:, 1:])], 1), steps, self.lengths)

    @classmethod
    def from_pairwise(cls, energy: PairwiseEnergy, path: Sequence[int] | Tensor) -> ChainEnergy:
        """A Boltzmann machine whose couplings follow a path, with the same scores: states 0 and 1.

        Args:
            energy: coupled between neighbours on the path alone.
            path: ``path[t]`` is the label at position t, so that ``labels[..., path]`` are the chain's.

        Raises:
            ValueError: a path that is no permutation of the labels, or couplings elsewhere.
        """
        labels = energy.num_labels
        check_permutation("path", path, labels)
        order = torch.as_tensor(path, device=energy.device)
        pairwise = energy.pairwise[..., order, :][..., order]
        place = torch.arange(labels, device=energy.device)
        neighbours = (place[:, None] - place).abs() <= 1
        if bool((pairwise.masked_fill(neighbours, 0) != 0).any()):
            raise ValueError("path: expected couplings between neighbours on it alone, got others")
        spins = energy.unary.new_tensor([-1, 1])
        unary = energy.unary[:, order, None] * spins
        # Every labelling passes the first position, so that is where a constant can be kept.
        unary = torch.cat([unary[:, :1] + energy.constant[:, None, None], unary[:, 1:]], 1)
        steps = pairwise.diagonal(1, -2, -1)[..., None, None] * (spins[:, None] * spins)
        return cls(unary, steps.expand(energy.batch_size, -1, -1, -1))
