"""Boltzmann machines with cliques of any size, whose features are products of spins (parities)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor

from lmbm_torch.checks import check_like, check_shape
from lmbm_torch.energies.base import BaseEnergy, check_cliques, check_floating, kept
from lmbm_torch.energies.indices import padded_cliques
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.shapes import Float, Labels, LabelScores, Scores


@dataclass(frozen=True)
class CliqueEnergy(BaseEnergy):
    """A batch of Boltzmann machines in which all examples have the same cliques.

    With spins s = 2y − 1,

        score(y) = Σ_c weight_c Π_{i ∈ c} s_i + constant,     p(y) ∝ exp(score(y))

    (large_margin_boltzmann_machines_2009, Definition 2.1 and Equation 1).

    Args:
        cliques: sets of one or more labels; weights of repeated sets add up.
        weight: one weight per clique, shared by the batch or one row per example.
        constant: added to every score, and so to the log partition. By default zeros, one for each row of
            ``weight``, or a single zero if ``weight`` is shared.
        num_labels: the number of labels; by default the largest label of a clique plus 1.

    Raises:
        ValueError: a tensor has a wrong shape, dtype or device; an empty clique, a clique with a repeated or
            unknown label; neither cliques nor ``num_labels``.

    Examples:
        >>> import torch
        >>> from lmbm_torch import CliqueEnergy, decode
        >>> energy = CliqueEnergy(((0,), (0, 1), (0, 1, 2)), torch.tensor([1.0, 2.0, -3.0]))
        >>> decode(energy).labels
        tensor([[1, 1, 0]])
    """

    PER_EXAMPLE: ClassVar = {"constant": 1, "weight": 2}

    cliques: tuple[tuple[int, ...], ...]
    weight: Float[Tensor, " cliques"] | Float[Tensor, "batch cliques"]
    constant: Float[Tensor, " batch"] = None  # pyright: ignore[reportAssignmentType]  # zeros, from __post_init__
    num_labels: int = None  # pyright: ignore[reportAssignmentType]  # counted in __post_init__

    def __post_init__(self) -> None:
        self._resolve_negative()
        if self.num_labels is None:
            largest = max((label for clique in self.cliques for label in clique), default=-1)
            object.__setattr__(self, "num_labels", largest + 1)
        if self.num_labels < 1:
            raise ValueError(f"num_labels: expected at least 1 without cliques, got {self.num_labels}")
        check_cliques(self.cliques, self.num_labels)
        leading = self.weight.shape[:1] if self.weight.ndim == 2 else ()
        check_shape("weight", self.weight, *leading, len(self.cliques))
        check_floating("weight", self.weight)
        if self.constant is None:
            object.__setattr__(self, "constant", self.weight.new_zeros(leading or 1))
        check_shape("constant", self.constant, *(leading or (None,)))
        check_like("constant", self.constant, "weight", self.weight)

    @kept
    def membership(self) -> Float[Tensor, "labels cliques"]:
        """Return a matrix that is 1 where a clique contains a label."""
        members = padded_cliques(self.cliques, self.num_labels, self.device)
        labels = torch.arange(self.num_labels, device=self.device)[:, None, None]
        return (members == labels).any(-1).to(self.dtype)

    def parities(self, labels: Labels) -> Float[Tensor, "*samples _batch cliques"]:
        """Return each clique's feature Π_{i ∈ c} s_i: −1 if an odd number of the clique's labels is 0."""
        zeros = (1 - labels.to(self.dtype)) @ self.membership
        return 1 - 2 * (zeros % 2)

    def score(self, labels: Labels) -> Scores:
        """Return the score Σ_c weight_c Π_{i ∈ c} s_i + constant, with spins s."""
        weight = self.weight if self.weight.ndim == 2 else self.weight[None]
        return torch.einsum("...bc,bc->...b", self.parities(labels), weight) + self.constant

    def local_margins(self, labels: Labels) -> LabelScores:
        """Return m_i = Σ_{c ∋ i} weight_c Π_{j ∈ c} s_j; if label i changes, the score falls by 2 m_i."""
        margins = (self.weight * self.parities(labels)) @ self.membership.mT
        return margins.expand(*margins.shape[:-2], self.batch_size, -1)

    def add_unary(self, unary: Float[Tensor, "#batch labels"]) -> CliqueEnergy:
        """Return the energy with Σ_i unary_i y_i added to the score, as a further clique for each label.

        See :meth:`BaseEnergy.add_unary`.
        """
        batch = self.batch_size
        self._check_unary(unary, self.weight.new_empty(batch, self.num_labels))
        return replace(
            self,
            cliques=self.cliques + tuple((label,) for label in range(self.num_labels)),
            weight=torch.cat([self.weight.expand(batch, -1), unary.expand(batch, -1) / 2], 1),
            constant=self.constant + unary.sum(-1) / 2,
        )

    @classmethod
    def from_pairwise(cls, energy: PairwiseEnergy) -> CliqueEnergy:
        """Convert a pairwise energy to cliques of one and of two labels with equal scores."""
        labels = energy.num_labels
        pairs = tuple(combinations(range(labels), 2))
        upper = torch.triu_indices(labels, labels, 1, device=energy.device)
        pairwise = energy.pairwise[..., upper[0], upper[1]].expand(energy.batch_size, -1)
        return cls(
            cliques=tuple((label,) for label in range(labels)) + pairs,
            weight=torch.cat([energy.unary, pairwise], 1),
            constant=energy.constant,
        )

    def to_pairwise(self) -> PairwiseEnergy:
        """Convert to a pairwise energy with equal scores; shared weights give shared couplings.

        Raises:
            ValueError: a clique has three or more labels.
        """
        large = [clique for clique in self.cliques if len(clique) > 2]
        if large:
            raise ValueError(f"cliques: expected at most two labels in each clique, got {large[0]}")
        labels, leading = self.num_labels, self.weight.shape[:-1]
        pairs = [index for index, clique in enumerate(self.cliques) if len(clique) == 2]
        single = torch.tensor([len(clique) == 1 for clique in self.cliques], device=self.device)
        place = [self.cliques[index][0] * labels + self.cliques[index][1] for index in pairs]
        upper = self.weight.new_zeros(*leading, labels * labels).index_add(
            -1, torch.tensor(place, dtype=torch.int64, device=self.device), self.weight[..., pairs]
        )
        half = upper.unflatten(-1, (labels, labels))
        unary = (self.weight * single) @ self.membership.mT
        return PairwiseEnergy(unary.expand(self.batch_size, -1), half + half.mT, self.constant)
