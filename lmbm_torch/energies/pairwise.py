"""Boltzmann machines with couplings between pairs of labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lmbm_torch.checks import check_like, check_shape
from lmbm_torch.energies.base import BaseEnergy, to_spins
from lmbm_torch.shapes import Float, Labels, LabelScores, Scores
from lmbm_torch.verdicts import refuse_unless


def from_others(pairwise: Tensor, spins: Tensor) -> Tensor:
    """Return Σ_j pairwise_ij s_j for each label i, with one matrix for all examples or one per example."""
    if pairwise.ndim == 2:
        return spins @ pairwise.mT
    # Use einsum: matmul would copy each example's couplings for every sample.
    return torch.einsum("bij,...bj->...bi", pairwise, spins)


@dataclass(frozen=True)
class PairwiseEnergy(BaseEnergy):
    """A batch of Boltzmann machines with unary and pairwise log-potentials.

    With spins s = 2y − 1,

        score(y) = Σ_i unary_i s_i + Σ_{i<j} pairwise_ij s_i s_j + constant,     p(y) ∝ exp(score(y))

    the local field is z_i = unary_i + Σ_j pairwise_ij s_j, and P(y_i | all other labels) = σ(2 s_i z_i)
    (large_margin_boltzmann_machines_2009, Definition 2.1 with cliques of at most two labels).

    Args:
        unary: log-potential of each label, given the input.
        pairwise: symmetric with a zero diagonal, shared by the batch or one matrix per example.
        constant: added to every score, and so to the log partition; by default zeros.

    Raises:
        ValueError: a tensor has a wrong shape, dtype or device.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy, decode
        >>> energy = PairwiseEnergy(torch.tensor([[1.0, -0.5]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]]))
        >>> decode(energy).labels
        tensor([[1, 1]])
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
        """Return the score Σ_i unary_i s_i + Σ_{i<j} pairwise_ij s_i s_j + constant, with spins s."""
        spins = to_spins(labels, self.dtype)
        # Multiply before broadcasting: if one labelling is scored for all examples, one product is enough.
        pairs = (spins * from_others(self.pairwise, spins)).sum(-1) / 2
        return torch.einsum("...bi,bi->...b", spins, self.unary) + pairs + self.constant

    def local_fields(self, labels: Labels) -> LabelScores:
        """Return the local fields z_i, half the logit of each label given all other labels."""
        return self.unary + from_others(self.pairwise, to_spins(labels, self.dtype))

    def local_margins(self, labels: Labels) -> LabelScores:
        """Return the local margins m_i = s_i z_i, the agreement of each label with the local field."""
        spins = to_spins(labels, self.dtype)
        return spins * (self.unary + from_others(self.pairwise, spins))

    def add_unary(self, unary: Float[Tensor, "#batch labels"]) -> PairwiseEnergy:
        """Return the energy with Σ_i unary_i y_i added to the score; see :meth:`BaseEnergy.add_unary`."""
        self._check_unary(unary, self.unary)
        return replace(self, unary=self.unary + unary / 2, constant=self.constant + unary.sum(-1) / 2)
