"""Trees of labels that each have one of several states and depend on their parent and children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmbm_torch.checks import check_finite, check_magnitude
from lmbm_torch.energies.base import StateEnergy, check_precision
from lmbm_torch.shapes import Float, Int, Scores, Shaped


@dataclass(frozen=True)
class TreeEnergy(StateEnergy):
    """A batch of trees of one shape, all of whose labels are class indices 0 … states − 1.

        score(y) = Σ_t unary_t(y_t) + Σ_{t not a root} transition_t(y_{parent of t}, y_t)

    and p(y) ∝ exp(score(y)) (max_margin_markov_networks_survey_2003, section 4.2, whose chains are trees
    where every position is the parent of the next). There may be several roots: a forest.

    Args:
        unary: log-potentials of the states of each node, given the input.
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
        self._check_potentials(num_tables=self.unary.shape[1])
        self._check_index("parents", self.parents, self.num_nodes)
        check_parents("parents", self.parents)

    @property
    def num_nodes(self) -> int:
        return self.num_labels

    @property
    def tables(self) -> Float[Tensor, "#batch nodes states states"]:
        """One matrix for each node, that of all being repeated without a copy."""
        return self.transition.expand(1, self.num_nodes, -1, -1) if self.is_shared else self.transition

    def check_values(self) -> None:
        """Raise ValueError as :meth:`BaseEnergy.check_values`, the matrices of roots apart."""
        check_precision(self.dtype)
        tables = self.transition if self.is_shared else self.transition[:, self.parents >= 0]
        for name, values in (("unary", self.unary), ("transition", tables)):
            check_finite(name, values)
            check_magnitude(name, values)

    def score(self, labels: Shaped[Tensor, "*samples #batch nodes"]) -> Scores:
        """Σ_t unary_t(y_t) + Σ_t transition_t(y_{parent of t}, y_t).

        Raises:
            ValueError: a label that is no state.
        """
        self._check_states((labels < 0) | (labels >= self.num_states))
        # An index that is refused later must not reach a device's kernel, which would not survive it.
        states = labels.long().clamp(0, self.num_states - 1)
        states = states.expand(*labels.shape[:-2], self.batch_size, -1)
        unary = self._unary_scores(states)
        (children,) = (self.parents >= 0).nonzero(as_tuple=True)
        pairs = states[..., self.parents[children]] * self.num_states + states[..., children]
        tables = self.tables[:, children].flatten(-2).expand(*pairs.shape, -1)
        return unary.sum(-1) + tables.gather(-1, pairs[..., None]).squeeze(-1).sum(-1)


def check_parents(name: str, parents: Int[Tensor, " nodes"]) -> None:
    """Refuse parents that do not stand before their child, −1 for a root apart."""
    wrong = ((parents < -1) | (parents >= torch.arange(len(parents), device=parents.device))).nonzero()
    if len(wrong):
        node = int(wrong[0, 0])
        raise ValueError(f"{name}: expected −1 to {node - 1} at node {node}, got {int(parents[node])}")
