"""Sequences whose labels each have one of several states and depend on their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from lmbm_torch.checks import check_like, check_log_potentials, check_permutation, check_shape
from lmbm_torch.energies.base import BaseEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.shapes import Bool, Float, Int, Shaped

# What stands in place of a label beyond a chain's end: no class, so that nothing can count it as one.
PADDING = -1


@dataclass(frozen=True)
class ChainEnergy(BaseEnergy):
    """A batch of chains of different lengths, all of whose labels are class indices 0 … states − 1.

        score(y) = Σ_{t < length} unary_t(y_t) + Σ_{t < length − 1} transition_t(y_t, y_{t+1})

    and p(y) ∝ exp(score(y)) (max_margin_markov_networks_survey_2003, section 4.2). What stands beyond a
    chain's end, in log-potentials or labels, is padding that is never looked at and may be NaN; labels that
    inference returns are ``PADDING`` (−1) there. A log-potential of −∞ forbids a state or a transition.

    Args:
        unary: what the input says about the state at each position.
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
        check_shape("unary", self.unary, None, None, None)
        if not self.unary.is_floating_point():
            raise ValueError(f"unary: expected a floating-point dtype, got {self.unary.dtype}")
        batch, length, states = self.unary.shape
        square = (states, states)
        expected = square if self.transition.ndim == 2 else (batch, length - 1, *square)
        check_shape("transition", self.transition, *expected)
        check_like("transition", self.transition, "unary", self.unary)
        if self.lengths is None:
            full = torch.full((batch,), length, dtype=torch.int64, device=self.unary.device)
            object.__setattr__(self, "lengths", full)
        check_shape("lengths", self.lengths, batch)
        if (self.lengths.dtype, self.lengths.device) != (torch.int64, self.unary.device):
            raise ValueError(
                f"lengths: expected {torch.int64} on {self.unary.device}, "
                f"got {self.lengths.dtype} on {self.lengths.device}"
            )
        shortest, longest = int(self.lengths.min()), int(self.lengths.max())
        if not 1 <= shortest <= longest <= length:
            raise ValueError(f"lengths: expected 1 to {length}, got {shortest} to {longest}")

    @property
    def max_length(self) -> int:
        """Positions that there is room for, padding included."""
        return self.num_labels

    @property
    def num_states(self) -> int:
        return self.unary.shape[2]

    @cached_property
    def inside(self) -> Bool[Tensor, "batch length"]:
        """True up to each chain's end, false for padding."""
        return torch.arange(self.max_length, device=self.device) < self.lengths[:, None]

    def check_values(self) -> None:
        """Raise ValueError for NaN or +∞ among the log-potentials, padding apart."""
        check_log_potentials("unary", self.unary[self.inside])
        shared = self.transition.ndim == 2
        check_log_potentials("transition", self.transition if shared else self.transition[self.inside[:, 1:]])

    def score(self, labels: Shaped[Tensor, "*samples #batch length"]) -> Float[Tensor, "*samples _batch"]:
        """Σ_t unary_t(y_t) + Σ_t transition_t(y_t, y_{t+1}); −∞ where that is forbidden.

        Raises:
            ValueError: a label inside a chain that is no state.
        """
        strange = self.inside & ((labels < 0) | (labels >= self.num_states))
        if bool(strange.any()):
            raise ValueError(
                f"labels: expected 0 to {self.num_states - 1} up to each chain's end, "
                f"got {int(strange.sum())} others"
            )
        states = labels.long().where(self.inside, 0)
        unary = self.unary.expand(*states.shape, -1).gather(-1, states[..., None]).squeeze(-1)
        before, after = states[..., :-1], states[..., 1:]
        if self.transition.ndim == 2:
            steps = self.transition[before, after]
        else:
            tables = self.transition.flatten(-2).expand(*before.shape, -1)
            steps = tables.gather(-1, (before * self.num_states + after)[..., None]).squeeze(-1)
        # Not a product with the mask: padding may be NaN.
        return unary.where(self.inside, 0).sum(-1) + steps.where(self.inside[:, 1:], 0).sum(-1)

    def add_unary(self, unary: Float[Tensor, "#batch length states"]) -> ChainEnergy:
        """The energy whose score is larger by Σ_t unary_t(y_t); see :meth:`BaseEnergy.add_unary`."""
        self._check_unary(unary, self.unary)
        return replace(self, unary=self.unary + unary)

    def locally_normalised(self) -> ChainEnergy:
        """The maximum-entropy Markov model of the same potentials: its score is a log-probability.

            log P(y_0) + Σ_t log P(y_{t+1} | y_t)

        where each is a softmax over the state alone that it is for, of its unary and of the transition to it
        (McCallum, Freitag and Pereira, ICML 2000). What comes later says nothing about what came before: the
        label bias that globally normalised chains do not have.
        """
        # Padding may be NaN, whose softmax would have NaN for a gradient even where nothing flows.
        unary = self.unary.masked_fill(~self.inside[..., None], 0)
        transition = self.transition
        if transition.ndim == 4:
            transition = transition.masked_fill(~self.inside[:, 1:, None, None], 0)
        first = unary[:, :1].log_softmax(-1)
        steps = (transition + unary[:, 1:, None]).log_softmax(-1)
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
