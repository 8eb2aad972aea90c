"""Every labelling of small energies with its score, and what follows from that list: the tables' oracle.

It uses ``energy.score`` alone, which the tests of ``energies`` hold to its definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import torch
from strategies.bipartite import all_states, score_table
from strategies.factor import every_labelling
from strategies.semi_chain import coded, segmentations
from torch import Tensor

from lmbm_torch.energies import (
    BipartiteEnergy,
    ChainEnergy,
    DirectedEnergy,
    FactorEnergy,
    SemiChainEnergy,
    TreeEnergy,
)
from lmbm_torch.energies.chain import PADDING


@dataclass(frozen=True)
class Enumeration:
    """Every labelling of each example.

    Args:
        energy: whose labellings they are.
        labels: (labellings, 1 or batch, labels).
        scores: (labellings, batch), −∞ for those that disagree with what is known.
    """

    energy: Any
    labels: Tensor
    scores: Tensor

    @cached_property
    def probabilities(self) -> Tensor:
        """(labellings, batch)."""
        return self.scores.softmax(0)

    @property
    def log_partition(self) -> Tensor:
        return self.scores.logsumexp(0)

    @property
    def best(self) -> Tensor:
        """The largest score."""
        return self.scores.amax(0)

    @property
    def entropy(self) -> Tensor:
        return -torch.special.xlogy(self.probabilities, self.probabilities).sum(0)

    @property
    def marginals(self) -> Tensor:
        """P(y_i = 1)."""
        return torch.einsum("sb,sbi->bi", self.probabilities, self._batched(self.labels).to(self.scores))

    @property
    def least_regularised(self) -> Tensor:
        """A lower bound on max_p E[score] − ½ Σ_i E[s_i]²: its value at the model's own distribution."""
        mean = 2 * self.marginals - 1
        own = (self.probabilities * self.scores).sum(0) - mean.square().sum(-1) / 2
        return own.maximum(self.best - mean.shape[-1] / 2)

    @property
    def nodes(self) -> Tensor:
        """P(y_t = s), (batch, nodes, states); 0 for padding."""
        return torch.einsum("sb,sbti->bti", self.probabilities, self._indicators)

    @property
    def states(self) -> Tensor:
        """P(y_i = s), (batch, labels, values), for energies whose labels may differ in their values."""
        labels = self._batched(self.labels)
        values = [(labels == value).to(self.scores) for value in range(max(int(labels.max()) + 1, 2))]
        return torch.einsum("sb,sbiv->biv", self.probabilities, torch.stack(values, -1))

    @property
    def edges(self) -> Tensor:
        """P(y_{parent of t} = r, y_t = s); of a chain, between every position and the next one."""
        states = self._indicators
        if isinstance(self.energy, ChainEnergy):
            return torch.einsum("sb,sbtr,sbti->btri", self.probabilities, states[:, :, :-1], states[:, :, 1:])
        before = states[:, :, self.energy.parents] * (self.energy.parents >= 0)[:, None]
        return torch.einsum("sb,sbtr,sbti->btri", self.probabilities, before, states)

    @property
    def _indicators(self) -> Tensor:
        states = torch.arange(self.energy.num_states)
        return (self._batched(self.labels)[..., None] == states).to(self.scores)

    def _batched(self, labels: Tensor) -> Tensor:
        return labels.expand(-1, self.scores.shape[1], -1)


@dataclass(frozen=True)
class BipartiteEnumeration(Enumeration):
    """Every visible labelling, its score log Σ_h exp(score(v, h)).

    Args:
        joint: (batch, visible labellings, hidden labellings).
    """

    joint: Tensor

    @cached_property
    def joint_probabilities(self) -> Tensor:
        return self.joint.flatten(1).softmax(-1).view_as(self.joint)

    @property
    def hidden(self) -> Tensor:
        """P(h_j = 1)."""
        return self.joint_probabilities.sum(1) @ all_states(self.energy.num_hidden).to(self.joint)

    @property
    def pairs(self) -> Tensor:
        """P(v_i = 1, h_j = 1)."""
        visible, hidden = all_states(self.energy.num_visible), all_states(self.energy.num_hidden)
        return visible.to(self.joint).mT @ self.joint_probabilities @ hidden.to(self.joint)

    @property
    def best_joint(self) -> Tensor:
        """The largest score of both sides."""
        return self.joint.flatten(1).amax(1)


@dataclass(frozen=True)
class SegmentEnumeration(Enumeration):
    """Every segmentation, coded as its energy says."""

    @property
    def states(self) -> Tensor:
        """P(the segment at t has state s), (batch, length, states); 0 for padding."""
        place = torch.arange(self.labels.shape[-1])
        first = place.where(self.labels >= 0, 0).cummax(-1).values
        state = self.labels.gather(-1, first).where(self.energy.inside, PADDING)
        has = (state[..., None] == torch.arange(self.energy.num_states)).to(self.scores)
        return torch.einsum("sb,sbti->bti", self.probabilities, has)


def binary(energy: Any, known: Tensor | None = None) -> Enumeration:
    """Of an energy over {0, 1} labels."""
    labels = all_states(energy.num_labels)[:, None]
    return Enumeration(energy, labels, _agreeing(energy.score(labels), labels, known))


