"""Sigmoid belief networks: the distribution of each label depends on earlier labels."""

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
    """A batch of sigmoid belief networks with one shared topological ordering.

    With spins s = 2y − 1 the local field of label i is

        z_i(s) = unary_i + Σ_{j ∈ pa(i)} parents_ij s_j + Σ_{c: i last in c} clique_weight_c Π_{j ∈ c∖i} s_j

    the local margin is m_i = s_i z_i, and P(y) = Π_i σ(2 m_i). Each label's conditional distribution is a
    Boltzmann machine of one spin (lmbm_and_lmsbn_2010, Definition 2).

    Args:
        unary: log-potential of each label, given the input.
        parents: row i holds the weights of label i's parents, ``(labels, labels)`` shared by the batch or
            ``(batch, labels, labels)``; non-zero only where column j precedes row i in ``ordering``.
        ordering: ``ordering[t]`` is the label at position t.
        cliques: sets of three or more labels; the last label of each set in ``ordering`` is the child, all
            other labels are parents.
        clique_weight: one weight per clique, ``(cliques,)`` or ``(batch, cliques)``.

    Raises:
        ValueError: a tensor has a wrong shape, dtype or device; the ordering is no permutation; a parent
            that does not precede its child; a clique that is too small, or has a repeated or unknown label.

    Examples:
        >>> import torch
        >>> from lmbm_torch import DirectedEnergy
        >>> parents = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> energy = DirectedEnergy(torch.zeros(1, 2), parents, torch.arange(2))
        >>> energy.log_prob(torch.tensor([[1, 1]])).exp()
        tensor([0.4404])
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
            raise ValueError("clique_weight: expected a tensor with cliques, and None without cliques")
        if self.clique_weight is not None:
            self._check_table("clique_weight", len(self.cliques))
        check_cliques(self.cliques, self.num_labels, least=3)

    def check_values(self) -> None:
        """Raise ValueError for NaN or infinite log-potentials, or a parent after its child."""
        super().check_values()

        def are_before() -> Tensor:
            order = self.ordering
            ordered = self.parents.detach().index_select(-2, order).index_select(-1, order)
            return ordered.triu().any().logical_not()

        def refuse() -> None:
            raise ValueError(
                "parents: expected weights from labels earlier in the ordering, got weights from later labels"
            )

        refuse_unless(
            "parents: expected weights from labels earlier in the ordering",
            (self.parents, self.ordering),
            are_before,
            refuse,
        )

    @property
    def positions(self) -> Int[Tensor, " labels"]:
        """Return the position of each label in ``ordering``."""
        return torch.argsort(self.ordering)

    def local_fields(self, labels: Labels) -> LabelScores:
        """Return the local fields z_i, half the logit of each label given the input and the parents."""
        spins = to_spins(labels, self.dtype)
        if self.parents.ndim == 2:
            fields = self.unary + spins @ self.parents.mT
        else:
            fields = self.unary + (self.parents @ spins.unsqueeze(-1)).squeeze(-1)
        if self.clique_weight is None:
            return fields
        members = padded_cliques(self.cliques, self.num_labels, self.device)
        # Pad smaller cliques with a label at position −1, before all labels, whose spin is 1.
        place = pad(self.positions, (0, 1), value=-1)[members]
        is_child = place == place.amax(-1, keepdim=True)
        spins, products = pad(spins, (0, 1), value=1.0), 1
        for member, own in zip(members.mT, is_child.mT, strict=True):
            products = products * spins[..., member].masked_fill(own, 1)
        child = members.masked_fill(~is_child, 0).sum(-1)
        labels = torch.arange(self.num_labels, device=self.device)
        return fields + (self.clique_weight * products) @ (child[:, None] == labels).to(self.dtype)

    def local_margins(self, labels: Labels) -> LabelScores:
        """Return the local margins m_i = s_i z_i, the agreement of each label with the local field."""
        return to_spins(labels, self.dtype) * self.local_fields(labels)

    def log_prob(self, labels: Labels) -> Scores:
        """Return log P(y) = −Σ_i log(1 + exp(−2 m_i)), with local margins m_i."""
        return logsigmoid(2 * self.local_margins(labels)).sum(-1)

    def score(self, labels: Labels) -> Scores:
        """Return the log-probability, since the log-partition function of a belief network is 0."""
        return self.log_prob(labels)

    def in_order(self) -> DirectedEnergy:
        """Renumber the labels by position, and return the same model with the ordering 0, 1, ….

        ``labels[..., ordering]`` are the renumbered labels; cliques are sorted, with the child last.
        """
        order, position = self.ordering, positions_of(self.ordering)
        return replace(
            self,
            unary=self.unary[:, order],
            parents=self.parents[..., order, :][..., order],
            ordering=index_order(self.num_labels, order.device),
            cliques=tuple(tuple(sorted(position[label] for label in clique)) for clique in self.cliques),
        )
