"""Hypermetric inequalities: what holds of products of spins beyond positive semidefiniteness.

An odd number of spins never adds up to zero, so a labelling's matrix X = s sᵀ has ⟨b bᵀ, X⟩ = (b·s)² ≥ 1 for
every vector b of an odd number of signs: three are the triangle, five the pentagonal inequalities (Helmberg
and Rendl, Solving quadratic (0,1)-problems by semidefinite programs and cutting planes, 1998, section 5).
With a unit diagonal this says Σ_{i<j} b_i b_j X_ij ≥ −(k − 1)/2 for k signs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

__all__ = ["Group", "Inequalities", "longer", "triangles"]

# Spins that agree best with an inequality already there: two of them make it one of two more signs.
PARTNERS = 24


@dataclass(frozen=True)
class Group:
    """Inequalities of as many signs each.

    Args:
        spins: the spins of each, in rising order, (inequalities, signs).
        signs: of each, the first one 1.
    """

    spins: np.ndarray
    signs: np.ndarray

    @classmethod
    def none(cls, size: int) -> Group:
        return cls(np.zeros((0, size), np.int16), np.zeros((0, size), np.int8))

    @classmethod
    def of(cls, spins: np.ndarray, signs: np.ndarray) -> Group:
        """The same inequalities in their own order: b and −b say the same."""
        order = spins.argsort(1)
        spins, signs = np.take_along_axis(spins, order, 1), np.take_along_axis(signs, order, 1)
        return cls(spins.astype(np.int16), (signs * signs[:, :1]).astype(np.int8))

    def __len__(self) -> int:
        return len(self.spins)

    @property
    def size(self) -> int:
        """The signs of each."""
        return self.spins.shape[1]

    def select(self, rows: np.ndarray) -> Group:
        return Group(self.spins[rows], self.signs[rows])

    def join(self, other: Group) -> Group:
        return Group(np.concatenate([self.spins, other.spins]), np.concatenate([self.signs, other.signs]))

    def names(self) -> np.ndarray:
        """One item for each inequality, the same where it is the same."""
        rows = np.ascontiguousarray(2 * self.spins + (self.signs > 0))
        return rows.view(np.dtype((np.void, rows.dtype.itemsize * self.size))).ravel()

    def slack(self, products: np.ndarray) -> np.ndarray:
        """⟨b bᵀ, X⟩ − 1 for a matrix X of products."""
        chosen = products[self.spins[:, :, None], self.spins[:, None]]
        return np.einsum("mi,mij,mj->m", self.signs, chosen, self.signs, dtype=np.float64) - 1

    def merged(self, gone: int, kept: int, sign: int) -> tuple[Group, Group, np.ndarray, np.ndarray]:
        """The inequalities where spin ``gone`` is ``sign`` times ``kept``, and those that become shorter.

        Returns:
            Inequalities as long as before, ones of two signs less, in which the two spins cancelled, and the
            rows that each come from; the others say no more than a unit diagonal.
        """
        has_gone, has_kept = (self.spins == gone).any(1), (self.spins == kept).any(1)
        signs = np.where(self.spins == gone, sign * self.signs, self.signs)
        spins = np.where(self.spins == gone, kept, self.spins)
        both = has_gone & has_kept
        doubled = np.where(spins == kept, signs, 0).sum(1)
        (cancelled,) = np.nonzero(both & (doubled == 0))
        (same,) = np.nonzero(~both)
        spins = spins - (spins > gone)
        rest = spins[cancelled] != kept - (kept > gone)
        shape = (len(cancelled), self.size - 2)
        shorter = Group.of(spins[cancelled][rest].reshape(shape), signs[cancelled][rest].reshape(shape))
        return Group.of(spins[same], signs[same]), shorter, same, cancelled


@dataclass(frozen=True)
class Inequalities:
    """Groups of one size after another; multipliers stand in their order."""

    groups: tuple[Group, ...]

    @classmethod
    def none(cls) -> Inequalities:
        return cls((Group.none(3), Group.none(5)))

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    def parts(self, values: np.ndarray) -> list[np.ndarray]:
        """``values``, one for each inequality, by groups."""
        return np.split(values, np.cumsum([len(group) for group in self.groups])[:-1])

    def select(self, rows: np.ndarray) -> Inequalities:
        """Those for which ``rows``, bools, is true."""
        chosen = zip(self.groups, self.parts(rows), strict=True)
        return Inequalities(tuple(group.select(part) for group, part in chosen))

    def join(self, values: np.ndarray, new: Iterable[Group]) -> tuple[Inequalities, np.ndarray]:
        """These and those ``new`` ones that are not among them, with ``values``, 0 for new ones."""
        groups, kept = [], []
        for group, part, more in zip(self.groups, self.parts(values), new, strict=True):
            fresh = more.select(~np.isin(more.names(), group.names()))
            groups.append(group.join(fresh))
            kept += [part, np.zeros(len(fresh))]
        return Inequalities(tuple(groups)), np.concatenate(kept)

    def merged(self, values: np.ndarray, gone: int, kept: int, sign: int) -> tuple[Inequalities, np.ndarray]:
        """The inequalities where spin ``gone`` is ``sign`` times ``kept``; values of equal ones add up."""
        found: list[list[tuple[Group, np.ndarray]]] = [[] for _ in self.groups]
        for place, (group, part) in enumerate(zip(self.groups, self.parts(values), strict=True)):
            same, shorter, rows, cancelled = group.merged(gone, kept, sign)
            found[place].append((same, part[rows]))
            if place:
                found[place - 1].append((shorter, part[cancelled]))
        groups, kept_values = [], []
        for pieces in found:
            group, part = pieces[0]
            for more, extra in pieces[1:]:
                group, part = group.join(more), np.concatenate([part, extra])
            _, first, place = np.unique(group.names(), return_index=True, return_inverse=True)
            groups.append(group.select(first))
            kept_values.append(np.bincount(place.ravel(), part, len(first)))
        return Inequalities(tuple(groups)), np.concatenate(kept_values)

    def entries(self, num_spins: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each group the places in a matrix, flattened, that are products of its spins, and b_i b_j.

        Of every two places of the same product the one below the diagonal; (inequalities, pairs).
        """
        found = []
        for group in self.groups:
            later, earlier = np.tril_indices(group.size, -1)
            places = group.spins[:, later].astype(np.intp) * num_spins + group.spins[:, earlier]
            found.append((places, (group.signs[:, later] * group.signs[:, earlier]).astype(np.float64)))
        return found

    @cached_property
    def limits(self) -> np.ndarray:
        """(k − 1)/2 for each."""
        return np.concatenate([np.full(len(group), (group.size - 1) / 2) for group in self.groups])


