"""Paths of restricted Boltzmann machines, from an uncoupled energy to a given energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from lmbm_torch.checks import check_finite, check_like, check_shape
from lmbm_torch.energies.bipartite import BipartiteEnergy, softplus
from lmbm_torch.inference.sampling.gibbs import draw
from lmbm_torch.shapes import Float

Fields = tuple[Tensor, Tensor]


def between(first: BipartiteEnergy, last: BipartiteEnergy, share: float) -> BipartiteEnergy:
    """Return the energy at a share of the straight line between two energies (a geometric mean)."""
    return BipartiteEnergy(
        first.visible.lerp(last.visible, share),
        first.hidden.lerp(last.hidden, share),
        first.coupling.lerp(last.coupling, share),
    )


def uncoupled(energy: BipartiteEnergy, base: Float[Tensor, "#batch visible"] | None) -> BipartiteEnergy:
    """Return the energy without coupling; if given, ``base`` replaces visible biases, and 0 hidden biases.

    Raises:
        ValueError: a ``base`` of another shape, dtype or device, or not finite.
    """
    coupling = torch.zeros_like(energy.coupling)
    if base is None:
        return replace(energy, coupling=coupling)
    check_shape("base", base, 1 if len(base) == 1 else energy.batch_size, energy.num_visible)
    check_like("base", base, "visible", energy.visible)
    check_finite("base", base)
    return BipartiteEnergy(base.expand_as(energy.visible), torch.zeros_like(energy.hidden), coupling)


def check_path(energy: BipartiteEnergy, path: Sequence[BipartiteEnergy]) -> None:
    """Check that the energies of ``path`` have the sizes, dtype and device of ``energy``, and finite values.

    Raises:
        ValueError: an energy of the path differs, or is not finite.
    """
    for place, each in enumerate(path):
        for name in ("visible", "hidden", "coupling"):
            tensor, like = getattr(each, name), getattr(energy, name)
            check_shape(f"path[{place}].{name}", tensor, *like.shape)
            check_like(f"path[{place}].{name}", tensor, name, like)
        each.check_values()


@dataclass(frozen=True)
class Stretch:
    """Part of a path: energies first + share · rise, at evenly spaced shares from 0 to 1.

    Args:
        first: the first energy.
        rise: the last energy minus the first energy.
        num_steps: the number of shares above 0.
        starts_uncoupled: whether ``first`` has no coupling, which saves matrix products.
    """

    first: BipartiteEnergy
    rise: BipartiteEnergy
    num_steps: int
    starts_uncoupled: bool

    def shares(self) -> list[tuple[float, float]]:
        """Return for each step the shares before and after the step, in order."""
        return list(pairwise(step / self.num_steps for step in range(self.num_steps + 1)))

    def fields(self, visible: Float[Tensor, "*chains batch visible"]) -> Fields:
        """Return the hidden units' fields at the stretch's start, and the increase along the stretch."""
        first = self.first.hidden if self.starts_uncoupled else self.first.hidden_fields(visible)
        return first, self.rise.hidden_fields(visible)

    def gain(
        self, visible: Float[Tensor, "*chains batch visible"], fields: Fields, hotter: float, colder: float
    ) -> Float[Tensor, "*chains batch"]:
        """Return the increase of −free_energy(v) between two shares."""
        first, risen = fields
        after, before = (softplus(torch.add(first, risen, alpha=share)) for share in (colder, hotter))
        by_hidden = (after - before).sum(-1)
        return by_hidden + (colder - hotter) * (visible * self.rise.visible).sum(-1)

    def gibbs_step(
        self, hidden_fields: Fields, share: float, generator: torch.Generator | None
    ) -> Float[Tensor, "*chains batch visible"]:
        """Draw hidden units from their fields at a share of the stretch, then visible units given the hidden
        units; return the visible units.
        """
        first, risen = hidden_fields
        hidden = draw(torch.sigmoid(torch.add(first, risen, alpha=share)), generator)
        biases = self.first.visible.add(self.rise.visible, alpha=share)
        if self.starts_uncoupled:
            fields = biases.add(hidden @ self.rise.coupling.mT, alpha=share)
        else:
            fields = biases + hidden @ self.first.coupling.add(self.rise.coupling, alpha=share).mT
        return draw(torch.sigmoid(fields), generator)


def stretches(
    energy: BipartiteEnergy,
    base: Float[Tensor, "#batch visible"] | None,
    path: Sequence[BipartiteEnergy],
    num_steps: int,
) -> list[Stretch]:
    """Return the path from no coupling to an energy, with steps evenly distributed among the parts."""
    knots = [uncoupled(energy, base), *path, energy]
    count = len(knots) - 1
    return [
        Stretch(first, _difference(first, last), (num_steps + number) // count, number == 0)
        for number, (first, last) in enumerate(pairwise(knots))
    ]


def _difference(first: BipartiteEnergy, last: BipartiteEnergy) -> BipartiteEnergy:
    return BipartiteEnergy(
        last.visible - first.visible, last.hidden - first.hidden, last.coupling - first.coupling
    )
