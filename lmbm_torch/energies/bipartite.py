"""Restricted Boltzmann machines: two sides of units, coupled across and never within a side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from lmbm_torch.checks import check_like, check_moderate, check_shape
from lmbm_torch.energies.base import BaseEnergy
from lmbm_torch.shapes import Float, Scores, Shaped


def softplus(fields: Tensor) -> Tensor:
    """Compute log(1 + e^x) elementwise: the log-partition function of a {0, 1} unit with logit x."""
    # Return x itself only above 40: torch's own threshold of 20 would make errors of 2e-9.
    return functional.softplus(fields, threshold=40.0)


@dataclass(frozen=True)
class BipartiteEnergy(BaseEnergy):
    """A batch of (conditional) restricted Boltzmann machines with one shared coupling.

    The visible units v are the labels, the hidden units h are never observed; both are {0, 1}, and

        score(v, h) = v·visible + h·hidden + vᵀ coupling h,     p(v, h) ∝ exp(score(v, h))

    (belief_propagation_in_crbms_2017, Equations 1 and 2, where visible = b^v + W^vx x, hidden = b^h + W^hx x
    and coupling = W^vh).

    Args:
        visible: log-potential of each visible unit, given the input.
        hidden: log-potential of each hidden unit, given the input.
        coupling: weights between the two sides, the same for every example.

    Raises:
        ValueError: a tensor has a wrong shape, dtype or device.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import BipartiteEnergy
        >>> energy = BipartiteEnergy(torch.zeros(1, 2), torch.zeros(1, 1), torch.tensor([[2.0], [2.0]]))
        >>> energy.hidden_given_visible(torch.tensor([[1.0, 1.0]]))
        tensor([[0.9820]])
    """

    PER_EXAMPLE: ClassVar = {"visible": 2, "hidden": 2}

    visible: Float[Tensor, "batch visible"]
    hidden: Float[Tensor, "batch hidden"]
    coupling: Float[Tensor, "visible hidden"]

    def __post_init__(self) -> None:
        self._resolve_negative()
        self._check_first()
        check_shape("hidden", self.hidden, self.batch_size, None)
        check_shape("coupling", self.coupling, self.num_visible, self.num_hidden)
        check_like("hidden", self.hidden, "visible", self.visible)
        check_like("coupling", self.coupling, "visible", self.visible)

    @property
    def num_visible(self) -> int:
        return self.visible.shape[1]

    @property
    def num_hidden(self) -> int:
        return self.hidden.shape[1]

    def check_values(self) -> None:
        """Raise ValueError for NaN or infinite log-potentials."""
        super().check_values()
        check_moderate("coupling", self.coupling)

    def score(
        self,
        visible_labels: Shaped[Tensor, "*samples #batch visible"],
        hidden_labels: Shaped[Tensor, "*samples #batch hidden"] | None = None,
    ) -> Scores:
        """Return v·visible + h·hidden + vᵀ coupling h; for probabilities, the expected score.

        Without hidden labels, sum the hidden units out: the result is −:meth:`free_energy`.
        """
        if hidden_labels is None:
            return -self.free_energy(visible_labels)
        visible, hidden = visible_labels.to(self.dtype), hidden_labels.to(self.dtype)
        return (visible * self.visible).sum(-1) + (hidden * self.hidden_fields(visible)).sum(-1)

    def free_energy(self, visible_labels: Shaped[Tensor, "*samples #batch visible"]) -> Scores:
        """Return −log Σ_h exp(score(v, h)) = −v·visible − Σ_j softplus(hidden_j + (vᵀ coupling)_j).

        The source is the paper's Equation 4. For the free energy of hidden units use ``swap().free_energy``.
        """
        visible = visible_labels.to(self.dtype)
        return -(visible * self.visible).sum(-1) - softplus(self.hidden_fields(visible)).sum(-1)

    def hidden_fields(
        self, visible_labels: Shaped[Tensor, "*samples #batch visible"]
    ) -> Float[Tensor, "*samples _batch hidden"]:
        """Return hidden + vᵀ coupling, the logit of each hidden unit given the visible units."""
        return self.hidden + visible_labels.to(self.dtype) @ self.coupling

    def visible_fields(
        self, hidden_labels: Shaped[Tensor, "*samples #batch hidden"]
    ) -> Float[Tensor, "*samples _batch visible"]:
        """Return visible + coupling h, the logit of each visible unit given the hidden units."""
        return self.visible + hidden_labels.to(self.dtype) @ self.coupling.mT

    def hidden_given_visible(
        self, visible_labels: Shaped[Tensor, "*samples #batch visible"]
    ) -> Float[Tensor, "*samples _batch hidden"]:
        """Return P(h_j = 1 | v) of each hidden unit; given v, hidden units are independent (Equation 3)."""
        return torch.sigmoid(self.hidden_fields(visible_labels))

    def visible_given_hidden(
        self, hidden_labels: Shaped[Tensor, "*samples #batch hidden"]
    ) -> Float[Tensor, "*samples _batch visible"]:
        """Return P(v_i = 1 | h) of each visible unit; given h, visible units are independent (Equation 3)."""
        return torch.sigmoid(self.visible_fields(hidden_labels))

    def swap(self) -> BipartiteEnergy:
        """Return the same model with its two sides exchanged: score(v, h) becomes score(h, v)."""
        return BipartiteEnergy(self.hidden, self.visible, self.coupling.mT)

    def add_unary(self, unary: Float[Tensor, "#batch visible"]) -> BipartiteEnergy:
        """Return the energy with v·unary added to the score; see :meth:`BaseEnergy.add_unary`."""
        self._check_unary(unary, self.visible)
        return replace(self, visible=self.visible + unary)
