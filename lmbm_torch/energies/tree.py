"""Trees of labels with several states; each label depends on its parent and children."""

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
    """A batch of trees with the same edges, and with class indices 0 … states − 1 as labels.

        score(y) = Σ_t unary_t(y_t) + Σ_{t not a root} transition_t(y_{parent of t}, y_t)

    and p(y) ∝ exp(score(y)) (max_margin_markov_networks_survey_2003, section 4.2; a chain is a tree in which
    every position is the parent of the next position). A forest with several roots is allowed.

    Args:
        unary: log-potentials of the states of each node, given the input.
        transition: row r, column s: log-potential of state s if the parent has state r; one matrix for all
            nodes, or one for each example and node. The matrix of a root is never read.
        parents: the index of each node's parent, int64, below the node's own index; −1 for a root.

    Raises:
        ValueError: a tensor has a wrong shape, dtype or device; a parent comes after its child.

    Examples:
        >>> import torch
        >>> from lmbm_torch import TreeEnergy, decode
        >>> unary = torch.tensor([[[0.0, 2.0], [0.5, 0.0], [0.5, 0.0]]])
        >>> decode(TreeEnergy(unary, torch.eye(2), torch.tensor([-1, 0, 0]))).labels
        tensor([[1, 1, 1]])
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
        """Return one matrix for each node; a shared matrix is repeated without a copy."""
        return self.transition.expand(1, self.num_nodes, -1, -1) if self.is_shared else self.transition

    def check_values(self) -> None:
        """Raise ValueError as :meth:`BaseEnergy.check_values` does, but ignore the matrices of roots."""
        check_precision(self.dtype)
        tables = self.transition if self.is_shared else self.transition[:, self.parents >= 0]
        for name, values in (("unary", self.unary), ("transition", tables)):
            check_finite(name, values)
            check_magnitude(name, values)

    def score(self, labels: Shaped[Tensor, "*samples #batch nodes"]) -> Scores:
        """Return the score Σ_t unary_t(y_t) + Σ_t transition_t(y_{parent of t}, y_t).

        Raises:
            ValueError: a label is no state.
        """
        self._check_states((labels < 0) | (labels >= self.num_states))
        # Clamp the indices: a GPU kernel must not get an index out of range, even if it is refused later.
        states = labels.long().clamp(0, self.num_states - 1)
        states = states.expand(*labels.shape[:-2], self.batch_size, -1)
        unary = self._unary_scores(states)
        (children,) = (self.parents >= 0).nonzero(as_tuple=True)
        pairs = states[..., self.parents[children]] * self.num_states + states[..., children]
        tables = self.tables[:, children].flatten(-2).expand(*pairs.shape, -1)
        return unary.sum(-1) + tables.gather(-1, pairs[..., None]).squeeze(-1).sum(-1)


def check_parents(name: str, parents: Int[Tensor, " nodes"]) -> None:
    """Raise ValueError unless each entry is −1 (a root) or the index of an earlier node."""
    wrong = ((parents < -1) | (parents >= torch.arange(len(parents), device=parents.device))).nonzero()
    if len(wrong):
        node = int(wrong[0, 0])
        raise ValueError(f"{name}: expected −1 to {node - 1} for node {node}, got {int(parents[node])}")
