"""Sigmoid belief networks: each label conditioned on the labels before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from lmbm_torch.checks import check_shape
from lmbm_torch.energies.base import BaseEnergy, check_cliques, to_spins
from lmbm_torch.energies.indices import check_ordering, index_order, padded_cliques, positions_of
from lmbm_torch.shapes import Float, Int, Labels, LabelScores, Scores
from lmbm_torch.verdicts import refuse_unless


@dataclass(frozen=True)
class DirectedEnergy(BaseEnergy):
    """A batch of sigmoid belief networks that share one topological ordering.

    With spins s = 2y − 1 the local field of label i is

        z_i(s) = unary_i + Σ_{j ∈ pa(i)} parents_ij s_j + Σ_{c: i last in c} clique_weight_c Π_{j ∈ c∖i} s_j

    its local margin m_i = s_i z_i, and P(y) = Π_i σ(2 m_i), so one label alone is a Boltzmann machine of one
    spin (lmbm_and_lmsbn_2010, Definition 2).

    Args:
        unary: log-potential of each label, given the input.
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
        self._resolve_negative()
        self._check_first()
        self._check_table("parents", self.num_labels, self.num_labels)
        check_shape("ordering", self.ordering, self.num_labels)
        check_ordering(self.ordering, self.num_labels)
        if (self.clique_weight is None) != (not self.cliques):
            raise ValueError("clique_weight: expected exactly when there are cliques")
        if self.clique_weight is not None:
            self._check_table("clique_weight", len(self.cliques))
        check_cliques(self.cliques, self.num_labels, least=3)

    def check_values(self) -> None:
        """Raise ValueError for NaN or infinite log-potentials, or a parent that comes after its child."""
        super().check_values()

        def are_before() -> Tensor:
            order = self.ordering
            ordered = self.parents.detach().index_select(-2, order).index_select(-1, order)
            return ordered.triu().any().logical_not()

        def refuse() -> None:
            raise ValueError("parents: expected weights only from labels earlier in the ordering, got others")

        refuse_unless(
            "parents: expected weights only from labels earlier in the ordering",
            (self.parents, self.ordering),
            are_before,
            refuse,
        )

    @property
    def positions(self) -> Int[Tensor, " labels"]:
        """The inverse of ``ordering``: the place of each label in it."""
        return torch.argsort(self.ordering)

    def local_fields(self, labels: Labels) -> LabelScores:
        """z_i: half the log-odds of each label given the input and its parents; above 0 it should be 1."""
        spins = to_spins(labels, self.dtype)
        if self.parents.ndim == 2:
            fields = self.unary + spins @ self.parents.mT
        else:
            fields = self.unary + (self.parents @ spins.unsqueeze(-1)).squeeze(-1)
        if self.clique_weight is None:
            return fields
        members = padded_cliques(self.cliques, self.num_labels, self.device)
        # What fills up the smaller cliques stands before all labels, and is a factor of 1.
        place = pad(self.positions, (0, 1), value=-1)[members]
        is_child = place == place.amax(-1, keepdim=True)
        spins, products = pad(spins, (0, 1), value=1.0), 1
        for member, own in zip(members.mT, is_child.mT, strict=True):
            products = products * spins[..., member].masked_fill(own, 1)
        child = members.masked_fill(~is_child, 0).sum(-1)
        labels = torch.arange(self.num_labels, device=self.device)
        return fields + (self.clique_weight * products) @ (child[:, None] == labels).to(self.dtype)

    def local_margins(self, labels: Labels) -> LabelScores:
        """m_i = s_i z_i: by how much each label agrees with its local field."""
        return to_spins(labels, self.dtype) * self.local_fields(labels)

    def log_prob(self, labels: Labels) -> Scores:
        """log P(y) = −Σ_i log(1 + exp(−2 m_i)); already normalised."""
        return logsigmoid(2 * self.local_margins(labels)).sum(-1)

    def score(self, labels: Labels) -> Scores:
        """The log-probability: a directed model's log partition is zero."""
        return self.log_prob(labels)

    def in_order(self) -> DirectedEnergy:
        """The same model with its labels renamed by position, so that ``ordering`` is 0 … K − 1.

        ``labels[..., ordering]`` are the renamed labels; cliques come out sorted, their child last.
        """
        order, position = self.ordering, positions_of(self.ordering)
        return replace(
            self,
            unary=self.unary[:, order],
            parents=self.parents[..., order, :][..., order],
            ordering=index_order(self.num_labels, order.device),
            cliques=tuple(tuple(sorted(position[label] for label in clique)) for clique in self.cliques),
        )
