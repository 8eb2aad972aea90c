"""Boltzmann machines with couplings between pairs of labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lmbm_torch.checks import check_like, check_shape
from lmbm_torch.energies.base import BaseEnergy, to_spins
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.shapes import Float, Labels, LabelScores, Scores
from lmbm_torch.verdicts import refuse_unless


class UnitForm(NamedTuple):
    """A quadratic score of {0, 1} labels, Σ_i unary_i y_i + Σ_{i<j} pairwise_ij y_i y_j + constant.

    Args:
        unary: the log-odds of each label where all others are 0.
        pairwise: symmetric with a zero diagonal.
        constant: the score of the labelling of zeros.
    """

    unary: Float[Tensor, "batch labels"]
    pairwise: Float[Tensor, "labels labels"] | Float[Tensor, "batch labels labels"]
    constant: Float[Tensor, " batch"]


def from_others(pairwise: Tensor, spins: Tensor) -> Tensor:
    """Σ_j pairwise_ij s_j, for couplings that the batch shares or one matrix for each example."""
    if pairwise.ndim == 2:
        return spins @ pairwise.mT
    # matmul would make a copy of each example's couplings for every sample.
    return torch.einsum("bij,...bj->...bi", pairwise, spins)


@dataclass(frozen=True)
class PairwiseEnergy(BaseEnergy):
    """A batch of Boltzmann machines with unary and pairwise log-potentials.

    With spins s = 2y − 1,

        score(y) = Σ_i unary_i s_i + Σ_{i<j} pairwise_ij s_i s_j + constant,     p(y) ∝ exp(score(y))

    its local field z_i = unary_i + Σ_j pairwise_ij s_j, and P(y_i | all other labels) = σ(2 s_i z_i)
    (large_margin_boltzmann_machines_2009, Definition 2.1 with cliques of at most two labels).

    Args:
        unary: log-potential of each label, given the input.
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
        self._resolve_negative()
        self._check_first()
        self._check_table("pairwise", self.num_labels, self.num_labels)
        if self.constant is None:
            object.__setattr__(self, "constant", self.unary.new_zeros(self.batch_size))
        check_shape("constant", self.constant, self.batch_size)
        check_like("constant", self.constant, "unary", self.unary)

    def check_values(self) -> None:
        """Raise ValueError for NaN or infinite log-potentials, or couplings that differ by direction."""
        super().check_values()
        pairwise = self.pairwise.detach()

        def refuse_diagonal() -> None:
            raise ValueError("pairwise: expected a zero diagonal, got couplings of labels with themselves")

        def refuse_asymmetric() -> None:
            largest = float((pairwise - pairwise.mT).abs().max())
            raise ValueError(f"pairwise: expected a symmetric matrix, got differences of up to {largest}")

        refuse_unless(
            "pairwise: expected a zero diagonal",
            (self.pairwise,),
            lambda: (pairwise.diagonal(dim1=-2, dim2=-1) == 0).all(),
            refuse_diagonal,
        )
        refuse_unless(
            "pairwise: expected a symmetric matrix",
            (self.pairwise,),
            lambda: (pairwise == pairwise.mT).all(),
            refuse_asymmetric,
        )

    def score(self, labels: Labels) -> Scores:
        """Σ_i unary_i s_i + Σ_{i<j} pairwise_ij s_i s_j + constant."""
        spins = to_spins(labels, self.dtype)
        # One labelling for all examples then meets shared couplings once, not once per example.
        pairs = (spins * from_others(self.pairwise, spins)).sum(-1) / 2
        return torch.einsum("...bi,bi->...b", spins, self.unary) + pairs + self.constant

    def local_fields(self, labels: Labels) -> LabelScores:
        """z_i: half the log-odds of each label, given all others."""
        return self.unary + from_others(self.pairwise, to_spins(labels, self.dtype))

    def local_margins(self, labels: Labels) -> LabelScores:
        """m_i = s_i z_i: by how much each label agrees with its local field."""
        spins = to_spins(labels, self.dtype)
        return spins * (self.unary + from_others(self.pairwise, spins))

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
