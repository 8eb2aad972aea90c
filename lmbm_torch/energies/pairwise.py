"""Boltzmann machines with couplings between pairs of labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lmbm_torch.checks import check_like, check_shape
from lmbm_torch.energies.base import BaseEnergy, to_spins
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.shapes import Float, Shaped


class UnitForm(NamedTuple):
    """A quadratic score of {0, 1} labels, Σ_i unary_i y_i + Σ_{i<j} pairwise_ij y_i y_j + constant.

    Args:
        unary: the log-odds of each label where all others are 0.
        pairwise: symmetric with a zero diagonal.
        constant: what it says of the labelling of zeros.
    """

    unary: Float[Tensor, "batch labels"]
    pairwise: Float[Tensor, "labels labels"] | Float[Tensor, "batch labels labels"]
    constant: Float[Tensor, " batch"]


@dataclass(frozen=True)
class PairwiseEnergy(BaseEnergy):
    """A batch of Boltzmann machines with unary and pairwise log-potentials.

    With spins s = 2y − 1,

        score(y) = Σ_i unary_i s_i + Σ_{i<j} pairwise_ij s_i s_j + constant,     p(y) ∝ exp(score(y))

    its local field z_i = unary_i + Σ_j pairwise_ij s_j, and P(y_i | all other labels) = σ(2 s_i z_i)
    (large_margin_boltzmann_machines_2009, Definition 2.1 with cliques of at most two labels).

    Args:
        unary: what the input says about each label.
        pairwise: symmetric with a zero diagonal, shared by the batch or one matrix per example.
        constant: added to every score; it moves the log partition alone. Zeros if not given.

    Raises:
        ValueError: a tensor of the wrong shape, dtype or device.
    """

    PER_EXAMPLE: ClassVar = {"unary": 2, "pairwise": 3, "constant": 1}

    unary: Float[Tensor, "batch labels"]
    pairwise: Float[Tensor, "labels labels"] | Float[Tensor, "batch labels labels"]
    constant: Float[Tensor, " batch"] = None  # pyright: ignore[reportAssignmentType]  # zeros, from __post_init__

    def __post_init__(self) -> None:
        check_shape("unary", self.unary, None, None)
        if not self.unary.is_floating_point():
            raise ValueError(f"unary: expected a floating-point dtype, got {self.unary.dtype}")
        batch, labels = self.unary.shape
        square = (labels, labels)
        check_shape("pairwise", self.pairwise, *(square if self.pairwise.ndim == 2 else (batch, *square)))
        check_like("pairwise", self.pairwise, "unary", self.unary)
        if self.constant is None:
            object.__setattr__(self, "constant", self.unary.new_zeros(batch))
        check_shape("constant", self.constant, batch)
        check_like("constant", self.constant, "unary", self.unary)

    def check_values(self) -> None:
        """Raise ValueError for NaN or infinite log-potentials, or couplings that differ by direction."""
        super().check_values()
        pairwise = self.pairwise.detach()
        if bool((pairwise.diagonal(dim1=-2, dim2=-1) != 0).any()):
            raise ValueError("pairwise: expected a zero diagonal, got couplings of labels with themselves")
        largest = float((pairwise - pairwise.mT).abs().max())
        if largest > 0:
            raise ValueError(f"pairwise: expected a symmetric matrix, got differences of up to {largest}")

    def score(self, labels: Shaped[Tensor, "*samples #batch labels"]) -> Float[Tensor, "*samples _batch"]:
        """Σ_i unary_i s_i + Σ_{i<j} pairwise_ij s_i s_j + constant."""
        spins = to_spins(labels, self.dtype)
        # One labelling for all examples then meets shared couplings once, not once per example.
        pairs = (spins * self._from_others(spins)).sum(-1) / 2
        return torch.einsum("...bi,bi->...b", spins, self.unary) + pairs + self.constant

    def local_fields(
        self, labels: Shaped[Tensor, "*samples #batch labels"]
    ) -> Float[Tensor, "*samples _batch labels"]:
        """z_i: half the log-odds of each label, given all others."""
        return self.unary + self._from_others(to_spins(labels, self.dtype))

    def local_margins(
        self, labels: Shaped[Tensor, "*samples #batch labels"]
    ) -> Float[Tensor, "*samples _batch labels"]:
        """m_i = s_i z_i: by how much each label agrees with its local field."""
        spins = to_spins(labels, self.dtype)
        return spins * (self.unary + self._from_others(spins))

    def _from_others(self, spins: Tensor) -> Tensor:
        """Σ_j pairwise_ij s_j."""
        if self.pairwise.ndim == 2:
            return spins @ self.pairwise.mT
        # matmul would make a copy of each example's couplings for every sample.
        return torch.einsum("bij,...bj->...bi", self.pairwise, spins)

    def add_unary(self, unary: Float[Tensor, "#batch labels"]) -> PairwiseEnergy:
        """The energy whose score is larger by Σ_i unary_i y_i; see :meth:`BaseEnergy.add_unary`."""
        self._check_unary(unary, self.unary)
        return replace(self, unary=self.unary + unary / 2, constant=self.constant + unary.sum(-1) / 2)

    def to_units(self) -> UnitForm:
        """The same score as a quadratic form of the {0, 1} labels."""
        return UnitForm(
            unary=2 * (self.unary - self.pairwise.sum(-1)),
            pairwise=4 * self.pairwise,
            constant=self.constant - self.unary.sum(-1) + self.pairwise.sum((-2, -1)) / 2,
        )

    @classmethod
    def from_units(cls, form: UnitForm) -> PairwiseEnergy:
        """The energy whose score is a quadratic form of the {0, 1} labels; its log partition is the form's.

        Raises:
            ValueError: a tensor of the wrong shape, dtype or device.
        """
        unary, pairwise, constant = form
        return cls(
            unary=unary / 2 + pairwise.sum(-1) / 4,
            pairwise=pairwise / 4,
            constant=constant + unary.sum(-1) / 2 + pairwise.sum((-2, -1)) / 8,
        )

    @classmethod
    def from_bipartite(cls, energy: BipartiteEnergy) -> PairwiseEnergy:
        """A restricted Boltzmann machine as a Boltzmann machine of all its units, the visible ones first."""
        coupling = energy.coupling
        visible, hidden = coupling.shape
        upper = torch.cat([coupling.new_zeros(visible, visible), coupling], 1)
        lower = torch.cat([coupling.mT, coupling.new_zeros(hidden, hidden)], 1)
        unary = torch.cat([energy.visible, energy.hidden], 1)
        return cls.from_units(UnitForm(unary, torch.cat([upper, lower]), unary.new_zeros(energy.batch_size)))

    def to_bipartite(self, num_visible: int) -> tuple[BipartiteEnergy, Float[Tensor, " _batch"]]:
        """The first labels as visible units, the others as hidden ones, and the constant that the score lost.

        Raises:
            ValueError: ``num_visible`` leaves a side empty; couplings within a side, or one matrix for each
                example.
        """
        if not 0 < num_visible < self.num_labels:
            raise ValueError(f"num_visible: expected 1 to {self.num_labels - 1}, got {num_visible}")
        if self.pairwise.ndim != 2:
            raise ValueError("pairwise: expected couplings that the batch shares, got one matrix per example")
        form = self.to_units()
        first, second = slice(None, num_visible), slice(num_visible, None)
        for side in (first, second):
            if bool((self.pairwise[side, side] != 0).any()):
                raise ValueError("pairwise: expected no couplings within a side, got others")
        bipartite = BipartiteEnergy(form.unary[:, first], form.unary[:, second], form.pairwise[first, second])
        return bipartite, form.constant
