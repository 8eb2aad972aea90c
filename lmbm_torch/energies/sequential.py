"""Distributions of labels in order, given by a function that returns log P(y_t | labels before t)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_counts, check_permutation, check_shape
from lmbm_torch.shapes import Float, Int, Labels, Scores

Conditional = Callable[[int, Tensor, Tensor], Tensor]

# Probabilities may sum to 1 ± this number: forests and boosting round to single precision.
ROUND_OFF = 1e-3


@dataclass(frozen=True, eq=False)
class SequentialEnergy:
    """A batch of distributions P(y) = Π_t P(y_t | y_<t) over labels of two or more values each.

    A search queries the distribution of a label for many prefixes (labels at earlier positions) together. The
    energy contains only the function, so inputs and parameters stay with the caller.

    Args:
        batch_size: the number of examples.
        num_states: for each label, the number of values 0 … states − 1.
        ordering: the label at each position.
        conditional: (position t, rows, earlier) → log P(y_t = s | example, y_<t), (nodes, states), −∞ for
            impossible states; ``rows`` (nodes,) are the prefixes' examples, ``earlier`` (nodes, t) their
            labels at positions 0 … t − 1, both int64.
        dtype: the data type of results; sums are computed in float64.

    Raises:
        ValueError: ``batch_size`` or a number of labels or states is below 1; the ordering is no permutation.

    Examples:
        >>> import torch
        >>> from lmbm_torch import SequentialEnergy, decode
        >>> def conditional(position, rows, earlier):
        ...     return torch.tensor([[0.4, 0.6]]).log().expand(len(rows), 2)
        >>> decode(SequentialEnergy(1, (2, 2), (0, 1), conditional)).labels
        tensor([[1, 1]])
    """

    batch_size: int
    num_states: tuple[int, ...]
    ordering: tuple[int, ...]
    conditional: Conditional
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("num_states: labels", len(self.num_states))
        check_counts(**{f"num_states[{label}]": count for label, count in enumerate(self.num_states)})
        check_permutation("ordering", self.ordering, self.num_labels)

    @property
    def num_labels(self) -> int:
        return len(self.num_states)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def positions(self) -> Int[Tensor, " labels"]:
        """Return the position of each label in ``ordering``."""
        return torch.tensor(self.ordering, device="cpu").argsort()

    def to(self, *where: torch.dtype | torch.device | str) -> SequentialEnergy:
        """Return the energy with results in another precision.

        Raises:
            ValueError: the device is not the CPU, on which the function is called.
        """
        dtype = self.dtype
        for each in where:
            if isinstance(each, torch.dtype):
                dtype = each
            elif torch.device(each) != self.device:
                raise ValueError(f"where: expected a dtype or the CPU for {type(self).__name__}, got {each}")
        return replace(self, dtype=dtype)

    def check_values(self) -> None:
        """Do nothing: log-probabilities are checked when ``conditional`` returns them."""

    def log_conditional(
        self, position: int, rows: Int[Tensor, " nodes"], earlier: Int[Tensor, "nodes _position"]
    ) -> Float[Tensor, "nodes states"]:
        """Return log P(y_t = s | example, y_<t) of the label at ``position`` t, given earlier labels y_<t.

        Raises:
            ValueError: the returned values have another shape, contain NaN or do not sum to 1.
        """
        label = self.ordering[position]
        came = self.conditional(position, rows, earlier).double()
        name = f"P(label {label} | labels before it)"
        check_shape(name, came, len(rows), self.num_states[label])
        total = came.logsumexp(1)
        if not bool((total.abs() <= ROUND_OFF).all()):
            raise ValueError(
                f"{name}: expected log-probabilities whose exponentials sum to 1, got sums such as "
                f"{float(total[~(total.abs() <= ROUND_OFF)][0].exp()):.6g}"
            )
        return came - total[:, None]

    @torch.no_grad()
    def log_prob(self, labels: Labels) -> Scores:
        """Return log P(y) of each labelling.

        Raises:
            ValueError: a label has a value outside 0 … states − 1.
        """
        labels = labels.expand(*labels.shape[:-2], self.batch_size, self.num_labels).long()
        strange = (labels < 0) | (labels >= torch.tensor(self.num_states, device="cpu"))
        if bool(strange.any()):
            raise ValueError(
                f"labels: expected values from 0 to the number of states − 1, with states {self.num_states}, "
                f"got {int(strange.sum())} other values"
            )
        values = labels.reshape(-1, self.num_labels)[:, list(self.ordering)]
        rows = torch.arange(self.batch_size, device="cpu").repeat(len(values) // self.batch_size)
        total = torch.zeros(len(values), dtype=torch.float64, device="cpu")
        for position in range(self.num_labels):
            factor = self.log_conditional(position, rows, values[:, :position])
            total += factor.gather(1, values[:, position, None]).squeeze(1)
        return total.view(labels.shape[:-1]).to(self.dtype)

    def score(self, labels: Labels) -> Scores:
        """Return the log-probability, since the log-partition function is 0."""
        return self.log_prob(labels)

    def energy(self, labels: Labels) -> Scores:
        """Return the negative score of each labelling."""
        return -self.score(labels)

    def select(self, rows: Tensor | slice) -> SequentialEnergy:
        """Return the distributions of some of the batch's examples."""
        chosen = torch.arange(self.batch_size, device="cpu")[rows]

        def conditional(position: int, rows: Tensor, earlier: Tensor) -> Tensor:
            return self.conditional(position, chosen[rows], earlier)

        return replace(self, batch_size=len(chosen), conditional=conditional)

    def add_unary(self, unary: Tensor) -> Any:
        """Raise TypeError, since terms cannot be added to a normalised score."""
        raise TypeError("energy: expected a kind that takes further unary terms, got SequentialEnergy")
