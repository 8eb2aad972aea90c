"""A restricted Boltzmann machine seen from one of its sides, the other one summed out in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import torch
from torch import Tensor

from lmbm_torch.backends.installed import compiled
from lmbm_torch.backends.search.plain.one_side import suits
from lmbm_torch.checks import check_known
from lmbm_torch.energies.base import BaseEnergy
from lmbm_torch.energies.bipartite import BipartiteEnergy, softplus
from lmbm_torch.inference.parts.known import clamp
from lmbm_torch.shapes import Float, Int, Known, Labels, Scores, Shaped
from lmbm_torch.verdicts import is_traced, number

__all__ = ["OneSide"]


MOST_FREE = "most free labels"


def _most_free(known: Tensor) -> int:
    if is_traced():
        return known.shape[1]
    return int(number(MOST_FREE, (known,), lambda: known.isnan().sum(1).max()))


@dataclass(frozen=True)
class OneSide(BaseEnergy):
    """The energy of one side's units alone: score(y) = log Σ_z exp(score(y, z)) over the other side's z.

    With f = hidden + yᵀ coupling the fields of the other side, a free unit that is summed out adds
    softplus(f_j) to the score, one that is maximised out max(f_j, 0), one that is known as z_j adds z_j f_j.

    Args:
        machine: with the side that is looked at as its visible one.
        known: {0, 1, NaN} for the side that is looked at, if anything of it is known.
        known_other: {0, 1, NaN} for the side that is summed out, likewise.
        is_hidden: the hidden side is looked at.
    """

    machine: BipartiteEnergy
    known: Known | None = None
    known_other: Shaped[Tensor, "batch others"] | None = None
    is_hidden: bool = False

    @classmethod
    def visible(cls, energy: BipartiteEnergy, known: Tensor | None) -> OneSide:
        """The visible side, of which some units may be ``known``."""
        check_known(known, energy.device, energy.batch_size, energy.num_visible)
        return cls(energy, known=known)

    @classmethod
    def smaller(cls, energy: BipartiteEnergy, known: Tensor | None) -> OneSide:
        """The side with fewer free units, where visible ones may be ``known``."""
        side = cls.visible(energy, known)
        num_free = energy.num_visible if known is None else _most_free(known)
        if num_free <= energy.num_hidden:
            return side
        return cls(energy.swap(), known_other=known, is_hidden=True)

    @property
    def given(self) -> Labels | None:
        """Its units, if none of them is free."""
        if is_traced() or self.known is None:
            return None
        return self.known if _most_free(self.known) == 0 else None

    @property
    def _first(self) -> Tensor:
        return self.machine.visible

    @property
    def num_others(self) -> int:
        return self.machine.num_hidden

    @property
    def width(self) -> int:
        """Numbers in memory for each labelling: units of the larger side, or of this one in compiled code."""
        return self.num_labels if self._compiled() else max(self.num_labels, self.num_others)

    def check_values(self) -> None:
        """Raise ValueError for NaN or infinite log-potentials, by the names of the energy that came."""
        came = self.machine.swap() if self.is_hidden else self.machine
        came.check_values()

    def visible_first(self, own: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """The tensors of the visible side, then of the hidden one."""
        return (others, own) if self.is_hidden else (own, others)

    def score(self, labels: Labels) -> Scores:
        """log Σ_z exp(score(y, z))."""
        kernel = self._compiled()
        if kernel is not None and labels.ndim == 3:
            others = kernel.log_sums(labels, self.machine.hidden, self.machine.coupling)
            return (labels.to(self.dtype) * self.machine.visible).sum(-1) + others
        fields = self.machine.hidden_fields(labels)
        return self._score(labels, fields, softplus(fields))

    def best_score(self, labels: Labels) -> Scores:
        """max_z score(y, z)."""
        fields = self.machine.hidden_fields(labels)
        return self._score(labels, fields, fields.clamp(min=0))

    def _score(self, labels: Tensor, fields: Tensor, others: Tensor) -> Tensor:
        """The score where each free unit of the other side adds ``others``."""
        if self.known_other is not None:
            known = self.known_other.nan_to_num().to(self.dtype)
            others = torch.where(self.known_other.isnan(), others, known * fields)
        return (labels.to(self.dtype) * self.machine.visible).sum(-1) + others.sum(-1)

    def best_others(self, labels: Shaped[Tensor, "batch labels"]) -> Int[Tensor, "batch others"]:
        """argmax_z score(y, z); 0 where both are equally good."""
        return clamp((self.machine.hidden_fields(labels) > 0).long(), self.known_other)

    def expected_others(self, labels: Labels) -> Float[Tensor, "*samples _batch others"]:
        """P(z_j = 1 | y)."""
        return clamp(self.machine.hidden_given_visible(labels), self.known_other)

    def expected_units(
        self, labels: Labels, weights: Float[Tensor, "samples batch"]
    ) -> Float[Tensor, "batch units"]:
        """The weighted sums over samples of y, then of P(z_j = 1 | y)."""
        own = torch.einsum("sb,sbi->bi", weights, labels.to(self.dtype))
        kernel = self._compiled()
        if kernel is not None:
            others = kernel.expected_sum(labels, weights, self.machine.hidden, self.machine.coupling)
        else:
            others = torch.einsum("sb,sbi->bi", weights, self.expected_others(labels))
        return torch.cat([own, others], -1)

    def expected_products(
        self, labels: Labels, weights: Float[Tensor, "samples batch"]
    ) -> Float[Tensor, "batch pairs"]:
        """The weighted sums over samples of y_i P(z_j = 1 | y), all j of one i after those of another."""
        others = weights[..., None] * self.expected_others(labels)
        return torch.einsum(
            "sbi,sbj->bij", labels.to(self.dtype).expand(-1, len(others[0]), -1), others
        ).flatten(1)

    def _compiled(self) -> ModuleType | None:
        """The kernel, where it is installed and can do what is asked for: no gradients, nothing known."""
        tensors = self.machine.visible, self.machine.hidden, self.machine.coupling
        wants_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        return None if wants_gradient else self._kernel

    @cached_property
    def _kernel(self) -> ModuleType | None:
        if self.known_other is not None or self.device.type != "cpu":
            return None
        if not suits(self.machine.hidden, self.machine.coupling):
            return None
        return compiled("search.one_side", "enumeration")
