"""Energies over binary labels with linear rules on the labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from lmbm_torch.checks import check_device, check_shape
from lmbm_torch.energies.base import Energy, MarginEnergy
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.shapes import Bool, Float, Labels, LabelScores, Scores


class RestrictedEnergyError(TypeError, AttributeError):
    """The error raised if an energy with rules is passed to a routine that does not support rules."""


@dataclass(frozen=True)
class RestrictedEnergy:
    """An energy over the labellings y in {0, 1} with rules @ y ≤ bounds; all other labellings are impossible.

    :func:`lmbm_torch.inference.decode`, the other functions of :mod:`lmbm_torch.inference` and enumeration
    give results over the allowed labellings. Routines that do not support rules refuse the energy.

    Args:
        base: an energy over binary labels; the hidden units of a restricted Boltzmann machine are summed out.
        rules: the coefficients of the rules, (rules, labels), on the energy's device.
        bounds: the right sides of the rules, (rules,), on the energy's device.

    Raises:
        ValueError: the rules are over another number of labels, or on another device.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy, RestrictedEnergy, decode
        >>> base = PairwiseEnergy(torch.tensor([[2.0, 1.0]]), torch.zeros(2, 2))
        >>> at_most_one = RestrictedEnergy(base, torch.ones(1, 2), torch.ones(1))
        >>> decode(at_most_one).labels
        tensor([[1, 0]])
    """

    base: Energy
    rules: Float[Tensor, "rules labels"]
    bounds: Float[Tensor, " rules"]

    def __post_init__(self) -> None:
        check_shape("rules", self.rules, None, self.base.num_labels)
        check_shape("bounds", self.bounds, len(self.rules))
        check_device("rules", self.rules, self.device)
        check_device("bounds", self.bounds, self.device)

    @property
    def batch_size(self) -> int:
        return self.base.batch_size

    @property
    def num_labels(self) -> int:
        return self.base.num_labels

    @property
    def device(self) -> torch.device:
        return self.base.device

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise RestrictedEnergyError(
            f"energy: expected one without rules, since {name} is needed, got {type(self).__name__}; "
            "use inference.enumeration.exact, or lmbm_torch.inference with constraints"
        )

    def to(self, *where: torch.dtype | torch.device | str) -> RestrictedEnergy:
        """Convert the energy to another precision, device or both; rules keep their precision."""
        base: Any = self.base
        moved = base.to(*where)
        rules, bounds = (each.to(moved.device) for each in (self.rules, self.bounds))
        return replace(self, base=moved, rules=rules, bounds=bounds)

    def allows(self, labels: Labels) -> Bool[Tensor, "*samples batch"]:
        """Return whether labellings obey all rules."""
        return (labels.to(self.rules) @ self.rules.mT <= self.bounds).all(-1)

    def local_margins(self, labels: Labels) -> LabelScores:
        """Return the local margins of the base energy, even if a rule is broken.

        Raises:
            TypeError: the base has no local margins.
        """
        if not isinstance(self.base, MarginEnergy):
            raise TypeError(f"energy: expected a kind with local margins, got {type(self.base).__name__}")
        return self.base.local_margins(labels)

    def score(self, labels: Labels, /) -> Scores:
        """Return the base energy's score, or the least finite number if a rule is broken."""
        if isinstance(self.base, BipartiteEnergy):
            values = -self.base.free_energy(labels)
        else:
            values = self.base.score(labels)
        # Use the least finite number, not −∞: if all labellings of a chunk had −∞, gradients would be NaN.
        return values.where(self.allows(labels), torch.finfo(values.dtype).min)

    def energy(self, labels: Labels, /) -> Scores:
        """Return the negative score of each labelling."""
        return -self.score(labels)

    def check_values(self) -> None:
        """Raise ValueError as :meth:`Energy.check_values` of the base energy does."""
        self.base.check_values()

    def select(self, rows: Tensor | slice) -> RestrictedEnergy:
        """Return the energy of the examples ``rows`` of the batch."""
        return replace(self, base=self.base.select(rows))

    def add_unary(self, unary: Tensor) -> RestrictedEnergy:
        """Return the energy with ``unary`` added to the score of each label; see :meth:`Energy.add_unary`."""
        return replace(self, base=self.base.add_unary(unary))