def triangles(products: np.ndarray, violation: float, most: int) -> Group:
    """The triangle inequalities that a symmetric matrix violates by more than ``violation``, worst first."""
    spins, signs, violations = [], [], []
    # In rising order, so that pairs of the first spins come first.
    later, earlier = np.tril_indices(len(products), -1)
    between = products[later, earlier]
    for last in range(2, len(products)):
        pairs = last * (last - 1) // 2
        one, other = products[last][later[:pairs]], products[last][earlier[:pairs]]
        for combined, same in ((one + other, 1), (one - other, -1)):
            amount = np.abs(combined) - same * between[:pairs] - 1
            (found,) = np.nonzero(amount > violation)
            opposite = np.where(combined[found] > 0, -1, 1)
            spins.append(np.stack([earlier[found], later[found], np.full_like(found, last)], 1))
            signs.append(np.stack([same * opposite, opposite, np.ones_like(found)], 1))
            violations.append(amount[found])
    if not violations:
        return Group.none(3)
    order = np.argsort(-np.concatenate(violations), kind="stable")[:most]
    return Group.of(np.concatenate(spins)[order], np.concatenate(signs)[order])


def longer(group: Group, products: np.ndarray, violation: float, most: int) -> Group:
    """Violated inequalities of two signs more than ``group``'s: each with the best two further spins."""
    num_spins, size = len(products), group.size
    if not len(group) or num_spins < size + 2:
        return Group.none(size + 2)
    base = group.slack(products)
    along = np.einsum("mki,mk->mi", products[group.spins], group.signs, dtype=np.float64)
    np.put_along_axis(along, group.spins.astype(np.intp), 0.0, 1)
    partners = np.argsort(-np.abs(along), kind="stable")[:, :PARTNERS]
    # Spins of the inequality itself come last; where there are few others they are barred.
    barred = (partners[:, :, None] == group.spins[:, None]).any(2)
    chosen = np.take_along_axis(along, partners, 1)
    pairs = products[partners[:, :, None], partners[:, None]]
    shut = barred[:, :, None] | barred[:, None] | np.eye(partners.shape[1], dtype=bool)
    spins, signs, violations = [], [], []
    for same in (1, -1):
        combined = chosen[:, :, None] + same * chosen[:, None]
        left = np.where(shut, np.inf, same * pairs - np.abs(combined)).reshape(len(group), -1)
        best = left.argmin(1)
        rows = np.arange(len(group))
        first, second = np.divmod(best, partners.shape[1])
        sign = np.where(combined[rows, first, second] > 0, -1, 1)
        spins.append(
            np.concatenate([group.spins, partners[rows, first, None], partners[rows, second, None]], 1)
        )
        signs.append(np.concatenate([group.signs, sign[:, None], same * sign[:, None]], 1))
        violations.append(-(base + 2 + 2 * left[rows, best]))
    amount = np.concatenate(violations)
    order = np.argsort(-amount, kind="stable")
    order = order[amount[order] > violation]
    found = Group.of(np.concatenate(spins)[order], np.concatenate(signs)[order])
    _, first = np.unique(found.names(), return_index=True)
    return found.select(np.sort(first)[:most])
