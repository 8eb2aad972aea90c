"""What inference returns: an answer and how far to trust it, per example of the batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lmbm_torch.shapes import Bool, Float, Int


@dataclass(frozen=True)
class Status:
    """How an answer came about.

    Args:
        exact: the objective meets its proven bound, or the method is exact on this energy.
        converged: the method ended by its own rule, not by a limit.
        num_iters: iterations (or samples, or search nodes) spent.
        residual: what is left between the answer and its proof or fixed point; 0 where exact.
    """

    exact: Bool[Tensor, " batch"]
    converged: Bool[Tensor, " batch"]
    num_iters: Int[Tensor, " batch"]
    residual: Float[Tensor, " batch"]


@dataclass(frozen=True)
class Marginals:
    """Marginal probabilities of binary labels.

    Args:
        labels: P(y_i = 1).
        log_partition: log Σ_y exp(score(y)); 0 for a directed model.
        standard_error: of ``labels``, where they were estimated from samples.
    """

    labels: Float[Tensor, "batch labels"]
    log_partition: Float[Tensor, " batch"]
    status: Status
    standard_error: Float[Tensor, "batch labels"] | None = None


@dataclass(frozen=True)
class Decoding:
    """The best labelling found, what it is worth and what is proven about it.

    Args:
        labels: {0, 1}; where several were asked for ``(batch, top_k, labels)``, best first.
        objective: what the routine optimises, at the best labelling found; ``(batch, top_k)`` for several.
        bound: no labelling (no further one, for several) does better than this.
        nodes: search nodes visited, where there is a search.
    """

    labels: Int[Tensor, "batch labels"] | Int[Tensor, "batch top_k labels"]
    objective: Float[Tensor, " batch"] | Float[Tensor, "batch top_k"]
    bound: Float[Tensor, " batch"]
    status: Status
    nodes: Int[Tensor, " batch"] | None = None