def networks(energies: Sequence[DirectedEnergy], known: Tensor | None = None) -> Enumeration:
    """Of an equal mixture of sigmoid belief networks."""
    labels = all_states(energies[0].num_labels)[:, None]
    mixed = torch.stack([energy.log_prob(labels).exp() for energy in energies]).mean(0).log()
    return Enumeration(energies, labels, _agreeing(mixed, labels, known))


def sequential(energy: Any, known: Tensor | None = None) -> Enumeration:
    """Of a distribution over labels of several values."""
    labels = torch.tensor(list(product(*map(range, energy.num_states))))[:, None]
    return Enumeration(energy, labels, _agreeing(energy.score(labels), labels, known))


def factors(energy: FactorEnergy, known: Tensor | None = None) -> Enumeration:
    """Of a graph of tables that is not packed."""
    labels = every_labelling(energy)
    return Enumeration(energy, labels, _agreeing(energy.score(labels), labels, known))


def bipartite(energy: BipartiteEnergy, known: Tensor | None = None) -> BipartiteEnumeration:
    """Of a restricted Boltzmann machine."""
    joint = score_table(energy, known)
    labels = all_states(energy.num_visible)[:, None]
    return BipartiteEnumeration(energy, labels, joint.logsumexp(-1).mT, joint)


def chain(energy: ChainEnergy, known: None = None) -> Enumeration:
    """Of a chain; what stands beyond its end is counted once, and is ``PADDING``."""
    labels = torch.tensor(list(product(range(energy.num_states), repeat=energy.max_length)))[:, None]
    scores = energy.score(labels)
    once = ((labels == 0) | energy.inside).all(-1)
    return Enumeration(energy, labels.where(energy.inside, PADDING), scores.masked_fill(~once, -torch.inf))


def semi_chain(energy: SemiChainEnergy, known: None = None) -> SegmentEnumeration:
    """Of a semi-Markov chain; what stands beyond its end is counted once, and is ``PADDING``."""
    size = energy.num_labels, energy.max_segment, energy.num_states
    labels = torch.tensor([coded(each, energy.num_labels) for each in segmentations(*size)])[:, None]
    scores = energy.score(labels)
    once = ((labels == 0) | energy.inside).all(-1)
    labels = labels.where(energy.inside, PADDING)
    return SegmentEnumeration(energy, labels, scores.masked_fill(~once, -torch.inf))


def tree(energy: TreeEnergy, known: None = None) -> Enumeration:
    """Of a tree."""
    labels = torch.tensor(list(product(range(energy.num_states), repeat=energy.num_nodes)))[:, None]
    return Enumeration(energy, labels, energy.score(labels))


def _agreeing(scores: Tensor, labels: Tensor, known: Tensor | None) -> Tensor:
    if known is None:
        return scores
    return scores.masked_fill(((labels != known) & ~known.isnan()).any(-1), -torch.inf)


def _hinge(energy: Any, labels: Tensor) -> Tensor:
    return (1 - energy.local_margins(labels)).clamp(min=0).sum(-1)


class Objective(NamedTuple):
    """What a decoder optimises.

    Args:
        value: (enumeration, labels (labellings, 1 or batch, labels)) → (labellings, batch).
        sign: 1 where larger is better, −1 where smaller is.
    """

    value: Callable[[Any, Tensor], Tensor]
    sign: int = 1


def _expected(gain: Callable[[Tensor, Tensor], Tensor]) -> Objective:
    """The expectation over labellings y of a measure of labels ŷ, both (…, labels)."""

    def value(every: Enumeration, labels: Tensor) -> Tensor:
        gains = gain(every.labels[:, None].double(), labels[None].double())
        return torch.einsum("sb,snb->nb", every.probabilities, gains.expand(-1, -1, every.scores.shape[1]))

    return Objective(value)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """1 where both are 0, as measures of two empty sets are."""
    return torch.where(below == 0, 1.0, above / below.clamp(min=1))


SCORE = Objective(lambda every, labels: every.energy.score(labels))
HINGE = Objective(
    lambda every, labels: (1 - every.energy.local_margins(labels)).clamp(min=0).sum(-1), sign=-1
)
# Of a restricted Boltzmann machine, the hidden units at their best, and summed out.
JOINT_SCORE = Objective(
    lambda every, labels: every.energy.score(
        labels.expand(-1, every.scores.shape[1], -1), every.energy.hidden_fields(labels) > 0
    )
)
MARGINAL_SCORE = Objective(lambda every, labels: -every.energy.free_energy(labels))
# Of several networks.
MIXTURE = Objective(
    lambda every, labels: torch.stack([e.log_prob(labels).exp() for e in every.energy]).mean(0).log()
)
MEAN_HINGE = Objective(
    lambda every, labels: torch.stack([_hinge(energy, labels) for energy in every.energy]).mean(0), sign=-1
)
EXPECTED_HAMMING = _expected(lambda truth, found: (truth == found).double().mean(-1))
EXPECTED_RIGHT = _expected(lambda truth, found: (truth == found).double().sum(-1))
EXPECTED_F1 = _expected(
    lambda truth, found: _ratio(2 * (truth * found).sum(-1), truth.sum(-1) + found.sum(-1))
)
EXPECTED_JACCARD = _expected(
    lambda truth, found: _ratio((truth * found).sum(-1), truth.maximum(found).sum(-1))
)
