"""Trees of labels that each have one of several states and depend on their parent and children."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lmbm_torch.checks import check_finite, check_like, check_shape
from lmbm_torch.energies.base import BaseEnergy
from lmbm_torch.shapes import Float, Int, Shaped


@dataclass(frozen=True)
class TreeEnergy(BaseEnergy):
    """A batch of trees of one shape, all of whose labels are class indices 0 … states − 1.

        score(y) = Σ_t unary_t(y_t) + Σ_{t not a root} transition_t(y_{parent of t}, y_t)

    and p(y) ∝ exp(score(y)) (max_margin_markov_networks_survey_2003, section 4.2, whose chains are trees
    where every position is the parent of the next). There may be several roots: a forest.

    Args:
        unary: what the input says about the state of each node.
        transition: row r, column s: from state r of the parent to state s; the same everywhere, or one matrix
            for each example and node, a root's being never looked at.
        parents: of each node, int64, which stands before it; −1 for a root.

    Raises:
        ValueError: a tensor of the wrong shape, dtype or device; a parent that does not stand before its
            child.
    """

    PER_EXAMPLE: ClassVar = {"unary": 3, "transition": 4}

    unary: Float[Tensor, "batch nodes states"]
    transition: Float[Tensor, "states states"] | Float[Tensor, "batch nodes states states"]
    parents: Int[Tensor, " nodes"]

    def __post_init__(self) -> None:
        check_shape("unary", self.unary, None, None, None)
        if not self.unary.is_floating_point():
            raise ValueError(f"unary: expected a floating-point dtype, got {self.unary.dtype}")
        batch, nodes, states = self.unary.shape
        square = (states, states)
        shared = self.transition.ndim == 2
        check_shape("transition", self.transition, *(square if shared else (batch, nodes, *square)))
        check_like("transition", self.transition, "unary", self.unary)
        check_shape("parents", self.parents, nodes)
        if (self.parents.dtype, self.parents.device) != (torch.int64, self.unary.device):
            raise ValueError(
                f"parents: expected {torch.int64} on {self.unary.device}, "
                f"got {self.parents.dtype} on {self.parents.device}"
            )
        check_parents("parents", self.parents)

    @property
    def num_nodes(self) -> int:
        return self.num_labels

    @property
    def num_states(self) -> int:
        return self.unary.shape[2]

    @property
    def tables(self) -> Float[Tensor, "#batch nodes states states"]:
        """One matrix for each node, that of all being repeated without a copy."""
        if self.transition.ndim == 4:
            return self.transition
        return self.transition.expand(1, self.num_nodes, -1, -1)

    def check_values(self) -> None:
        """Raise ValueError for NaN or infinity among the log-potentials, the matrices of roots apart."""
        check_finite("unary", self.unary)
        shared = self.transition.ndim == 2
        check_finite("transition", self.transition if shared else self.transition[:, self.parents >= 0])

    def score(self, labels: Shaped[Tensor, "*samples #batch nodes"]) -> Float[Tensor, "*samples _batch"]:
        """Σ_t unary_t(y_t) + Σ_t transition_t(y_{parent of t}, y_t).

        Raises:
            ValueError: a label that is no state.
        """
        strange = (labels < 0) | (labels >= self.num_states)
        if bool(strange.any()):
            raise ValueError(f"labels: expected 0 to {self.num_states - 1}, got {int(strange.sum())} others")
        states = labels.long().expand(*labels.shape[:-2], self.batch_size, -1)
        unary = self.unary.expand(*states.shape, -1).gather(-1, states[..., None]).squeeze(-1)
        (children,) = (self.parents >= 0).nonzero(as_tuple=True)
        pairs = states[..., self.parents[children]] * self.num_states + states[..., children]
        tables = self.tables[:, children].flatten(-2).expand(*pairs.shape, -1)
        return unary.sum(-1) + tables.gather(-1, pairs[..., None]).squeeze(-1).sum(-1)

    def add_unary(self, unary: Float[Tensor, "#batch nodes states"]) -> TreeEnergy:
        """The energy whose score is larger by Σ_t unary_t(y_t); see :meth:`BaseEnergy.add_unary`."""
        self._check_unary(unary, self.unary)
        return replace(self, unary=self.unary + unary)


def check_parents(name: str, parents: Int[Tensor, " nodes"]) -> None:
    """Refuse parents that do not stand before their child, −1 for a root apart."""
    wrong = ((parents < -1) | (parents >= torch.arange(len(parents), device=parents.device))).nonzero()
    if len(wrong):
        node = int(wrong[0, 0])
        raise ValueError(f"{name}: expected −1 to {node - 1} at node {node}, got {int(parents[node])}")
