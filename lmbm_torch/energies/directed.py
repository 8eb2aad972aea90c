"""Sigmoid belief networks: each label conditioned on the labels before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lmbm_torch.checks import check_like, check_permutation, check_shape
from lmbm_torch.energies.base import BaseEnergy, to_spins
from lmbm_torch.shapes import Float, Int, Shaped


@dataclass(frozen=True)
class DirectedEnergy(BaseEnergy):
    """A batch of sigmoid belief networks that share one topological ordering.

    With spins s = 2y − 1 the local field of label i is

        z_i(s) = unary_i + Σ_{j ∈ pa(i)} parents_ij s_j + Σ_{c: i last in c} clique_weight_c Π_{j ∈ c∖i} s_j

    its local margin m_i = s_i z_i, and P(y) = Π_i σ(2 m_i), so one label alone is a Boltzmann machine of one
    spin (lmbm_and_lmsbn_2010, Definition 2).

    Args:
        unary: what the input says about each label.
        parents: row i holds the weights of label i's parents, ``(labels, labels)`` shared by the batch or
            ``(batch, labels, labels)``; non-zero only where column j precedes row i in ``ordering``.
        ordering: ``ordering[t]`` is the label at position t.
        cliques: sets of three or more labels; the last of each in ``ordering`` is the child, the others are
            its parents.
        clique_weight: one weight per clique, ``(cliques,)`` or ``(batch, cliques)``.

    Raises:
        ValueError: a tensor of the wrong shape, dtype or device; an ordering that is no permutation; a parent
            that does not precede its child; a clique that is too small, or that repeats or lacks a label.
    """

    PER_EXAMPLE: ClassVar = {"unary": 2, "parents": 3, "clique_weight": 2}

    unary: Float[Tensor, "batch labels"]
    parents: Float[Tensor, "labels labels"] | Float[Tensor, "batch labels labels"]
    ordering: Int[Tensor, " labels"]
    cliques: tuple[tuple[int, ...], ...] = ()
    clique_weight: Float[Tensor, " cliques"] | Float[Tensor, "batch cliques"] | None = None

    def __post_init__(self) -> None:
        check_shape("unary", self.unary, None, None)
        batch, labels = self.unary.shape
        square = (labels, labels)
        check_shape("parents", self.parents, *(square if self.parents.ndim == 2 else (batch, *square)))
        check_shape("ordering", self.ordering, labels)
        check_permutation("ordering", self.ordering, labels)
        if not self.unary.is_floating_point():
            raise ValueError(f"unary: expected a floating-point dtype, got {self.unary.dtype}")
        check_like("parents", self.parents, "unary", self.unary)
        if (self.clique_weight is None) != (not self.cliques):
            raise ValueError("clique_weight: expected exactly when there are cliques")
        if self.clique_weight is not None:
            count = len(self.cliques)
            check_shape("clique_weight", self.clique_weight, *self.clique_weight.shape[:-1], count)
            if self.clique_weight.ndim == 2:
                check_shape("clique_weight", self.clique_weight, batch, count)
            check_like("clique_weight", self.clique_weight, "unary", self.unary)
        for clique in self.cliques:
            if len(clique) < 3 or len(set(clique)) < len(clique) or not set(clique) <= set(range(labels)):
                raise ValueError(f"cliques: expected 3 or more distinct labels below {labels}, got {clique}")

    def check_values(self) -> None:
        """Raise ValueError for NaN or infinite log-potentials, or a parent that comes after its child."""
        super().check_values()
        position = self.positions
        not_before = position[None, :] >= position[:, None]
        if bool((self.parents * not_before != 0).any()):
            raise ValueError("parents: expected weights only from labels earlier in the ordering, got others")

    @property
    def positions(self) -> Int[Tensor, " labels"]:
        """The inverse of ``ordering``: the place of each label in it."""
        return torch.argsort(self.ordering)

    def local_fields(
        self, labels: Shaped[Tensor, "*samples #batch labels"]
    ) -> Float[Tensor, "*samples _batch labels"]:
        """z_i: what the input and its parents say about each label (positive: it should be 1)."""
        spins = to_spins(labels, self.dtype)
        if self.parents.ndim == 2:
            fields = self.unary + spins @ self.parents.mT
        else:
            fields = self.unary + (self.parents @ spins.unsqueeze(-1)).squeeze(-1)
        if self.clique_weight is None:
            return fields
        position = self.positions.tolist()
        by_child = [sorted(clique, key=position.__getitem__) for clique in self.cliques]
        products = torch.stack([spins[..., clique[:-1]].prod(-1) for clique in by_child], -1)
        to_child = torch.zeros(len(by_child), self.num_labels, dtype=self.dtype, device=self.device)
        to_child[range(len(by_child)), [clique[-1] for clique in by_child]] = 1
        return fields + (self.clique_weight * products) @ to_child

    def local_margins(
        self, labels: Shaped[Tensor, "*samples #batch labels"]
    ) -> Float[Tensor, "*samples _batch labels"]:
        """m_i = s_i z_i: by how much each label agrees with its local field."""
        return to_spins(labels, self.dtype) * self.local_fields(labels)

    def log_prob(self, labels: Shaped[Tensor, "*samples #batch labels"]) -> Float[Tensor, "*samples _batch"]:
        """log P(y) = −Σ_i log(1 + exp(−2 m_i)); already normalised."""
        return logsigmoid(2 * self.local_margins(labels)).sum(-1)

    def score(self, labels: Shaped[Tensor, "*samples #batch labels"]) -> Float[Tensor, "*samples _batch"]:
        """The log-probability: a directed model's log partition is zero."""
        return self.log_prob(labels)

    def in_order(self) -> DirectedEnergy:
        """The same model with its labels renamed by position, so that ``ordering`` is 0 … K − 1.

        ``labels[..., ordering]`` are the renamed labels; cliques come out sorted, their child last.
        """
        order, position = self.ordering, self.positions.tolist()
        return replace(
            self,
            unary=self.unary[:, order],
            parents=self.parents[..., order, :][..., order],
            ordering=torch.arange(self.num_labels, device=order.device),
            cliques=tuple(tuple(sorted(position[label] for label in clique)) for clique in self.cliques),
        )
